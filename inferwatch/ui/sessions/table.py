"""The table of recorded sessions and the lines below it."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from collectors.contract.readings import Vantage
from inferwatch.formatting import (
    MILLISECONDS,
    about,
    format_bytes,
    format_count,
    format_duration,
    format_in,
    format_rate,
)
from inferwatch.record.tables.session_state import SessionState
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, fit, join
from inferwatch.ui.kit.row_filter import FieldKind, FilterField
from inferwatch.ui.kit.table import CursorTable, TableColumn
from inferwatch.ui.sessions.index import ListedSession
from inferwatch.ui.view import ChosenSessions
from inferwatch.ui.widgets.counter_facts import MEAN

ENOUGH_FOR_P99 = 1_000
MARK_WIDTH = 4
STATES = {
    SessionState.RECORDING: ("●", "recording", "good"),
    SessionState.COMPLETE: ("✓", "complete", "muted"),
    SessionState.INTERRUPTED: ("◌", "interrupted", "warn"),
    SessionState.UNKNOWN: ("?", "unknown", "warn"),
}


def session_columns(marked: Collection[int]) -> Iterable[TableColumn[ListedSession]]:
    """Return the columns from left to right; marked sessions are highlighted."""

    def mark(each: ListedSession, _: int) -> Line:
        glyph, _word, ink = state_of(each)
        mark = " ◆" if each.row.session in marked else "  "
        return TextRun(mark, "accent"), TextRun(f"{glyph} ", ink)

    def number(each: ListedSession, _: int) -> TextRun:
        return TextRun(each.row.id, "strong" if each.row.session in marked else "")

    return (
        TableColumn("mark", "", MARK_WIDTH, mark, ink=""),
        TableColumn("id", "id", 6, number),
        TableColumn(
            "name",
            "name",
            16,
            lambda each, _: TextRun(each.title, "" if each.row.name else "muted"),
            value=lambda each: each.title.lower(),
            ascending=True,
            gap=1,
            least=6,
            filter=FilterField("name", lambda each: each.title),
        ),
        TableColumn(
            "model",
            "model",
            15,
            lambda each, _: TextRun(each.model or "–", "muted"),
            value=lambda each: each.model.lower() or None,
            ascending=True,
            gap=1,
            least=15,
            grows=3,
            filter=FilterField("model", lambda each: each.row.model),
        ),
        TableColumn(
            "began",
            " began",
            13,
            lambda each, _: TextRun(f" {each.row.began_text('%m-%d %H:%M')}"),
            value=lambda each: each.row.started_ns,
            below_width=110,
        ),
        TableColumn(
            "began",
            "  began",
            18,
            lambda each, _: TextRun(f"  {each.row.began_text()}"),
            value=lambda each: each.row.started_ns,
            from_width=110,
        ),
        TableColumn(
            "watched",
            "watched",
            8,
            lambda each, _: TextRun(format_duration(each.row.duration_s)),
            value=lambda each: each.row.duration_ns,
            right=True,
            filter=FilterField(
                "watched", lambda each: each.row.duration_s, FieldKind.DURATION
            ),
        ),
        TableColumn(
            "requests",
            "requests",
            9,
            _requests,
            value=_request_count,
            right=True,
            filter=FilterField("requests", _request_count, FieldKind.COUNT),
        ),
        TableColumn(
            "ttft",
            f"TTFT p99 {MILLISECONDS.name}",
            13,
            _ttft,
            value=_ttft_p99,
            right=True,
            below_width=110,
            filter=FilterField("ttft", _ttft_p99, FieldKind.DURATION),
            help=(
                "~ f c",
                "of the p99: fewer than 1,000 requests; seen by frontend, by client",
            ),
        ),
        TableColumn(
            "ttft",
            f"TTFT p99 {MILLISECONDS.name}, seen by",
            22,
            _ttft_in_words,
            value=_ttft_p99,
            right=True,
            from_width=110,
        ),
        TableColumn(
            "tokens",
            "tok/s",
            8,
            _tokens,
            value=_tokens_per_s,
            right=True,
            filter=FilterField("tokens", _tokens_per_s, FieldKind.COUNT),
            help=("tok/s", "output tokens a second, first arrival to last finish"),
        ),
        TableColumn(
            "size",
            "size",
            9,
            _size,
            value=lambda each: each.size_bytes,
            right=True,
            filter=FilterField("size", lambda each: each.size_bytes, FieldKind.BYTES),
            help=("size", "an estimate: sessions share one file"),
        ),
        TableColumn(
            "state",
            "  state",
            15,
            _state,
            value=lambda each: each.row.state.value,
            from_width=104,
            filter=FilterField(
                "state",
                lambda each: each.row.state.value,
                choices=[state.value for state in STATES],
            ),
        ),
        TableColumn(
            "tags",
            "  tags",
            14,
            lambda each, _: TextRun(f"  {each.row.tags}", "muted"),
            value=lambda each: each.row.tags or None,
            filter=FilterField("tags", lambda each: each.row.tags),
            gap=1,
            least=14,
            grows=3,
        ),
    )


def state_of(each: ListedSession) -> tuple[str, str, str]:
    if each.row.deleted_ns is not None:
        return "∅", "in the bin", "muted"
    return STATES[each.row.state]


def _state(each: ListedSession, _: int) -> TextRun:
    glyph, word, ink = state_of(each)
    return TextRun(f"  {glyph} {word}", ink)


def _request_count(each: ListedSession) -> int:
    return each.row.requests or each.row.client_requests or _counted(each)


def _counted(each: ListedSession) -> int:
    """Return how many requests a server's counters report; 0 for other sessions."""
    summary = each.summary
    return summary.n if summary and summary.vantage is Vantage.SCRAPE else 0


def _requests(each: ListedSession, _: int) -> TextRun:
    """Draw the number of requests: ``c`` as seen by the client, ``s`` by scrapes."""
    row, many = each.row, format_count(_request_count(each)).strip()
    suffix = " c" if row.client_requests else ""
    suffix = suffix if row.requests or not _counted(each) else " s"
    return TextRun(f"{many}{suffix}")


LETTERS = {Vantage.FRONTEND: "f", Vantage.CLIENT: "c", Vantage.SCRAPE: "s"}
WORDS = {
    Vantage.FRONTEND: "frontend",
    Vantage.CLIENT: "client  ",
    Vantage.SCRAPE: "scrape  ",
}


def _ttft(each: ListedSession, _: int) -> TextRun:
    """Draw the p99 TTFT: ``~`` of few samples, ``f`` by frontend, ``c`` by client.

    ``ø`` marks the mean of a server's counters, ``s``.
    """
    return _p99(each, LETTERS)


def _ttft_in_words(each: ListedSession, _: int) -> TextRun:
    return _p99(each, WORDS)


def _p99(each: ListedSession, seen_by: Mapping[Vantage, str]) -> TextRun:
    summary = each.summary
    if summary is None:
        return TextRun("…  ", "faint")
    mark = seen_by[summary.vantage]
    if summary.ttft_mean_s is not None:
        mean = format_in(MILLISECONDS, summary.ttft_mean_s).strip()
        return TextRun(f"{MEAN} {mean} {mark}", "muted")
    if summary.ttft_p99_s is None:
        return TextRun(f"–{' ' * (len(mark) + 1)}", "muted")
    p99 = format_in(MILLISECONDS, summary.ttft_p99_s).strip()
    if summary.n < ENOUGH_FOR_P99:
        return TextRun(f"{about(p99)} {mark}", "muted")
    return TextRun(f"{p99} {mark}")


def _ttft_p99(each: ListedSession) -> float | None:
    return each.summary.ttft_p99_s if each.summary else None


def _tokens(each: ListedSession, _: int) -> TextRun:
    if each.summary is None:
        return TextRun("…", "faint")
    rate = each.summary.output_tokens_per_s
    return TextRun(format_rate(rate), "" if rate else "faint")


def _tokens_per_s(each: ListedSession) -> float | None:
    return each.summary.output_tokens_per_s if each.summary else None


def _size(each: ListedSession, _: int) -> TextRun:
    text = format_bytes(each.size_bytes).strip()
    return TextRun(f"~{text}" if each.size_bytes is not None else text)


class SessionScope(StrEnum):
    """Which sessions are listed."""

    KEPT = "kept"
    BIN = "bin"


class SessionTable(CursorTable[ListedSession]):
    """Kept sessions or the bin; sessions can be marked."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("home", "step(-100000)", "first", show=False),
        Binding("end", "step(100000)", "last", show=False),
        Binding("enter", "open", "replay", tooltip="Replay this session"),
        Binding("m", "mark", "mark", tooltip="Mark this session, to compare it"),
        Binding("space", "mark", "mark", show=False),
    ]

    class MarksChanged(Message):
        """Other sessions are marked."""

    def __init__(self, empty: str, chosen: ChosenSessions | None = None) -> None:
        self._chosen = chosen or ChosenSessions()
        self.marked = self._chosen.marked
        """Session numbers in the order they were marked."""
        self.scope: StrEnum = SessionScope.KEPT
        self._empty = empty
        self._expected = self._chosen.pointed
        """Id of the session to select once it is listed."""
        super().__init__(session_columns(self.marked), sorted_by="began")

    @property
    def lists_bin(self) -> bool:
        return self.scope is SessionScope.BIN

    def key_of(self, row: ListedSession) -> str:
        return row.row.id

    def is_listed(self, row: ListedSession) -> bool:
        return (row.row.deleted_ns is not None) == self.lists_bin

    @property
    def count_unfiltered(self) -> int:
        return sum(map(self.is_listed, self._all_rows))

    def words_of(self, row: ListedSession) -> Iterable[str | None]:
        each = row.row
        return each.id, each.name, each.command, each.model, each.tags, each.state.value

    def recency(self, row: ListedSession) -> float:
        return row.row.session

    def empty_text(self) -> TextRun:
        if self.filter.text:
            return TextRun("no session matches: esc clears the filter", "muted")
        return TextRun("the bin is empty" if self.lists_bin else self._empty, "muted")

    def expect(self, number: int) -> None:
        """Move the cursor to a session once it is listed."""
        self._expected = f"s{number}"

    def key_to_keep(self, before: int) -> str | None:
        """Return the key of the expected session, else of the same or the next row."""
        keys = [self.key_of(row) for row in self.rows]
        if self._expected in keys:
            key, self._expected = self._expected, None
            return key
        same = super().key_to_keep(before)
        if same in keys:
            return same
        return keys[min(before, len(keys) - 1)] if keys else None

    def action_step(self, by: int) -> None:
        """Move the cursor and remember its row for the next visit."""
        super().action_step(by)
        self._remember()

    def _remember(self) -> None:
        here = self.pointed
        self._chosen.pointed = here.row.id if here is not None else None

    def unmark(self) -> None:
        self.marked.clear()
        self.redraw()

    def action_mark(self) -> None:
        """Mark or unmark the session under the cursor, and move on."""
        if self.pointed is None:
            return
        number = self.pointed.row.session
        if number in self.marked:
            self.marked.remove(number)
        else:
            self.marked.append(number)
        self.post_message(self.MarksChanged())
        self.action_step(1)

    def click_row(self, event: events.Click) -> None:
        """Mark a session by a click at its left edge; open it by a double click."""
        self._remember()
        if event.x < MARK_WIDTH:
            self.action_mark()
        else:
            super().click_row(event)


class SessionLine(Panel):
    """Details of the session under the cursor, in two rows."""

    DEFAULT_CSS = """
    SessionLine { height: 2; }
    """
    _session: ListedSession | None = None
    _marked: Sequence[str] = ()
    _damage: str | None = None

    def show(
        self,
        session: ListedSession | None,
        marked: Sequence[str],
        damage: str | None,
    ) -> None:
        self._session, self._marked, self._damage = session, marked, damage
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        del height
        if self._damage is not None:
            second: Line = (TextRun(f" ▲ {self._damage}", "bad"),)
        elif self._marked:
            how = "mark another, then c compares the two"
            if len(self._marked) > 1:
                how = f"c compares them, each with {self._marked[0]}; C asks for sides"
            text = f" ◆ {', '.join(self._marked)} marked: "
            second = (TextRun(text, "accent"), TextRun(how))
        else:
            marks = (TextRun(" m", "accent"), TextRun(" marks, "))
            compares = (
                TextRun("c", "accent"),
                TextRun(" compares with the one before"),
            )
            second = join(((*marks, *compares), self._end()))
        return (fit(self._facts(), width), fit(second, width))

    def _facts(self) -> Line:
        if self._session is None:
            return ()
        row = self._session.row
        model = (TextRun(row.model),) if row.model else ()
        count = f"{format_count(row.steps).strip()} steps"
        steps = (TextRun(count, "muted"),) if row.steps else ()
        tags = (TextRun(f"tags {row.tags}", "good"),) if row.tags else ()
        title = self._session.title
        named = (TextRun(f" {row.id}", "strong"), TextRun(f" {title}" if title else ""))
        return join((named, model, tags, steps))

    def _end(self) -> Line:
        if self._session is None:
            return ()
        row = self._session.row
        glyph, word, ink = state_of(self._session)
        state = (TextRun(f" {glyph} {word}", ink),)
        lost = f"{format_count(row.unrecorded).strip()} readings are missing"
        missing = (TextRun(lost, "warn"),) if row.unrecorded else ()
        reason = (TextRun(row.reason, "muted"),) if row.reason else ()
        imported = f"imported from {row.imported_from}"
        origin = (TextRun(imported, "muted"),) if row.imported_from else ()
        return join((state, origin, missing, reason))
