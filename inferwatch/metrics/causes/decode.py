"""Where the time between the tokens of decoding requests goes.

A request that decodes is in every step of its rank, so it waits as long for a token as
all others do. So nothing is kept per step and request: a rank adds up its time, and the
difference of two such accounts is a request's.
"""

from collections import deque
from typing import NamedTuple

import msgspec

from collectors.contract.readings import Step

KEPT_STEPS = 128


class DecodeMark(NamedTuple):
    """The account of a rank at the end of a step, in nanoseconds."""

    end_ns: int
    decode: int
    """What steps without prompts took, and of others what a usual one takes."""
    prompts: int
    """What steps with prompts took beyond that."""
    stall: int
    """Time in which no step ran."""
    unknown: int
    """Time of steps that were not seen."""

    def since(self, mark: "DecodeMark") -> tuple[int, int, int, int]:
        """Return the time since another mark by the first four ``DECODE_CAUSES``.

        Adds up to the time between the two.
        """
        return (
            self.decode - mark.decode,
            self.prompts - mark.prompts,
            self.stall - mark.stall,
            self.unknown - mark.unknown,
        )


class SavedDecodeAccount(msgspec.Struct, array_like=True):
    """A DecodeAccount as checkpoints keep it."""

    marks: list[DecodeMark]
    usual_ns: int | None


class DecodeAccount:
    """The time of a rank between the ends of its steps, by what it went to."""

    def __init__(self) -> None:
        self.usual_ns: int | None = None
        """Median duration of the latest decode-only steps; None if these are few."""
        self._marks: deque[DecodeMark] = deque(maxlen=KEPT_STEPS)

    def take(self, step: Step, *, follows: bool) -> None:
        """Add a step; ``follows``: no step between it and the one before was missed."""
        end_ns = step.end_ns
        if not self._marks:
            self._marks.append(DecodeMark(end_ns, 0, 0, 0, 0))
            return
        before_ns, decode, prompts, stall, unknown = self._marks[-1]
        passed_ns = end_ns - before_ns
        if passed_ns < 0:
            passed_ns, end_ns = 0, before_ns
        if not follows:
            unknown += passed_ns
        else:
            took_ns = step.duration_ns
            took_ns = min(took_ns, passed_ns)
            stall += passed_ns - took_ns
            if step.prefill_tokens:
                decode_ns = self._without_prompts(step, took_ns)
                decode += decode_ns
                prompts += took_ns - decode_ns
            else:
                decode += took_ns
        self._marks.append(DecodeMark(end_ns, decode, prompts, stall, unknown))

    def _without_prompts(self, step: Step, took_ns: int) -> int:
        """Return the time of a step as if it had computed no prompts.

        By tokens where it is not known how long such steps take.
        """
        if self.usual_ns is not None:
            return min(took_ns, self.usual_ns)
        tokens = step.prefill_tokens + step.decode_tokens
        return took_ns * step.decode_tokens // max(tokens, 1)

    @property
    def latest(self) -> DecodeMark | None:
        return self._marks[-1] if self._marks else None

    @property
    def before(self) -> DecodeMark | None:
        """The mark of the step before the latest."""
        return self._marks[-2] if len(self._marks) > 1 else None

    def at(self, end_ns: int) -> DecodeMark | None:
        """Return the mark of the step that ended then; None if it is not kept."""
        for mark in reversed(self._marks):
            if mark.end_ns <= end_ns:
                return mark if mark.end_ns == end_ns else None
        return None

    def saved(self) -> SavedDecodeAccount:
        return SavedDecodeAccount([*self._marks], self.usual_ns)

    def restore(self, saved: SavedDecodeAccount) -> None:
        self._marks.extend(saved.marks)
        self.usual_ns = saved.usual_ns
