"""Whether a request held its objectives, all at once.

The rules are the same for whoever measured. A value beyond its limit is missed, and a
request that failed is bad by itself. What did not come is at least as late as the wait
for it. Who was cut off before any limit was broken is neither good nor bad.
"""

from collectors.contract.clock import NS_PER_S
from inferwatch.metrics.requests.request import Request
from inferwatch.metrics.requests.request_row import RequestState
from inferwatch.metrics.requests.slo import Slo, untold


def judged(request: Request, slo: Slo) -> list[str] | None:
    """What a request that has ended missed; None where nobody can tell.

    Nobody can where its client left before a limit was broken, and where what would
    tell was not seen, as of a request that was under way when the watch began.
    """
    values = _values(request)
    single = request.tokens is not None and request.tokens < 2
    unknown = untold(values, single=single, all_gaps=request.trusted)
    failed = request.outcome is RequestState.FAILED
    missed = slo.missed(values, unknown, failed=failed)
    cut_off = not failed and request.outcome is not RequestState.FINISHED
    return missed or None if cut_off else missed


def _values(request: Request) -> dict[str, float]:
    """A request's latencies in seconds, by the names that objectives use."""
    found: dict[str, int] = {}
    finished = request.outcome is RequestState.FINISHED
    waited_ns = None
    if request.arrived_ns is not None and request.end_ns is not None:
        waited_ns = request.end_ns - request.arrived_ns
    if request.ttft_ns is not None:
        found["ttft_s"] = request.ttft_ns
    elif waited_ns is not None and not finished:
        found["ttft_s"] = waited_ns
    e2el_ns = request.e2el_ns if finished else waited_ns
    if e2el_ns is not None:
        found["e2el_s"] = e2el_ns
    if finished and (tpot_ns := request.tpot_ns) is not None:
        found["tpot_s"] = tpot_ns
    if request.itl_max_ns >= 0:
        found["itl_s"] = request.itl_max_ns
    return {metric: value / NS_PER_S for metric, value in found.items()}
