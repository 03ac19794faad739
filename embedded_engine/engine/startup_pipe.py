"""What the child says before vLLM is there to say anything: that it runs, what lacks.

Both ends stand here; the child inherits its end by number.
"""

import os
from contextlib import suppress

VARIABLE = "INFERWATCH_STARTUP_FD"
UP, LACKS = b"up\n", b"lacks "


class StartupPipe:
    """A pipe on which a starting child says that it runs, or what it lacks."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        self._handed_over = False
        os.set_blocking(self._reader, False)
        self._said = b""

    @property
    def up(self) -> bool:
        """The child runs our code."""
        return UP in self._read()

    @property
    def lacks(self) -> str | None:
        """What the child cannot do without, fit to show."""
        _, found, sentence = self._read().partition(LACKS)
        return sentence.decode("utf-8", "replace").strip() if found else None

    def _read(self) -> bytes:
        with suppress(BlockingIOError):
            while heard := os.read(self._reader, 4096):
                self._said += heard
        return self._said

    def hand_over(self) -> None:
        """Close our copy of the child's end, which the child has now."""
        if not self._handed_over:
            os.close(self.writer)
        self._handed_over = True

    def close(self) -> None:
        """Close our end."""
        self.hand_over()
        os.close(self._reader)


def say_up() -> None:
    """In the child: say that it runs."""
    _say(UP)


def say_lacking(sentence: str) -> None:
    """In the child: say why it cannot go on."""
    _say(LACKS + sentence.encode() + b"\n")


def _say(words: bytes) -> None:
    """Nobody listens to a worker that was started by hand, or whose parent died."""
    if descriptor := os.environ.get(VARIABLE):
        with suppress(OSError):
            os.set_inheritable(int(descriptor), False)  # noqa: FBT003 - no keywords
            os.write(int(descriptor), words)
