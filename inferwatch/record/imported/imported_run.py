"""A run read from another tool's result file, request by request."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from inferwatch.errors import UsageError
from inferwatch.loadgen.plan.fields import MAX_IN_FLIGHT
from inferwatch.loadgen.plan.lengths import Range
from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan

MALFORMED = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""Errors of reading a document that has another form."""


class UnreadableResultError(UsageError):
    """A result file is malformed; the message says what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRequest:
    """A request as another tool recorded it; moments in ns on one clock of the file."""

    name: str
    sent_ns: int
    intended_ns: int | None = None
    """When it was due, where the tool says so."""
    first_ns: int | None = None
    last_ns: int | None = None
    end_ns: int | None = None
    gaps_ns: Sequence[int] | None = None
    """Between chunks; None where the tool keeps none."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    failure: str | None = None
    detail: str | None = None
    warmup: bool = False

    @property
    def due_ns(self) -> int:
        """When the request was due; if unknown, when it was sent."""
        return self.sent_ns if self.intended_ns is None else self.intended_ns

    @property
    def latest_ns(self) -> int:
        """The last known time of the request."""
        times = (self.end_ns, self.last_ns, self.first_ns, self.sent_ns)
        return max(t_ns for t_ns in times if t_ns is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadShape:
    """The pattern and rate of a run's load, as far as the file says."""

    arrivals: Arrivals
    rate_per_s: float | None = None
    burstiness: float = 1.0
    concurrency: int = 1
    max_in_flight: int = MAX_IN_FLIGHT
    """Limit of requests in flight in an open loop."""

    @property
    def users(self) -> int | None:
        """Number of users in a closed loop; None in an open loop."""
        return self.concurrency if self.arrivals is Arrivals.CLOSED else None

    @property
    def text(self) -> str:
        """The shape in a few words, as text for users."""
        if self.arrivals is Arrivals.CLOSED:
            return f"{self.concurrency} at once"
        return f"{self.rate_per_s:g} requests/s, {self.arrivals}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRun:
    """One run of another load generator, as read from its result file."""

    tool: str
    """Name and version as far as known."""
    model: str | None
    requests: Sequence[ImportedRequest]
    began_unix_ns: int | None
    """Unix time of the earliest request; None if the file does not say."""
    uncertainty_ns: int
    ttft: str
    """How the tool defines TTFT: from when to when."""
    remarks: Sequence[str] = ()
    shape: LoadShape | None = None

    @property
    def first_ns(self) -> int:
        """The first due time on the file's clock: the start of the session."""
        return min(request.due_ns for request in self.requests)

    def plan(self, run_id: str) -> LoadPlan | None:
        """The run as a LoadPlan, with the lengths seen; None if its load is unknown."""
        if self.shape is None:
            return None
        return LoadPlan(
            run_id=run_id,
            model=self.model or "",
            prompt_tokens=_range(request.prompt_tokens for request in self.requests),
            output_tokens=_range(request.output_tokens for request in self.requests),
            arrivals=self.shape.arrivals,
            rate_per_s=self.shape.rate_per_s,
            burstiness=self.shape.burstiness,
            concurrency=self.shape.concurrency,
            max_in_flight=self.shape.max_in_flight,
            requests=len(self.requests),
            warmup_s=0.0,
        )


def _range(counts: Iterable[int | None]) -> Range:
    values = [count for count in counts if count]
    return Range(min(values), max(values)) if values else Range(1, 1)


def shape_of_rate(
    rate_per_s: float, burstiness: float, max_in_flight: int | None
) -> LoadShape:
    """The shape of an open loop; as in vLLM, infinite burstiness is constant rate."""
    if burstiness == float("inf"):
        arrivals, burstiness = Arrivals.CONSTANT, 1.0
    else:
        arrivals = Arrivals.POISSON if burstiness == 1 else Arrivals.GAMMA
    return LoadShape(
        arrivals=arrivals,
        rate_per_s=rate_per_s,
        burstiness=burstiness,
        max_in_flight=max_in_flight or 1 << 20,
    )
