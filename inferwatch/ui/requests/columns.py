"""The columns of the request table."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from operator import attrgetter

from collectors.clock import NS_PER_S
from inferwatch.formatting import MILLISECONDS, format_count, format_in
from inferwatch.metrics.catalog import label_of
from inferwatch.metrics.snapshot import RequestRow, RequestState
from inferwatch.ui.requests.phases import (
    BEFORE_FIRST_TOKEN,
    PHASE_GLYPHS,
    STATES,
    length_s,
    phases,
)
from inferwatch.ui.shared.renderables.bars import waterfall
from inferwatch.ui.shared.renderables.text import Line, TextRun
from inferwatch.ui.shared.row_filter import FieldKind, FilterField
from inferwatch.ui.shared.table import TableColumn
from inferwatch.visible import visible


@dataclass
class RequestView:
    """What columns know beside a row: the moment shown, and the scale of the bars."""

    now_ns: int = 0
    longest_s: float = 0.0
    """The longest request in sight."""


def request_columns(view: RequestView) -> Iterable[TableColumn[RequestRow]]:
    """The columns of the request table, from left to right."""

    def bar(row: RequestRow, width: int) -> Line:
        spent = phases(row, view.now_ns)
        share = length_s(spent) / view.longest_s if view.longest_s else 0
        cells_ = max(round((width - 1) * share), 1)
        return TextRun(" "), *waterfall(spent, cells_, PHASE_GLYPHS)

    return (
        TableColumn(
            "state",
            " state",
            13,
            _state,
            value=lambda row: row.state.value,
            filter=FilterField(
                "state",
                lambda row: row.state.value,
                choices=[state.value for state in RequestState],
            ),
        ),
        TableColumn(
            "arrived",
            "id, by arrival",
            14,
            _id,
            value=lambda row: row.arrived_ns,
            gap=1,
            least=8,
            grows=3,
            most=30,
            filter=FilterField("id", _ids),
        ),
        _count("prompt", "prompt_tokens", from_width=72),
        _count("output", "output_tokens"),
        _growing("queue", "queue_s", view, _queued_ns),
        _growing("ttft", "ttft_s", view, _first_token_awaited_ns),
        _duration("tpot", "tpot_s", from_width=90),
        _duration("itl", "itl_last_s", from_width=130),
        _duration("itl_max", "itl_max_s", from_width=102),
        _growing("e2el", "e2el_s", view, _lives_ns),
        TableColumn(
            "preemptions",
            label_of("request.preemptions"),
            5,
            _preemptions,
            value=lambda row: row.preemptions,
            right=True,
            from_width=118,
            filter=_field("preemptions", FieldKind.COUNT),
        ),
        TableColumn(
            "reason",
            "  reason",
            10,
            lambda row, _: TextRun(f"  {row.reason or ''}", "muted"),
            value=lambda row: row.reason,
            from_width=114,
            filter=FilterField("reason", lambda row: row.reason),
        ),
        TableColumn("phases", " phases", 16, bar, least=8),
    )


def _duration(key: str, name: str, from_width: int = 0) -> TableColumn[RequestRow]:
    """A column of milliseconds, named in the catalog."""
    value = attrgetter(name)

    def write(row: RequestRow, _: int) -> TextRun:
        seconds = value(row)
        text = format_in(MILLISECONDS, seconds)
        return TextRun(text, "faint" if seconds is None else "")

    title = _in_ms(f"request.{name}")
    return TableColumn(
        key,
        title,
        max(len(title) + 1, 9),
        write,
        value=value,
        right=True,
        from_width=from_width,
        filter=_field(name, FieldKind.DURATION),
    )


def _growing(
    key: str,
    name: str,
    view: RequestView,
    since_ns: Callable[[RequestRow], int | None],
) -> TableColumn[RequestRow]:
    """Milliseconds, and while they grow what they will be at least, with a ``+``.

    ``since_ns`` tells since when they grow, None once they do not.
    """
    known = attrgetter(name)

    def at_least(row: RequestRow) -> float | None:
        seconds: float | None = known(row)
        began_ns = since_ns(row) if seconds is None else None
        if began_ns is None:
            return seconds
        return max(view.now_ns - began_ns, 0) / NS_PER_S

    def write(row: RequestRow, _: int) -> TextRun:
        seconds = at_least(row)
        text = format_in(MILLISECONDS, seconds)
        if seconds is None:
            return TextRun(f"{text} ", "faint")
        if known(row) is None:
            return TextRun(f"{text}+", "muted")
        return TextRun(f"{text} ")

    return TableColumn(
        key,
        f"{_in_ms(f'request.{name}')} ",
        10,
        write,
        value=at_least,
        right=True,
        filter=replace(_field(name, FieldKind.DURATION), at_least=at_least),
    )


def _queued_ns(row: RequestRow) -> int | None:
    return row.added_ns if row.state is RequestState.QUEUED else None


def _first_token_awaited_ns(row: RequestRow) -> int | None:
    preempted = row.state is RequestState.PREEMPTED and row.output_tokens == 0
    return row.arrived_ns if preempted or row.state in BEFORE_FIRST_TOKEN else None


def _lives_ns(row: RequestRow) -> int | None:
    return row.arrived_ns if row.state.live else None


def _in_ms(key: str) -> str:
    """The title says the unit, so that all cells below it share one."""
    return f"{label_of(key)} {MILLISECONDS.name}"


def _count(key: str, name: str, from_width: int = 0) -> TableColumn[RequestRow]:
    """A column of whole numbers, named in the catalog."""
    value = attrgetter(name)

    def write(row: RequestRow, _: int) -> TextRun:
        return TextRun(format_count(value(row)).strip())

    title = label_of(f"request.{name}")
    return TableColumn(
        key,
        title,
        7,
        write,
        value=value,
        right=True,
        from_width=from_width,
        filter=_field(name, FieldKind.COUNT),
    )


def _field(name: str, kind: FieldKind) -> FilterField[RequestRow]:
    """A number of a request, called as the catalog does: ``ttft``, ``max_itl``."""
    label = label_of(f"request.{name}").lower().replace(" ", "_")
    return FilterField(label, attrgetter(name), kind)


def _state(row: RequestRow, _: int) -> TextRun:
    glyph, ink = STATES[row.state]
    return TextRun(f" {glyph} {row.state.value}", ink)


def _id(row: RequestRow, width: int) -> TextRun:
    """What tells requests apart: ids share their beginning, so it goes first."""
    room = max(width - 1, 1)
    name = visible(row.external_id or row.request_id)
    for prefix in ("chatcmpl-", "cmpl-"):
        name = name.removeprefix(prefix)
    if len(name) > room:
        name = f"…{name[-max(room - 1, 1) :]}"
    return TextRun(name, "" if row.state.live else "muted")


def _ids(row: RequestRow) -> str:
    return f"{row.external_id or ''} {row.request_id}"


def _preemptions(row: RequestRow, _: int) -> TextRun:
    return TextRun(str(row.preemptions), "warn" if row.preemptions else "faint")
