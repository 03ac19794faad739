"""What the tokens of a window cost, in energy and, with prices, in money."""

from collections.abc import Iterator

from collectors.contract.readings import Prices
from inferwatch.limits.plan import cost_per_million
from inferwatch.metrics.objectives.spending_view import Spending
from inferwatch.metrics.objectives.view import SloState
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.snapshot import Snapshot

W_PER_KW = 1000.0
GPU_HOURS = "GPU hours"
HOST_HOURS = "hours of the host"
ELECTRICITY = "electricity of the GPUs"
LEAST_BINS = 5
"""Fewest bins of known energy; boards update it every tenth of a second."""


def spending(snapshot: Snapshot, prices: Prices | None) -> Spending | None:
    """Return the cost of the window's tokens; None where nothing is known."""
    prefill_j, decode_j = _joules(snapshot.timeline)
    per_hour, read_from = _per_hour(snapshot, prices)
    if per_hour is None and prefill_j is decode_j is None and prices is None:
        return None
    per_mtok = _per_mtok(per_hour, snapshot.flow.output_tokens_per_s)
    return Spending(
        currency=prices.currency if prices is not None else "$",
        per_hour=per_hour,
        per_mtok=per_mtok,
        per_mtok_good=_per_mtok_good(per_mtok, snapshot.slo),
        read_from=read_from,
        joules_per_prefill_token=prefill_j,
        joules_per_decode_token=decode_j,
    )


def _per_mtok(per_hour: float | None, tokens_per_s: float | None) -> float | None:
    if per_hour is None or not tokens_per_s:
        return None
    return cost_per_million(per_hour, 1, tokens_per_s)


def _per_mtok_good(per_mtok: float | None, slo: SloState | None) -> float | None:
    """Return the price per million good tokens; None where unknown.

    Requests are judged as they end, when some of their tokens are older than the
    window. So the share is of tokens of ended requests, not of the window's.
    """
    if per_mtok is None or slo is None or not slo.good_tokens:
        return None
    return per_mtok * slo.ended_tokens / slo.good_tokens


def _per_hour(
    snapshot: Snapshot, prices: Prices | None
) -> tuple[float | None, str | None]:
    """Return the present cost per hour, and the price that it follows from."""
    if prices is None:
        return None, None
    hardware = snapshot.hardware
    if prices.gpu_hour is not None:
        if hardware.gpus:
            return prices.gpu_hour * hardware.gpus, GPU_HOURS
        return prices.gpu_hour, HOST_HOURS
    power_w = hardware.power_w_mean
    if prices.kwh is None or power_w is None:
        return None, ELECTRICITY
    return prices.kwh * power_w / W_PER_KW, ELECTRICITY


def _joules(line: Timeline) -> tuple[float | None, float | None]:
    """Return energy per prefill token and per decode token; None where unknown.

    The power of the boards in a bin is split by the time of its steps; a mixed step is
    split by its tokens, each of which takes the same FLOP through the weights. A bin
    without steps is idle, and counts to neither.
    """
    found = list(_split(line))
    if len(found) < LEAST_BINS:
        return None, None
    width_s = line.bin_ns / 1e9
    prefill_j = sum(power_w * share for power_w, share, _, _ in found) * width_s
    decode_j = sum(power_w * (1 - share) for power_w, share, _, _ in found) * width_s
    prefilled = sum(tokens for _, _, tokens, _ in found)
    decoded = sum(tokens for _, _, _, tokens in found)
    return (
        prefill_j / prefilled if prefilled else None,
        decode_j / decoded if decoded else None,
    )


def _split(line: Timeline) -> Iterator[tuple[float, float, int, int]]:
    """Yield power, prefill share, prefill tokens and decode tokens of each bin.

    Bins in which one of these is unknown are left out.
    """
    if not line.power_w or not line.prefill_share:
        return
    for power_w, share, prefilled, decoded in zip(
        line.power_w,
        line.prefill_share,
        line.prefill_tokens,
        line.decode_tokens,
        strict=True,
    ):
        if None not in {power_w, share, prefilled, decoded}:
            yield power_w or 0.0, share or 0.0, prefilled or 0, decoded or 0
