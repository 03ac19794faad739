"""How many rows are done: one line on a terminal's stderr, nothing elsewhere."""

import sys
import time

from inferwatch.cli.say import say_no_more, say_now

PATIENCE_S = 1.0
"""What takes less needs no line."""
EVERY_S = 0.2


class RowsProgress:
    """Told by whoever reads or writes rows."""

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
