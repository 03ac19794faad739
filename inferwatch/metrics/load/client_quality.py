"""How well the client does right now: its last seconds, weighed like a whole run."""

from collections import deque
from dataclasses import dataclass, field
from typing import Self

import msgspec
import numpy as np

from collectors.clock import NS_PER_S
from collectors.readings import ClientSample, Phase, RequestRecord
from inferwatch.metrics.load.book import held_back, together
from inferwatch.metrics.load.client_verdict import (
    ClientVerdict,
    Evidence,
    cpu_share,
    judge,
    merged_share,
    recv_lag_p99_s,
)
from inferwatch.metrics.series.intervals import Estimate, estimate
from inferwatch.metrics.series.samples import Samples
from inferwatch.metrics.snapshot import Window

SECONDS = 10
"""Samples, one a second, that a verdict stands on."""
MOST_RECORDS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """What is shown of it; unknown is None."""

    verdict: ClientVerdict = field(default_factory=ClientVerdict)
    send_lag_p99_s: float | None = None
    recv_lag_p99_s: float | None = None
    merged_share: float | None = None
    cpu_share: float | None = None


class SentRequest(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What of a request that has ended tells how well the client does."""

    index: int
    intended_ns: int
    sent_ns: int | None
    first_token_ns: int | None
    end_ns: int | None


class SavedSeconds(msgspec.Struct, array_like=True):
    """A LatestSeconds, but for the limit that the plan tells."""

    samples: list[ClientSample]
    requests: list[SentRequest]


class LatestSeconds:
    """Samples and requests of the last ten seconds of a run; few more are kept."""

    def __init__(self, most_in_flight: int | None) -> None:
        self._most = most_in_flight
        self._samples: deque[ClientSample] = deque(maxlen=SECONDS)
        self._records: deque[SentRequest] = deque(maxlen=MOST_RECORDS)

    def sample(self, sample: ClientSample) -> None:
        """A second of the client; the one of the whole run says nothing of now."""
        if sample.final:
            return
        self._samples.append(sample)
        begin_ns = sample.t_ns - SECONDS * NS_PER_S
        while self._records and (self._records[0].sent_ns or 0) <= begin_ns:
            self._records.popleft()

    def record(self, record: RequestRecord) -> None:
        """A request that has ended."""
        if record.phase is not Phase.WARMUP:
            self._records.append(
                SentRequest(
                    record.index,
                    record.intended_ns,
                    record.sent_ns,
                    record.first_token_ns,
                    record.end_ns,
                )
            )

    def saved(self) -> SavedSeconds:
        """To be restored for the same run."""
        return SavedSeconds(list(self._samples), list(self._records))

    @classmethod
    def restored(cls, saved: SavedSeconds, most_in_flight: int | None) -> Self:
        """As it was saved."""
        latest = cls(most_in_flight)
        latest._samples.extend(saved.samples)
        latest._records.extend(saved.requests)
        return latest

    def quality(self, gaps: Samples) -> Quality:
        """As of the last sample; ``gaps`` are those between chunks."""
        if not self._samples:
            return Quality()
        sample = together(list(self._samples))
        begin_ns = sample.t_ns - SECONDS * NS_PER_S
        recent = [each for each in self._records if (each.sent_ns or 0) > begin_ns]
        send_lag = self._send_lag(recent, sample.in_flight)
        waits = [
            each.first_token_ns - each.sent_ns
            for each in recent
            if each.first_token_ns is not None and each.sent_ns is not None
        ]
        itl = gaps.quantiles(sample.t_ns, Window.TEN_SECONDS)
        evidence = Evidence(
            sample=sample,
            send_lag=send_lag,
            ttft_p50_s=float(np.median(waits)) / NS_PER_S if waits else None,
            itl_p50_s=itl.p50,
        )
        return Quality(
            verdict=judge(evidence),
            send_lag_p99_s=send_lag.quantiles.p99,
            recv_lag_p99_s=recv_lag_p99_s(sample),
            merged_share=merged_share(sample),
            cpu_share=cpu_share(sample),
        )

    def _send_lag(self, recent: list[SentRequest], in_flight: int) -> Estimate:
        """Of sends that nothing but the client kept waiting.

        What is in flight now may have been so all the time: rather too little
        evidence than a false one.
        """
        ordered = sorted(recent, key=lambda each: (each.intended_ns, each.index))
        held: set[int] = set()
        if self._most is not None:
            room = self._most - in_flight
            if room < 1:
                return Estimate()
            held = set(held_back(ordered, room))
        lags = (
            each.sent_ns - each.intended_ns
            for each in ordered
            if each.sent_ns is not None and each.index not in held
        )
        return estimate(np.fromiter(lags, np.int64))
