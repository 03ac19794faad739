"""Lines of text that repaint only where they changed."""

from collections.abc import Sequence

from textual.geometry import Region
from textual.strip import Strip

from inferwatch.ui.shared.inked import Inked
from inferwatch.ui.shared.renderables.text import Line


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
