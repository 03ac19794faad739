"""``demo --record-on`` in a terminal says what it keeps, and what came of it."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]


def test_it_is_armed_and_says_at_the_end_that_nothing_happened(
    terminal: Callable[..., Any], home: Any
) -> None:
    home.stand_in()
    shown = terminal("demo", "--record-on", "waiting>5000", "--keep", "20min")
    shown.shows("Overview")
    shown.resize(120, 40)
    shown.shows("armed")
    shown.shows("of 20 min in memory")

    shown.press("q")

    shown.shows("nothing was recorded")
    assert not home.database.exists()
