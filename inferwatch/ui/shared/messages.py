"""What the app tells its screens. Widgets have their own messages, beside them."""

from dataclasses import dataclass

from textual.message import Message

from inferwatch.metrics.snapshot import Snapshot


@dataclass
class SnapshotReady(Message):
    """A fresh picture of everything."""

    snapshot: Snapshot
    charts: bool
    """Charts are drawn at half the pace of the rest."""
    present: Snapshot
    """As things are now, where the picture is of another moment; else the same."""

    def can_replace(self, message: Message) -> bool:
        """Only the newest matters, unless an older one still owes its charts."""
        return isinstance(message, SnapshotReady) and message.charts <= self.charts


class LookAgain(Message):
    """A screen changed what it shows and wants the present picture at once."""
