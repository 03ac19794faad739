"""The list of a session's marks: bookmarks first, found by typing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input

from inferwatch.feed import Feed, Mark, MarkKind, Playback
from inferwatch.ui.frame.time_line import GLYPHS, span_text
from inferwatch.ui.kit.dialogs import DialogInput
from inferwatch.ui.kit.keys import KeyFooter
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, cells, fit, ruled

LOOK_EVERY_S = 0.3
"""How often marks are looked for while the session is scanned."""
SCANNING = "scanning the session …"


def listed_marks(marks: Sequence[Mark], words: str) -> list[Mark]:
    """Return the marks with all of some words, bookmarks first, then by time."""
    wanted = words.casefold().split()
    found = (
        each
        for each in marks
        if all(word in f"{each.kind} {each.text}".casefold() for word in wanted)
    )
    return sorted(found, key=lambda e: (e.kind is not MarkKind.BOOKMARK, e.t_ns))


class MarkTable(Panel):
    """The marks that were found, one of them chosen."""

    DEFAULT_CSS = """
    MarkTable { height: 1fr; }
    """

    @dataclass
    class MarkClicked(Message):
        """A mark was clicked."""

        mark: Mark

    _marks: Sequence[Mark] = ()
    _none = SCANNING
    _of = 0
    _at = 0
    _top = 0

    def __init__(self, clock: Callable[[int], str], start_ns: int, note: str) -> None:
        super().__init__()
        self._clock, self._start_ns, self._note = clock, start_ns, note

    def show(self, marks: Sequence[Mark], of: int, none: str) -> None:
        """Show the marks found of a number; the chosen one stays chosen."""
        chosen = self.chosen
        self._marks, self._of, self._none = marks, of, none
        self._at = marks.index(chosen) if chosen in marks else 0
        self.redraw()

    @property
    def chosen(self) -> Mark | None:
        return self._marks[self._at] if self._at < len(self._marks) else None

    def choose(self, by: int) -> None:
        self._at = min(max(self._at + by, 0), max(len(self._marks) - 1, 0))
        self.redraw()

    def on_click(self, event: events.Click) -> None:
        place = self._top + event.y - 1
        if event.y > 0 and place < len(self._marks):
            self.post_message(self.MarkClicked(self._marks[place]))

    def draw(self, width: int, height: int) -> Sequence[Line]:
        room = max(height - 1, 1)
        top = min(max(self._top, self._at - room + 1), self._at)
        self._top = max(min(top, len(self._marks) - room), 0)
        of = f" of {self._of:,}" if len(self._marks) < self._of else ""
        count = f"{len(self._marks):,}{of}"
        title = TextRun("marks", "strong"), TextRun(self._note, "muted")
        head = ruled(title, (TextRun(count, "muted"),), width)
        if not self._marks:
            return [head, fit((TextRun(f" {self._none}", "faint"),), width)]
        shown = list(enumerate(self._marks))[self._top : self._top + room]
        return [head, *(self._row(mark, at == self._at, width) for at, mark in shown)]

    def _row(self, mark: Mark, chosen: bool, width: int) -> Line:  # noqa: FBT001
        glyph, ink = GLYPHS[mark.kind]
        into = span_text(mark.t_ns - self._start_ns)
        start = (
            TextRun("▶ " if chosen else "  ", "marker"),
            TextRun(f"{glyph} ", ink),
            TextRun(self._clock(mark.t_ns), "strong" if chosen else ""),
            TextRun(f"{into:>9}  ", "muted"),
        )
        room = max(width - sum(len(run.text) for run in start), 1)
        text = mark.text.partition("\n")[0]
        return (*start, cells(text, room, "strong" if chosen else "muted"))


class MarkScreen(ModalScreen[Mark | None]):
    """Lists the marks of a session; returns the chosen one, None after escape."""

    DEFAULT_CSS = """
    MarkScreen { align: center bottom; }
    MarkScreen Vertical {
        width: 100; max-width: 100%; height: 60%; min-height: 12; padding: 0 1;
        margin-bottom: 1; background: $surface; border: round $primary;
    }
    MarkScreen Input { background: $panel; height: 1; }
    MarkScreen Input.-textual-compact { padding: 0 1 !important; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "choose(-1)", "choose", key_display="↑ ↓"),
        Binding("down", "choose(1)", "next", show=False),
        Binding("pageup", "choose(-10)", "ten up", show=False),
        Binding("pagedown", "choose(10)", "ten down", show=False),
        Binding("escape", "leave", "close"),
        Binding("ctrl+c", "leave", "close", show=False, priority=True),
    ]

    def __init__(self, feed: Feed, playback: Playback, note: str = "") -> None:
        super().__init__()
        self._feed, self._playback, self._note = feed, playback, note
        self._listed: tuple[Sequence[Mark], str, str] | None = None
        """The marks, words and remark that the list was made of."""

    def compose(self) -> ComposeResult:
        with Vertical():
            yield DialogInput(
                compact=True, placeholder="type to find: bookmark, stall, any word"
            )
            start_ns = self._playback.span_ns[0]
            yield MarkTable(self._feed.wall_text, start_ns, self._note)
        yield KeyFooter()

    def on_mount(self) -> None:
        self.set_interval(LOOK_EVERY_S, self._list)
        self.call_after_refresh(self._list)

    @on(Input.Changed)
    def _list(self) -> None:
        marks, words = self._playback.marks, self.query_one(Input).value
        none = "no mark yet: b bookmarks a moment"
        if marks:
            none = "no mark has all of these words"
        elif self._playback.shape is None and self._playback.cannot_seek is None:
            none = SCANNING
        if self._listed != (marks, words, none):
            self._listed = marks, words, none
            found = listed_marks(marks, words)
            self.query_one(MarkTable).show(found, len(marks), none)

    def action_choose(self, by: int) -> None:
        self.query_one(MarkTable).choose(by)

    def action_leave(self) -> None:
        self.dismiss(None)

    @on(Input.Submitted)
    def _go(self) -> None:
        self._list()
        mark = self.query_one(MarkTable).chosen
        if mark is not None:
            self.dismiss(mark)

    @on(MarkTable.MarkClicked)
    def _clicked(self, message: MarkTable.MarkClicked) -> None:
        self.dismiss(message.mark)
