"""Goodput: requests that meet every limit at once."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import RequestRecord
from inferwatch.metrics.load.book import BY_US, LoadBook
from inferwatch.metrics.load.request_latencies import (
    Answered,
    e2el_ns,
    known_ns,
    tpot_ns,
    ttft_ns,
)
from inferwatch.metrics.requests.slo import Slo, unreported
from inferwatch.metrics.series.intervals import certain_of, share_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """How many requests of a run were good."""

    n: int
    """Judged requests, without undetermined ones."""
    good: int
    undetermined: int
    """Requests that cannot be judged."""
    untold: int
    """Undetermined requests that were answered in full but lack a measurement."""
    missed: dict[str, int]
    """Requests that missed the limit of each metric; one can miss several."""
    good_per_s: float | None
    """None where some requests are untold, as their share is not known."""
    certain: float
    """Number of independent requests that would be as informative; 0 for none."""

    @property
    def ci95(self) -> tuple[float, float]:
        """The 95% interval of the share; 0 to 1 where nothing is known."""
        return share_interval((self.share or 0.0) * self.certain, self.certain)

    @property
    def share(self) -> float | None:
        """Good / judged requests, 0-1; None if none was judged."""
        return self.good / self.n if self.n else None

    def holds(self, share: float) -> bool | None:
        """Return whether at least ``share`` of the requests are good.

        None if that depends on requests that cannot be judged.
        """
        ended = self.n + self.untold
        if not ended or (self.good + self.untold) / ended < share:
            return False
        return True if self.good / ended >= share else None


def goodput(book: LoadBook, slo: Slo, classes: Mapping[str, Slo]) -> Goodput:
    """Judge each request by its class's objectives, else by the general ones."""
    return goodput_of(book, book.records, slo, classes)


def goodput_of(
    book: LoadBook,
    records: Sequence[RequestRecord],
    slo: Slo,
    classes: Mapping[str, Slo],
) -> Goodput:
    """Return the goodput of some requests, per second of the whole run."""
    flags: list[bool] = []
    untold = 0
    missed: Counter[str] = Counter()
    for record in records:
        limits = classes.get(record.class_name or "", slo)
        missed_limits = missed_by(record, book.gaps_of(record), limits)
        if missed_limits is not None:
            missed.update(missed_limits)
            flags.append(not missed_limits)
        elif record.failure is None:
            untold += 1
    n, good = len(flags), sum(flags)
    return Goodput(
        n=n,
        good=good,
        undetermined=len(records) - n,
        untold=untold,
        missed=dict(missed),
        good_per_s=good / book.span_s if book.span_s and not untold else None,
        certain=certain_of(
            np.array(flags, float),
            [known_ns(of, records).astype(float) for of in (ttft_ns, e2el_ns)],
        ),
    )


def missed_by(record: Answered, gaps_ns: Sequence[int], slo: Slo) -> list[str] | None:
    """Return the limits that a request missed, plus ``failed`` if it failed by itself.

    None where it cannot be judged: it was aborted before it missed one, or its server
    does not count tokens. An answer in one piece has no gaps.
    """
    values = latencies(record, gaps_ns)
    first_ns, tokens = record.first_token_ns, record.output_tokens
    at_once = first_ns is not None and first_ns == record.last_token_ns
    unknown = unreported(values, single=at_once or (tokens is not None and tokens < 2))
    if tokens is not None:
        unknown.discard("tpot_s")  # all tokens came in the first chunk
    failed = record.failure not in {None, *BY_US}
    missed = slo.missed(values, unknown, failed=failed)
    return missed or None if record.failure in BY_US else missed


def latencies(record: Answered, gaps_ns: Sequence[int]) -> dict[str, float]:
    """Return a request's latencies in seconds, by the names that objectives use.

    Where no token came, the wait until the request's end stands for its latency.
    """
    values_ns: dict[str, int | float] = {}
    end_ns = record.end_ns
    waited_ns = None if end_ns is None else end_ns - record.intended_ns
    if (ttft := ttft_ns(record)) is not None or (ttft := waited_ns) is not None:
        values_ns["ttft_s"] = ttft
    e2el = e2el_ns(record) if record.failure is None else waited_ns
    if e2el is not None:
        values_ns["e2el_s"] = e2el
    if (tpot := tpot_ns(record)) is not None:
        values_ns["tpot_s"] = tpot
    if gaps_ns:
        values_ns["itl_s"] = max(gaps_ns)
    return {metric: value / NS_PER_S for metric, value in values_ns.items()}
