"""Lines of text that repaint only where they changed."""

from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from inferwatch.ui.kit.renderables.text import Line
from inferwatch.visible import visible

NEXT_LOOK = "comes with the next look"
"""What is shown of a part that the latest look was not asked for."""


class Inked(Widget):
    """A widget that draws its own lines in the colours of the theme.

    An ink is a theme variable ``ink-…`` with a Rich style. Component classes would do
    the same, but cost two dozen CSS nodes per widget.
    """

    ALLOW_SELECT = False
    _grey = False

    def __init__(
        self,
        *,
        name: str | None = None,
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        super().__init__(name=name, id=id, classes=classes)
        self._inks: dict[tuple[str, str | None], Style] = {}

    def notify_style_update(self) -> None:
        """Drop cached styles, as colours may have changed."""
        super().notify_style_update()
        self._inks.clear()

    @property
    def grey(self) -> bool:
        """Whether to draw without colour, as the values are outdated."""
        return self._grey

    @grey.setter
    def grey(self, grey: bool) -> None:
        if grey != self._grey:
            self._grey = grey
            self._inks.clear()
            self.refresh()

    def ink(self, names: str, action: str | None = None) -> Style:
        """Return the style of one or several named inks on the widget's background."""
        key = names, action
        if key not in self._inks:
            style = self.rich_style
            for name in ("faint",) if self._grey else names.split():
                style += Style.parse(self.app.theme_variables[f"ink-{name}"])
            if action:
                style += Style(meta={"@click": action})
            self._inks[key] = style
        return self._inks[key]

    def strip_of(self, line: Line, width: int) -> Strip:
        """Return a line as a strip of the width, with text made safe to display."""
        segments = [
            Segment(visible(run.text), self.ink(run.ink, run.action))
            for run in line
            if run.text
        ]
        return Strip(segments).adjust_cell_length(width, self.ink(""))


class Panel(Inked):
    """Draws the lines that :meth:`draw` returns.

    Its height never follows its content, so an update never needs a layout.
    """

    DEFAULT_CSS = """
    Panel { height: 1; width: 1fr; }
    """

    _lines: Sequence[Line] = ()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        del width, height
        return ()

    def redraw(self) -> None:
        """Draw again; only rows that changed are repainted."""
        if not self.is_attached or not self.size:
            return
        before, self._lines = self._lines, self.draw(*self.size)
        for row in range(max(len(before), len(self._lines))):
            if before[row : row + 1] != self._lines[row : row + 1]:
                self.refresh(Region(0, row, self.size.width, 1))

    def on_resize(self) -> None:
        self.redraw()

    def render_line(self, y: int) -> Strip:
        if y >= len(self._lines):
            return Strip.blank(self.size.width, self.ink(""))
        return self.strip_of(self._lines[y], self.size.width)


class LinePanel(Panel):
    """A panel of one row: draws what :meth:`line` returns."""

    def line(self, width: int) -> Line:
        del width
        return ()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        del height
        line = self.line(width)
        return (line,) if line else ()
