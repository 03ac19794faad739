"""Names for the theme's colours, so that drawing code never holds one."""

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from inferwatch.ui.shared.renderables.text import Line
from inferwatch.visible import visible


class Inked(Widget):
    """A widget that draws its own lines with the theme's inks.

    An ink is a theme variable ``ink-…`` that holds a Rich style. Component classes
    would do the same, at the price of two dozen CSS nodes to restyle per widget.
    """

    ALLOW_SELECT = False

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

    def ink(self, names: str, action: str | None = None) -> Style:
        """The style of an ink, or of several mixed, on this widget's background."""
        key = names, action
        if key not in self._inks:
            style = self.rich_style
            for name in names.split():
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
