"""Makes the transport of a plan."""

from inferwatch.loadgen.exchange.choice import chosen
from inferwatch.loadgen.exchange.httpx_transport import HttpxTransport
from inferwatch.loadgen.exchange.raw_transport import RawTransport
from inferwatch.loadgen.exchange.transport import Transport
from inferwatch.loadgen.plan.plan import LoadPlan, TransportKind


def transport_for(plan: LoadPlan) -> Transport:
    """The one :func:`chosen` names."""
    if chosen(plan) is TransportKind.RAW:
        return RawTransport(plan)
    return HttpxTransport(plan)
