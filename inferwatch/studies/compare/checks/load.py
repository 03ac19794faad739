"""Checks whether both sides got the same load from the same tool."""

import math
from collections.abc import Callable, Iterable, Iterator

from inferwatch.loadgen.plan.parts import Arrivals
from inferwatch.printing.command import command
from inferwatch.studies.compare.quality import QualityCheck, judged
from inferwatch.studies.compare.reading.configuration import LOAD
from inferwatch.studies.compare.reading.session_numbers import (
    ComparedSide,
    LoadFacts,
    SessionNumbers,
)

TOLERANCE = 0.05
"""Tolerance for means and rates; two seeds of one plan differ by less in long runs."""
BURSTINESS_TOLERANCE = 0.25
RARELY = 3.0
"""Standard errors that a difference by chance rarely exceeds."""
ARRIVALS, SEED = f"{LOAD}arrivals", f"{LOAD}seed"
ONE_CLOSED_LOOP = (
    "Both were sent the same closed loop: how many requests its users came to send is "
    "what the engine did, and no other load."
)

PER_S = "requests per second"
FACTS: dict[str, Callable[[LoadFacts], float | None]] = {
    PER_S: lambda load: load.per_s,
    "prompt tokens": lambda load: load.prompt_tokens,
    "output tokens": lambda load: load.output_tokens,
}


def check_load(a: ComparedSide, b: ComparedSide) -> QualityCheck:
    """Compare request rate, lengths and burstiness, unless requests are paired."""
    if is_one_closed_loop(a, b):
        return judged("load", [], ONE_CLOSED_LOOP)
    paired = _is_paired(a, b)
    ours = a.load.ours and b.load.ours
    facts = [] if paired and ours else [*_facts(a, b, one_plan=_is_one_plan(a, b))]
    differences = [*facts, *([] if paired else _arrivals(a, b))]
    doubts = []
    if differences:
        doubts.append(
            f"{b.name} and {a.name} were not given the same load: "
            f"{'; '.join(differences)}.{_mended(a, b)}"
        )
    return judged("load", doubts, _alike(a, b))


def _mended(a: ComparedSide, b: ComparedSide) -> str:
    """How both get the same load; empty if they are paired or that is unknown."""
    return "" if _is_paired(a, b) else _again(a)


def is_one_closed_loop(a: ComparedSide, b: ComparedSide) -> bool:
    """Whether all runs used the same closed-loop plan and got few other requests.

    How many requests a closed loop sends, and so their rate and mean lengths, depends
    on the engine.
    """
    plans = [load_settings(run) | {SEED: None} for run in (*a.runs, *b.runs)]
    is_closed = plans[0].get(ARRIVALS) == Arrivals.CLOSED
    ours = a.load.ours and b.load.ours
    return ours and is_closed and all(plan == plans[0] for plan in plans)


def _is_one_plan(a: ComparedSide, b: ComparedSide) -> bool:
    """Whether one plan with one seed made nearly all requests of all runs."""
    plans = [load_settings(run) for run in (*a.runs, *b.runs)]
    ours = a.load.ours and b.load.ours
    return ours and bool(plans[0].get(SEED)) and all(e == plans[0] for e in plans)


def load_settings(run: SessionNumbers) -> dict[str, str | None]:
    every = run.configuration.items()
    return {name: value for name, value in every if name.startswith(LOAD)}


def _is_paired(a: ComparedSide, b: ComparedSide) -> bool:
    """Whether both sides were sent the same requests at the same times."""
    shared = b.first.pairing
    return shared is not None and shared == a.first.pairing


def _again(a: ComparedSide) -> str:
    """Advice on repeating the load; empty for imported sessions, which lack data."""
    row = a.first.row
    if row.imported_from is not None:
        return ""
    again = command("load", "--like", row.id, database=a.first.path)
    return f" `{again}` sends the same again."


def _facts(a: ComparedSide, b: ComparedSide, *, one_plan: bool) -> Iterator[str]:
    """Differences of the loads as measured.

    One plan asks for the same lengths: that the means over what was answered in time
    differ, is what the engine did. Nor are its rates equal over unequally long parts.
    """
    names = [PER_S] if one_plan else FACTS
    tolerance = max(TOLERANCE, _chance(a.load, b.load) if one_plan else 0.0)
    yield from _differences(a.load, b.load, names, tolerance)


def _chance(a: LoadFacts, b: LoadFacts) -> float:
    """Relative difference of two rates of one process that chance rarely exceeds."""
    spread = max(1.0, a.burstiness or 0.0, b.burstiness or 0.0)
    counts = [each.requests for each in (a, b)]
    errors = sum(1 / count for count in counts if count)
    return RARELY * spread * math.sqrt(errors)


def _differences(
    a: LoadFacts, b: LoadFacts, names: Iterable[str], tolerance: float
) -> Iterator[str]:
    for name in names:
        before, after = FACTS[name](a), FACTS[name](b)
        if before and after is not None:
            change = after / before - 1
            if abs(change) > tolerance:
                figures = f"({before:,.4g}, {after:,.4g})"
                yield f"{name} differ by {abs(change):.0%} {figures}"
    if a.burstiness is None or b.burstiness is None:
        return
    if abs(a.burstiness - b.burstiness) > BURSTINESS_TOLERANCE:
        figures = f"({a.burstiness:.2f}, {b.burstiness:.2f}; 1 is Poisson)"
        yield f"arrivals differ in burstiness {figures}"


def _arrivals(a: ComparedSide, b: ComparedSide) -> Iterator[str]:
    before, after = (each.first.configuration.get(ARRIVALS) for each in (a, b))
    if before and after and before != after:
        yield f"arrivals differ ({before}, {after})"


def _alike(a: ComparedSide, b: ComparedSide) -> str | None:
    shared = b.first.pairing
    if shared is not None and _is_paired(a, b):
        return (
            f"Both were sent the same requests at the same times: {shared.requests:,} "
            f"of {shared.of:,} are compared one by one."
        )
    if not a.load.requests or not b.load.requests:
        return None
    return (
        "Both got about the same load, though not the same requests: pairs of these "
        f"would tell more.{_again(a)}"
    )


def check_tool(a: ComparedSide, b: ComparedSide) -> QualityCheck:
    """Check that one load generator measured both, as definitions of TTFT differ."""
    before, after = (_tools(each) for each in (a, b))
    doubts = []
    if before != after:
        doubts.append(
            f"{a.name} was measured by {before}, {b.name} by {after}: their TTFT and "
            "ITL may be defined differently; see the notes of the sessions."
        )
    return judged("tool", doubts, f"Both were measured by {before}.")


def _tools(side: ComparedSide) -> str:
    return " and ".join(dict.fromkeys(map(_tool, side.runs)))


def _tool(run: SessionNumbers) -> str:
    return (run.row.imported_from or "inferwatch").split(" ", 1)[0]
