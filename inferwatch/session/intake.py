"""What a live session takes in: its readings and notes, in session time."""

from collectors.clock import SessionClock
from collectors.readings import AnyReading, Note, NoteKind
from inferwatch.metrics.snapshot import Snapshot, Window
from inferwatch.session.pipeline import Pipeline


class Intake:
    """The pipeline of a session that goes on, and its clock."""

    def __init__(self, clock: SessionClock, pipeline: Pipeline) -> None:
        self.clock = clock
        self.pipeline = pipeline

    def now_ns(self) -> int:
        """Session time now."""
        return self.clock.now_ns()

    def take(self, *readings: AnyReading, source: str = "") -> None:
        """Take readings in raw monotonic time."""
        rebased = [self.clock.rebase(each, source) for each in readings]
        self.pipeline.take(rebased)

    def note(self, kind: NoteKind, text: str, source: str = "") -> None:
        """Take a note of this moment."""
        now_ns = self.now_ns() + self.clock.start_ns
        self.take(Note(t_ns=now_ns, kind=kind, text=text), source=source)

    def known(self, window: Window = Window.TEN_SECONDS) -> Snapshot:
        """Everything as of now, without the requests."""
        return self.pipeline.snapshot(self.now_ns(), window, requests=False)
