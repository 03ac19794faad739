"""Is all there that was to be recorded?"""

from collections.abc import Iterator

from inferwatch.compare.quality import QualityCheck, judged
from inferwatch.compare.session_numbers import SessionNumbers, Side
from inferwatch.formatting import counted
from inferwatch.storage.sessions.session_state import SessionState


def check_recording(a: Side, b: Side) -> QualityCheck:
    """Readings that are missing, and a recorder that died."""
    doubts = [said for run in (*a.runs, *b.runs) for said in _doubts(run)]
    return judged("recording", doubts, "No reading is missing.")


def _doubts(run: SessionNumbers) -> Iterator[str]:
    if run.row.unrecorded:
        yield f"{run.name} is missing {counted(run.row.unrecorded, 'reading')}."
    if run.row.state is SessionState.INTERRUPTED:
        yield f"{run.name} was cut off: its recorder died, and what came then is lost."
