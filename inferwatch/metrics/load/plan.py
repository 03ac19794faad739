"""What of a recorded load plan the arithmetic needs to know."""

from collections.abc import Mapping

import msgspec

from collectors.contract.readings import LoadPlanned
from inferwatch.errors import UsageError
from inferwatch.metrics.requests.slo import Slo, parse_slo


class ClassFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the arithmetic needs to know of a class of requests."""

    name: str
    slo: str | None = None


class PlanFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a ``LoadPlan`` that the arithmetic needs, with its defaults."""

    run_id: str
    model: str = ""
    arrivals: str = "poisson"
    concurrency: int = 1
    warmup_s: float = 3.0
    duration_s: float | None = None
    requests: int | None = None
    max_in_flight: int = 512
    slo: str | None = None
    classes: tuple[ClassFacts, ...] = ()

    @property
    def closed(self) -> bool:
        """Whether it is a closed loop, of users who ask again once answered."""
        return self.arrivals == "closed"

    @property
    def most_in_flight(self) -> int | None:
        """Who is due beyond so many is held back; None in a closed loop."""
        return None if self.closed else self.max_in_flight

    def objectives(self) -> Mapping[str, Slo]:
        """Objectives by class; those of all other requests under the empty name."""
        named = {"": self.slo} | {each.name: each.slo for each in self.classes}
        return {name: slo for name, text in named.items() if (slo := _slo(text))}


PLANS = msgspec.json.Decoder(PlanFacts)


def plan_facts(planned: LoadPlanned) -> PlanFacts | None:
    """The facts of a recorded plan; None when it cannot be read."""
    try:
        return PLANS.decode(planned.plan)
    except msgspec.MsgspecError:
        return None


def _slo(text: str | None) -> Slo | None:
    """None for objectives that an earlier version recorded and this one cannot read."""
    try:
        return parse_slo(text) if text else None
    except UsageError:
        return None
