"""What our apps have in common: how they stand towards the terminal.

Whatever they show, it obeys none of it; whether it stalls or goes, they can be left.
"""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.segment import Segment
from textual.app import App, ReturnType
from textual.color import Color
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.filter import LineFilter
from textual.notifications import SeverityLevel

from inferwatch.ui.shared.terminal import TerminalDriver
from inferwatch.visible import visible, visible_lines


class TerminalApp(App[ReturnType]):
    """Our own widgets make text visible; this holds for Textual's as well."""

    def get_driver_class(self) -> type[Driver]:
        """Ours in place of Textual's own; whoever names another one gets that."""
        found = super().get_driver_class()
        return TerminalDriver if found is LinuxDriver else found

    def get_line_filters(self) -> Sequence[LineFilter]:
        """What every line of every widget passes on its way to the terminal."""
        return [*super().get_line_filters(), NOTHING_OBEYED]

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = False,
    ) -> None:
        """Show a message; its words are no markup unless that is said."""
        super().notify(
            visible_lines(message),
            title=visible(title),
            severity=severity,
            timeout=timeout,
            markup=markup,
        )


class NothingObeyed(LineFilter):
    """Replaces what should have been made visible and was not.

    The line is laid out already: what takes a cell leaves a mark, the rest goes.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The line, safe."""
        del background
        if all(text.isprintable() for text, _, _ in segments):
            return segments
        return [Segment(_safe(text), style) for text, style, _ in segments]


def _safe(text: str) -> str:
    if visible(text) == text:
        return text
    marks = (
        each if visible(each) == each else "\N{REPLACEMENT CHARACTER}" * cell_len(each)
        for each in text
    )
    return "".join(marks)


NOTHING_OBEYED = NothingObeyed()
"""One for all: lines remember what each filter made of them."""
