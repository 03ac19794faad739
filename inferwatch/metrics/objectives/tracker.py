"""Counts requests that met the objectives, and since when too few do."""

from collections.abc import Collection, Iterable
from contextlib import suppress

import msgspec

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import Vantage, WatchedSlo
from inferwatch.errors import UsageError
from inferwatch.metrics.objectives.view import ClassState, SloState
from inferwatch.metrics.requests.objectives import ALL, Objectives, parse_objectives
from inferwatch.metrics.requests.request import Request
from inferwatch.metrics.requests.request_index import RequestIndex
from inferwatch.metrics.requests.request_row import RequestState
from inferwatch.metrics.requests.slo import (
    DEFAULT_SHARE,
    METRICS,
    REFUSED,
    UNANSWERED,
    Slo,
    unreported,
)
from inferwatch.metrics.series.samples import Counters
from inferwatch.metrics.series.window import Window

# The rules do not depend on who measured. A value beyond its limit is a miss, and a
# failed request is bad. A token that did not come is at least as late as the
# wait for it. A request aborted before any miss is neither good nor bad.


def judged(request: Request, slo: Slo) -> list[str] | None:
    """Return the limits an ended request missed; None where it cannot be judged.

    It cannot where its client left before a limit was missed, or where a measurement is
    lacking, as for a request that began before the watch.
    """
    values = _values(request)
    single = request.tokens is not None and request.tokens < 2
    unknown = unreported(values, single=single, all_gaps=request.trusted)
    failed = request.outcome is RequestState.FAILED
    missed = slo.missed(values, unknown, failed=failed)
    cut_off = not failed and request.outcome is not RequestState.FINISHED
    return missed or None if cut_off else missed


def _values(request: Request) -> dict[str, float]:
    """Return a request's latencies in seconds, by the names that objectives use."""
    values_ns: dict[str, int] = {}
    finished = request.outcome is RequestState.FINISHED
    waited_ns = None
    if request.arrived_ns is not None and request.end_ns is not None:
        waited_ns = request.end_ns - request.arrived_ns
    if request.ttft_ns is not None:
        values_ns["ttft_s"] = request.ttft_ns
    elif waited_ns is not None and not finished:
        values_ns["ttft_s"] = waited_ns
    e2el_ns = request.e2el_ns if finished else waited_ns
    if e2el_ns is not None:
        values_ns["e2el_s"] = e2el_ns
    if finished and (tpot_ns := request.tpot_ns) is not None:
        values_ns["tpot_s"] = tpot_ns
    if request.itl_max_ns >= 0:
        values_ns["itl_s"] = request.itl_max_ns
    return {metric: value / NS_PER_S for metric, value in values_ns.items()}


MISSES = (*METRICS, *UNANSWERED)
COLUMNS = (
    *("judged", "good", "undetermined"),
    *("good_tokens", "uncounted", "ended_tokens"),
    *MISSES,
)
"""``uncounted`` are good requests whose tokens are unknown."""
MOST_CLASSES = 64
MOST_WAITING = 20_000
MINUTE_NS = 60 * NS_PER_S
HOUR_MINUTES = 60
SPANS_NS = (MINUTE_NS, 5 * MINUTE_NS)
"""Spans that tell whether objectives are missed: the first with enough requests."""
LEAST_JUDGED = 5
SILENT_NS = 2 * NS_PER_S
"""How long after a request's end to wait for a process that never reported any."""
TELLERS = (Vantage.FRONTEND, Vantage.ENGINE)
LASTS_NS = 5 * NS_PER_S
"""How long a change must last before it is reported."""
BY_CLIENT_END = frozenset({"ttft_s", "e2el_s"})
"""Metrics measured by the front end; others are the engine's."""


class SavedSlo(msgspec.Struct, array_like=True):
    """A SloTracker as checkpoints keep it, without its counters."""

    said: list[WatchedSlo]
    classes: list[str]
    minutes: list[tuple[int, int, int]]
    missed_since_ns: int | None
    turning_ns: int | None
    chosen: WatchedSlo | None
    waiting: list[str]
    """Keys of ended requests that front end or engine has not yet ended."""


class SloTracker:
    """Judges each request once, when everything about it is reported."""

    def __init__(
        self, requests: RequestIndex, chosen: WatchedSlo | None = None
    ) -> None:
        self._requests = requests
        self._chosen = chosen
        self._by_source: dict[str, WatchedSlo] = {}
        """By source; those of the empty source were typed, and apply to all."""
        self._objectives: dict[str, Objectives] = {}
        self.totals = Counters(*COLUMNS)
        self.classes: dict[str, Counters] = {}
        """Judged and good requests of each named clause."""
        self._minutes: dict[int, list[int]] = {}
        """Judged and good requests by minute of their end, for the last hour."""
        self._waiting: dict[Request, None] = {}
        """Ended requests that front end or engine has not yet ended."""
        self.missed_since_ns: int | None = None
        self._turning_ns: int | None = None
        """Since when the state differs from the one reported."""
        if chosen is not None:
            self._hold(chosen)

    # Readings.

    def take(self, slo: WatchedSlo) -> bool:
        """Set objectives that a source reports, unless the user has given some.

        Return whether they apply.
        """
        if self._chosen is None:
            self._hold(slo)
        return self._chosen is None

    def _hold(self, slo: WatchedSlo) -> None:
        self._by_source.pop(slo.source, None)
        self._objectives.pop(slo.source, None)
        if not slo.slo.strip():
            return
        with suppress(UsageError):  # a damaged record, or one of a later version
            objectives = parse_objectives(slo.slo)
            self._by_source[slo.source] = slo
            self._objectives[slo.source] = objectives
            for name in objectives.classes:
                self._class(name)

    def ended(self, request: Request) -> None:
        """Judge an ended request, or wait until more is reported."""
        if not self._objectives or request.judged:
            return
        both = request.ended_by_both or len(self._reporters(request)) == len(TELLERS)
        if both and not request.must_wait(self._reporters(request)):
            self._judge(request)
            return
        self._waiting[request] = None
        if len(self._waiting) > MOST_WAITING:
            self._judge(next(iter(self._waiting)))

    def _reporters(self, request: Request) -> Collection[Vantage]:
        return self._requests.tellers.get(request.source, ())

    def give_up(self, source: str) -> None:
        """Judge ended requests by what is known, as no more will be reported."""
        for request in [*self._waiting]:
            if source in {"", request.source}:
                self._judge(request)

    def classed(self, request: Request) -> None:
        """Judge a request again if, by its class, other objectives apply to it."""
        if not request.judged:
            return
        clause = self._clause(request)
        if clause is not None and clause[0] != request.judged_by:
            self._count(request, -1)
            self._judge(request)

    def tick(self, t_ns: int) -> None:
        """Judge waiting requests, and update since when objectives are missed."""
        if not self._objectives:
            return
        self._judge_old(t_ns - SILENT_NS)
        busy = bool(self._requests.live)
        met = self._met_lately(t_ns)
        missed = self.missed_since_ns is not None
        turned = missed and not busy if met is None else met is missed
        if not turned:
            self._turning_ns = None
            return
        since_ns = self._turning_ns = (
            t_ns if self._turning_ns is None else self._turning_ns
        )
        if t_ns - since_ns >= LASTS_NS:
            self.missed_since_ns = None if missed else since_ns
            self._turning_ns = None

    def _judge_old(self, until_ns: int) -> None:
        """Judge old requests for which no further report is expected."""
        for request in [*self._waiting]:
            old = request.end_ns is None or request.end_ns <= until_ns
            if old and not request.must_wait(self._reporters(request)):
                self._judge(request)

    def _met_lately(self, t_ns: int) -> bool | None:
        """Return whether objectives were met lately; None if too few requests ended."""
        for span_ns in SPANS_NS:
            sums = self.totals.after(t_ns - span_ns).sums
            if sums["judged"] >= LEAST_JUDGED:
                return sums["good"] >= self.target * sums["judged"]
        return None

    # Judgement.

    def _clause(self, request: Request) -> tuple[str, Slo] | None:
        objectives = self._objectives.get(ALL) or self._objectives.get(request.source)
        if objectives is None:
            return None
        return objectives.of(_names(request) if objectives.classes else ())

    def _judge(self, request: Request) -> None:
        self._waiting.pop(request, None)
        request.judged, request.row = True, None
        request.missed = request.judged_by = None
        clause = self._clause(request)
        if clause is not None and request.end_ns is not None:
            request.judged_by, slo = clause
            request.missed = judged(request, slo)
            self._count(request, 1)

    def _count(self, request: Request, by: int) -> None:
        """Add a request to the counts, or take it back (``by`` = -1)."""
        name, t_ns, missed = request.judged_by, request.end_ns, request.missed
        if name is None or t_ns is None:
            return
        tokens = request.tokens
        ended_tokens = by * (tokens or 0)
        if missed is None:
            self.totals.add(t_ns, 0, 0, by, 0, 0, ended_tokens, *(0 for _ in MISSES))
            return
        good = 0 if missed else by
        each = (by if metric in missed else 0 for metric in MISSES)
        counts = (0, good) if tokens is None else (good * tokens, 0)
        self.totals.add(t_ns, by, good, 0, *counts, ended_tokens, *each)
        counters = self._class(name) if name else None
        if counters is not None:
            counters.add(t_ns, by, good)
        self._in_minute(t_ns, by, good)

    def _in_minute(self, t_ns: int, judged_n: int, good: int) -> None:
        minute = self._minutes.setdefault(t_ns // MINUTE_NS, [0, 0])
        minute[0] += judged_n
        minute[1] += good
        while len(self._minutes) > HOUR_MINUTES + 1:
            del self._minutes[min(self._minutes)]

    def refused(self, source: str, t_ns: int, count: int) -> None:
        """Count refused requests as bad, unless the objectives leave them out."""
        objectives = self._objectives.get(ALL) or self._objectives.get(source)
        if not count or objectives is None or objectives.every is None:
            return
        if not objectives.leaves_out_refused:
            each = (count if metric == REFUSED else 0 for metric in MISSES)
            self.totals.add(t_ns, count, 0, 0, 0, 0, 0, *each)
            self._in_minute(t_ns, count, 0)

    def _class(self, name: str) -> Counters | None:
        if name not in self.classes and len(self.classes) < MOST_CLASSES:
            self.classes[name] = Counters("judged", "good")
        return self.classes.get(name)

    # Views.

    @property
    def any(self) -> bool:
        return bool(self._objectives)

    @property
    def target(self) -> float:
        """Share of requests that must be good, 0-1."""
        typed = self._objectives.get(ALL)
        objectives = typed or next(reversed(self._objectives.values()), None)
        return DEFAULT_SHARE if objectives is None else objectives.target

    @property
    def said(self) -> tuple[WatchedSlo, ...]:
        """All objectives in force, to be passed to the Model of one server."""
        return tuple(self._by_source.values())

    def state(
        self, now_ns: int, window: Window, covered_ns: int, source: str | None = None
    ) -> SloState | None:
        """Return the state of the objectives over a window; None without objectives."""
        if not self._objectives:
            return None
        objectives, text = self._chosen_objectives(source)
        sums = self.totals.over(now_ns, window).sums
        whole = self.totals.over(now_ns, Window.SESSION).sums
        judged_n, good = sums["judged"], sums["good"]
        rate = good * NS_PER_S / covered_ns if covered_ns and judged_n else None
        return SloState(
            slo=text,
            target=self.target,
            vantage=_vantage(objectives),
            judged=judged_n,
            good=good,
            good_tokens=None if sums["uncounted"] else sums["good_tokens"],
            ended_tokens=sums["ended_tokens"],
            undetermined=sums["undetermined"],
            goodput_per_s=rate,
            missed={name: sums[name] for name in MISSES if sums[name]},
            burn=self._burn_rate(judged_n, good),
            burn_long=self._burn_rate(*self._last_hour(now_ns)),
            budget_left=_left(self._burn_rate(whole["judged"], whole["good"])),
            missed_since_ns=self.missed_since_ns,
            classes=tuple(self._classes(objectives, now_ns, window)),
        )

    def _chosen_objectives(self, source: str | None) -> tuple[list[Objectives], str]:
        typed = self._objectives.get(ALL) or self._objectives.get(source or ALL)
        several = [typed] if typed is not None else [*self._objectives.values()]
        texts = dict.fromkeys(each.limits for each in several)
        text = next(iter(texts)) if len(texts) == 1 else "of each server its own"
        return several, text

    def _classes(
        self, objectives: Iterable[Objectives], now_ns: int, window: Window
    ) -> Iterable[ClassState]:
        clauses = {
            name: slo for each in objectives for name, slo in each.classes.items()
        }
        for name, slo in clauses.items():
            if (counters := self.classes.get(name)) is not None:
                sums: dict[str, int] = counters.over(now_ns, window).sums
                yield ClassState(
                    name=name, slo=str(slo), judged=sums["judged"], good=sums["good"]
                )

    def _last_hour(self, now_ns: int) -> tuple[int, int]:
        """Return judged and good requests of the last hour, to the minute."""
        since = now_ns // MINUTE_NS - HOUR_MINUTES
        counts = [each for minute, each in self._minutes.items() if minute > since]
        return sum(each[0] for each in counts), sum(each[1] for each in counts)

    def _burn_rate(self, judged_n: int, good: int) -> float | None:
        """Return the share of bad requests / the share allowed; None without any."""
        if not judged_n:
            return None
        return (judged_n - good) / judged_n / (1 - self.target)

    # Checkpoints.

    def counters(self) -> dict[str, Counters]:
        """Return the counters, by the names under which their rows are saved."""
        each = {f"slo of {name}": counters for name, counters in self.classes.items()}
        return {"slo": self.totals, **each}

    def saved(self) -> SavedSlo:
        """Return the state for a checkpoint, without counters."""
        return SavedSlo(
            said=[*self._by_source.values()],
            classes=[*self.classes],
            minutes=[(minute, n, ok) for minute, (n, ok) in self._minutes.items()],
            missed_since_ns=self.missed_since_ns,
            turning_ns=self._turning_ns,
            chosen=self._chosen,
            waiting=[request.key for request in self._waiting],
        )

    def restore(self, saved: SavedSlo) -> None:
        """Restore a saved state after the requests; counters are restored later."""
        named = {each.key: each for each in self._requests.every() if each.ended}
        requests = (named.get(key) for key in saved.waiting)
        self._waiting = {each: None for each in requests if each is not None}
        self._chosen = saved.chosen
        for each in saved.said:
            self._hold(each)
        for name in saved.classes:
            self._class(name)
        self._minutes = {minute: [n, good] for minute, n, good in saved.minutes}
        self.missed_since_ns = saved.missed_since_ns
        self._turning_ns = saved.turning_ns


def _names(request: Request) -> tuple[str | None, ...]:
    """Return names that objectives may be set for; the first match counts."""
    priority = None if request.priority is None else str(request.priority)
    return request.class_name, request.header, request.lora, priority


def _vantage(objectives: Iterable[Objectives]) -> Vantage:
    """Return who measures: the front end if any limit needs it, else the engine."""
    slos = [s for each in objectives for s in (each.every, *each.classes.values()) if s]
    metrics = {limit.metric for slo in slos for limit in slo.limits}
    return Vantage.FRONTEND if metrics & BY_CLIENT_END else Vantage.ENGINE


def _left(burn: float | None) -> float | None:
    return None if burn is None else 1 - burn
