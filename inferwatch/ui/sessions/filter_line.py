"""What the session table lists, and how to change that."""

from collections.abc import Sequence

from textual.message import Message

from inferwatch.formatting import format_bytes, format_count
from inferwatch.storage.sessions.sizes import Sizes
from inferwatch.ui.sessions.order import SessionOrder
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.text import Line, TextRun, spread


class SessionFilterLine(Panel):
    """One row: kept or bin, words, how many of how many, how much disk."""

    class FilterAsked(Message):
        """The words were clicked."""

    class ScopeAsked(Message):
        """The other ones are to be listed."""

    _order = SessionOrder()
    _counts = (0, 0, 0)
    _sizes: Sizes | None = None

    def show(
        self,
        order: SessionOrder,
        listed: int,
        kept: int,
        binned: int,
        sizes: Sizes | None,
    ) -> None:
        """Take what is listed."""
        self._order, self._counts, self._sizes = order, (listed, kept, binned), sizes
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The row."""
        del height
        listed, kept, binned = self._counts
        scopes = [
            self._scope(f" kept {_count(kept)} ", here=not self._order.bin),
            self._scope(f" bin {_count(binned)} ", here=self._order.bin),
        ]
        words = self._order.text or "no filter"
        ink = "accent" if self._order.text else "muted"
        filter_ = TextRun(f"   / {words}", ink, "ask")
        told = []
        if self._order.text:
            told.append(f"{_count(listed)} found")
        if self._sizes is not None:
            told.append(f"file {format_bytes(self._sizes.file_bytes).strip()}")
            if self._sizes.free_bytes:
                told.append(
                    f"{format_bytes(self._sizes.free_bytes).strip()} of it free"
                )
        right = (TextRun(" · ".join(told), "muted"), TextRun(" "))
        return (spread((TextRun(" "), *scopes, filter_), right, width),)

    def _scope(self, text: str, *, here: bool) -> TextRun:
        return TextRun(text, "chip") if here else TextRun(text, "muted", "other")

    def action_ask(self) -> None:
        """Ask for words to match."""
        self.post_message(self.FilterAsked())

    def action_other(self) -> None:
        """Ask for those in the bin, or those that are kept."""
        self.post_message(self.ScopeAsked())


def _count(count: int) -> str:
    return format_count(count).strip()
