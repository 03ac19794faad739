"""Which screen and which window: both a key and a click away."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from inferwatch.metrics.snapshot import Window
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.text import Line, TextRun, spread, width_of


class Tab(NamedTuple):
    """How one goes to a screen."""

    key: str
    name: str
    """The mode of the app."""
    title: str


def keys_of(tabs: Sequence[Tab]) -> str:
    """All keys that lead to a screen, as help writes them: ``1–4 7 8``."""
    return " ".join(_runs([tab.key for tab in tabs]))


def _runs(keys: Sequence[str]) -> Iterator[str]:
    """Three keys and more in a row are written as a span."""
    start = 0
    for end in range(1, len(keys) + 1):
        if end == len(keys) or ord(keys[end]) != ord(keys[end - 1]) + 1:
            run = keys[start:end]
            yield from run if len(run) < 3 else (f"{run[0]}–{run[-1]}",)
            start = end


class TabLine(Panel):
    """The screens on the left, the windows on the right: all, or the one shown."""

    def __init__(self, tabs: Sequence[Tab], here: str, *, windows: bool = True) -> None:
        super().__init__()
        self._windows = windows
        """False where everything is of whole sessions."""
        self._tabs = tabs
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
