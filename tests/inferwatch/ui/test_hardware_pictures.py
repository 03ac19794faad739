"""What the hardware looks like; a change is reviewed as a picture."""

from collections.abc import Callable

import pytest

from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.pages import SessionPage
from tests.inferwatch.ui import hardware_sessions
from tests.inferwatch.ui.test_pictures import LARGE, SMALL, USUAL, showing

Compare = Callable[..., bool]

PICTURES = [
    ("busy", (), SMALL),
    ("busy", (), USUAL),
    ("busy", (), LARGE),
    ("eight", (), SMALL),
    ("eight", ("down",), USUAL),
    ("mig", (), SMALL),
    ("without_gpm", (), USUAL),
    ("without_driver", (), SMALL),
    ("without_driver", (), USUAL),
    ("stale_dcgm", (), SMALL),
    ("simulated", (), USUAL),
]


@pytest.mark.parametrize(
    ("kind", "keys", "size"),
    [
        pytest.param(kind, keys, size, id="-".join((kind, *keys, f"{size[0]}")))
        for kind, keys, size in PICTURES
    ],
)
def test_picture_of_the_hardware(
    snap_compare: Compare, kind: str, keys: tuple[str, ...], size: tuple[int, int]
) -> None:
    app = InferwatchApp(SessionPage(getattr(hardware_sessions, kind)()))

    assert snap_compare(app, terminal_size=size, run_before=showing("5", *keys))
