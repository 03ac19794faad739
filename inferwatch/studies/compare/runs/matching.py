"""Which runs are compared request by request, and why others are not."""

from collections.abc import Sequence
from dataclasses import dataclass

from inferwatch.studies.compare.reading.pairing import (
    SharedSchedule,
    common,
    common_spans,
    shared,
)
from inferwatch.studies.compare.reading.session_numbers import Pairing
from inferwatch.studies.compare.reading.session_reader import PairedPart, Survey
from inferwatch.studies.compare.reading.span import SpanChoice

OTHER_PART = "other parts of each were asked for"
OTHER_REQUESTS = "they were not sent the same requests at the same times"
NO_PLAN_KNOWN = "no load generator told what"
NOTHING_SHARED = "no request is in the compared part of all"


@dataclass(frozen=True, slots=True)
class SurveyedRun:
    """A run's planned requests, and which part of the run to compare."""

    name: str
    choice: SpanChoice
    survey: Survey


@dataclass(frozen=True, slots=True)
class Matched:
    """The paired part of each run of each side."""

    parts: tuple[tuple[PairedPart | None, ...], ...]
    because: tuple[str | None, ...]
    """Why each side is not paired with the first; None if it is, and for the first."""


def matched(sides: Sequence[Sequence[SurveyedRun]]) -> Matched:
    """Pair each side with the first side if all their runs were sent the same requests.

    All paired sides use one part of the schedule and the same requests.
    """
    first, *others = sides
    because = [_why_not([*first, *side]) for side in others]
    together = [side for side, why in zip(others, because, strict=True) if why is None]
    runs = [run for side in [first, *together] for run in side]
    found = _parts(runs) if together else None
    if found is None:
        because = [why or NOTHING_SHARED for why in because]
        return Matched(tuple((None,) * len(each) for each in sides), (None, *because))
    left = iter(found)
    paired = [why is None for why in (None, *because)]
    return Matched(
        parts=tuple(
            tuple(next(left) if is_paired else None for _ in side)
            for side, is_paired in zip(sides, paired, strict=True)
        ),
        because=(None, *because),
    )


def _why_not(runs: Sequence[SurveyedRun]) -> str | None:
    """Why these runs cannot be paired, for use in brackets; None if they can."""
    if any(run.choice != runs[0].choice for run in runs):
        return OTHER_PART
    for run in runs:
        if run.survey.loads == 0:
            return f"{NO_PLAN_KNOWN} {run.name} was sent"
        if run.survey.loads > 1:
            return f"{run.name} holds {run.survey.loads} load runs"
        if run.survey.closed:
            return (
                f"{run.name} was loaded in a closed loop, where a request comes when "
                "another ends"
            )
    if _shared(runs):
        return None
    return _of_one_load(runs) or OTHER_REQUESTS


def _of_one_load(runs: Sequence[SurveyedRun]) -> str | None:
    """How much each was sent of a load that some got for longer; None of others."""
    schedules = [run.survey.schedule for run in runs]
    if common(schedules) is None:
        return None
    counts = [
        f"{run.name} was sent {len(each.number):,}"
        for run, each in zip(runs, schedules, strict=True)
        if each is not None
    ]
    return f"of one load {' and '.join(dict.fromkeys(counts))} requests"


def _shared(runs: Sequence[SurveyedRun]) -> SharedSchedule | None:
    return shared([run.survey.schedule for run in runs])


def _parts(runs: Sequence[SurveyedRun]) -> list[PairedPart] | None:
    """The common part of all runs; None if there is none."""
    same = _shared(runs)
    if same is None:
        return None
    spans = common_spans([run.survey.span for run in runs], same.late_ns)
    if spans is None:
        return None
    inside = same.due_ns >= spans[0].start_ns
    inside &= same.due_ns < spans[0].end_ns
    chosen = inside & same.answered
    if not chosen.any():
        return None
    pairing = Pairing(requests=int(chosen.sum()), of=int(inside.sum()))
    return [
        PairedPart(span=span, numbers=numbers[chosen], pairing=pairing)
        for span, numbers in zip(spans, same.numbers, strict=True)
    ]
