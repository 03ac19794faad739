"""Two limits: their values at start and at present, and possible values."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from collectors.contract.readings import LiveLimits
from inferwatch.errors import UsageError
from inferwatch.feed import LimitPair
from inferwatch.metrics.snapshot import Snapshot

SEQS, TOKENS = "max_num_seqs", "max_num_batched_tokens"
NAMES = (SEQS, TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitKnob:
    """One limit over all ranks."""

    name: str
    start: int | None = None
    """None if no engine reports it."""
    present: int | None = None
    """Lowest of all ranks."""
    highest: int | None = None
    """Highest of all ranks, which differ if one of them was turned elsewhere."""
    fixed: str | None = None
    """Why this engine cannot change it."""

    @property
    def choices(self) -> list[int]:
        """Values worth trying: the limit at start and powers of two below it."""
        if self.start is None:
            return []
        choices, value = [self.start], self.start
        while value > 1:
            value = 1 << (value - 1).bit_length() - 1
            choices.append(value)
        return choices[::-1]

    def beside(self, value: int | None, by: int) -> int | None:
        """Return the next choice above or below a value; without one, the present."""
        if value is None:
            return self.present
        if by > 0:
            return next((each for each in self.choices if each > value), self.start)
        lower = [each for each in self.choices if each < value]
        return lower[-1] if lower else 1

    def read(self, text: str) -> int:
        """Parse a value of the limit.

        Raises:
            UsageError: the limit cannot have this value.
        """
        value = int(text) if text.isascii() and text.isdecimal() else 0
        if self.start is None or not 1 <= value <= self.start:
            most = "its start-up value" if self.start is None else f"{self.start:,}"
            raise UsageError(
                f"{self.name}: a whole number from 1 to {most}; no limit goes above "
                "what the engine was started with"
            )
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobState:
    """Both limits, and who changed them."""

    knobs: tuple[LimitKnob, LimitKnob]
    limits: tuple[LiveLimits, ...] = ()
    """Latest limits by rank."""
    pending: bool = False
    """The engine has accepted the limits but has not run a step since."""

    @property
    def by(self) -> str | None:
        """Who lowered the limits, empty if unknown; None if none is lowered."""
        return next((each.by or "" for each in self.limits if each.in_force), None)

    @property
    def in_force(self) -> bool:
        """Whether a limit is lower than when the engine started."""
        return any(each.in_force for each in self.limits)

    @property
    def kept(self) -> bool:
        """Whether limits stay after whoever set them disconnects."""
        return self.in_force and all(e.kept for e in self.limits if e.in_force)

    @property
    def present(self) -> tuple[int | None, int | None]:
        return self.knobs[0].present, self.knobs[1].present

    @property
    def start(self) -> tuple[int | None, int | None]:
        return self.knobs[0].start, self.knobs[1].start

    def changed_by(self, wanted: tuple[int, int]) -> LimitPair:
        """Return the wanted limits; those that would not change are left out."""
        seqs, tokens = (
            value if (value, value) != (knob.present, knob.highest) else None
            for value, knob in zip(wanted, self.knobs, strict=True)
        )
        return LimitPair(max_num_seqs=seqs, max_num_batched_tokens=tokens)


def knob_state(snapshot: Snapshot, answered: Sequence[LiveLimits] = ()) -> KnobState:
    """Return the limits by the engine's last reading or answer, whichever is newer."""
    if len({each.source for each in snapshot.live_limits}) > 1:
        return _state(snapshot, snapshot.live_limits)  # none can be set
    by_rank = {each.rank: each for each in snapshot.live_limits}
    later = {
        each.rank: each
        for each in answered
        if each.rank not in by_rank or each.version > by_rank[each.rank].version
    }
    limits = [each for _, each in sorted({**by_rank, **later}.items())]
    return _state(snapshot, limits, pending=bool(later))


def _state(
    snapshot: Snapshot, limits: Sequence[LiveLimits], *, pending: bool = False
) -> KnobState:
    seqs, tokens = (_knob(name, snapshot, limits) for name in NAMES)
    return KnobState(knobs=(seqs, tokens), limits=tuple(limits), pending=pending)


def _knob(name: str, snapshot: Snapshot, limits: Sequence[LiveLimits]) -> LimitKnob:
    if not limits:
        values = _present_values(getattr(engine, name) for engine in snapshot.engines)
        least, most = min(values, default=None), max(values, default=None)
        return LimitKnob(name=name, start=least, present=least, highest=most)
    now = [getattr(each, name) for each in limits]
    return LimitKnob(
        name=name,
        start=min(getattr(each, f"start_{name}") for each in limits),
        present=min(now),
        highest=max(now),
        fixed=next((each.fixed[name] for each in limits if name in each.fixed), None),
    )


def _present_values(values: Iterable[int | None]) -> list[int]:
    return [each for each in values if each is not None]
