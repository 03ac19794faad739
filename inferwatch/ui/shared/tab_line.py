"""Which screen and which window: both a key and a click away."""

from collections.abc import Sequence

from inferwatch.metrics.snapshot import Window
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.text import Line, TextRun, spread, width_of


class TabLine(Panel):
    """The screens on the left, the windows on the right: all, or the one shown."""

    def __init__(
        self, tabs: Sequence[tuple[str, str, str]], here: str, *, windows: bool = True
    ) -> None:
        super().__init__()
        self._windows = windows
        """False where everything is of whole sessions."""
        self._tabs = tabs
        """Key, name, title."""
        self._here = here
        self._window = Window.MINUTE

    def show(self, window: Window) -> None:
        """Mark the window shown."""
        self._window = window
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The row."""
        del height
        tabs = [run for tab in self._tabs for run in self._tab(*tab)]
        if not self._windows:
            return (spread(tabs, (), width),)
        key = TextRun(" w ", "accent", "screen.window")
        chips = [run for window in Window for run in self._chip(window)]
        every = (key, TextRun("window ", "muted", "screen.window"), *chips)
        only = (key, TextRun(f" {self._window.label} ", "chip", "screen.window"))
        fits = width_of(tabs) + width_of(every) <= width
        return (spread(tabs, every if fits else only, width),)

    def _tab(self, key: str, name: str, title: str) -> Line:
        action = f"app.look_at('{name}')"
        if name == self._here:
            return (TextRun(f" {key} {title} ", "chip", action),)
        return (
            TextRun(f" {key} ", "accent", action),
            TextRun(f"{title} ", "muted", action),
        )

    def _chip(self, window: Window) -> Line:
        action = f"screen.choose_window('{window.name}')"
        ink = "chip" if window is self._window else "muted"
        return (TextRun(f" {window.label} ", ink, action),)
