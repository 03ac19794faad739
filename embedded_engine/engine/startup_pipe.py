"""A pipe on which the server process reports before vLLM is up.

Both ends are defined here; the child inherits its end by number.
"""

import os
from contextlib import suppress

VARIABLE = "INFERWATCH_STARTUP_FD"
UP, LACKS = b"up\n", b"lacks "


class StartupPipe:
    """A pipe on which a starting process reports that it runs, or what is missing."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        self._handed_over = False
        os.set_blocking(self._reader, False)
        self._buffer = b""

    @property
    def up(self) -> bool:
        """Whether the child has reported that our code runs in it."""
        return UP in self._read()

    @property
    def lacks(self) -> str | None:
        """What the child reports as missing, as text for users; None if nothing."""
        _, separator, sentence = self._read().partition(LACKS)
        return sentence.decode("utf-8", "replace").strip() if separator else None

    def _read(self) -> bytes:
        with suppress(BlockingIOError):
            while data := os.read(self._reader, 4096):
                self._buffer += data
        return self._buffer

    def hand_over(self) -> None:
        """Close our copy of the child's end."""
        if not self._handed_over:
            os.close(self.writer)
        self._handed_over = True

    def close(self) -> None:
        """Close both ends on our side."""
        self.hand_over()
        os.close(self._reader)


def say_up() -> None:
    """Report to the parent that this child process runs."""
    _say(UP)


def say_lacking(sentence: str) -> None:
    """Report to the parent why this child process cannot continue."""
    _say(LACKS + sentence.encode() + b"\n")


def _say(words: bytes) -> None:
    """Write to the start-up pipe, if there is one and the parent is alive."""
    if descriptor := os.environ.get(VARIABLE):
        with suppress(OSError):
            os.set_inheritable(int(descriptor), False)  # noqa: FBT003 - no keywords
            os.write(int(descriptor), words)
