"""Makes the transport of a plan."""

from inferwatch.loadgen.plan import LoadPlan, TransportKind
from inferwatch.loadgen.transport.choice import chosen
from inferwatch.loadgen.transport.lanes import HttpxTransport
from inferwatch.loadgen.transport.raw import RawTransport
from inferwatch.loadgen.transport.seam import Transport


def transport_for(plan: LoadPlan) -> Transport:
    """The one :func:`chosen` names."""
    if chosen(plan) is TransportKind.RAW:
        return RawTransport(plan)
    return HttpxTransport(plan)
