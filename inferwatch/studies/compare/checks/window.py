"""Which part of each session is compared: as long, and settled?"""

from collections.abc import Iterator

from inferwatch.formatting import format_clock
from inferwatch.studies.compare.quality import QualityCheck, judged
from inferwatch.studies.compare.reading.session_numbers import SessionNumbers, Side
from inferwatch.studies.compare.reading.span import WarmupCut

LENGTH_TOLERANCE = 0.25


def check_length(a: Side, b: Side) -> QualityCheck:
    """A short session of a pair leaves its numbers to chance."""
    runs = (*a.runs, *b.runs)
    longest = max(runs, key=lambda run: run.span.length_s)
    shortest = min(runs, key=lambda run: run.span.length_s)
    lengths = f"{a.first.span.length_s:.0f} s of {a.name}, "
    lengths += f"{b.first.span.length_s:.0f} s of {b.name}"
    if a.is_repeated or b.is_repeated:
        lengths = f"{shortest.span.length_s:.0f} s of {shortest.name}, "
        lengths += f"{longest.span.length_s:.0f} s of {longest.name}"
    doubts = []
    if shortest.span.length_s < (1 - LENGTH_TOLERANCE) * longest.span.length_s:
        doubts.append(f"The compared spans differ in length: {lengths}.")
    doubts += [said for run in runs for said in _several(run)]
    return judged("length", doubts, f"Compared are {lengths}.")


def _several(run: SessionNumbers) -> Iterator[str]:
    if run.span.load_runs > 1:
        yield (
            f"{run.name} holds {run.span.load_runs} load runs; compared is "
            f"{format_clock(run.span.start_ns).strip()} to "
            f"{format_clock(run.span.end_ns).strip()} of the session."
        )


def check_warm_up(a: Side, b: Side) -> QualityCheck:
    """What was left out of each, and whether what is left is steady."""
    runs = (*a.runs, *b.runs)
    doubts = [
        f"{run.name} never settles, so its means say little about another run."
        for run in runs
        if run.span.cut is WarmupCut.UNSETTLED
    ]
    cuts = ", ".join(f"{run.span.from_s:.1f} s of {run.name}" for run in runs)
    return judged("warm-up", doubts, f"Cut as warm-up: {cuts}.")
