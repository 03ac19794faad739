"""Is it the server that was measured, or the client?

A saturated client does not fail: throughput looks fine, only its stamps rot. So it
measures itself, and where it was too slow for the latencies it reports, says so.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

import msgspec
import numpy as np

from collectors.clock import NS_PER_S
from collectors.readings import ClientSample, Phase, RequestRecord
from inferwatch.metrics.load.book import held_back, together
from inferwatch.metrics.series.intervals import Estimate, at_least
from inferwatch.metrics.series.quantiles import Ints, of_weighted
from inferwatch.metrics.series.samples import Samples
from inferwatch.metrics.snapshot import Window

LAG_SHARE = 0.1
"""Of the latency that a lag falsifies: more than a tenth is too much."""
MERGED_SHARE = 0.01
CPU_SHARE = 0.7
"""Of the one core that a generator can use: above, lags grow without bound."""


class ClientState(StrEnum):
    """What a verdict says of the client: fast enough, the bottleneck, or unknown."""

    OK = "OK"
    CLIENT_BOUND = "CLIENT-BOUND"
    UNKNOWN = "UNKNOWN"


SEVERITY = (ClientState.UNKNOWN, ClientState.OK, ClientState.CLIENT_BOUND)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientVerdict:
    """Whether the client was fast enough, and why not, fit to show."""

    state: ClientState = ClientState.UNKNOWN
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The measurements a verdict is made from; unknown is None and accuses nobody."""

    sample: ClientSample | None = None
    send_lag: Estimate = field(default_factory=Estimate)
    """Lags of sends that only the client delayed."""
    ttft_p50_s: float | None = None
    itl_p50_s: float | None = None


def lags_estimate(lags_ns: Ints) -> Estimate:
    """What a verdict needs to know of lags in order of time: no intervals."""
    ones = np.ones(len(lags_ns), np.int64)
    return Estimate(
        quantiles=of_weighted(lags_ns, ones, NS_PER_S),
        p99_at_least=at_least(lags_ns / NS_PER_S, 0.99),
    )


def worst(verdicts: Iterable[ClientVerdict]) -> ClientVerdict:
    """The one that says most against the numbers; unknown where there is none."""
    found = sorted(verdicts, key=lambda each: SEVERITY.index(each.state))
    return found[-1] if found else ClientVerdict()


def judge(evidence: Evidence) -> ClientVerdict:
    """The verdict that the evidence allows."""
    if evidence.sample is None or not evidence.send_lag.quantiles.n:
        return ClientVerdict()
    found = (_sending(evidence), _receiving(evidence), _working(evidence.sample))
    reasons = tuple(reason for reason in found if reason)
    state = ClientState.CLIENT_BOUND if reasons else ClientState.OK
    return ClientVerdict(state=state, reasons=reasons)


def recv_lag_p99_s(sample: ClientSample) -> float | None:
    """Receive lag: from the kernel's stamp of a read to ours."""
    lag_ns = sample.recv_lag_p99_ns
    return None if lag_ns is None else lag_ns / NS_PER_S


def cpu_share(sample: ClientSample) -> float | None:
    """The share of one core that the generator used."""
    return sample.cpu_s / sample.span_ns * NS_PER_S if sample.span_ns else None


def merged_share(sample: ClientSample) -> float | None:
    """Reads that brought several tokens' chunks at once, of all reads."""
    return sample.merged_reads / sample.reads if sample.reads else None


def _sending(evidence: Evidence) -> str:
    """Send lag at p99; where few sends stand behind it, a hiccup is allowed for.

    Of a hundred sends, one hiccup of the machine is the p99: no reason to accuse. Of
    a thousand, it is the very sends that a TTFT's p99 without a mark is made of.
    """
    lag_s, more = evidence.send_lag.quantiles.p99, ""
    if "p99" in evidence.send_lag.quantiles.weak:
        lag_s, more = evidence.send_lag.p99_at_least, " or more"
    ttft_s = evidence.ttft_p50_s
    if lag_s is None or ttft_s is None or lag_s <= LAG_SHARE * ttft_s:
        return ""
    said = f"send lag p99 is {_ms(lag_s)}{more}"
    return f"{said}, over 10% of the TTFT's p50 {_ms(ttft_s)}"


def _receiving(evidence: Evidence) -> str:
    """Only a read that brought several tokens' chunks can give one a wrong stamp.

    The kernel stamps a lone chunk when it comes, however late it is read. A server may
    well send two at once: where the kernel says that reads were not late, it did.
    """
    sample, itl_s = evidence.sample, evidence.itl_p50_s
    merged = (sample and merged_share(sample)) or 0.0
    if sample is None or merged <= MERGED_SHARE:
        return ""
    said = f"{merged:.1%} of reads were merged"
    lag_s = recv_lag_p99_s(sample)
    if lag_s is None:
        return said
    if itl_s is None or lag_s <= LAG_SHARE * itl_s:
        return ""
    return f"{said}; receive lag p99 {_ms(lag_s)}, ITL p50 {_ms(itl_s)}"


def _working(sample: ClientSample) -> str:
    share = cpu_share(sample)
    if share is None or share <= CPU_SHARE:
        return ""
    return f"the generator used {share:.0%} of a core"


def _ms(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


# Right now: the last seconds, weighed like a whole run.

SECONDS = 10
"""Samples, one a second, that a verdict stands on."""
MOST_RECORDS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuality:
    """How well the client does now, as screens show it; unknown is None."""

    verdict: ClientVerdict = field(default_factory=ClientVerdict)
    send_lag_p99_s: float | None = None
    recv_lag_p99_s: float | None = None
    merged_share: float | None = None
    cpu_share: float | None = None


class SentRequest(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The moments of an ended request that tell how well the client does."""

    index: int
    intended_ns: int
    sent_ns: int | None
    first_token_ns: int | None
    end_ns: int | None


class SavedSeconds(msgspec.Struct, array_like=True):
    """The state of a ``LatestSeconds`` in a checkpoint, but for the plan's limit."""

    samples: list[ClientSample]
    requests: list[SentRequest]


class LatestSeconds:
    """Keeps the last ten seconds of a run, from which its client is judged."""

    def __init__(self, most_in_flight: int | None) -> None:
        self._most = most_in_flight
        self._samples: deque[ClientSample] = deque(maxlen=SECONDS)
        self._records: deque[SentRequest] = deque(maxlen=MOST_RECORDS)

    def sample(self, sample: ClientSample) -> None:
        """Take in a second of the client, but not the sample of the whole run."""
        if sample.final:
            return
        self._samples.append(sample)
        begin_ns = sample.t_ns - SECONDS * NS_PER_S
        while self._records and (self._records[0].sent_ns or 0) <= begin_ns:
            self._records.popleft()

    def record(self, record: RequestRecord) -> None:
        """Take in a request that has ended."""
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
        """Its state for a checkpoint."""
        return SavedSeconds(list(self._samples), list(self._records))

    @classmethod
    def restored(cls, saved: SavedSeconds, most_in_flight: int | None) -> Self:
        """The state of a checkpoint, taken over."""
        latest = cls(most_in_flight)
        latest._samples.extend(saved.samples)
        latest._records.extend(saved.requests)
        return latest

    def quality(self, gaps: Samples) -> ClientQuality:
        """The quality as of the last sample; ``gaps`` are those between chunks."""
        if not self._samples:
            return ClientQuality()
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
        return ClientQuality(
            verdict=judge(evidence),
            send_lag_p99_s=send_lag.quantiles.p99,
            recv_lag_p99_s=recv_lag_p99_s(sample),
            merged_share=merged_share(sample),
            cpu_share=cpu_share(sample),
        )

    def _send_lag(self, recent: list[SentRequest], in_flight: int) -> Estimate:
        """Lags of sends that only the client delayed.

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
        return lags_estimate(np.fromiter(lags, np.int64))
