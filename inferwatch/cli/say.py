"""All that commands write to the terminal; nothing else in here writes to it.

Much of it is named by others: the terminal is to show that, not to obey it.
"""

import re
import sys
import time
from pathlib import Path

import click

from inferwatch.visible import strict_json, visible, visible_lines

CLEAR = "\r\x1b[2K"
_COLOUR = re.compile("(\x1b\\[[0-9;]*m)")


def shows_screens() -> bool:
    """Somebody sits there: keys come from stdin, and Textual draws on stderr."""
    return all(each.isatty() for each in (sys.stdin, sys.stdout, sys.stderr))


def say(text: str, *, err: bool = False) -> None:
    """Lines for people."""
    _write(visible_lines(text), err=err)


def say_json(facts: object) -> None:
    """A line for machines, in printable ASCII."""
    _write(strict_json(facts).replace("\x7f", "\\u007f"))


def say_coloured(text: str) -> None:
    """Lines with colours of ours, in which all that others named is visible already.

    What is not would be no more than a colour.
    """
    parts = _COLOUR.split(text)
    _write(
        "".join(part if n % 2 else visible_lines(part) for n, part in enumerate(parts))
    )


def say_now(text: str) -> None:
    """On the one line of stderr that changes, over what it said before."""
    _write(f"{CLEAR}{visible(text)}", err=True, end="")


def say_no_more() -> None:
    """Leave that line to whoever writes next."""
    _write(CLEAR, err=True, end="")


def say_over(lines: int, text: str) -> None:
    """On stderr, over the last so many lines."""
    back = f"\x1b[{lines}A\r\x1b[J" if lines else ""
    _write(f"{back}{visible_lines(text)}", err=True)


def _write(text: str, *, err: bool = False, end: str = "\n") -> None:
    """Into the stream as it is: by itself click writes UTF-8 into an ASCII one."""
    click.echo(text + end, file=sys.stderr if err else sys.stdout, nl=False)


PATIENCE_S = 1.0
"""What takes less needs no line."""
EVERY_S = 0.2


class RowsProgress:
    """How many rows are done: one line on a terminal's stderr, nothing elsewhere."""

    def __init__(self) -> None:
        self._live_line = sys.stderr.isatty()
        self._next_s = time.monotonic() + PATIENCE_S
        self._shown = False

    def at(self, what: str, done: int, expected: int | None) -> None:
        """So many of those are done."""
        now_s = time.monotonic()
        if not self._live_line or now_s < self._next_s:
            return
        self._next_s, self._shown = now_s + EVERY_S, True
        whole = f" of {expected:,}" if expected else ""
        part = f"  {min(done / expected, 1):.0%}" if expected else ""
        say_now(f"{what}: {done:,}{whole}{part}")

    def close(self) -> None:
        """Leave the line to whoever writes next."""
        if self._shown:
            say_no_more()


def say_damage(path: Path) -> None:
    """On stderr, what of a damaged file is lost; nothing of a sound one."""
    from inferwatch.record.repair.recovery import damage_of

    damage = damage_of(path) if path.exists() else None
    if damage is not None:
        say(f"inferwatch: {damage.sentence}", err=True)
