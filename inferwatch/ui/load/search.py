"""A search for the highest rate that holds the SLO, run by run."""

import msgspec

from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan
from inferwatch.loadgen.rate_search import RatePoint, RateSearch
from inferwatch.metrics.load.client_run import ClientView

RUN_S = 20.0
"""Length of a run, if the plan neither ends nor counts its requests."""


def no_search(plan: LoadPlan) -> str | None:
    """Return why no rate can be searched for by a plan; None if one can."""
    if not plan.slo:
        return "a search needs an SLO: the limits that must hold at that rate"
    if plan.arrivals is Arrivals.CLOSED:
        return "a closed loop has no rate to search for: choose other arrivals"
    if plan.arrivals is Arrivals.TRACE:
        return "a trace keeps its own times: there is no rate to search for"
    return None


class SloSearch:
    """Plans the runs of a search, and says what they have shown so far."""

    def __init__(self, plan: LoadPlan, measured: float | None, share: float) -> None:
        """Begin at the plan's rate, or at the one that its warm-up has measured."""
        ends = plan.duration_s is not None or plan.requests is not None
        self._plan = msgspec.structs.replace(
            plan, rates=None, duration_s=plan.duration_s if ends else RUN_S
        )
        self._search = RateSearch(plan.rate_per_s or measured or 1.0, share)
        self._rate: float | None = None
        self._untold = ""

    def next_plan(self) -> LoadPlan | None:
        """Return the plan of the next run; None once the search has ended."""
        self._rate = None if self._untold else self._search.next_rate()
        if self._rate is None:
            return None
        return msgspec.structs.replace(self._plan, rate_per_s=self._rate)

    def add(self, view: ClientView | None) -> None:
        """Add the run that was planned last; without a judged request, end."""
        if self._rate is None:
            return
        if view is None or not view.judged:
            self._untold = f"no request was judged at {self._rate:.3g}/s"
            return
        self._search.add(
            RatePoint(
                rate_per_s=self._rate,
                n=view.judged,
                good=view.good,
                certain=float(view.judged),
                client_bound=view.verdict == "CLIENT-BOUND",
            )
        )

    def stop(self) -> None:
        """End the search before its result is known."""
        self._rate, self._untold = None, "it was stopped"

    @property
    def text(self) -> str:
        """What is known: the run under way, else the result."""
        best, fails = self._search.highest_held, self._search.lowest_failed
        known = [f"{best:.3g}/s holds" if best is not None else ""]
        known.append(f"{fails:.3g}/s does not" if fails is not None else "")
        found = ", ".join(filter(None, known))
        if self._rate is not None:
            number = sum(each.runs for each in self._search.points) + 1
            head = f"SLO search, run {number}: {self._rate:.3g}/s"
            return f"{head}; {found}" if found else head
        if self._untold:
            return f"SLO search ended: {self._untold}" + (f"; {found}" if found else "")
        return f"SLO search: {self._search.sentence}"
