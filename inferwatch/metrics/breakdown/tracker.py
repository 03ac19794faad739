"""Adds up where the time of all ended requests went, for any window and the session."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec
import numpy as np

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import Vantage
from inferwatch.metrics.breakdown.split import e2el_spent, span_of
from inferwatch.metrics.breakdown.view import (
    CAUSES_OF,
    DIMENSIONS,
    Breakdown,
    BreakdownBucket,
    BreakdownPart,
    BreakdownPhase,
)
from inferwatch.metrics.causes.cause import E2EL_CAUSES
from inferwatch.metrics.requests.request import Request
from inferwatch.metrics.requests.request_groups import (
    LENGTH_BOUNDS,
    LENGTHS,
    SLOT_NS,
    GroupBy,
    time_bucket,
)
from inferwatch.metrics.requests.request_index import RequestIndex
from inferwatch.metrics.series.quantiles import Ints, of_weighted
from inferwatch.metrics.series.samples import Block, RecentRows, Samples, SavedRows
from inferwatch.metrics.series.window import Quantiles, Window

SILENT_NS = 2 * NS_PER_S
"""How long after a request's end to wait for what is not reported yet."""
MOST_WAITING = 1_000
MOST_BUCKETS = 64
"""Largest number of values of one dimension that have a bucket of their own."""
MOST_ALIKE = 4_096
OTHERS = "others"
"""The bucket of all other values."""
NONE = "–"
"""The bucket of requests without a value."""
TELLERS = (Vantage.FRONTEND, Vantage.ENGINE)
CAUSES = len(E2EL_CAUSES)
FIRST_DIMENSION = 2 + CAUSES
"""Columns of a row: time, 1 for the request, time by cause, codes of buckets."""
PLACES = {
    phase: [E2EL_CAUSES.index(cause) for cause in causes]
    for phase, causes in CAUSES_OF.items()
}
TIME = DIMENSIONS.index(GroupBy.TIME)


class SavedBreakdown(msgspec.Struct, array_like=True):
    """A BreakdownTracker as checkpoints keep it, without its rows and samples."""

    sums: list[int]
    """Number of requests, then their time by cause."""
    names: list[list[str]]
    """Of each dimension, the values in the order of their codes."""
    buckets: list[dict[int, list[int]]]
    """Sums as above by code, for each dimension."""
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
        self._codes: list[dict[str, int]] = [{} for _ in DIMENSIONS]
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
        if self._complete(request) and not (
            self._classed and request.class_name is None
        ):
            self._log(request)
            return
        self._waiting[request] = None
        if len(self._waiting) > MOST_WAITING:
            self._log(next(iter(self._waiting)))

    def classed(self, request: Request) -> None:
        """Take over that a client told the class of a request."""
        self._classed = True
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
        begin_ns, end_ns = span
        spent_ns = e2el_spent(request, begin_ns, end_ns)
        self._logged(request, end_ns)
        self.rows.add((end_ns, 1, *spent_ns, *self._buckets_of(request, end_ns)))
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
        names = (NONE if each is None else str(each) for each in (*lengths, *values))
        pairs = zip(self._codes, names, strict=False)
        codes = tuple(self._code(known, name or NONE) for known, name in pairs)
        if len(self._alike) >= MOST_ALIKE:
            self._alike.clear()
        self._alike[prompt, output, *values] = codes
        return codes

    @staticmethod
    def _code(known: dict[str, int], value: str) -> int:
        code = known.get(value)
        if code is None:
            code = min(len(known), MOST_BUCKETS)
            if code < MOST_BUCKETS:
                known[value] = code
        return code

    def _count(self, columns: Ints) -> None:
        """Add fresh rows to the sums of the session."""
        counts = columns[1 : 2 + CAUSES]
        self._sums += counts.sum(axis=1)
        for phase, places in PLACES.items():
            took_ns = columns[2:][places].sum(axis=0)
            self.samples[phase].add_many(columns[0], took_ns)
        for number, sums in enumerate(self._buckets):
            codes = columns[FIRST_DIMENSION + number]
            for code in np.unique(codes).tolist():
                fresh = counts[:, codes == code].sum(axis=1)
                known = sums.get(code)
                sums[code] = fresh if known is None else known + fresh

    # Views.

    def shown(self, now_ns: int, window: Window) -> Breakdown | None:
        """Return the breakdown of a window; None where no request ended in it."""
        self.rows.flush()
        if window.value is None:
            sums, buckets, rows = self._sums, self._buckets, None
        else:
            rows = self.rows.later_than(now_ns - window.value)
            sums = rows[1 : 2 + CAUSES].sum(axis=1)
            buckets = _grouped(rows)
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
                for each in self._told(number, dimension, buckets[number], rows)
            ),
        )

    def _phases(
        self, now_ns: int, window: Window, sums: Ints, total_ns: int
    ) -> list[BreakdownPart]:
        found = []
        for phase, places in PLACES.items():
            took_ns = int(sums[1:][places].sum())
            if took_ns:
                found.append(
                    BreakdownPart(
                        phase=phase,
                        cause=None,
                        total_ns=took_ns,
                        share=took_ns / max(total_ns, 1),
                        took_s=self.samples[phase].quantiles(now_ns, window),
                    )
                )
        return found

    def _told(
        self,
        number: int,
        dimension: GroupBy,
        sums: dict[int, Ints],
        rows: Ints | None,
    ) -> list[BreakdownBucket]:
        """Return the buckets of one dimension, none where no value is known."""
        names = [*self._codes[number]]
        if number != TIME and all(_name(names, code) == NONE for code in sums):
            return []
        if number == TIME:
            named = {code: time_bucket(code) for code in sums}
            codes = sorted(sums)
        else:
            named = {code: _name(names, code) for code in sums}
            codes = sorted(sums, key=lambda code: _order(named[code], sums[code]))
        e2el_ns = None if rows is None else rows[2 : 2 + CAUSES].sum(axis=0)
        return [
            BreakdownBucket(
                dimension=dimension,
                name=named[code],
                since_ns=code * SLOT_NS if number == TIME else None,
                requests=int(sums[code][0]),
                total_ns=int(sums[code][1:].sum()),
                e2el_s=_e2el(rows, e2el_ns, number, code),
                parts=tuple(
                    (phase, took_ns)
                    for phase, places in PLACES.items()
                    if (took_ns := int(sums[code][1:][places].sum()))
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


def _grouped(rows: Ints) -> list[dict[int, Ints]]:
    """Return the sums of rows by code, for each dimension."""
    counts = rows[1 : 2 + CAUSES]
    found: list[dict[int, Ints]] = []
    for number in range(len(DIMENSIONS)):
        codes = rows[FIRST_DIMENSION + number]
        order = np.argsort(codes, kind="stable")
        kinds, starts = np.unique(codes[order], return_index=True)
        if not kinds.size:
            found.append({})
            continue
        sums = np.add.reduceat(counts[:, order], starts, axis=1)
        found.append(dict(zip(kinds.tolist(), sums.T, strict=True)))
    return found


def _causes(rows: Ints | None, sums: Ints, total_ns: int) -> list[BreakdownPart]:
    """Return the causes of the phases that have several."""
    return [
        BreakdownPart(
            phase=phase,
            cause=E2EL_CAUSES[place],
            total_ns=int(sums[1 + place]),
            share=int(sums[1 + place]) / max(total_ns, 1),
            took_s=None if rows is None else _quantiles(rows[2 + place]),
        )
        for phase, places in PLACES.items()
        if len(places) > 1
        for place in places
        if sums[1 + place]
    ]


def _e2el(
    rows: Ints | None, e2el_ns: Ints | None, number: int, code: int
) -> Quantiles | None:
    """Return the E2EL of the requests of a bucket; None for the session."""
    if rows is None or e2el_ns is None:
        return None
    return _quantiles(e2el_ns[rows[FIRST_DIMENSION + number] == code])


def _quantiles(took_ns: Ints) -> Quantiles:
    ones: Any = np.ones(len(took_ns), np.int64)
    return of_weighted(took_ns, ones, NS_PER_S)


def _order(name: str, sums: Ints) -> tuple[int, int]:
    """Return what buckets are sorted by: lengths rise, else most time comes first."""
    if name in LENGTHS:
        return LENGTHS.index(name), 0
    return len(LENGTHS), -int(sums[1:].sum())


def _name(names: Sequence[str], code: int) -> str:
    return names[code] if code < len(names) else OTHERS
