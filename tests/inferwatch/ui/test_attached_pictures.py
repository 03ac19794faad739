"""What one server that others run looks like; a change is reviewed as a picture."""

from collections.abc import Callable

import pytest

from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.pages import SessionPage
from tests.inferwatch.ui import attached_sessions
from tests.inferwatch.ui.test_pictures import LARGE, SMALL, USUAL, showing

Compare = Callable[..., bool]

PICTURES = [
    ("scraped", (), SMALL),
    ("scraped", (), USUAL),
    ("scraped", (), LARGE),
    ("scraped", ("t",), USUAL),
    ("scraped", ("2",), USUAL),
    ("scraped", ("3",), USUAL),
    ("scraped", ("4",), USUAL),
    ("scraped", ("question_mark",), SMALL),
    ("restarted", (), USUAL),
    ("lost_server", (), USUAL),
    ("lost_server", (), SMALL),
    ("insecure", (), SMALL),
    ("slow", (), SMALL),
    ("from_prometheus", (), USUAL),
    ("unanswered", (), SMALL),
    ("unanswered", (), USUAL),
]


@pytest.mark.parametrize(
    ("kind", "keys", "size"),
    [
        pytest.param(kind, keys, size, id="-".join((kind, *keys, f"{size[0]}")))
        for kind, keys, size in PICTURES
    ],
)
def test_picture_of_a_server(
    snap_compare: Compare, kind: str, keys: tuple[str, ...], size: tuple[int, int]
) -> None:
    app = InferwatchApp(SessionPage(getattr(attached_sessions, kind)()))

    assert snap_compare(app, terminal_size=size, run_before=showing(*keys))
