"""Where commands may draw, and where they may only write."""

import io
import json
import math
import sys

import pytest

from inferwatch.cli.say import say_json, shows_screens

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


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_json_has_null_for_a_number_it_has_no_word_for(
    number: float, capsys: pytest.CaptureFixture[str]
) -> None:
    say_json({"temperature": number, "kept": [number, 1.5, "Infinity"]})

    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert told == {"temperature": None, "kept": [None, 1.5, "Infinity"]}
