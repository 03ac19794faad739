"""Names for the theme's colours, so that drawing code never holds one."""

from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from inferwatch.renderables.runs import Line

INKS = (
    "muted",
    "faint",
    "rule",
    "strong",
    "bold",
    "good",
    "warn",
    "bad",
    "accent",
    "chip",
    "marker",
    "decode",
    "prefill",
    "waiting",
    "kv",
    "cached",
    "mean",
    "worst",
    "output",
    "seqs",
    "tokens",
    "other",
    "chosen",
)
"""Every ink there is; :mod:`inferwatch.theme` gives each its colour."""


class Inked(Widget):
    """A widget that draws its own lines with the theme's inks."""

    ALLOW_SELECT = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"ink--{ink}" for ink in INKS}

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

    def ink(self, name: str, action: str | None = None) -> Style:
        """The style of an ink, or of several mixed, on this widget's background."""
        key = name, action
        if key not in self._inks:
            style = self.rich_style
            for each in name.split():
                style += self.get_component_rich_style(f"ink--{each}", partial=True)
            if action:
                style += Style(meta={"@click": action})
            self._inks[key] = style
        return self._inks[key]

    def strip_of(self, line: Line, width: int) -> Strip:
        """A line as Textual draws it, filled up to the width."""
        segments = [
            Segment(run.text, self.ink(run.ink, run.action)) for run in line if run.text
        ]
        return Strip(segments).adjust_cell_length(width, self.ink(""))
