"""A review as text, as Markdown and as JSON."""

from collections.abc import Iterator
from typing import Any

from inferwatch.formatting import counted, duration_text, model_name
from inferwatch.printing.document import Block, FactList, Item, Items, Sentence
from inferwatch.printing.markdown import document_markdown
from inferwatch.printing.text import Paint, document_text, plain
from inferwatch.studies.review.line import Advised, LineVerdict, Reviewed
from inferwatch.studies.review.review import Review

SIGNS = {LineVerdict.CHANGE: "▲", LineVerdict.UNKNOWN: "?", LineVerdict.GOOD: "✓"}
"""In the order in which they are shown."""
NOT_KNOWN = "not known"


def review_text(review: Review, width: int | None = None, paint: Paint = plain) -> str:
    return document_text(_sections(review), width, paint)


def review_markdown(review: Review) -> str:
    return document_markdown(block for each in _sections(review) for block in each)


def review_json(review: Review, session_id: str | None) -> dict[str, Any]:
    return {
        "session_id": session_id,
        "for": review.use.value,
        "model": review.model,
        "covered_s": review.covered_s,
        "busy_s": review.busy_s,
        "finished": review.finished,
        "changes": len(review.changes),
        "lines": [_line_json(each) for each in review.lines],
    }


def lead(review: Review) -> str:
    """Return the outcome in a sentence."""
    n, of = len(review.changes), f"for {review.use} use"
    if review.model is not None:
        of = f"{model_name(review.model)} {of}"
    if not n:
        return f"{of}: nothing that was seen asks for a change"
    return f"{of}: {n} of {len(review.lines)} settings should change"


def _sections(review: Review) -> Iterator[list[Block]]:
    yield [
        Sentence(text=lead(review), is_lead=True, tone="heading"),
        Sentence(
            text=f"Watched for {duration_text(review.covered_s)}, "
            f"{duration_text(review.busy_s)} of them with work; "
            f"{counted(review.finished, 'request')} finished",
            is_aside=True,
        ),
    ]
    for each in review.changes:
        yield [*_change(each)]
    for verdict in (LineVerdict.UNKNOWN, LineVerdict.GOOD):
        lines = review.of(verdict)
        if lines:
            items = [Item(of=_head(each), text=each.judged.seen) for each in lines]
            yield [Items(items=items)]


def _change(line: Reviewed) -> Iterator[Block]:
    advised = line.judged.advised
    yield Sentence(text=_head(line), tone="worse")
    if advised is None:
        return
    what = f"{advised.flag}: {advised.text}" if advised.flag else advised.text
    yield FactList(
        pairs=[
            ("seen", line.judged.seen),
            ("change", what),
            ("gain", advised.gain or _untold(advised)),
            ("risk", advised.risk),
        ]
    )


def _untold(advised: Advised) -> str:
    return f"{NOT_KNOWN}: {advised.untold}" if advised.untold else NOT_KNOWN


def _head(line: Reviewed) -> str:
    """Return the sign, the name and the present value."""
    present = f", now {line.present}" if line.present is not None else ""
    return f"{SIGNS[line.judged.verdict]} {line.name}{present}"


def _line_json(line: Reviewed) -> dict[str, Any]:
    judged, advised = line.judged, line.judged.advised
    return {
        "name": line.name,
        "setting": line.setting,
        "present": line.present,
        "verdict": judged.verdict.value,
        "seen": judged.seen,
        "change": None
        if advised is None
        else {
            "flag": advised.flag,
            "text": advised.text,
            "gain": advised.gain,
            "gain_not_known": advised.untold,
            "risk": advised.risk,
        },
    }
