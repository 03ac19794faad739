"""What limits look like at three sizes; a change is reviewed as a picture."""

from collections.abc import Callable

import pytest

from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.pages import SessionPage
from tests.inferwatch.ui import limits_sessions
from tests.inferwatch.ui.test_pictures import LARGE, SMALL, USUAL, showing

Compare = Callable[..., bool]
PICTURES = [
    ("h100", (), SMALL),
    ("h100", ("v",), SMALL),
    ("h100", ("v", "v"), SMALL),
    ("h100", (), USUAL),
    ("h100", (), LARGE),
    ("h100", ("question_mark",), USUAL),
    ("h100", ("t",), USUAL),
    ("prefill_heavy", (), SMALL),
    ("prefill_heavy", (), USUAL),
    ("cpu", (), SMALL),
    ("cpu", (), USUAL),
    ("no_compute", (), SMALL),
    ("no_shape", (), SMALL),
    ("no_shape", (), USUAL),
    ("no_peak", (), SMALL),
    ("no_peak", (), USUAL),
    ("impossible", (), SMALL),
    ("impossible", (), USUAL),
    ("eight", ("v", "v"), SMALL),
    ("eight", ("down", "down", "down"), USUAL),
    ("eight", (), LARGE),
    ("scraped", (), SMALL),
    ("scraped", (), USUAL),
    ("lost", (), SMALL),
    ("lost", (), USUAL),
    ("untouched", (), SMALL),
    ("untouched", (), USUAL),
    ("nothing_yet", (), SMALL),
    ("nothing_yet", (), USUAL),
]


@pytest.mark.parametrize(
    ("kind", "keys", "size"),
    [
        pytest.param(kind, keys, size, id="-".join((kind, *keys, f"{size[0]}")))
        for kind, keys, size in PICTURES
    ],
)
def test_picture_of_limits(
    snap_compare: Compare, kind: str, keys: tuple[str, ...], size: tuple[int, int]
) -> None:
    app = InferwatchApp(SessionPage(getattr(limits_sessions, kind)()))

    assert snap_compare(app, terminal_size=size, run_before=showing("6", *keys))
