"""The live table of requests."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
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
from inferwatch.metrics.requests.group_names import told_name
from inferwatch.metrics.requests.request_groups import (
    GroupBy,
    RequestGroup,
    group_of,
    group_requests,
)
from inferwatch.metrics.requests.request_row import RequestRow
from inferwatch.metrics.series.window import Quantiles
from inferwatch.ui.kit.renderables.text import TextRun, end_of
from inferwatch.ui.kit.row_filter import Phrases
from inferwatch.ui.kit.table import CursorTable, TableColumn
from inferwatch.ui.request.phases import length_s, phases
from inferwatch.ui.requests.columns import (
    RequestView,
    cause_run,
    missed_words,
    request_columns,
)


def group_columns() -> Iterable[TableColumn[RequestGroup]]:
    """Return the columns of the table of groups; durations are in milliseconds."""
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
        TableColumn(
            "output_p50",
            f"{label_of(RequestGroup.output_tokens)} p50",
            8,
            lambda group, _: TextRun(format_count(group.output_tokens.p50).strip()),
            value=lambda group: group.output_tokens.p50,
            right=True,
            from_width=124,
        ),
        TableColumn(
            "output_p99",
            f"{label_of(RequestGroup.output_tokens)} p99",
            8,
            lambda group, _: TextRun(_length(group.output_tokens)),
            value=lambda group: group.output_tokens.p99,
            right=True,
            from_width=124,
        ),
        TableColumn(
            "cut_share",
            label_of(RequestGroup.cut_share),
            8,
            lambda group, _: TextRun(format_share(group.cut_share)),
            value=attrgetter("cut_share"),
            right=True,
            from_width=124,
        ),
        TableColumn(
            "thinking_share",
            label_of(RequestGroup.thinking_share),
            9,
            lambda group, _: TextRun(format_share(group.thinking_share)),
            value=attrgetter("thinking_share"),
            right=True,
            from_width=150,
        ),
        _count(RequestGroup.failed, 7, ink="bad"),
        TableColumn(
            "cause",
            f" {label_of(RequestGroup.cause)}",
            20,
            lambda group, width: cause_run(group.cause, width),
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
    """Return a column of a TTFT percentile, marked if it rests on too few samples."""

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


def _length(lengths: Quantiles) -> str:
    text = format_count(lengths.p99).strip()
    return about(text) if "p99" in lengths.weak else text


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


PHASE_TITLES = (
    " · API  ░ queue  ⣿ prefill  █ decode",
    " ░ queue ⣿ prefill █ decode",
    " ░que ⣿pre █dec",
    "░q ⣿p █d",
)
"""Legends of the bars, longest first."""
NARROW_ID = 20
"""Width below which the title of the id is shorter."""


class RequestScope(StrEnum):
    """Which requests are listed."""

    ALL = "all"
    LIVE = "live"
    ENDED = "ended"


class RequestTable(CursorTable[RequestRow]):
    """Requests of a snapshot; the newest stay in sight until one is selected."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+home", "step(-100000)", "first", show=False),
        Binding(
            "enter",
            "open",
            "open",
            tooltip="Why it was slow, on a screen of its own",
        ),
    ]
    MARGIN = 1
    STAYS_FIRST = True
    PHRASES: ClassVar[Phrases] = {
        "slower than": ("ttft", ">"),
        "faster than": ("ttft", "<"),
        "longer than": ("prompt", ">"),
        "shorter than": ("prompt", "<"),
    }

    def __init__(self) -> None:
        self.scope: StrEnum = RequestScope.ALL
        self.how_to_begin = ""
        """Advice shown while there is no request."""
        self.group: tuple[GroupBy, str] | None = None
        """The only group listed, by property and name."""
        self.seen = False
        """There were requests, even if their rows are not here yet."""
        self._view = RequestView()
        super().__init__(request_columns(self._view), sorted_by="arrived")

    def show(self, rows: Sequence[RequestRow], now_ns: int) -> None:
        self._view.now_ns = now_ns
        self.show_rows(rows)

    def know(
        self,
        models: Mapping[str, str],
        contexts: Mapping[str, int],
        wall_text: Callable[[int], str],
    ) -> None:
        """Set model and context of each source, and what formats wall-clock times."""
        self._view.models, self._view.wall_text = models, wall_text
        self._view.contexts = contexts

    def put_slowest_first(self) -> None:
        """Sort by TTFT, longest first, with the cursor on the first row."""
        self.sorted_by, self.descending = "ttft", True
        self.to_first()

    def only(self, group: tuple[GroupBy, str] | None) -> None:
        """List only the requests of a group, None for all."""
        self.group = group
        self.to_first()
        self.list_again()

    def groups(self, by: GroupBy) -> Sequence[RequestGroup]:
        """Group the requests in scope that the filter admits."""
        admits = self.filter.admits
        rows = (row for row in self._all_rows if self._in_scope(row) and admits(row))
        return group_requests(rows, by, self._view.models, self._view.contexts)

    def tells(self, by: GroupBy) -> bool:
        models = self._view.models
        return any(group_of(row, by, models) is not None for row in self._all_rows)

    def is_listed(self, row: RequestRow) -> bool:
        if not self._in_scope(row):
            return False
        if self.group is None:
            return True
        by, name = self.group
        view = self._view
        found = group_of(row, by, view.models, view.contexts)
        return told_name(found) == name

    def _in_scope(self, row: RequestRow) -> bool:
        if self.scope is RequestScope.ALL:
            return True
        return row.state.live == (self.scope is RequestScope.LIVE)

    @property
    def sort_keys(self) -> Sequence[str]:
        keys = super().sort_keys
        if not self.size.width:
            return keys
        visible = {column.key for column, _ in self.sized_at(self.size.width)}
        return [key for key in keys if key in visible]

    def key_of(self, row: RequestRow) -> str:
        return row.key

    def words_of(self, row: RequestRow) -> Iterable[str | None]:
        return (
            row.state.value,
            row.request_id,
            row.external_id,
            row.name,
            row.reason,
            row.lora,
            row.class_name,
            row.header,
            missed_words(row),
        )

    def recency(self, row: RequestRow) -> float:
        return row.arrived_ns

    def empty_text(self) -> TextRun:
        if self.filter.text:
            return TextRun("no request matches: esc clears the filter", "muted")
        if self.group is not None:
            return TextRun("none of the group is left: esc goes back", "muted")
        if self.scope is not RequestScope.ALL:
            return TextRun(f"no {self.scope} request: e lists others", "muted")
        text = "…" if self.seen else f"no request yet{self.how_to_begin}"
        return TextRun(text, "muted")

    def before_draw(self, seen: Sequence[RequestRow]) -> None:
        """Scale the rows' bars to the longest request in sight."""
        now_ns = self._view.now_ns
        lengths = (length_s(phases(row, now_ns)) for row in seen)
        self._view.longest_s = max(lengths, default=0.0)

    def title_of(self, column: TableColumn[RequestRow], width: int) -> TextRun:
        """Return a column's title; that of the id says how rows are sorted at first."""
        if column.key == "arrived" and width < NARROW_ID:
            column = replace(column, title="id, newest")
        if column.key == "phases":
            fits = (title for title in PHASE_TITLES if len(title) <= width)
            column = replace(column, title=next(fits, column.title))
        return super().title_of(column, width)
