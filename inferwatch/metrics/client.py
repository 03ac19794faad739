"""What the load generator's client saw; warm-up is counted and left out."""

import numpy as np

from collectors.readings import (
    LoadEvent,
    LoadKind,
    Phase,
    RequestRecord,
    TokenTimes,
    Vantage,
)
from inferwatch.metrics.samples import Samples
from inferwatch.metrics.snapshot import ClientView, Latency, Window
from inferwatch.metrics.tallies import Tallies

METRICS = ("ttft_s", "tpot_s", "itl_s", "e2el_s")
MOST_UNMATCHED = 4_096


class Client:
    """Counts requests of the load and their latencies, vantage client."""

    def __init__(self) -> None:
        self._samples = {metric: Samples() for metric in METRICS}
        self._tallies = Tallies("sent", "succeeded", "failed", "warmup")
        self._rate_per_s: float | None = None
        self._last_event: LoadEvent | None = None
        self._seen = False
        self._unmatched: dict[str, TokenTimes | Phase] = {}
        """Token times whose record has not come, phases whose token times have not."""

    def event(self, event: LoadEvent) -> None:
        """Something the load generator began or ended."""
        self._seen = True
        self._last_event = event
        if event.kind is LoadKind.STOPPED:
            self._rate_per_s = None
        elif event.rate_per_s is not None:
            self._rate_per_s = event.rate_per_s

    def record(self, record: RequestRecord) -> int:
        """A complete request; when it ended."""
        self._seen = True
        t_ns = ended_ns(record)
        warmup = record.phase is Phase.WARMUP
        succeeded = record.failure is None
        if warmup:
            self._tallies.add(t_ns, 0, 0, 0, 1)
        else:
            sent = record.sent_ns is not None
            self._tallies.add(t_ns, int(sent), int(succeeded), int(not succeeded), 0)
            self._latencies(record)
        waiting = self._match(record.external_id, record.phase)
        if isinstance(waiting, TokenTimes) and not warmup:
            self._gaps(waiting)
        return t_ns

    def tokens(self, times: TokenTimes) -> None:
        """When the chunks of a request came; its record may come later."""
        phase = self._match(times.external_id, times)
        if isinstance(phase, Phase) and phase is not Phase.WARMUP:
            self._gaps(times)

    def view(self, now_ns: int, window: Window) -> ClientView | None:
        """Over a window; None when there is no load of ours."""
        if not self._seen:
            return None
        latencies = (
            Latency(
                metric=metric,
                vantage=Vantage.CLIENT,
                quantiles=samples.quantiles(now_ns, window),
            )
            for metric, samples in self._samples.items()
        )
        return ClientView(
            **self._tallies.over(now_ns, window).sums,
            rate_per_s=self._rate_per_s,
            last_event=self._last_event,
            latencies=tuple(latencies),
        )

    def _latencies(self, record: RequestRecord) -> None:
        first_ns, last_ns = record.first_token_ns, record.last_token_ns
        if first_ns is not None:
            self._samples["ttft_s"].add(first_ns, first_ns - record.intended_ns)
        if last_ns is None or record.failure is not None:
            return
        self._samples["e2el_s"].add(last_ns, last_ns - record.intended_ns)
        tokens = record.output_tokens
        if first_ns is not None and tokens is not None and tokens > 1:
            tpot_ns = round((last_ns - first_ns) / (tokens - 1))
            self._samples["tpot_s"].add(last_ns, tpot_ns)

    def _gaps(self, times: TokenTimes) -> None:
        gaps_ns = np.array(times.gaps_ns, np.int64)
        self._samples["itl_s"].add_many(times.first_ns + np.cumsum(gaps_ns), gaps_ns)

    def _match(
        self, external_id: str, half: TokenTimes | Phase
    ) -> TokenTimes | Phase | None:
        """The other half, if it came; else this one waits for it."""
        other = self._unmatched.pop(external_id, None)
        if other is None:
            self._unmatched[external_id] = half
            while len(self._unmatched) > MOST_UNMATCHED:
                del self._unmatched[next(iter(self._unmatched))]
        return other


def ended_ns(record: RequestRecord) -> int:
    """The last moment known of a request."""
    moments = (record.end_ns, record.last_token_ns, record.sent_ns)
    return next((t_ns for t_ns in moments if t_ns is not None), record.intended_ns)
