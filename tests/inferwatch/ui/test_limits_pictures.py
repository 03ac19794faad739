"""What limits look like at three sizes; a change is reviewed as a picture."""

import pytest

from tests.inferwatch.ui import limits_sessions
from tests.inferwatch.ui.conftest import app_on
from tests.inferwatch.ui.pictures import (
    LARGE,
    SMALL,
    USUAL,
    Pictures,
    Size,
    walks,
)
from tests.inferwatch.ui.test_pictures import showing

PICTURES = [
    ("h100", (), SMALL),
    ("h100", ("v",), SMALL),
    ("h100", (), USUAL),
    ("h100", (), LARGE),
    ("curved", ("V",), SMALL),
    ("curved", ("v",), USUAL),
    ("curved", (), LARGE),
    ("no_shape", (), SMALL),
    ("no_shape", (), USUAL),
    ("impossible", (), SMALL),
    ("impossible", (), USUAL),
    ("eight", (), LARGE),
    ("told", (), USUAL),
    ("told", ("v", "v"), SMALL),
    ("scraped", (), SMALL),
    ("scraped", (), USUAL),
]
MORE = [
    ("h100", ("v", "v"), SMALL),
    ("h100", ("question_mark",), USUAL),
    ("h100", ("t",), USUAL),
    ("prefill_heavy", (), SMALL),
    ("prefill_heavy", (), USUAL),
    ("cpu", (), SMALL),
    ("cpu", (), USUAL),
    ("no_compute", (), SMALL),
    ("no_peak", (), SMALL),
    ("no_peak", (), USUAL),
    ("eight", ("v", "v"), SMALL),
    ("eight", ("down", "down", "down"), USUAL),
    ("lost", (), SMALL),
    ("lost", (), USUAL),
    ("untouched", (), SMALL),
    ("untouched", (), USUAL),
    ("nothing_yet", (), SMALL),
    ("nothing_yet", (), USUAL),
]
"""They show the parts of the others; words of their own are read by other tests."""


@pytest.mark.parametrize(
    ("kind", "keys", "sizes"), [*walks(PICTURES), *walks(MORE, pytest.mark.soak)]
)
def test_picture_of_limits(
    pictures: Pictures, kind: str, keys: tuple[str, ...], sizes: dict[str, Size]
) -> None:
    app = app_on("limits", getattr(limits_sessions, kind)())

    assert not pictures(app, sizes, showing(*keys))
