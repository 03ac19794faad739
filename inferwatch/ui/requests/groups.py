"""The table of request groups."""

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import ClassVar

from textual.binding import Binding, BindingType

from inferwatch.formatting import (
    MILLISECONDS,
    about,
    format_count,
    format_in,
    format_share,
)
from inferwatch.metrics.number import label_of, number_of
from inferwatch.metrics.requests.request_groups import RequestGroup
from inferwatch.ui.kit.renderables.text import TextRun, end_of
from inferwatch.ui.kit.table import CursorTable, TableColumn
from inferwatch.ui.requests.columns import cause_run


def group_columns() -> Iterable[TableColumn[RequestGroup]]:
    """Return the columns from left to right; durations are in milliseconds."""
    return (
        TableColumn(
            "name",
            f" {label_of(RequestGroup.name)}",
            16,
            lambda group, width: TextRun(f" {end_of(group.name, width - 2)}", "strong"),
            ascending=True,
            gap=1,
            least=12,
            grows=2,
            most=48,
        ),
        _count(RequestGroup.requests, 6),
        _count(RequestGroup.live, 5),
        _ttft("p50", "TTFT p50", 9),
        _ttft("p95", "p95", 8),
        _ttft("p99", "p99 ms", 8),
        _duration(RequestGroup.tpot_p50_s, 10, from_width=90),
        _duration(RequestGroup.itl_max_s, 11, from_width=100),
        TableColumn(
            "cached_share",
            label_of(RequestGroup.cached_share),
            8,
            lambda group, _: TextRun(format_share(group.cached_share)),
            value=attrgetter("cached_share"),
            right=True,
            from_width=112,
        ),
        _count(RequestGroup.failed, 7, ink="bad"),
        TableColumn(
            "cause",
            f" {label_of(RequestGroup.cause)}",
            20,
            lambda group, _: cause_run(group.cause),
            value=attrgetter("cause"),
            ascending=True,
            least=12,
        ),
    )


def _count(field: object, width: int, ink: str = "") -> TableColumn[RequestGroup]:
    number = number_of(field)
    value: Callable[[RequestGroup], int] = attrgetter(number.name)

    def write(group: RequestGroup, _: int) -> TextRun:
        count = value(group)
        return TextRun(format_count(count).strip(), ink if count else "faint")

    return TableColumn(number.name, number.label, width, write, value=value, right=True)


def _ttft(name: str, title: str, width: int) -> TableColumn[RequestGroup]:
    """Return a column of a percentile, marked if it rests on too few samples."""

    def write(group: RequestGroup, _: int) -> TextRun:
        seconds: float | None = getattr(group.ttft_s, name)
        text = format_in(MILLISECONDS, seconds)
        if seconds is None:
            return TextRun(text, "faint")
        weak = name in group.ttft_s.weak
        return TextRun(about(f" {text}"), "faint") if weak else TextRun(text)

    return TableColumn(
        name,
        title,
        width,
        write,
        value=lambda group: getattr(group.ttft_s, name),
        right=True,
    )


def _duration(field: object, width: int, from_width: int) -> TableColumn[RequestGroup]:
    number = number_of(field)
    value: Callable[[RequestGroup], float | None] = attrgetter(number.name)

    def write(group: RequestGroup, _: int) -> TextRun:
        seconds = value(group)
        text = format_in(MILLISECONDS, seconds)
        return TextRun(text, "faint" if seconds is None else "")

    return TableColumn(
        number.name,
        number.label,
        width,
        write,
        value=value,
        right=True,
        from_width=from_width,
    )


class GroupTable(CursorTable[RequestGroup]):
    """Groups in the order given, until the user sorts them."""

    DEFAULT_CSS = """
    GroupTable { display: none; height: 2fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open", tooltip="The requests of this group"),
    ]
    MARGIN = 1

    def __init__(self) -> None:
        super().__init__(group_columns())

    def key_of(self, row: RequestGroup) -> str:
        return row.name

    def empty_text(self) -> TextRun:
        return TextRun("no request listed: esc goes back", "muted")
