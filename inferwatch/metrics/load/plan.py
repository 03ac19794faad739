"""The fields of a recorded load plan that metrics need."""

from collections.abc import Mapping

import msgspec

from collectors.contract.readings import LoadPlanned
from inferwatch.errors import UsageError
from inferwatch.metrics.requests.slo import Slo, parse_slo


class ClassFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a request class that metrics need."""

    name: str
    slo: str | None = None


class PlanFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a ``LoadPlan`` that metrics need, with its defaults."""

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
    ask_again_after: int = 0

    @property
    def closed(self) -> bool:
        """Whether the load is a closed loop: users send again after an answer."""
        return self.arrivals == "closed"

    @property
    def names_classes(self) -> bool:
        """Whether the client tells a class of its requests."""
        return bool(self.classes or self.ask_again_after)

    @property
    def most_in_flight(self) -> int | None:
        """The cap on requests in flight; None in a closed loop."""
        return None if self.closed else self.max_in_flight

    def objectives(self) -> Mapping[str, Slo]:
        """Return objectives by class; general ones have an empty name."""
        named = {"": self.slo} | {each.name: each.slo for each in self.classes}
        return {name: slo for name, text in named.items() if (slo := _slo(text))}


PLANS = msgspec.json.Decoder(PlanFacts)


def plan_facts(planned: LoadPlanned) -> PlanFacts | None:
    """Return the facts of a recorded plan; None where it cannot be read."""
    try:
        return PLANS.decode(planned.plan)
    except msgspec.MsgspecError:
        return None


def _slo(text: str | None) -> Slo | None:
    """Return parsed objectives; None where this version cannot read them."""
    try:
        return parse_slo(text) if text else None
    except UsageError:
        return None
