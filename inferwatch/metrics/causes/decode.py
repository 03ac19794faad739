"""Where the time between the tokens of decoding requests goes.

A request that decodes is in every step of its rank, so it waits as long for a token as
all others do. So nothing is kept per step and request: a rank adds up its time, and the
difference of two such accounts is a request's.
"""

from collections import deque
from statistics import median_low

import msgspec

from collectors.contract.readings import Step

DecodeMark = tuple[int, int, int, int, int]
"""The account of a rank at the end of a step, all in nanoseconds: that end, then its
time so far by the first four ``DECODE_CAUSES``. A plain tuple, as one is made a step.

The four are: what steps without prompts took, and of others what a usual one takes;
what steps with prompts took beyond that; time in which no step ran; and that of steps
which were not seen.
"""
KEPT_STEPS = 128
USUAL_STEPS = 32
LEAST_STEPS = 4
"""Fewest decode-only steps for the usual to be known."""
USUAL_EVERY = 16
"""Decode-only steps between two updates of the usual."""


def since(now: DecodeMark, then: DecodeMark) -> tuple[int, int, int, int]:
    """Return the time between two marks by cause, which adds up to it."""
    return now[1] - then[1], now[2] - then[2], now[3] - then[3], now[4] - then[4]


class SavedDecodeAccount(msgspec.Struct, array_like=True):
    """A DecodeAccount as checkpoints keep it."""

    marks: list[DecodeMark]
    alone_ns: list[int]
    usual_ns: int | None
    fresh: int


class DecodeAccount:
    """The time of a rank between the ends of its steps, by what it went to."""

    def __init__(self) -> None:
        self.marks: deque[DecodeMark] = deque(maxlen=KEPT_STEPS)
        """Of the latest steps, the latest last."""
        self._alone_ns: deque[int] = deque(maxlen=USUAL_STEPS)
        """Durations of the latest decode-only steps."""
        self._usual_ns: int | None = None
        self._fresh = 0
        """Decode-only steps since the usual was updated."""

    def take(self, step: Step, *, follows: bool) -> None:
        """Add a step; ``follows``: no step between it and the one before was missed."""
        end_ns, took_ns = step.end_ns, step.duration_ns
        if not self.marks:
            self.marks.append((end_ns, 0, 0, 0, 0))
            return
        before_ns, decode, prompts, stall, unknown = self.marks[-1]
        passed_ns = end_ns - before_ns
        if passed_ns < took_ns:
            if passed_ns < 0:
                passed_ns, end_ns = 0, before_ns
            took_ns = passed_ns
        if not follows:
            unknown += passed_ns
        else:
            stall += passed_ns - took_ns
            if step.prefill_tokens:
                decode_ns = self._without_prompts(step, took_ns)
                decode += decode_ns
                prompts += took_ns - decode_ns
            else:
                decode += took_ns
                self._alone_ns.append(took_ns)
                self._fresh += 1
        self.marks.append((end_ns, decode, prompts, stall, unknown))

    def _without_prompts(self, step: Step, took_ns: int) -> int:
        """Return the time of a step as if it had computed no prompts.

        The median of the latest decode-only steps; by tokens while these are too few.
        """
        if self._fresh >= USUAL_EVERY or self._usual_ns is None:
            self._fresh = 0
            if len(self._alone_ns) >= LEAST_STEPS:
                self._usual_ns = median_low(self._alone_ns)
        if self._usual_ns is not None:
            return min(took_ns, self._usual_ns)
        tokens = step.prefill_tokens + step.decode_tokens
        return took_ns * step.decode_tokens // max(tokens, 1)

    def at(self, end_ns: int) -> DecodeMark | None:
        """Return the mark of the step that ended then; None if it is not kept."""
        for mark in reversed(self.marks):
            if mark[0] <= end_ns:
                return mark if mark[0] == end_ns else None
        return None

    def saved(self) -> SavedDecodeAccount:
        return SavedDecodeAccount(
            [*self.marks], [*self._alone_ns], self._usual_ns, self._fresh
        )

    def restore(self, saved: SavedDecodeAccount) -> None:
        self.marks.extend(saved.marks)
        self._alone_ns.extend(saved.alone_ns)
        self._usual_ns, self._fresh = saved.usual_ns, saved.fresh
