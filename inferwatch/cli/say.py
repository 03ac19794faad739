"""All output of commands to the terminal; no other module here writes to it.

Much of the text comes from others, so control characters are shown and not obeyed.
"""

import re
import sys
import time
from typing import TYPE_CHECKING

import click

from inferwatch.visible import strict_json, visible, visible_lines

if TYPE_CHECKING:
    from pathlib import Path

CLEAR = "\r\x1b[2K"
_COLOUR = re.compile("(\x1b\\[[0-9;]*m)")


def shows_screens() -> bool:
    """Tell whether a user is there: keys come from stdin, Textual draws on stderr."""
    return all(each.isatty() for each in (sys.stdin, sys.stdout, sys.stderr))


def say(text: str, *, err: bool = False) -> None:
    """Print lines for people."""
    _write(visible_lines(text), err=err)


def say_json(facts: object) -> None:
    """Print a line of JSON, in printable ASCII."""
    _write(strict_json(facts).replace("\x7f", "\\u007f"))


def say_coloured(text: str) -> None:
    """Print lines with our colour codes; other control characters are made visible."""
    parts = _COLOUR.split(text)
    _write(
        "".join(part if n % 2 else visible_lines(part) for n, part in enumerate(parts))
    )


def say_now(text: str) -> None:
    """Write a text over the progress line on stderr."""
    _write(f"{CLEAR}{visible(text)}", err=True, end="")


def say_no_more() -> None:
    """Clear the progress line, so that other output can follow."""
    _write(CLEAR, err=True, end="")


def say_over(lines: int, text: str) -> None:
    """Print to stderr over the last ``lines`` lines."""
    back = f"\x1b[{lines}A\r\x1b[J" if lines else ""
    _write(f"{back}{visible_lines(text)}", err=True)


def _write(text: str, *, err: bool = False, end: str = "\n") -> None:
    """Write in the stream's encoding; click alone writes UTF-8 even if it is ASCII."""
    click.echo(text + end, file=sys.stderr if err else sys.stdout, nl=False)


PATIENCE_S = 1.0
"""Shorter work shows no progress."""
EVERY_S = 0.2


class RowsProgress:
    """Progress by rows: a changing line on a terminal's stderr, nothing elsewhere."""

    def __init__(self) -> None:
        self._live_line = sys.stderr.isatty()
        self._next_s = time.monotonic() + PATIENCE_S
        self._shown = False

    def at(self, what: str, done: int, expected: int | None) -> None:
        """Show how many rows are done, of how many if that is known."""
        now_s = time.monotonic()
        if not self._live_line or now_s < self._next_s:
            return
        self._next_s, self._shown = now_s + EVERY_S, True
        whole = f" of {expected:,}" if expected else ""
        part = f"  {min(done / expected, 1):.0%}" if expected else ""
        say_now(f"{what}: {done:,}{whole}{part}")

    def close(self) -> None:
        """Clear the progress line, so that other output can follow."""
        if self._shown:
            say_no_more()


def say_damage(path: "Path") -> None:
    """Print to stderr what a damaged file has lost; nothing for an intact file."""
    from inferwatch.record.repair.recovery import damage_of

    damage = damage_of(path) if path.exists() else None
    if damage is not None:
        say(f"inferwatch: {damage.sentence}", err=True)
