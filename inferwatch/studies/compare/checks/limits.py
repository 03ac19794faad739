"""Did somebody turn a limit of the engine while it was measured?"""

from collections.abc import Iterator

from inferwatch.studies.compare.quality import QualityCheck, judged
from inferwatch.studies.compare.reading.live_limits import LIMITS, limit_text
from inferwatch.studies.compare.reading.session_numbers import SessionNumbers, Side

SUBJECT = "limits"


def check_limits(a: Side, b: Side) -> QualityCheck | None:
    """None where no engine lets anybody: nothing can have been."""
    runs = (*a.runs, *b.runs)
    if not any(run.conditions.limits for run in runs):
        return None
    doubts = [said for run in runs for said in _changed(run)]
    return judged(SUBJECT, doubts, "No limit was changed while it was measured.")


def _changed(run: SessionNumbers) -> Iterator[str]:
    held = run.conditions.limits
    if len(held) < 2:
        return
    told = [(name, limit_text(held, name)) for name in LIMITS]
    moved = [f"{name} {text}" for name, text in told if text and not text.isdecimal()]
    yield (
        f"Limits of {run.name} were changed while it was measured "
        f"({', '.join(moved)}): its numbers are of no one setting; compare a part "
        "under the same (--a-from, --a-to, --b-from, --b-to)."
    )
