"""Differences from a reference: in the traffic, the server, or only the result."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from collectors.contract.readings import ServerInfo, Vantage
from inferwatch.metrics.number import Number, Unit, number_of
from inferwatch.metrics.requests.latencies import LATENCIES, VANTAGES
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.flow import Flow

LARGE = 1.25
"""Ratio from which a number counts as changed."""
LARGE_SHARE = 0.05
"""Difference from which a share counts as changed."""


class ChangeSide(StrEnum):
    """Whether a number describes the traffic or the result."""

    TRAFFIC = "traffic"
    RESULT = "result"


NUMBERS = {
    number_of(Flow.arrivals_per_s): ChangeSide.TRAFFIC,
    number_of(Flow.finished_per_s): ChangeSide.TRAFFIC,
    number_of(Flow.prompt_tokens_p50): ChangeSide.TRAFFIC,
    number_of(Flow.output_tokens_per_request): ChangeSide.TRAFFIC,
    number_of(Flow.prefix_hit_rate): ChangeSide.TRAFFIC,
    **{LATENCIES[metric]: ChangeSide.RESULT for metric in VANTAGES},
    number_of(Flow.failed_share): ChangeSide.RESULT,
}
"""The compared numbers, in order; of a latency the mean, which every vantage has."""
OF_THE_WATCH = {
    *("t_ns", "pid", "source", "rank", "name", "url", "uds", "advice"),
    "clock",
}
"""Fields of engines and servers that are not settings, such as times and addresses."""
STARTED = "started_wall_ns"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedNumber:
    """A number now and at the reference; None where it is not known."""

    number: Number
    side: ChangeSide
    now: float | None
    then: float | None
    vantages: tuple[Vantage | None, Vantage | None] = (None, None)
    """Who measured each, where that may differ."""

    @property
    def comparable(self) -> bool:
        """Whether both values are known and were measured in the same place."""
        same = self.vantages[0] == self.vantages[1]
        return same and self.now is not None and self.then is not None

    @property
    def ratio(self) -> float | None:
        """The present value / the earlier one.

        None for a share, or where the values cannot be compared.
        """
        if self.number.unit is Unit.SHARE or not self.comparable:
            return None
        return self.now / self.then if self.now is not None and self.then else None

    @property
    def large(self) -> bool:
        if not self.comparable or self.now is None or self.then is None:
            return False
        if self.number.unit is Unit.SHARE:
            return abs(self.now - self.then) >= LARGE_SHARE
        if not self.now or not self.then:
            return self.now != self.then
        return max(self.now / self.then, self.then / self.now) >= LARGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting that differs from the reference."""

    name: str
    now: str | None
    then: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """The differences between two snapshots, in numbers and settings."""

    numbers: tuple[ComparedNumber, ...]
    settings: tuple[Setting, ...] = ()
    settings_known: bool = True
    """Whether both sides report their settings."""
    restarted: bool | None = None
    """Whether the server's process is another one; None where not known."""

    def large(self, side: ChangeSide) -> tuple[ComparedNumber, ...]:
        return tuple(each for each in self.numbers if each.side is side and each.large)

    def known(self, side: ChangeSide) -> bool:
        """Return whether at least one number of this side can be compared."""
        return any(each.comparable for each in self.numbers if each.side is side)


def changes(now: Snapshot, then: Snapshot) -> Differences:
    mine, others = dict(_settings(now)), dict(_settings(then))
    names = [name for name in {**others, **mine} if name in mine and name in others]
    return Differences(
        numbers=tuple(
            _change(number, side, now, then) for number, side in NUMBERS.items()
        ),
        settings=tuple(
            Setting(name=name, now=mine[name], then=others[name])
            for name in names
            if mine[name] != others[name]
        ),
        settings_known=bool(names),
        restarted=_restarted(now, then),
    )


def _change(
    number: Number, side: ChangeSide, now: Snapshot, then: Snapshot
) -> ComparedNumber:
    if number.key not in LATENCIES:
        mine, others = (getattr(each.flow, number.name) for each in (now, then))
        return ComparedNumber(number=number, side=side, now=mine, then=others)
    (mine, seen), (others, seen_then) = _mean(now, number.key), _mean(then, number.key)
    return ComparedNumber(
        number=number, side=side, now=mine, then=others, vantages=(seen, seen_then)
    )


def _mean(snapshot: Snapshot, metric: str) -> tuple[float | None, Vantage | None]:
    for row in snapshot.latencies:
        if row.metric == metric:
            return row.quantiles.mean, row.vantage
    return None, None


def _settings(snapshot: Snapshot) -> Iterator[tuple[str, str | None]]:
    """Yield names and values of settings of the first engine and the first server."""
    for info in (*snapshot.engines[:1], *_servers(snapshot)[:1]):
        fields = msgspec.structs.asdict(info)
        more = fields.pop("settings", {})
        settings = {**fields, **(more if isinstance(more, Mapping) else {})}
        for name, value in settings.items():
            if name not in OF_THE_WATCH | {STARTED} and value not in (None, []):
                yield name, ", ".join(value) if isinstance(value, list) else str(value)


def _servers(snapshot: Snapshot) -> list[ServerInfo]:
    selected = snapshot.shown_source
    return [
        each.info
        for each in snapshot.servers
        if each.info is not None and selected in {None, each.source}
    ]


def _restarted(now: Snapshot, then: Snapshot) -> bool | None:
    """Return whether the server has another process now; None where unknown."""
    mine, others = _processes(now), _processes(then)
    return mine != others if mine and others else None


def _processes(snapshot: Snapshot) -> set[object]:
    began = {each.started_wall_ns for each in _servers(snapshot)} - {None}
    processes = {(each.source, each.pid) for each in snapshot.engines}
    return {*(began or processes)}


def verdict(compared: Differences) -> str:
    """Return a sentence on whether traffic, server or results have changed."""
    traffic, result = (
        compared.large(ChangeSide.TRAFFIC),
        compared.large(ChangeSide.RESULT),
    )
    parts = [
        _side_text("the traffic", traffic, known=compared.known(ChangeSide.TRAFFIC)),
        _server(compared),
        _side_text("the result", result, known=compared.known(ChangeSide.RESULT)),
    ]
    return "; ".join(parts)


def _side_text(what: str, large: Sequence[ComparedNumber], *, known: bool) -> str:
    if not known:
        return f"{what} cannot be compared"
    if not large:
        return f"{what} is as it was"
    return f"{what} differs: {', '.join(map(change_text, large))}"


def _server(compared: Differences) -> str:
    if compared.settings:
        names = ", ".join(each.name for each in compared.settings[:3])
        more = len(compared.settings) - 3
        return f"the server is set up otherwise: {names}" + (
            f" and {more} more" if more > 0 else ""
        )
    if not compared.settings_known:
        return "how the server is set up is not known of both"
    if compared.restarted is None:
        return "the server is set up as it was"
    again = "was started anew since" if compared.restarted else "is the same process"
    return f"the server {again}, set up as it was"


def change_text(change: ComparedNumber) -> str:
    """Return a change as text, such as ``prompt ×3.1``; shares change by points.

    >>> number, side = number_of(Flow.arrivals_per_s), ChangeSide.TRAFFIC
    >>> change_text(ComparedNumber(number=number, side=side, now=6.0, then=2.0))
    'req/s ×3.0'
    """
    label = change.number.label
    if change.ratio:
        return (
            f"{label} ×{change.ratio:.2g}"
            if change.ratio < 1
            else (f"{label} ×{change.ratio:.1f}")
        )
    if change.now is None or change.then is None:
        return label
    if change.number.unit is Unit.SHARE:
        return f"{label} {100 * (change.now - change.then):+.0f} points"
    return f"{label} {'none now' if not change.now else 'none then'}"
