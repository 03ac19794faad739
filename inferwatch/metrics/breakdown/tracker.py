"""Adds up where the time of all ended requests went, for any window and the session."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec
import numpy as np

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import Vantage
from inferwatch.metrics.breakdown.split import (
    KNOWN_BY,
    e2el_spent,
    known_of,
    span_of,
)
from inferwatch.metrics.breakdown.view import (
    CAUSES_OF,
    DIMENSIONS,
    Breakdown,
    BreakdownBucket,
    BreakdownPart,
    BreakdownPhase,
)
from inferwatch.metrics.causes.cause import E2EL_CAUSES
from inferwatch.metrics.requests.group_names import OTHERS, told_name
from inferwatch.metrics.requests.request import Request
from inferwatch.metrics.requests.request_groups import (
    LENGTH_BOUNDS,
    LENGTHS,
    SLOT_NS,
    GroupBy,
    time_bucket,
)
from inferwatch.metrics.requests.request_index import RequestIndex
from inferwatch.metrics.series.quantiles import Ints, describe, of_weighted, ranks
from inferwatch.metrics.series.samples import Block, RecentRows, Samples, SavedRows
from inferwatch.metrics.series.window import Quantiles, Window

SILENT_NS = 2 * NS_PER_S
"""How long after a request's end to wait for what is not reported yet."""
MOST_WAITING = 1_000
MOST_BUCKETS = 64
"""Largest number of values of one dimension that have a bucket of their own."""
MOST_ALIKE = 4_096
NARROW = 2**16
EARLIER = "earlier"
"""The bucket of all times before those that have one of their own."""
BEFORE = -1
"""Its code."""
MOST_SLOTS = 1_008
"""Buckets of time, the latest ones: a week of ten minutes each."""
TELLERS = (Vantage.FRONTEND, Vantage.ENGINE)
CAUSES = len(E2EL_CAUSES)
KNOWN = 2 + CAUSES
FIRST_DIMENSION = KNOWN + 1
"""Columns of a row: time, 1 for the request, time by cause, what is known of it, and
codes of buckets."""
PLACES = {
    phase: [E2EL_CAUSES.index(cause) for cause in causes]
    for phase, causes in CAUSES_OF.items()
}
TIME = DIMENSIONS.index(GroupBy.TIME)


class SavedBreakdown(msgspec.Struct, array_like=True):
    """A BreakdownTracker as checkpoints keep it, without its rows and samples."""

    sums: list[int]
    """Number of requests, then their time by cause."""
    names: list[list[str | None]]
    """Of each dimension, the values in the order of their codes; None for no value."""
    buckets: list[dict[int, list[int]]]
    """Number of requests, then their time by phase, by code for each dimension."""
    left_out: int
    waiting: list[str]
    """Keys of requests that ended and are not counted yet."""
    classed: bool


class BreakdownTracker:
    """Counts each request once, when everything about it is reported."""

    def __init__(
        self,
        requests: RequestIndex,
        model_of: Callable[[str], str | None],
        logged: Callable[[Request, int], None] = lambda *_: None,
    ) -> None:
        """``model_of`` tells the model that a source serves.

        ``logged`` is called once for each request that is counted, with its end.
        """
        self._logged = logged
        self._requests = requests
        self._model_of = model_of
        self.rows = RecentRows(FIRST_DIMENSION + len(DIMENSIONS), self._count)
        self.samples = {phase: Samples() for phase in BreakdownPhase}
        """What each phase took of single requests."""
        self.detokenised = Samples()
        """From the end of an E2EL until the front end had handed its outputs over."""
        self._sums: Ints = np.zeros(1 + CAUSES, np.int64)
        self._codes: list[dict[str | None, int]] = [{} for _ in DIMENSIONS]
        self._alike: dict[tuple[str | int | None, ...], tuple[int, ...]] = {}
        """Codes of requests that share all their values; not saved."""
        self._buckets: list[dict[int, Ints]] = [{} for _ in DIMENSIONS]
        self._waiting: dict[Request, None] = {}
        self._left_out = 0
        self._classed = False
        """Whether clients tell the class of requests, which they do after the end."""

    # Readings.

    def ended(self, request: Request) -> None:
        """Count an ended request, or wait until more is reported."""
        if request.logged:
            return
        told = request.client_told or request.class_name is not None
        if self._complete(request) and (told or not self._classed):
            self._log(request)
            return
        self._waiting[request] = None
        if len(self._waiting) > MOST_WAITING:
            self._log(next(iter(self._waiting)))

    @property
    def awaits_classes(self) -> bool:
        """Whether clients are to tell of requests once these have ended."""
        return self._classed

    def await_classes(self) -> None:
        """Wait, from now on, for what a client tells of requests: a load begins."""
        self._classed = True

    def told(self, request: Request) -> None:
        """Take over that a client told of a request, and its class if it has one."""
        request.client_told = True
        self._classed |= request.class_name is not None
        if request in self._waiting and self._complete(request):
            self._log(request)

    def tick(self, t_ns: int) -> None:
        """Count requests of which nothing more is expected."""
        for request in [*self._waiting]:
            old = request.end_ns is None or request.end_ns <= t_ns - SILENT_NS
            if old and not request.must_wait(self._reporters(request)):
                self._log(request)

    def give_up(self, source: str) -> None:
        """Count ended requests by what is known, as no more will be reported."""
        for request in [*self._waiting]:
            if source in {"", request.source}:
                self._log(request)

    def _complete(self, request: Request) -> bool:
        reporters = self._requests.tellers.get(request.source, ())
        both = request.front_ended and request.engine_ended
        if both or len(reporters) == len(TELLERS):
            return not request.must_wait(reporters)
        return False

    def _reporters(self, request: Request) -> Collection[Vantage]:
        return self._requests.tellers.get(request.source, ())

    def _log(self, request: Request) -> None:
        self._waiting.pop(request, None)
        request.logged = True
        if request.run is not None:
            request.catch_up()
        span = span_of(request)
        if span is None:
            self._left_out += 1
            return
        end_ns = span[1]
        self._logged(request, end_ns)
        spent_ns, known = e2el_spent(request, *span), known_of(request)
        codes = self._buckets_of(request, end_ns)
        self.rows.add((end_ns, 1, *spent_ns, known, *codes))
        processed_ns = request.processed_ns
        if processed_ns is not None and processed_ns >= end_ns:
            self.detokenised.add(end_ns, processed_ns - end_ns)

    def _buckets_of(self, request: Request, end_ns: int) -> tuple[int, ...]:
        """Return the code of the request's bucket in each dimension."""
        prompt, output, priority = (
            request.prompt_tokens,
            request.tokens,
            request.priority,
        )
        alike = (
            -1 if prompt is None else bisect_right(LENGTH_BOUNDS, prompt),
            -1 if output is None else bisect_right(LENGTH_BOUNDS, output),
            request.class_name,
            request.lora or self._model_of(request.source),
            request.header,
            priority,
        )
        codes = self._alike.get(alike)
        if codes is None:
            codes = self._codes_of(*alike)
        return *codes, end_ns // SLOT_NS

    def _codes_of(
        self, prompt: int, output: int, *values: str | int | None
    ) -> tuple[int, ...]:
        """Return the codes of these values, lengths by the place in ``LENGTHS``."""
        lengths = (None if place < 0 else LENGTHS[place] for place in (prompt, output))
        names = (None if each is None else str(each) for each in (*lengths, *values))
        pairs = zip(self._codes, names, strict=False)
        codes = tuple(self._code(known, name or None) for known, name in pairs)
        if len(self._alike) >= MOST_ALIKE:
            self._alike.clear()
        self._alike[prompt, output, *values] = codes
        return codes

    @staticmethod
    def _code(known: dict[str | None, int], value: str | None) -> int:
        code = known.get(value)
        if code is None:
            code = min(len(known), MOST_BUCKETS)
            if code < MOST_BUCKETS:
                known[value] = code
        return code

    def _count(self, columns: Ints) -> None:
        """Add fresh rows to the sums of the session."""
        self._sums += columns[1:KNOWN].sum(axis=1)
        counts = _by_phase(columns)
        for phase, took_ns in zip(BreakdownPhase, counts[1:], strict=True):
            known = _is_known(columns, phase)
            self.samples[phase].add_many(columns[0, known], took_ns[known])
        for number, sums in enumerate(self._buckets):
            codes = columns[FIRST_DIMENSION + number]
            for code, fresh in _grouped(codes, counts).items():
                known_sums = sums.get(code)
                sums[code] = fresh if known_sums is None else known_sums + fresh
        slots = self._buckets[TIME]
        for code in sorted(slots.keys() - {BEFORE})[: -MOST_SLOTS or None]:
            merged = slots.pop(code)
            slots[BEFORE] = slots.get(BEFORE, 0) + merged

    # Views.

    def shown(self, now_ns: int, window: Window) -> Breakdown | None:
        """Return the breakdown of a window; None where no request ended in it."""
        self.rows.flush()
        quantiles: list[dict[int, Quantiles]] = [{} for _ in DIMENSIONS]
        if window.value is None:
            sums, buckets, rows = self._sums, self._buckets, None
        else:
            rows = self.rows.later_than(now_ns - window.value)
            sums = rows[1:KNOWN].sum(axis=1)
            buckets, quantiles = _all_grouped(rows)
        if not sums[0]:
            return None
        total_ns = int(sums[1:].sum())
        detokenised = self.detokenised.quantiles(now_ns, window)
        return Breakdown(
            requests=int(sums[0]),
            total_ns=total_ns,
            left_out=self._left_out,
            detokenised_s=detokenised if detokenised.n else None,
            phases=tuple(self._phases(now_ns, window, sums, total_ns)),
            causes=tuple(_causes(rows, sums, total_ns)),
            buckets=tuple(
                each
                for number, dimension in enumerate(DIMENSIONS)
                for each in self._told(
                    number, dimension, buckets[number], quantiles[number]
                )
            ),
        )

    def _phases(
        self, now_ns: int, window: Window, sums: Ints, total_ns: int
    ) -> list[BreakdownPart]:
        found = []
        for phase, places in PLACES.items():
            took_ns = int(sums[1:][places].sum())
            if took_ns:
                took_s = self.samples[phase].quantiles(now_ns, window)
                found.append(
                    BreakdownPart(
                        phase=phase,
                        cause=None,
                        total_ns=took_ns,
                        share=took_ns / max(total_ns, 1),
                        took_s=took_s if took_s.n else None,
                    )
                )
        return found

    def _told(
        self,
        number: int,
        dimension: GroupBy,
        sums: dict[int, Ints],
        e2el_s: dict[int, Quantiles],
    ) -> list[BreakdownBucket]:
        """Return the buckets of one dimension, none where no value is known."""
        names = [*self._codes[number]]
        if number == TIME:
            named = {code: _time_name(code) for code in sums}
            codes = sorted(sums)
        else:
            if all(code < len(names) and names[code] is None for code in sums):
                return []
            named = {
                code: told_name(names[code]) if code < len(names) else OTHERS
                for code in sums
            }
            codes = sorted(sums, key=lambda code: _order(named[code], sums[code]))
        is_slot = number == TIME
        return [
            BreakdownBucket(
                dimension=dimension,
                name=named[code],
                since_ns=code * SLOT_NS if is_slot and code != BEFORE else None,
                requests=int(sums[code][0]),
                total_ns=int(sums[code][1:].sum()),
                e2el_s=e2el_s.get(code),
                parts=tuple(
                    (phase, took_ns)
                    for phase, took_ns in zip(
                        BreakdownPhase, sums[code][1:].tolist(), strict=True
                    )
                    if took_ns
                ),
            )
            for code in codes
        ]

    # Checkpoints.

    def named_samples(self) -> dict[str, Samples]:
        """Return the samples, by the names under which their rows are saved."""
        phases = {f"phase: {phase}": each for phase, each in self.samples.items()}
        return phases | {"detokenised": self.detokenised}

    def saved(self) -> SavedBreakdown:
        """Return the state for a checkpoint, without rows and samples."""
        self.rows.flush()
        return SavedBreakdown(
            sums=self._sums.tolist(),
            names=[[*each] for each in self._codes],
            buckets=[
                {code: sums.tolist() for code, sums in each.items()}
                for each in self._buckets
            ],
            left_out=self._left_out,
            waiting=[request.key for request in self._waiting],
            classed=self._classed,
        )

    def restore(
        self, saved: SavedBreakdown, rows: SavedRows, blocks: Sequence[Block]
    ) -> None:
        """Restore a saved state after the requests; samples are restored apart.

        Raises:
            msgspec.ValidationError: it is that of another version.
        """
        kinds = len(saved.names), len(saved.buckets)
        if len(saved.sums) != 1 + CAUSES or {*kinds} != {len(DIMENSIONS)}:
            raise msgspec.ValidationError("this is not the breakdown that was saved")
        self.rows.restore(rows, blocks)
        self._sums = np.array(saved.sums, np.int64)
        self._codes = [
            {name: code for code, name in enumerate(names)} for names in saved.names
        ]
        self._buckets = [
            {code: np.array(sums, np.int64) for code, sums in each.items()}
            for each in saved.buckets
        ]
        self._left_out, self._classed = saved.left_out, saved.classed
        named = {each.key: each for each in self._requests.every() if each.ended}
        waiting = (named.get(key) for key in saved.waiting)
        self._waiting = {each: None for each in waiting if each is not None}


def _by_phase(rows: Ints) -> Ints:
    """Return 1 for each request, then its time by phase."""
    spent = rows[2:KNOWN]
    return np.array([rows[1], *(spent[each].sum(axis=0) for each in PLACES.values())])


def _is_known(rows: Ints, phase: BreakdownPhase) -> Any:  # noqa: ANN401  of booleans
    """Return of which requests it is known what a phase took."""
    needed = KNOWN_BY[phase]
    return rows[KNOWN] & needed == needed


def _grouped(codes: Ints, counts: Ints) -> dict[int, Ints]:
    """Return the sums of counts by code."""
    order, kinds, starts = _ordered(codes)
    if not kinds.size:
        return {}
    sums = np.add.reduceat(counts[:, order], starts, axis=1)
    return dict(zip(kinds.tolist(), sums.T, strict=True))


def _all_grouped(
    rows: Ints,
) -> tuple[list[dict[int, Ints]], list[dict[int, Quantiles]]]:
    """Return sums of phases and percentiles of E2EL by code, for each dimension.

    Requests are sorted by their E2EL once, and stay so in each bucket.
    """
    counts = _by_phase(rows)
    took_ns = counts[1:].sum(axis=0)
    shortest_first = np.argsort(took_ns, kind="stable")
    took_ns = took_ns[shortest_first]
    buckets: list[dict[int, Ints]] = []
    quantiles: list[dict[int, Quantiles]] = []
    for codes in rows[FIRST_DIMENSION:]:
        order, kinds, starts = _ordered(codes[shortest_first])
        sums: dict[int, Ints] = {}
        found: dict[int, Quantiles] = {}
        if kinds.size:
            sorted_counts = counts[:, shortest_first[order]]
            parts = np.add.reduceat(sorted_counts, starts, axis=1).T
            sums = dict(zip(kinds.tolist(), parts, strict=True))
        for start, (code, part) in zip(starts.tolist(), sums.items(), strict=True):
            n, *spent_ns = part.tolist()
            wanted = [*(start + rank - 1 for rank in ranks(n)), start + n - 1]
            picked = took_ns[order[wanted]].tolist()
            found[code] = describe(n, sum(spent_ns), picked, NS_PER_S)
        buckets.append(sums)
        quantiles.append(found)
    return buckets, quantiles


def _ordered(codes: Ints) -> tuple[Ints, Ints, Ints]:
    """Return an order by codes that keeps that of equals, the codes, their starts."""
    narrow: Any = codes - codes.min(initial=0)
    if narrow.max(initial=0) < NARROW:
        narrow = narrow.astype(np.uint16)  # which is sorted without comparing
    order = np.argsort(narrow, kind="stable")
    kinds, starts = np.unique(codes[order], return_index=True)
    return order, kinds, starts


def _time_name(slot: int) -> str:
    return EARLIER if slot == BEFORE else time_bucket(slot)


def _causes(rows: Ints | None, sums: Ints, total_ns: int) -> list[BreakdownPart]:
    """Return the causes of the phases that have several."""
    return [
        BreakdownPart(
            phase=phase,
            cause=E2EL_CAUSES[place],
            total_ns=int(sums[1 + place]),
            share=int(sums[1 + place]) / max(total_ns, 1),
            took_s=_cause_quantiles(rows, phase, place),
        )
        for phase, places in PLACES.items()
        if len(places) > 1
        for place in places
        if sums[1 + place]
    ]


def _cause_quantiles(
    rows: Ints | None, phase: BreakdownPhase, place: int
) -> Quantiles | None:
    """Return what a cause took of those of which it is known; None for the session."""
    if rows is None:
        return None
    known = _is_known(rows, phase)
    return _quantiles(rows[2 + place, known]) if known.any() else None


def _quantiles(took_ns: Ints) -> Quantiles:
    ones: Any = np.ones(len(took_ns), np.int64)
    return of_weighted(took_ns, ones, NS_PER_S)


def _order(name: str, sums: Ints) -> tuple[int, int]:
    """Return what buckets are sorted by: lengths rise, else most time comes first."""
    if name in LENGTHS:
        return LENGTHS.index(name), 0
    return len(LENGTHS), -int(sums[1:].sum())
