"""Is it the server that was measured, or the client?

A saturated client does not fail: throughput looks fine, only its stamps rot. So it
measures itself, and where it was too slow for the latencies it reports, says so.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from collectors.clock import NS_PER_S
from collectors.readings import ClientSample
from inferwatch.metrics.series.intervals import Estimate

LAG_SHARE = 0.1
"""Of the latency that a lag falsifies: more than a tenth is too much."""
MERGED_SHARE = 0.01
CPU_SHARE = 0.7
"""Of the one core that a generator can use: above, lags grow without bound."""


class ClientState(StrEnum):
    """The verdict."""

    OK = "OK"
    CLIENT_BOUND = "CLIENT-BOUND"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientVerdict:
    """What it is, and why, fit to show."""

    state: ClientState = ClientState.UNKNOWN
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a verdict stands on; unknown is None and accuses nobody."""

    sample: ClientSample | None = None
    send_lag: Estimate = field(default_factory=Estimate)
    """Of sends that nothing but the client kept waiting."""
    ttft_p50_s: float | None = None
    itl_p50_s: float | None = None


def judge(evidence: Evidence) -> ClientVerdict:
    """Weigh the evidence."""
    if evidence.sample is None or not evidence.send_lag.quantiles.n:
        return ClientVerdict()
    found = (_sending(evidence), _receiving(evidence), _working(evidence.sample))
    reasons = tuple(reason for reason in found if reason)
    state = ClientState.CLIENT_BOUND if reasons else ClientState.OK
    return ClientVerdict(state=state, reasons=reasons)


def recv_lag_p99_s(sample: ClientSample) -> float | None:
    """From the kernel's stamp of a read to ours."""
    lag_ns = sample.recv_lag_p99_ns
    return None if lag_ns is None else lag_ns / NS_PER_S


def cpu_share(sample: ClientSample) -> float | None:
    """Of one core."""
    return sample.cpu_s / sample.span_ns * NS_PER_S if sample.span_ns else None


def merged_share(sample: ClientSample) -> float | None:
    """Reads that brought several tokens' chunks at once, of all reads."""
    return sample.merged_reads / sample.reads if sample.reads else None


def _sending(evidence: Evidence) -> str:
    """By the p99; where few stand behind it, less what a hiccup may have made of it.

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
