"""Did the sessions get the same load? Said before anything else."""

from collections.abc import Callable, Iterator
from itertools import chain

from inferwatch.compare.session_numbers import LoadFacts, SessionNumbers
from inferwatch.compare.span import Cut

LOAD_TOLERANCE = 0.05
"""Of means and rates; two seeds of one plan differ by less, if they are long enough."""
LENGTH_TOLERANCE = 0.25
BURSTINESS_TOLERANCE = 0.25
FAILED_TOLERANCE = 0.01

FACTS: dict[str, Callable[[LoadFacts], float | None]] = {
    "requests per second": lambda load: load.per_s,
    "prompt tokens": lambda load: load.prompt_tokens,
    "output tokens": lambda load: load.output_tokens,
}


def load_differences(a: SessionNumbers, b: SessionNumbers) -> list[str]:
    """Each fit to stand behind "these sessions did not get the same load:"."""
    return [*_facts(a.load, b.load), *_kinds(a, b)]


def cautions(a: SessionNumbers, b: SessionNumbers) -> list[str]:
    """What else makes a comparison doubtful; whole sentences."""
    parts = (_tools(a, b), _lengths(a, b), _failures(a, b), _each(a), _each(b))
    return list(dict.fromkeys(chain.from_iterable(parts)))


def _facts(a: LoadFacts, b: LoadFacts) -> Iterator[str]:
    for name, fact in FACTS.items():
        before, after = fact(a), fact(b)
        if before and after is not None:
            change = after / before - 1
            if abs(change) > LOAD_TOLERANCE:
                said = f"({before:,.4g}, {after:,.4g})"
                yield f"{name} differ by {abs(change):.0%} {said}"
    if abs((a.burstiness or 0) - (b.burstiness or 0)) <= BURSTINESS_TOLERANCE:
        return
    if a.burstiness and b.burstiness:
        said = f"({a.burstiness:.2f}, {b.burstiness:.2f}; 1 is Poisson)"
        yield f"arrivals are not equally bursty {said}"


def _kinds(a: SessionNumbers, b: SessionNumbers) -> Iterator[str]:
    for name, what in (("engine model", "models"), ("load arrivals", "arrivals")):
        before, after = a.configuration.get(name), b.configuration.get(name)
        if before and after and before != after:
            yield f"{what} differ ({before}, {after})"


def _tools(a: SessionNumbers, b: SessionNumbers) -> Iterator[str]:
    """Load generators do not all mean the same by a TTFT."""
    before, after = (_tool(each) for each in (a, b))
    if before != after:
        yield (
            f"{a.name} was measured by {before}, {b.name} by {after}: they may not "
            "mean the same by TTFT and ITL; see the notes of the sessions."
        )


def _tool(numbers: SessionNumbers) -> str:
    """What an import names first, else we."""
    return (numbers.row.imported_from or "inferwatch").split(" ", 1)[0]


def _lengths(a: SessionNumbers, b: SessionNumbers) -> Iterator[str]:
    longer = max(a.span.length_s, b.span.length_s)
    shorter = min(a.span.length_s, b.span.length_s)
    if shorter < (1 - LENGTH_TOLERANCE) * longer:
        lengths = f"{a.span.length_s:.0f} s of {a.name}, {b.span.length_s:.0f} s of"
        yield f"What is compared is not equally long: {lengths} {b.name}."


def _failures(a: SessionNumbers, b: SessionNumbers) -> Iterator[str]:
    shares = [_failed_share(each.load) for each in (a, b)]
    if abs(shares[0] - shares[1]) > FAILED_TOLERANCE:
        yield (
            f"Requests failed or were aborted: {shares[0]:.1%} of {a.name}'s, "
            f"{shares[1]:.1%} of {b.name}'s; latencies leave them out."
        )


def _failed_share(load: LoadFacts) -> float:
    return load.failed / load.requests if load.requests else 0.0


def _each(numbers: SessionNumbers) -> Iterator[str]:
    if numbers.span.cut is Cut.UNSETTLED:
        yield f"{numbers.name} never settles, so its means say little of the next run."
    if numbers.span.load_runs > 1:
        yield (
            f"{numbers.name} holds {numbers.span.load_runs} load runs, pooled here: "
            "choose one by its window."
        )
    if numbers.row.unrecorded:
        yield f"{numbers.name} lacks {numbers.row.unrecorded:,} readings."
