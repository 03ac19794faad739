"""What the hardware looks like; a change is reviewed as a picture."""

import pytest

from tests.inferwatch.ui import hardware_sessions
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
    ("busy", (), SMALL),
    ("busy", (), USUAL),
    ("busy", (), LARGE),
    ("eight", (), SMALL),
    ("mig", (), SMALL),
]
MORE = [
    ("eight", ("down",), USUAL),
    ("without_driver", (), SMALL),
    ("without_driver", (), USUAL),
    ("simulated", (), USUAL),
    ("without_gpm", (), USUAL),
    ("stale_dcgm", (), SMALL),
]
"""They differ in words, which tests read."""


@pytest.mark.parametrize(
    ("kind", "keys", "sizes"),
    [*walks(PICTURES), *walks(MORE, pytest.mark.soak)],
)
def test_picture_of_the_hardware(
    pictures: Pictures, kind: str, keys: tuple[str, ...], sizes: dict[str, Size]
) -> None:
    app = app_on("hardware", getattr(hardware_sessions, kind)())

    assert not pictures(app, sizes, showing(*keys))
