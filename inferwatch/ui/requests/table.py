"""The live table of requests, and its columns."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import attrgetter
from typing import ClassVar

from textual.binding import Binding, BindingType

from collectors.clock import NS_PER_S
from inferwatch.formatting import MILLISECONDS, format_count, format_in
from inferwatch.metrics.catalog import label_of
from inferwatch.metrics.snapshot import RequestRow, RequestState
from inferwatch.ui.shared.renderables.bars import Phase, waterfall
from inferwatch.ui.shared.renderables.text import Line, TextRun
from inferwatch.ui.shared.row_filter import FieldKind, FilterField
from inferwatch.ui.shared.table import CursorTable, TableColumn
from inferwatch.visible import visible

STATES = {
    RequestState.ARRIVED: ("·", "muted"),
    RequestState.QUEUED: ("◔", "waiting"),
    RequestState.PREFILL: ("◑", "prefill"),
    RequestState.DECODE: ("●", "decode"),
    RequestState.PREEMPTED: ("◌", "warn"),
    RequestState.FINISHED: ("✓", "muted"),
    RequestState.ABORTED: ("⊘", "muted"),
    RequestState.FAILED: ("✖", "bad"),
}
RUNNING = {
    RequestState.ARRIVED: "API",
    RequestState.QUEUED: "queue",
    RequestState.PREFILL: "prefill",
    RequestState.DECODE: "decode",
}
"""The phase a live request is in: its time goes on."""
BEFORE_FIRST_TOKEN = (
    RequestState.ARRIVED,
    RequestState.QUEUED,
    RequestState.PREFILL,
)
PHASE_INKS = {
    "API": "muted",
    "queue": "waiting",
    "prefill": "prefill",
    "decode": "decode",
}
PHASE_GLYPHS = "·░⣿█"
"""One a phase, as in charts, so that they differ without colour."""
PHASE_TITLES = (
    " · API  ░ queue  ⣿ prefill  █ decode",
    " ░ queue ⣿ prefill █ decode",
    " ░que ⣿pre █dec",
    "░q ⣿p █d",
)
"""The legend of the bars; the longest one that there is room for."""
NARROW_ID = 20
"""Cells; with fewer the title of the id is shorter."""


class RequestScope(StrEnum):
    """Which requests are listed at all."""

    ALL = "all"
    LIVE = "live"
    ENDED = "ended"


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
        share = _length_s(spent) / view.longest_s if view.longest_s else 0
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


class RequestTable(CursorTable[RequestRow]):
    """The requests of a snapshot; the newest are in sight until one is chosen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+home", "step(-100000)", "first", show=False),
        Binding(
            "enter",
            "open",
            "open",
            tooltip="Where its time went; again: the steps of that time",
        ),
    ]
    MARGIN = 1
    STAYS_FIRST = True

    def __init__(self) -> None:
        self.scope = RequestScope.ALL
        self.how_to_begin = ""
        """What can be done while there is none; said behind that."""
        self.seen = False
        """There were requests, whether or not their rows are here yet."""
        self._view = RequestView()
        super().__init__(request_columns(self._view), sorted_by="arrived")

    def show(self, rows: Sequence[RequestRow], now_ns: int) -> None:
        """Take the requests that are known at a moment."""
        self._view.now_ns = now_ns
        self.show_rows(rows)

    def put_slowest_first(self) -> None:
        """The longest wait for a first token on top, and under the cursor."""
        self.sorted_by, self.descending = "ttft", True
        self.to_first()

    def within(self, scope: RequestScope) -> None:
        """List only the requests of a scope."""
        self.scope = scope
        self.list_again()

    def is_listed(self, row: RequestRow) -> bool:
        """Whether the request belongs to the scope that is listed."""
        if self.scope is RequestScope.ALL:
            return True
        return row.state.live == (self.scope is RequestScope.LIVE)

    def key_of(self, row: RequestRow) -> str:
        """The key of the request in the model."""
        return row.key

    def words_of(self, row: RequestRow) -> Iterable[str | None]:
        """Its state, both ids and the reason why it ended."""
        return (row.state.value, row.request_id, row.external_id, row.reason)

    def recency(self, row: RequestRow) -> float:
        """The request that arrived last stands first."""
        return row.arrived_ns

    def empty_text(self) -> TextRun:
        """There is none, or none of those that are asked for."""
        if self.filter.text:
            return TextRun("no request matches: esc clears the filter", "muted")
        if self.scope is not RequestScope.ALL:
            return TextRun(f"no {self.scope} request: e lists others", "muted")
        told = "…" if self.seen else f"no request yet{self.how_to_begin}"
        return TextRun(told, "muted")

    def before_draw(self, seen: Sequence[RequestRow]) -> None:
        """The longest request in sight has the longest bar."""
        now_ns = self._view.now_ns
        lengths = (_length_s(phases(row, now_ns)) for row in seen)
        self._view.longest_s = max(lengths, default=0.0)

    def title_of(self, column: TableColumn[RequestRow], width: int) -> TextRun:
        """The title of a column; that of the id says how requests stand at first."""
        if column.key == "arrived" and width < NARROW_ID:
            column = replace(column, title="id, newest")
        if column.key == "phases":
            fits = (title for title in PHASE_TITLES if len(title) <= width)
            column = replace(column, title=next(fits, column.title))
        return super().title_of(column, width)


def phases(row: RequestRow, now_ns: int) -> list[Phase]:
    """The intervals of a request so far, in the order they happened."""
    api_s = None
    if row.ttft_s is not None and row.queue_s is not None and row.prefill_s is not None:
        api_s = max(row.ttft_s - row.queue_s - row.prefill_s, 0.0)
    spent = {
        "API": api_s,
        "queue": row.queue_s,
        "prefill": row.prefill_s,
        "decode": row.decode_s,
    }
    now_in = RUNNING.get(row.state)
    if now_in is not None and spent[now_in] is None:
        known_s = sum(seconds for seconds in spent.values() if seconds is not None)
        spent[now_in] = max((now_ns - row.arrived_ns) / NS_PER_S - known_s, 0.0)
    return [(name, seconds, PHASE_INKS[name]) for name, seconds in spent.items()]


def longest_moment_ns(row: RequestRow, now_ns: int) -> int:
    """The middle of what took the longest before the first token, else of it all."""
    spent = [(name, seconds or 0.0) for name, seconds, _ in phases(row, now_ns)]
    waits = spent[:-1] if row.ttft_s is not None else spent
    longest = max(range(len(waits)), key=lambda place: waits[place][1])
    before_s = sum(seconds for _, seconds in waits[:longest])
    return row.arrived_ns + round((before_s + waits[longest][1] / 2) * NS_PER_S)


def _length_s(spent: Sequence[Phase]) -> float:
    return sum(seconds or 0.0 for _, seconds, _ in spent)
