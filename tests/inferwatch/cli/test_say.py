"""Where commands may draw, and where they may only write."""

import io
import sys

import pytest

from inferwatch.cli.say import shows_screens

STREAMS = ("stdin", "stdout", "stderr")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("redirected", STREAMS)
def test_a_screen_is_drawn_only_where_all_streams_are_the_terminal(
    redirected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in STREAMS:
        monkeypatch.setattr(sys, name, Terminal())
    assert shows_screens()

    monkeypatch.setattr(sys, redirected, io.StringIO())
    assert not shows_screens()
