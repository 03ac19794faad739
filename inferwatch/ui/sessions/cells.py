"""The columns of the session table: what each writes and from which width on."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from collectors.readings import Vantage
from inferwatch.formatting import (
    format_bytes,
    format_count,
    format_duration,
    format_rate,
)
from inferwatch.storage.sessions.session_state import SessionState
from inferwatch.ui.sessions.order import ListedSession
from inferwatch.ui.shared.renderables.text import TextRun, cells

ENOUGH_FOR_P99 = 1_000
STATES = {
    SessionState.RECORDING: ("●", "recording", "good"),
    SessionState.COMPLETE: ("✓", "complete", "muted"),
    SessionState.INTERRUPTED: ("◌", "interrupted", "warn"),
}


class Cell(NamedTuple):
    """A column that is not stretched."""

    key: str
    """As in :data:`inferwatch.ui.sessions.order.SORTS`."""
    title: str
    width: int
    from_width: int
    write: Callable[[ListedSession], TextRun]


def state_of(each: ListedSession) -> tuple[str, str, str]:
    """Glyph, word, ink."""
    if each.row.deleted_ns is not None:
        return "∅", "in the bin", "muted"
    return STATES[each.row.state]


def _state(each: ListedSession) -> TextRun:
    glyph, word, ink = state_of(each)
    return cells(f"  {glyph} {word}", 15, ink)


def _began(each: ListedSession) -> TextRun:
    return cells(f"  {each.row.began_text()}", 18)


def _began_short(each: ListedSession) -> TextRun:
    return cells(f" {each.row.began_text('%m-%d %H:%M')}", 13)


def _watched(each: ListedSession) -> TextRun:
    return cells(format_duration(each.row.duration_s), 8, right=True)


def _requests(each: ListedSession) -> TextRun:
    """``c``: as the client told, no engine did."""
    row = each.row
    seen = " c" if row.client_requests else ""
    many = format_count(row.client_requests or row.requests).strip()
    return cells(f"{many}{seen}", 9, right=True)


def _ttft(each: ListedSession) -> TextRun:
    """``~``: too few for a p99; ``c``: seen by the client."""
    summary = each.summary
    if summary is None:
        return cells("…  ", 12, "faint", right=True)
    known = summary.ttft_p99_s is not None
    weak = "~" if known and summary.n < ENOUGH_FOR_P99 else ""
    seen = " c" if known and summary.vantage is Vantage.CLIENT else "  "
    text = f"{weak}{format_duration(summary.ttft_p99_s).strip()}{seen}"
    return cells(text, 12, "" if known and not weak else "muted", right=True)


def _tokens(each: ListedSession) -> TextRun:
    if each.summary is None:
        return cells("…", 8, "faint", right=True)
    rate = each.summary.output_tokens_per_s
    return cells(format_rate(rate), 8, "" if rate else "faint", right=True)


def _size(each: ListedSession) -> TextRun:
    text = format_bytes(each.size_bytes).strip()
    return cells(f"~{text}" if each.size_bytes is not None else text, 9, right=True)


CELLS: Sequence[Cell] = (
    Cell("began", " began", 13, 0, _began_short),
    Cell("watched", "watched", 8, 0, _watched),
    Cell("requests", "requests", 9, 0, _requests),
    Cell("ttft", "p99 TTFT  ", 12, 0, _ttft),
    Cell("tokens", "tok/s", 8, 0, _tokens),
    Cell("size", "size", 9, 0, _size),
    Cell("state", "  state", 15, 104, _state),
)
"""Beside the id and the name, which stretch with the model and the tags."""
WIDE_BEGAN = Cell("began", "  began", 18, 110, _began)
