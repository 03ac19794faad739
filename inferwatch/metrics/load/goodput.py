"""Goodput: requests that hold every limit at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collectors.clock import NS_PER_S
from collectors.readings import RequestRecord
from inferwatch.metrics.load.book import BY_US, LoadBook
from inferwatch.metrics.load.request_latencies import (
    e2el_ns,
    known_ns,
    tpot_ns,
    ttft_ns,
)
from inferwatch.metrics.load.slo import Slo
from inferwatch.metrics.series.intervals import certain_of, share_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """How many requests of a run were good."""

    n: int
    """Judged: those that we aborted before they broke a limit are not."""
    good: int
    undetermined: int
    missed: dict[str, int]
    """Requests that broke a metric's limit; one can break several."""
    good_per_s: float | None
    certain: float
    """So many independent requests would say as much of the share; 0: nothing."""

    @property
    def ci95(self) -> tuple[float, float]:
        """The 95% interval of the share; 0 to 1 where nothing can be said of it."""
        return share_interval((self.share or 0.0) * self.certain, self.certain)

    @property
    def share(self) -> float | None:
        """Good requests of those judged; None when none was judged."""
        return self.good / self.n if self.n else None

    def holds(self, share: float) -> bool:
        """Whether at least that share was good."""
        return self.share is not None and self.share >= share


def goodput(book: LoadBook, slo: Slo, classes: Mapping[str, Slo]) -> Goodput:
    """Judge each request by its class's objectives, else by those of all."""
    return goodput_of(book, book.records, slo, classes)


def goodput_of(
    book: LoadBook,
    records: Sequence[RequestRecord],
    slo: Slo,
    classes: Mapping[str, Slo],
) -> Goodput:
    """The goodput of some requests of a run, per second of the whole run."""
    flags: list[bool] = []
    undetermined = 0
    missed: dict[str, int] = {}
    for record in records:
        limits = classes.get(record.class_name or "", slo)
        broken = broken_by(record, book.gaps_of(record), limits)
        for metric in broken:
            missed[metric] = missed.get(metric, 0) + 1
        if not broken and record.failure in BY_US:
            undetermined += 1
        else:
            flags.append(not broken)
    n, good = len(flags), sum(flags)
    return Goodput(
        n=n,
        good=good,
        undetermined=undetermined,
        missed=missed,
        good_per_s=good / book.span_s if book.span_s else None,
        certain=certain_of(
            np.array(flags, float),
            [known_ns(of, records).astype(float) for of in (ttft_ns, e2el_ns)],
        ),
    )


def broken_by(record: RequestRecord, gaps_ns: list[int], slo: Slo) -> list[str]:
    """The limits that a request broke; ``failed`` for one that failed by itself."""
    failed = record.failure not in {None, *BY_US}
    return slo.broken(latencies(record, gaps_ns), failed=failed)


def latencies(record: RequestRecord, gaps_ns: list[int]) -> dict[str, float]:
    """A request's latencies in seconds, by the names that objectives use.

    What did not come is at least as late as the end of the wait for it: then that is
    its value, unless it is too early to say.
    """
    found: dict[str, int | float] = {}
    end_ns = record.end_ns
    waited_ns = None if end_ns is None else end_ns - record.intended_ns
    if (ttft := ttft_ns(record)) is not None or (ttft := waited_ns) is not None:
        found["ttft_s"] = ttft
    e2el = e2el_ns(record) if record.failure is None else waited_ns
    if e2el is not None:
        found["e2el_s"] = e2el
    if (tpot := tpot_ns(record)) is not None:
        found["tpot_s"] = tpot
    if gaps_ns:
        found["itl_s"] = max(gaps_ns)
    return {metric: value / NS_PER_S for metric, value in found.items()}
