"""Is all there that was to be recorded?"""

from collections.abc import Iterator

from inferwatch.formatting import counted
from inferwatch.record.tables.session_state import SessionState
from inferwatch.studies.compare.quality import QualityCheck, judged
from inferwatch.studies.compare.reading.session_numbers import SessionNumbers, Side

MOST_NAMED = 3


def check_recording(a: Side, b: Side) -> QualityCheck:
    """Readings that are missing, engines that died, clocks that stepped."""
    runs = (*a.runs, *b.runs)
    doubts = [said for run in runs for said in _doubts(run)]
    is_ours = all(run.row.imported_from is None for run in runs)
    return judged("recording", doubts, "No reading is missing." if is_ours else None)


def _doubts(run: SessionNumbers) -> Iterator[str]:
    gaps = run.conditions.gaps
    if run.row.unrecorded:
        yield f"{run.name} is missing {counted(run.row.unrecorded, 'reading')}."
    if gaps.dropped:
        yield f"{counted(gaps.dropped, 'reading')} of {run.name} were lost on the way."
    if run.row.state is SessionState.INTERRUPTED:
        yield f"{run.name} was cut off: its recorder died, and what came then is lost."
    if run.row.state is SessionState.UNKNOWN:
        yield f"{run.name} may still be recorded elsewhere: what comes is left out."
    if gaps.lives:
        more = ["…"] if len(gaps.lives) > MOST_NAMED else []
        said = "; ".join([*gaps.lives[:MOST_NAMED], *more])
        yield f"{run.name} is not of one life of its engine ({said}): measure again."
    if gaps.stepped_s:
        most_s = max(gaps.stepped_s, key=abs)
        yield (
            f"The wall clock of {run.name} stepped by {most_s:+,.1f} s: it was set, or "
            "the host slept."
        )
