"""A drawer: a panel over the bottom of a screen, scrolled and closed by keys."""

from collections.abc import Sequence
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.dom import DOMNode
from textual.screen import Screen
from textual.widget import Widget

from inferwatch.ui.kit.lookup import widgets_of
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, fit, join, ruled


def key_run(key: str, does: str, action: str | None = None) -> Line:
    """A key and what it does, for a heading; with an action it can be clicked."""
    return (TextRun(key, "accent", action), TextRun(f" {does}", "muted", action))


class Drawer(Panel, can_focus=True):
    """A heading over entries, of which as many are visible as there is room for."""

    DEFAULT_CSS = """
    Drawer {
        layer: drawer; dock: bottom; min-height: 8;
        margin-bottom: 1; background: $surface;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll(-1)", "scroll", key_display="↑↓"),
        Binding("down", "scroll(1)", "down", show=False),
        Binding("pageup", "scroll_page(-1)", "page up", show=False),
        Binding("pagedown", "scroll_page(1)", "page down", show=False),
    ]
    FROM_END: ClassVar[bool] = False
    """Whether it shows the last entries until it is scrolled, not the first."""

    _scrolled = 0
    """Entries scrolled away from the start, or from the end."""
    _focused_before: Widget | None = None

    def open_on(self, screen: Screen[Any]) -> None:
        """Open it, and let keys go to it until it is closed."""
        self._focused_before = screen.focused
        screen.mount(self)
        self.focus()

    @classmethod
    def close_on(cls, screen: DOMNode) -> bool:
        """Close those of this class; returns whether any was open."""
        found = [*widgets_of(screen, cls)]
        for each in found:
            each.remove()
            each.screen.set_focus(each._focused_before)  # noqa: SLF001 - its own class
        return bool(found)

    def entries(self, width: int) -> Sequence[Any]:
        """Return all entries; :meth:`entry_line` draws those that are visible."""
        del width
        return ()

    def entry_line(self, entry: Any, width: int) -> Line:  # noqa: ANN401 - a subclass's
        line: Line = entry
        return fit(line, width)

    def heading(self, below: int) -> tuple[Line, Line]:
        """Return the title and its keys; ``below`` entries are below the last line."""
        del below
        return (), ()

    def action_scroll(self, lines: int) -> None:
        rows, room = len(self.entries(self.size.width)), max(self.size.height - 1, 1)
        by = -lines if self.FROM_END else lines
        self._scrolled = min(max(self._scrolled + by, 0), max(rows - room, 0))
        self.redraw()

    def action_scroll_page(self, pages: int) -> None:
        self.action_scroll(pages * max(self.size.height - 2, 1))

    def draw(self, width: int, height: int) -> Sequence[Line]:
        entries, room = self.entries(width), max(height - 1, 1)
        most = max(len(entries) - room, 0)
        self._scrolled = min(self._scrolled, most)
        first = most - self._scrolled if self.FROM_END else self._scrolled
        shown = entries[first : first + room]
        title, keys = self.heading(max(len(entries) - first - room, 0))
        head = ruled(title, keys, width)
        return [head, *(self.entry_line(each, width) for each in shown)]


def titled(
    name: str, about: str, below: int, *keys: tuple[str, str]
) -> tuple[Line, Line]:
    """Return a heading: a name, what it is about, how much is below, and keys."""
    more = f" · {below:,} more lines below" if below > 0 else ""
    title = (TextRun(name, "strong"), TextRun(f"{about}{more}", "muted"))
    return title, join([key_run(*each) for each in keys], "  ")
