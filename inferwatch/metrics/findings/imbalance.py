"""Some servers, or ranks of one, have more to do than others."""

from collections.abc import Mapping

from inferwatch.metrics.findings.diagnosis import Cost, Diagnosis
from inferwatch.metrics.findings.facts import Facts, now
from inferwatch.metrics.findings.finding import Evidence, Knob

EVERY = ("ttft_s", "tpot_s", "itl_s", "e2el_s")


class Imbalance(Diagnosis):
    """Requests wait at one server while another has room."""

    NAME, TITLE = "imbalance", "uneven load"
    MANY = "are loaded unevenly"
    MISSES = EVERY
    LEAST_WAITING = 4
    SPARE = 0.5
    """A server that runs less than so much of what the fullest runs has room."""

    def __init__(self, told: Mapping[str, Facts | None]) -> None:
        self._told = {source: facts for source, facts in told.items() if facts}

    def holds(self, facts: Facts) -> Cost | None:
        """Some wait here, and there nobody does and few run."""
        del facts
        full, idle = self._full(), self._idle()
        if not full or not idle:
            return None
        waiting = sum(self._told[each].waiting or 0 for each in full)
        if waiting < self.LEAST_WAITING * len(full):
            return None
        running = sum(each.running or 0 for each in self._told.values())
        share = waiting / (waiting + running)
        return Cost(share, f"{share:.0%} of all requests wait where they need not")

    def sentence(self, facts: Facts) -> str:
        """Where they wait, and where there is room."""
        del facts
        full, idle = self._full(), self._idle()
        waiting = sum(self._told[each].waiting or 0 for each in full)
        return (
            f"{waiting:,} wait at {_named(full)} while {_named(idle)} "
            f"{'has' if len(idle) == 1 else 'have'} room"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        """Each of the full ones."""
        return tuple(
            Evidence(
                text=f"{source}: {self._told[source].waiting:,} waiting, "
                f"{self._told[source].running:,} running",
                page="fleet",
                t_ns=facts.now_ns,
            )
            for source in [*self._full(), *self._idle()][:4]
        )

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        """It is the router's."""
        del facts
        return (
            now(
                "Route by requests in flight, not in turn or by a fixed key",
                "TTFT falls where they wait; tokens/s rise",
            ),
        )

    def _most(self) -> int:
        return max((each.running or 0 for each in self._told.values()), default=0)

    def _full(self) -> list[str]:
        return sorted(
            source
            for source, each in self._told.items()
            if (each.waiting or 0) >= self.LEAST_WAITING
        )

    def _idle(self) -> list[str]:
        most = self._most()
        return sorted(
            source
            for source, each in self._told.items()
            if not each.waiting
            and each.running is not None
            and each.running < self.SPARE * most
        )


def _named(sources: list[str]) -> str:
    if len(sources) <= 2:
        return " and ".join(sources)
    return f"{len(sources):,} servers"
