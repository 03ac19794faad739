"""A terminal at the end of a slow line: late pictures, but no late leaving."""

import os
import time
from collections.abc import Callable
from typing import Any

import pexpect
import pytest

BYTES_PER_S = 1_500
AT_ONCE_BYTES = 300
"""To look at the screen takes a while, too."""
QUESTION, ANSWER = b"\x1b[?2026$p", b"\x1b[?2026;2$y"
SOON_S = 60.0
AT_ONCE_S = 3.0


class SlowReader:
    """Takes no more than the line carries, and answers when it has come so far."""

    def __init__(self, shown: Any, *, answers: bool) -> None:
        self.shown, self.answers = shown, answers
        self._began_s, self._taken, self._asked = time.monotonic(), 0, 0

    def take(self) -> str:
        """What has come by now; the screen as text."""
        allowed = int((time.monotonic() - self._began_s) * BYTES_PER_S)
        if allowed - self._taken < AT_ONCE_BYTES:
            time.sleep(0.02)
            return ""
        try:
            came = self.shown.child.read_nonblocking(
                allowed - self._taken, timeout=0.01
            )
        except pexpect.TIMEOUT:
            self._taken = allowed
            return ""
        self._taken += len(came)
        self.shown.raw += came
        self.shown._stream.feed(came)
        self._answer()
        return "\n".join(self.shown.screen.display)

    def _answer(self) -> None:
        asked = self.shown.raw.count(QUESTION)
        if self.answers:
            os.write(self.shown.child.child_fd, ANSWER * (asked - self._asked))
        self._asked = asked


@pytest.mark.parametrize(
    "answers",
    [
        True,
        # It shows only once the way to the terminal is full, which takes a while.
        pytest.param(False, marks=pytest.mark.soak),
    ],
)
def test_a_slow_line_is_said_and_left_at_once(
    terminal: Callable[..., Any], home: Any, answers: bool
) -> None:
    home.environment["XDG_CACHE_HOME"] = str(home.path / "cache")
    shown = terminal("demo", "--sample", columns=120, rows=40)
    reader = SlowReader(shown, answers=answers)
    deadline_s = time.monotonic() + SOON_S
    while "slow line: drawing every" not in reader.take():
        assert time.monotonic() < deadline_s, "the slow line is not said"

    shown.child.send("q")
    deadline_s = time.monotonic() + AT_ONCE_S
    while shown.child.isalive():
        assert time.monotonic() < deadline_s, "it does not end"
        try:
            reader.take()
        except pexpect.EOF:
            break
