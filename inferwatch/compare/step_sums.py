"""Steps of the span: their durations counted, their tokens and batches summed."""

import sqlite3

import numpy as np

from inferwatch.compare.counted import Counted, Counter
from inferwatch.compare.rhythm import BINS
from inferwatch.compare.rows import UNKNOWN, stretches
from inferwatch.compare.session_numbers import Sums
from inferwatch.compare.span import Span

COLUMNS = (
    *("end_ns", "duration_ns", "prefill_requests + decode_requests"),
    *("output_tokens", "kv_used_blocks"),
)


class StepSums:
    """Read a stretch at a time."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._counter = Counter()
        self._steps, self._members = np.zeros(BINS), np.zeros(BINS)
        self._tokens = np.zeros(BINS)
        self._most_used: int | None = None

    def read(self, connection: sqlite3.Connection, session: int) -> None:
        """All steps of a session that ended in the span."""
        span = f"AND end_ns >= {self._span.start_ns} AND end_ns < {self._span.end_ns}"
        for rows in stretches(connection, "steps", COLUMNS, session, span):
            end_ns, duration_ns, members, tokens, used = rows.T
            place = self._span.bin_of(end_ns)
            self._counter.add(place, duration_ns)
            self._steps += np.bincount(place, minlength=BINS)
            self._members += np.bincount(place, members, minlength=BINS)
            self._tokens += np.bincount(place, tokens, minlength=BINS)
            most = int(used.max())
            if most != UNKNOWN:
                self._most_used = max(self._most_used or 0, most)

    @property
    def durations(self) -> Counted:
        """Of each step."""
        return self._counter.counted()

    def sums(self) -> dict[str, Sums]:
        """Tokens per second and mean batch; nothing without steps."""
        n = int(self._steps.sum())
        if not n:
            return {}
        seconds = np.full(BINS, self._span.length_s / BINS)
        return {
            "output_tokens_per_s": Sums(above=self._tokens, below=seconds, n=n),
            "batch_mean": Sums(above=self._members, below=self._steps, n=n),
        }

    def kv_peak(self, connection: sqlite3.Connection, session: int) -> float | None:
        """The most KV blocks in use at once, as a share of all."""
        (total,) = connection.execute(
            "SELECT max(num_kv_blocks) FROM engines WHERE session = ?", (session,)
        ).fetchone()
        if self._most_used is None or not total:
            return None
        return self._most_used / int(total)
