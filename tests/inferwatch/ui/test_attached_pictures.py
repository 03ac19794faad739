"""What one server that others run looks like; a change is reviewed as a picture."""

import pytest

from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.pages import SessionPage
from tests.inferwatch.ui import attached_sessions
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
    ("scraped", (), SMALL),
    ("scraped", (), USUAL),
    ("scraped", (), LARGE),
    ("scraped", ("3",), USUAL),
    ("lost_server", (), USUAL),
    ("lost_server", (), SMALL),
    ("from_prometheus", (), USUAL),
]


MORE = [
    ("scraped", ("2",), USUAL),
    ("scraped", ("4",), USUAL),
    ("scraped", ("t",), USUAL),
    ("scraped", ("question_mark",), SMALL),
    ("restarted", (), USUAL),
    ("unanswered", (), SMALL),
    ("unanswered", (), USUAL),
    ("insecure", (), SMALL),
    ("slow", (), SMALL),
]
"""They differ in words that tests read, or in colours that other pictures show."""


@pytest.mark.parametrize(
    ("kind", "keys", "sizes"),
    [*walks(PICTURES), *walks(MORE, pytest.mark.soak)],
)
def test_picture_of_a_server(
    pictures: Pictures, kind: str, keys: tuple[str, ...], sizes: dict[str, Size]
) -> None:
    app = InferwatchApp(SessionPage(getattr(attached_sessions, kind)()))

    assert not pictures(app, sizes, showing(*keys))
