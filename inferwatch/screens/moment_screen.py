"""What moves the time cursor, chooses the window and holds the view."""

from typing import ClassVar

from textual import on
from textual.binding import BindingType

from inferwatch.messages import LookAgain
from inferwatch.metrics.snapshot import Snapshot, Window
from inferwatch.screens.keys import MOMENT_BINDINGS
from inferwatch.screens.session_screen import SessionScreen
from inferwatch.widgets.time_chart import TimeChart


class MomentScreen(SessionScreen):
    """Changes the view that all screens share, and asks for the new picture."""

    BINDINGS: ClassVar[list[BindingType]] = MOMENT_BINDINGS

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A frozen view has one window; a cursor at now need not go there."""
        if action in {"window", "choose_window"}:
            return self.view.frozen is None
        if action == "now":
            return self.view.cursor_ns is not None
        return super().check_action(action, parameters)

    def action_window(self) -> None:
        """The next window."""
        self.view.next_window()
        self.post_message(LookAgain())

    def action_choose_window(self, name: str) -> None:
        """A window by its name."""
        self.view.window = Window[name]
        self.post_message(LookAgain())

    def action_move(self, bins: int) -> None:
        """Move the time cursor."""
        shown = self._present
        self.view.move(bins, shown.timeline, shown.now_ns)
        self.post_message(LookAgain())

    def action_now(self) -> None:
        """Let the time cursor go with time again."""
        self.view.cursor_ns = None
        self.post_message(LookAgain())

    def action_freeze(self) -> None:
        """Hold the view still, or let it go on."""
        if self.view.frozen is None:
            self.view.frozen = self.feed.snapshot(self.view.window)
        else:
            self.view.frozen = None
        self.post_message(LookAgain())

    @on(TimeChart.Clicked)
    def _point(self, message: TimeChart.Clicked) -> None:
        shown = self._present
        self.view.point_at(message.t_ns, shown.timeline, shown.now_ns)
        self.post_message(LookAgain())

    @property
    def _present(self) -> Snapshot:
        """What is shown, as of now."""
        fresh = self.feed.snapshot
        return self.view.frozen or fresh(self.view.window, requests=False)
