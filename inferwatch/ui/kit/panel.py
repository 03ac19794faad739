"""Lines of text that repaint only where they changed."""

from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from inferwatch.ui.kit.renderables.text import Line
from inferwatch.visible import visible


class Inked(Widget):
    """A widget that draws its own lines with the theme's inks.

    An ink is a theme variable ``ink-…`` that holds a Rich style. Component classes
    would do the same, at the price of two dozen CSS nodes to restyle per widget.
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
        """Colours may have changed: resolve every ink anew."""
        super().notify_style_update()
        self._inks.clear()

    @property
    def grey(self) -> bool:
        """What it shows is no longer so: without colour."""
        return self._grey

    @grey.setter
    def grey(self, grey: bool) -> None:
        if grey != self._grey:
            self._grey = grey
            self._inks.clear()
            self.refresh()

    def ink(self, names: str, action: str | None = None) -> Style:
        """The style of an ink, or of several mixed, on this widget's background."""
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
        """A line as Textual draws it, filled up to the width; nothing in it acts."""
        segments = [
            Segment(visible(run.text), self.ink(run.ink, run.action))
            for run in line
            if run.text
        ]
        return Strip(segments).adjust_cell_length(width, self.ink(""))


class Panel(Inked):
    """Draws what :meth:`draw` says; a subclass keeps a value and draws it.

    Its height never follows its content, so an update never asks for a layout.
    """

    DEFAULT_CSS = """
    Panel { height: 1; width: 1fr; }
    """

    _lines: Sequence[Line] = ()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The lines for this size."""
        del width, height
        return ()

    def redraw(self) -> None:
        """Draw again; rows that say the same are left alone."""
        if not self.is_attached or not self.size:
            return
        before, self._lines = self._lines, self.draw(*self.size)
        for row in range(max(len(before), len(self._lines))):
            if before[row : row + 1] != self._lines[row : row + 1]:
                self.refresh(Region(0, row, self.size.width, 1))

    def on_resize(self) -> None:
        """Another size is another drawing."""
        self.redraw()

    def render_line(self, y: int) -> Strip:
        """One row."""
        if y >= len(self._lines):
            return Strip.blank(self.size.width, self.ink(""))
        return self.strip_of(self._lines[y], self.size.width)
