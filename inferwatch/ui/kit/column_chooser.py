"""A drawer in which the columns of a table are shown or hidden."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message

from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    cells,
    cells_of,
    fit,
    ruled,
)
from inferwatch.ui.kit.table import TableColumn

TICKED, OPEN, NO_ROOM = "✓", "·", "▲"
AROUND = 5
"""Cells of an entry besides its name."""


class ColumnChooser(Panel, can_focus=True):
    """Column names to tick; a change shows at once, as far as there is room."""

    DEFAULT_CSS = """
    ColumnChooser {
        layer: drawer; dock: bottom; margin-bottom: 1; background: $surface;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,enter", "tick", "choose", key_display="space"),
        Binding("d", "default", "default", tooltip="What suits the width"),
        Binding("up", "move(-1)", "move", key_display="←↑↓→"),
        Binding("down", "move(1)", "down", show=False),
        Binding("left", "aside(-1)", "left", show=False),
        Binding("right", "aside(1)", "right", show=False),
        Binding("home", "move(-1000)", "first", show=False),
        Binding("end", "move(1000)", "last", show=False),
        Binding("escape,c", "close", "close", key_display="esc"),
    ]

    @dataclass
    class ColumnsChosen(Message):
        """The chosen columns; None restores the default for the width."""

        columns: tuple[str, ...] | None

    class ChooserClosed(Message):
        """The chooser can be closed."""

    def __init__(self, columns: Sequence[TableColumn[Any]]) -> None:
        super().__init__()
        self._columns = [each for each in columns if each.rank]
        self._ticked: Collection[str] = ()
        self._without_room: Collection[str] = ()
        self._is_default = True
        self._at = 0

    def show(
        self, shown: Collection[str], without_room: Collection[str], *, default: bool
    ) -> None:
        """Show which columns are visible, and which chosen ones have no room."""
        self._ticked = {*shown, *without_room}
        self._without_room, self._is_default = without_room, default
        self.styles.height = self._rows(self.screen.size.width) + 2
        self.redraw()

    def _entry(self) -> int:
        names = max((cells_of(each.name) for each in self._columns), default=0)
        return names + AROUND

    def _rows(self, width: int) -> int:
        beside = max((width - 2) // self._entry(), 1)
        return -(-len(self._columns) // beside)

    def draw(self, width: int, height: int) -> Sequence[Line]:
        rows = max(height - 2, 1)
        title = (TextRun("columns", "strong"),)
        how = "suit the width" if self._is_default else "chosen"
        aside: Line = (TextRun(how, "muted"),)
        if self._without_room:
            count = len(self._without_room)
            aside = (*aside, TextRun(f" · {NO_ROOM} {count} without room", "warn"))
        lines: list[Line] = [ruled(title, aside, width)]
        for row in range(rows):
            places = range(row, len(self._columns), rows)
            entries = [run for place in places for run in self._drawn(place)]
            lines.append(fit((TextRun("  "), *entries), width))
        sentence = self._columns[self._at].tells
        return [*lines, fit((TextRun(f"  {sentence}", "muted"),), width)]

    def _drawn(self, place: int) -> Line:
        column = self._columns[place]
        glyph, ink = OPEN, "muted"
        if column.key in self._without_room:
            glyph, ink = NO_ROOM, "warn"
        elif column.key in self._ticked:
            glyph, ink = TICKED, "strong"
        pointed = " chosen" if place == self._at else ""
        text = cells(f" {glyph} {column.name}", self._entry() - 1).text
        return (
            TextRun(text, f"{ink}{pointed}", f"tick_at({place})"),
            TextRun(" "),
        )

    def action_move(self, by: int) -> None:
        self._at = min(max(self._at + by, 0), len(self._columns) - 1)
        self.redraw()

    def action_aside(self, way: int) -> None:
        """Move the selection to the next entry left or right of it."""
        at = self._at + way * max(self.size.height - 2, 1)
        if 0 <= at < len(self._columns):
            self._at = at
            self.redraw()

    def action_tick_at(self, place: int) -> None:
        self._at = place
        self.action_tick()

    def action_tick(self) -> None:
        key = self._columns[self._at].key
        ticked = {*self._ticked} ^ {key}
        self._ticked = ticked
        keys = (each.key for each in self._columns)
        self.post_message(
            self.ColumnsChosen(tuple(each for each in keys if each in ticked))
        )

    def action_default(self) -> None:
        self.post_message(self.ColumnsChosen(None))

    def action_close(self) -> None:
        self.post_message(self.ChooserClosed())
