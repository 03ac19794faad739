"""Between two pages: what was left is being ended."""

from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import Label

from inferwatch.visible import visible_lines


class LeavingScreen(Screen[None]):
    """Empty, but for what is told while an engine or a load ends."""

    NAME = "leaving"

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str] = []

    def compose(self) -> ComposeResult:
        """As a terminal would show it."""
        yield Label("", markup=False)

    def clear(self) -> None:
        """Nothing was told yet."""
        self._lines.clear()
        self.query_one(Label).update("")

    def tell(self, text: str) -> None:
        """Another line."""
        self._lines.append(visible_lines(text))
        self.query_one(Label).update("\n".join(self._lines))
