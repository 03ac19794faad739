"""Judges whether a load run measured the server or its own client.

A saturated client does not fail: throughput looks fine, only its timestamps are late.
So it measures itself, and its numbers are marked if it was too slow for the latencies
it reports.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from typing import Self

import msgspec
import numpy as np

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import ClientSample, Phase, RequestRecord
from inferwatch.metrics.hardware.host_use import HostUse
from inferwatch.metrics.load.book import held_back, together
from inferwatch.metrics.series.intervals import Estimate, at_least
from inferwatch.metrics.series.quantiles import Ints, of_weighted
from inferwatch.metrics.series.samples import Samples
from inferwatch.metrics.series.window import Quantiles, Window

LAG_SHARE = 0.1
"""Lag / latency it distorts, above which the lag is too long."""
MERGED_SHARE = 0.01
CPU_SHARE = 0.7
"""Share of the generator's one core above which lags grow without bound."""


CALM_NS = 10 * NS_PER_S
"""How long a client that was too slow must be fast enough to be called OK."""
ENGINE_ROLES = ("api", "core", "worker")
WORTH_SAYING = 0.1
"""Cores a process must keep busy to be named."""


class ClientState(StrEnum):
    """Whether the client was fast enough, too slow, or this is not known."""

    OK = "OK"
    CLIENT_BOUND = "CLIENT-BOUND"
    UNKNOWN = "UNKNOWN"


WORDS: dict[str, str] = {
    ClientState.OK: "client kept up",
    ClientState.CLIENT_BOUND: "CLIENT-BOUND",
    ClientState.UNKNOWN: "client not judged",
}


def client_words(verdict: str) -> str:
    """Return a verdict in words that name the client, for use on its own."""
    return WORDS[verdict]


SEVERITY = (ClientState.UNKNOWN, ClientState.OK, ClientState.CLIENT_BOUND)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientVerdict:
    """Whether the client was fast enough, and why not, as shown to users."""

    state: ClientState = ClientState.UNKNOWN
    reasons: tuple[str, ...] = ()
    cause: str | None = None
    """What kept the client's host busy, if it was too slow and this is known."""

    @property
    def why(self) -> str:
        """Reasons and cause in one line; empty without any."""
        return "; ".join((*self.reasons, *([self.cause] if self.cause else [])))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientEvidence:
    """The measurements that a verdict follows from; None where unknown."""

    sample: ClientSample | None = None
    send_lag: Estimate = field(default_factory=Estimate)
    """Lags of sends that only the client delayed."""
    ttft_p50_s: float | None = None
    itl_p50_s: float | None = None


def lags_estimate(lags_ns: Ints) -> Estimate:
    """Return quantiles of lags without intervals; ``lags_ns`` are in order of time."""
    ones = np.ones(len(lags_ns), np.int64)
    return Estimate(
        quantiles=of_weighted(lags_ns, ones, NS_PER_S),
        p99_at_least=at_least(lags_ns / NS_PER_S, 0.99),
    )


def worst(verdicts: Iterable[ClientVerdict]) -> ClientVerdict:
    """Return the most severe verdict; UNKNOWN without any."""
    ordered = sorted(verdicts, key=lambda each: SEVERITY.index(each.state))
    return ordered[-1] if ordered else ClientVerdict()


def host_text(host: HostUse, client: float | None) -> str | None:
    """Return ``this host: 1.9 of 2 cores busy, engine 1.8, client 0.1``, if known."""
    roles = host.by_role
    engine = [roles[role] for role in ENGINE_ROLES if role in roles]
    used = {
        "engine": sum(engine) if engine else None,
        "client": client,
        "inferwatch": roles.get("inferwatch"),
    }
    cores_by_name = {who: cores for who, cores in used.items() if cores is not None}
    if host.busy is not None:
        others = host.busy - sum(cores_by_name.values())
        cores_by_name |= {"other programs": others} if others >= WORTH_SAYING else {}
    if cores_by_name.get("inferwatch", WORTH_SAYING) < WORTH_SAYING:
        del cores_by_name["inferwatch"]
    parts = [f"{who} {cores:.1f}" for who, cores in cores_by_name.items()]
    if host.busy is not None and host.cores is not None:
        parts.insert(0, f"{host.busy:.1f} of {host.cores} cores busy")
    elif "engine" not in cores_by_name:
        return None
    else:
        parts[0] += " cores"
    few = (
        ": too few cores for the engine and its client"
        if _is_short_of_cores(host)
        else ""
    )
    return f"this host: {', '.join(parts)}{few}"


def _is_short_of_cores(host: HostUse) -> bool:
    """Return whether the engine's threads leave no core for a client."""
    busy = sum(round(host.by_role.get(role, 0.0)) for role in ENGINE_ROLES)
    return host.cores is not None and busy > 0 and host.cores < busy + 1


def judge(evidence: ClientEvidence) -> ClientVerdict:
    if evidence.sample is None or not evidence.send_lag.quantiles.n:
        return ClientVerdict()
    texts = (
        _send_lag_fault(evidence),
        _receive_lag_fault(evidence),
        _working(evidence.sample),
    )
    reasons = tuple(reason for reason in texts if reason)
    state = ClientState.CLIENT_BOUND if reasons else ClientState.OK
    return ClientVerdict(state=state, reasons=reasons)


def recv_lag_p99_s(sample: ClientSample) -> float | None:
    """Return receive lag p99: from the kernel's timestamp of a read to the client's."""
    lag_ns = sample.recv_lag_p99_ns
    return None if lag_ns is None else lag_ns / NS_PER_S


def cpu_share(sample: ClientSample) -> float | None:
    """Return the share of one core that the generator used; None if unknown."""
    return sample.cpu_s / sample.span_ns * NS_PER_S if sample.span_ns else None


def merged_share(sample: ClientSample) -> float | None:
    """Return the share of reads with chunks of several tokens; None without reads."""
    return sample.merged_reads / sample.reads if sample.reads else None


def _send_lag_fault(evidence: ClientEvidence) -> str:
    """Return what is wrong with send lag p99; empty if nothing.

    With few sends, one short disturbance is the p99, so a lower bound is used. With a
    thousand, the sends that it delayed also make up the TTFT p99.
    """
    lag_s, more = evidence.send_lag.quantiles.p99, ""
    if "p99" in evidence.send_lag.quantiles.weak:
        lag_s, more = evidence.send_lag.p99_at_least, " or more"
    ttft_s = evidence.ttft_p50_s
    if lag_s is None or ttft_s is None or lag_s <= LAG_SHARE * ttft_s:
        return ""
    text = f"send lag p99 is {_ms(lag_s)}{more}"
    return f"{text}, more than 10% of the TTFT p50 of {_ms(ttft_s)}"


def unmerged(gaps: Quantiles, share: float | None) -> Quantiles:
    """Return quantiles of gaps without zeros, if that share of reads was merged.

    The gap between two chunks of one read is none: what it was is not known.
    """
    if (share or 0.0) <= MERGED_SHARE:
        return gaps
    return replace(
        gaps,
        p50=gaps.p50 or None,
        p90=gaps.p90 or None,
        p95=gaps.p95 or None,
        p99=gaps.p99 or None,
    )


def _receive_lag_fault(evidence: ClientEvidence) -> str:
    """Return what is wrong with receive lag p99; empty if nothing.

    The kernel stamps a single chunk on arrival, however late it is read, so only merged
    reads can be wrong. If by these stamps they were not late, the server sent several
    chunks at once.
    """
    sample, itl_s = evidence.sample, evidence.itl_p50_s
    merged = (sample and merged_share(sample)) or 0.0
    if sample is None or merged <= MERGED_SHARE:
        return ""
    text = f"{merged:.1%} of reads were merged"
    lag_s = recv_lag_p99_s(sample)
    if lag_s is None:
        return text
    if itl_s is None or lag_s <= LAG_SHARE * itl_s:
        return ""
    return f"{text}; receive lag p99 is {_ms(lag_s)}, ITL p50 {_ms(itl_s)}"


def _working(sample: ClientSample) -> str:
    share = cpu_share(sample)
    if share is None or share <= CPU_SHARE:
        return ""
    return f"the load generator used {share:.0%} of a core"


def _ms(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


# Verdicts on a run in progress: by its last seconds, and as a whole.

SECONDS = 10
"""Number of samples, one a second, for a present verdict."""
MOST_RECORDS = 2_000
MOST_KEPT = 2_048


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuality:
    """Whether the client keeps up now, as screens show it; None where unknown."""

    verdict: ClientVerdict = field(default_factory=ClientVerdict)
    send_lag_p99_s: float | None = None
    recv_lag_p99_s: float | None = None
    merged_share: float | None = None
    cpu_share: float | None = None


class SentRequest(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The times of an ended request that a client verdict needs."""

    index: int
    intended_ns: int
    sent_ns: int | None
    first_token_ns: int | None
    end_ns: int | None


class ThinnedValues(msgspec.Struct, array_like=True):
    """Values of a whole run; where there are too many, every second one is dropped."""

    kept: list[int] = []
    stride: int = 1
    seen: int = 0

    def add(self, values: Iterable[int]) -> None:
        for value in values:
            if self.seen % self.stride == 0:
                self.kept.append(value)
            self.seen += 1
        while len(self.kept) > MOST_KEPT:
            self.kept = self.kept[::2]
            self.stride *= 2


class WholeRun(msgspec.Struct, array_like=True):
    """The measurements for a verdict on a whole run so far."""

    sample: ClientSample | None = None
    """Over all seconds, or the generator's own sum at its end."""
    lags: ThinnedValues = msgspec.field(default_factory=ThinnedValues)
    """Lags of sends that only the client delayed."""
    waits: ThinnedValues = msgspec.field(default_factory=ThinnedValues)
    """Times from a send to the first token."""


class EndedSecond(msgspec.Struct, array_like=True, frozen=True):
    """Bounds on the lags of requests that ended in one second."""

    sent: int
    worst_lag_ns: int
    wait_p50_ns: float

    @property
    def in_time(self) -> bool:
        """Whether no lag of the second was long enough to matter."""
        return self.worst_lag_ns <= LAG_SHARE * self.wait_p50_ns


class JudgedSecond(msgspec.Struct, array_like=True, frozen=True):
    """The latest verdict on the present, and when the client was last too slow."""

    state: ClientState = ClientState.UNKNOWN
    reasons: tuple[str, ...] = ()
    bound_ns: int | None = None
    """When the client was last too slow."""
    cause: str | None = None
    """What kept the host busy then."""


class SavedSeconds(msgspec.Struct, array_like=True):
    """A ClientJudge as checkpoints keep it, without the plan's limit."""

    samples: list[ClientSample]
    requests: list[SentRequest]
    fresh: int
    seconds: list[EndedSecond]
    whole: WholeRun
    said: JudgedSecond


class ClientJudge:
    """Judges the client of a run every second, by its last ten and the whole run.

    It is called too slow at once, and fast enough again only after ten calm seconds.
    Once a run has ended, the verdict is on all of it, as are the numbers beside it.
    """

    def __init__(self, most_in_flight: int | None) -> None:
        self._most = most_in_flight
        self._samples: deque[ClientSample] = deque(maxlen=SECONDS)
        self._records: deque[SentRequest] = deque(maxlen=MOST_RECORDS)
        self._fresh = 0
        """Records since the last sample."""
        self._seconds: deque[EndedSecond] = deque(maxlen=SECONDS + 1)
        self._whole = WholeRun()
        self._latest = JudgedSecond()

    def record(self, record: RequestRecord) -> None:
        if record.phase is not Phase.WARMUP:
            self._fresh += 1
            self._records.append(
                SentRequest(
                    record.index,
                    record.intended_ns,
                    record.sent_ns,
                    record.first_token_ns,
                    record.end_ns,
                )
            )

    def sample(self, sample: ClientSample, gaps: Samples, host: HostUse) -> None:
        """Add the client's sample of one second, and judge the latest seconds.

        The last sample of a run is of the whole run, which ``quality`` then judges.
        ``gaps`` are those between chunks.
        """
        whole = self._whole
        if sample.final:
            self._add_to_run(sample.in_flight)
            whole.sample = sample
            return
        whole.sample = together([whole.sample, sample]) if whole.sample else sample
        self._samples.append(sample)
        self._add_to_run(sample.in_flight)
        begin_ns = sample.t_ns - SECONDS * NS_PER_S
        while self._records and (self._records[0].sent_ns or 0) <= begin_ns:
            self._records.popleft()
        self._say(
            sample.t_ns,
            self._evidence_if_in_time(gaps) or self._evidence_now(gaps),
            host,
        )

    def saved(self) -> SavedSeconds:
        return SavedSeconds(
            samples=list(self._samples),
            requests=list(self._records),
            fresh=self._fresh,
            seconds=list(self._seconds),
            whole=self._whole,
            said=self._latest,
        )

    @classmethod
    def restored(cls, saved: SavedSeconds, most_in_flight: int | None) -> Self:
        judge = cls(most_in_flight)
        judge._samples.extend(saved.samples)
        judge._records.extend(saved.requests)
        judge._fresh, judge._whole = saved.fresh, saved.whole
        judge._seconds.extend(saved.seconds)
        judge._latest = saved.said
        return judge

    def quality(self, gaps: Samples, *, ended: bool) -> ClientQuality:
        """Return the latest quality; for an ``ended`` run, with its verdict."""
        if not self._samples:
            return ClientQuality(verdict=self._verdict_on_run(gaps))
        measured = self._evidence_now(gaps)
        sample, whole = together(list(self._samples)), self._whole.sample
        over = ended or (whole is not None and whole.final)
        return ClientQuality(
            verdict=self._verdict_on_run(gaps) if over else self._at_present(),
            send_lag_p99_s=measured.send_lag.quantiles.p99,
            recv_lag_p99_s=recv_lag_p99_s(sample),
            merged_share=merged_share(sample),
            cpu_share=cpu_share(sample),
        )

    @property
    def bound_because(self) -> str | None:
        """Why the client is too slow now; None while it is not."""
        verdict = self._at_present()
        return verdict.why if verdict.state is ClientState.CLIENT_BOUND else None

    def _say(self, t_ns: int, evidence: ClientEvidence, host: HostUse) -> None:
        verdict, before = judge(evidence), self._latest
        if verdict.state is ClientState.CLIENT_BOUND:
            client = cpu_share(evidence.sample) if evidence.sample else None
            cause = host_text(host, client)
            self._latest = JudgedSecond(verdict.state, verdict.reasons, t_ns, cause)
        elif before.bound_ns is None or t_ns - before.bound_ns >= CALM_NS:
            self._latest = JudgedSecond(
                verdict.state, (), before.bound_ns, before.cause
            )

    def _at_present(self) -> ClientVerdict:
        latest = self._latest
        bound = latest.state is ClientState.CLIENT_BOUND
        cause = latest.cause if bound else None
        return ClientVerdict(state=latest.state, reasons=latest.reasons, cause=cause)

    def _verdict_on_run(self, gaps: Samples) -> ClientVerdict:
        """Return the verdict on the whole run, with the latest known cause."""
        whole = self._whole
        if whole.sample is None:
            return ClientVerdict()
        waits = whole.waits.kept
        verdict = judge(
            ClientEvidence(
                sample=whole.sample,
                send_lag=lags_estimate(np.array(whole.lags.kept, np.int64)),
                ttft_p50_s=float(np.median(waits)) / NS_PER_S if waits else None,
                itl_p50_s=gaps.quantiles(whole.sample.t_ns, Window.SESSION).p50,
            )
        )
        return replace(verdict, cause=self._latest.cause if verdict.reasons else None)

    def _evidence_now(self, gaps: Samples) -> ClientEvidence:
        """Return the measurements of the last ten seconds."""
        sample = together(list(self._samples))
        begin_ns = sample.t_ns - SECONDS * NS_PER_S
        recent = [each for each in self._records if (each.sent_ns or 0) > begin_ns]
        lags, waits = self._delays(recent, recent, sample.in_flight)
        return ClientEvidence(
            sample=sample,
            send_lag=lags_estimate(np.array(lags, np.int64)),
            ttft_p50_s=float(np.median(waits)) / NS_PER_S if waits else None,
            itl_p50_s=self._itl_p50_s(sample, gaps),
        )

    def _evidence_if_in_time(self, gaps: Samples) -> ClientEvidence | None:
        """Return the last ten seconds' measurements if no lag was too long, else None.

        This is the fast path: the median of all waits is at least the smallest median
        of any second.
        """
        seconds = [each for each in self._seconds if each.sent]
        if not seconds:
            return None
        worst_ns = max(each.worst_lag_ns for each in seconds)
        if worst_ns > LAG_SHARE * min(each.wait_p50_ns for each in seconds):
            return None
        sample = together(list(self._samples))
        counted = Quantiles(n=sum(each.sent for each in seconds))
        return ClientEvidence(
            sample=sample,
            send_lag=Estimate(quantiles=counted),
            itl_p50_s=self._itl_p50_s(sample, gaps),
        )

    @staticmethod
    def _itl_p50_s(sample: ClientSample, gaps: Samples) -> float | None:
        """Return ITL p50; None if no reads were merged, as it is not needed then."""
        if (merged_share(sample) or 0.0) <= MERGED_SHARE:
            return None
        return gaps.quantiles(sample.t_ns, Window.TEN_SECONDS).p50

    def _add_to_run(self, in_flight: int) -> None:
        """Add lags and waits of the requests ended lately to those of the run."""
        fresh = list(
            islice(self._records, max(len(self._records) - self._fresh, 0), None)
        )
        self._fresh = 0
        sent = [each for each in fresh if each.sent_ns is not None]
        lags = [(each.sent_ns or 0) - each.intended_ns for each in sent]
        waits = [
            each.first_token_ns - (each.sent_ns or 0)
            for each in sent
            if each.first_token_ns is not None
        ]
        second = EndedSecond(
            sent=len(sent),
            worst_lag_ns=max(lags, default=0),
            wait_p50_ns=float(np.median(waits)) if waits else 0.0,
        )
        self._seconds.append(second)
        if not second.in_time:
            lags, _ = self._delays(fresh, list(self._records), in_flight)
        self._whole.lags.add(lags)
        self._whole.waits.add(waits)

    def _delays(
        self, chosen: list[SentRequest], requests: list[SentRequest], in_flight: int
    ) -> tuple[list[int], list[int]]:
        """Return send lags that only the client caused, and waits for first tokens.

        Requests in flight count against the cap as if they had been sent before all
        others: a lag is rather left out than wrongly blamed on the client.
        """
        waits = [
            each.first_token_ns - each.sent_ns
            for each in chosen
            if each.first_token_ns is not None and each.sent_ns is not None
        ]
        delayed: set[int] = set()
        if self._most is not None and in_flight + len(requests) >= self._most:
            room = self._most - in_flight
            if room < 1:
                return [], waits
            delayed = set(held_back(in_order(requests), room))
        lags = [
            each.sent_ns - each.intended_ns
            for each in in_order(chosen)
            if each.sent_ns is not None and each.index not in delayed
        ]
        return lags, waits


def in_order(requests: list[SentRequest]) -> list[SentRequest]:
    return sorted(requests, key=lambda each: (each.intended_ns, each.index))
