"""Requests from traces: reported once they have ended, with exact times.

For a server with a probe traces add nothing. For others their latencies replace the
estimates from buckets; what traces lack, such as each gap between two tokens, still
comes from the server's histograms.
"""

from collections.abc import Collection, Iterable, Sequence

import msgspec

from collectors.contract.readings import RequestSpan
from inferwatch.metrics.requests.latencies import VANTAGES
from inferwatch.metrics.requests.outcomes import Outcomes
from inferwatch.metrics.requests.request import Request
from inferwatch.metrics.requests.request_index import RequestIndex
from inferwatch.metrics.requests.request_row import RequestState
from inferwatch.metrics.requests.request_tracker import JudgeSink, LatencySamples
from inferwatch.metrics.series.window import Latency, Window
from inferwatch.metrics.servers.scraped_window import ScrapedWindow
from inferwatch.metrics.servers.server_state import Via

MOST_SERVERS = 4_096
LEAST_PART = 2
"""Traces must cover at least half of the requests to stand for all."""
OWN_FLAG = "--otlp-traces-endpoint"
"""The flag whose advice is dropped once traces arrive."""


class SavedTraces(msgspec.Struct, array_like=True):
    """Traces as checkpoints keep them."""

    last_ns: dict[str, int]
    told: int


class Traces:
    """Folds requests from traces, and knows which servers send traces."""

    def __init__(
        self,
        requests: RequestIndex,
        latencies: LatencySamples,
        outcomes: Outcomes,
        judge: JudgeSink,
    ) -> None:
        self._requests = requests
        self._latencies = latencies
        self._outcomes = outcomes
        self._judge = judge
        self._last_ns: dict[str, int] = {}
        """End of the latest traced request, by server."""
        self._count = 0

    def take(self, span: RequestSpan) -> None:
        last_ns = self._last_ns.get(span.source)
        if last_ns is None and len(self._last_ns) >= MOST_SERVERS:
            return
        self._last_ns[span.source] = max(span.end_ns, last_ns or span.end_ns)
        self._count += 1
        request = self._request(span)
        measured = {
            "ttft_s": span.ttft_ns,
            "queue_s": span.queue_ns,
            "prefill_s": span.prefill_ns,
            "tpot_s": request.tpot_ns,
            "e2el_s": span.e2el_ns,
        }
        for metric, value_ns in measured.items():
            if value_ns is not None:
                self._latencies.add(metric, span.end_ns, value_ns)
        self._outcomes.arrived(request, span.arrived_ns)
        self._outcomes.ended(request, RequestState.FINISHED, span.end_ns)
        self._requests.add_ended(request)
        self._judge.ended(request)

    def _request(self, span: RequestSpan) -> Request:
        """Return the request of a span; its times follow from the span's durations."""
        request = Request(
            source=span.source,
            seen_ns=span.arrived_ns,
            request_id=f"{span.request_id}#{self._count}",  # clients may reuse ids
            external_id=span.request_id,
            outcome=RequestState.FINISHED,
            front_ended=True,
            engine_ended=True,
            awaited=False,
            first_sent=True,
            arrived_ns=span.arrived_ns,
            end_ns=span.end_ns,
            ttft_ns=span.ttft_ns,
            queue_ns=span.queue_ns,
            prefill_ns=span.prefill_ns,
            e2el_ns=span.e2el_ns,
            prompt_tokens=span.prompt_tokens,
            max_tokens=span.max_tokens,
            temperature=span.temperature,
            reported_tokens=span.output_tokens,
            output_tokens=span.output_tokens or 0,
            trusted=span.output_tokens is not None,
        )
        if span.decode_ns is not None:
            request.last_ns = span.end_ns
            request.first_ns = span.end_ns - span.decode_ns
        return request

    # Results.

    def sources(self, scraped: ScrapedWindow, window_ns: int | None) -> set[str]:
        """Return the servers whose traces are complete in the window."""
        late = set()
        if window_ns is not None:
            since_ns = scraped.now_ns - window_ns
            late = {each for each, at_ns in self._last_ns.items() if at_ns <= since_ns}
        return set(self._last_ns) - (late & scraped.finished_at)

    def tell_all(
        self,
        counted: Sequence[Latency],
        exact: Sequence[Latency],
        scraped: ScrapedWindow,
        window: Window,
        probed: Collection[str],
    ) -> bool:
        """Return whether exact latencies cover all requests that servers count.

        ``counted`` are latencies from scrapes, ``exact`` those of single requests, both
        of ``window``; ``scraped`` are the servers shown, ``probed`` those with a probe.
        """
        traced = self.sources(scraped, window.value)
        silent = scraped.finished_at - traced - set(probed)
        few = LEAST_PART * _most(exact) < _most(counted)
        some = traced & {server.source for server in scraped.servers}
        return bool(some) and not few and not silent

    def saved(self) -> SavedTraces:
        """Return the state for a checkpoint, without requests."""
        return SavedTraces(last_ns=self._last_ns, told=self._count)

    def restore(self, saved: SavedTraces) -> None:
        self._last_ns, self._count = saved.last_ns, saved.told


def advice_left(advice: Iterable[str], via: Via | None) -> list[str]:
    """Return the advice that has not been followed yet."""
    if via is Via.PROBE:
        return []  # a probe reports everything
    return [each for each in advice if via is not Via.TRACES or OWN_FLAG not in each]


def _most(rows: Iterable[Latency]) -> int:
    """Return the largest request count of all rows but ITL, which counts gaps."""
    return max((row.quantiles.n for row in rows if row.metric != "itl_s"), default=0)


def best_of(exact: Iterable[Latency], counted: Iterable[Latency]) -> Iterable[Latency]:
    """Yield one row per metric: the exact one if there is any, else the counted one."""
    first = {row.metric: row for row in exact if row.quantiles.n}
    other = {row.metric: row for row in counted}
    for metric in dict.fromkeys((*VANTAGES, *other)):
        row = first.get(metric) or other.get(metric)
        if row is not None:
            yield row
