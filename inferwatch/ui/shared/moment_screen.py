"""What moves the time cursor and chooses the window."""

from collections.abc import Iterable
from typing import ClassVar

from textual import on
from textual.binding import BindingType

from inferwatch.metrics.snapshot import Snapshot, Window
from inferwatch.ui.shared.help_drawer import Key
from inferwatch.ui.shared.keys import MOMENT_BINDINGS, MOMENT_KEYS
from inferwatch.ui.shared.messages import LookAgain
from inferwatch.ui.shared.playback_screen import PlaybackScreen
from inferwatch.ui.shared.time_chart import TimeChart


class MomentScreen(PlaybackScreen):
    """Changes the view that all screens share, and asks for the new picture."""

    BINDINGS: ClassVar[list[BindingType]] = MOMENT_BINDINGS

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """No cursor, nothing to let go of."""
        if action == "release":
            return self.view.cursor_ns is not None
        return super().check_action(action, parameters)

    def more_keys(self) -> Iterable[Key]:
        """The time cursor's, then those that go elsewhere."""
        return (*MOMENT_KEYS, *super().more_keys())

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
        shown = self._now_shown
        self.view.move(bins, shown.timeline, shown.now_ns)
        self.post_message(LookAgain())

    def action_release(self) -> None:
        """No time cursor any more."""
        self.view.cursor_ns = None
        self.post_message(LookAgain())

    @on(TimeChart.Clicked)
    def _point(self, message: TimeChart.Clicked) -> None:
        shown = self._now_shown
        self.view.point_at(message.t_ns, shown.timeline, shown.now_ns)
        self.post_message(LookAgain())

    @property
    def _now_shown(self) -> Snapshot:
        return self.feed.snapshot(self.view.window, requests=False)
