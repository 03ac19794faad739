"""A recorder that begins in the past: when told to, with the minutes before.

What comes meanwhile is only kept in memory. Each time it begins there is a session of
its own, with times of its own, which anything that knows sessions can open.
"""

from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

from collectors.contract.clock import NS_PER_S, SessionClock
from collectors.contract.readings import AnyReading
from inferwatch.record.checkpoints.checkpoints import Checkpoint
from inferwatch.record.flight.kept_readings import KeptReadings
from inferwatch.record.tables.codec import Queued
from inferwatch.record.writing.recorder import (
    QUEUE_CAPACITY,
    ReadingQueue,
    Recorder,
    RecorderHealth,
)
from inferwatch.record.writing.session_writer import NewSession

LATE_NS = NS_PER_S
"""Readings come up to so much later than what they tell of: it is to be after zero."""


class BegunQueue(ReadingQueue):
    """Gives first what was kept, unpacked no sooner than it is written; then the rest.

    All is moved into the time of its session on the way out, in the writer's thread.
    """

    def __init__(
        self, clock: SessionClock, kept: int, readings: Iterator[AnyReading]
    ) -> None:
        super().__init__(QUEUE_CAPACITY)
        self._clock = clock
        self._kept = kept
        self._readings = enumerate(readings, 1)

    def __len__(self) -> int:
        """How many wait, kept ones included."""
        return self._kept + super().__len__()

    def take(self, limit: int) -> list[Queued]:
        """Take out the oldest ones."""
        taken: list[Queued] = list(islice(self._readings, min(limit, self._kept)))
        self._kept -= len(taken)
        taken += super().take(limit - len(taken))
        return [(number, self._moved(each)) for number, each in taken]

    def shut(self) -> None:
        """Nothing will be taken any more."""
        self.refused += self._kept
        self._kept = 0
        super().shut()

    def _moved(self, reading: AnyReading | Checkpoint) -> AnyReading:
        if isinstance(reading, Checkpoint):
            raise TypeError("a Model that knows more than this session is none of it")
        return self._clock.rebase(reading)


class FlightRecorder:
    """Keeps the latest readings; a :class:`Recorder` in all that a pipeline asks."""

    keeps = False
    """No checkpoints: the Model knows what was before a session."""
    keeps_no_more = None
    ended_ns = None

    def __init__(
        self, path: Path, clock: SessionClock, kept: KeptReadings, *, command: str = ""
    ) -> None:
        self.path = path
        self.kept = kept
        self._clock = clock
        self._command = command
        self._recorder: Recorder | None = None
        self._numbers = count(1)
        self._latest: Recorder | None = None
        """Of the session that was begun last, whether it goes on or not."""
        self._ended: list[str] = []
        """Sessions before that one, and what became of their readings."""
        self._written = self._unrecorded = 0
        self.because: str | None = None
        """What is recorded for; None while nothing is."""
        self.since_ns: int | None = None
        self.zero_ns = 0
        """What the times of the last session are counted from."""

    @property
    def recording(self) -> bool:
        """A session is being written."""
        return self._recorder is not None

    @property
    def session_id(self) -> str:
        """Of the session being written; empty without one, or before it has its id."""
        return self._recorder.session_id if self._recorder else ""

    @property
    def sessions(self) -> tuple[str, ...]:
        """All that were begun, oldest first."""
        latest = self._latest.session_id if self._latest else ""
        return (*self._ended, latest) if latest else tuple(self._ended)

    @property
    def health(self) -> RecorderHealth:
        """How recording goes, or went; of all sessions together."""
        health = self._latest.health if self._latest else None
        message = health.message if health else None
        written, lost = (health.written, health.unrecorded) if health else (0, 0)
        return RecorderHealth(
            ok=message is None,
            message=message,
            written=self._written + written,
            unrecorded=self._unrecorded + lost + self.kept.unpackable,
            file_bytes=health.file_bytes if health else 0,
        )

    def put(self, ordinal: int, reading: AnyReading) -> None:
        """Keep a reading, and record it while that goes on; never blocks."""
        del ordinal  # each session counts its own
        self.kept.add(reading)
        if self._recorder is not None:
            self._recorder.put(next(self._numbers), reading)

    def keep(self, checkpoint: Checkpoint) -> None:
        """Nothing that could be kept; see ``keeps``."""

    def begin(self, name: str, because: str, now_ns: int) -> None:
        """Begin a session with all that is kept; never blocks, and goes on by itself.

        Its id is known a moment later, see ``session_id``.
        """
        if self._recorder is not None:
            return
        self.because, self.since_ns = because, now_ns
        self.zero_ns = max(self.kept.since_ns - LATE_NS, 0)
        kept, readings = self.kept.contents(self.zero_ns)
        queue = BegunQueue(SessionClock(self.zero_ns), kept, readings)
        self._numbers = count(kept + 1)
        clock = SessionClock(self._clock.start_ns + self.zero_ns)
        about = NewSession(clock=clock, name=name, command=self._command)
        self._settle()
        self._latest = self._recorder = Recorder.begin(self.path, about, queue)

    def _settle(self) -> None:
        """Add up what the last session came to: another one begins."""
        if self._latest is not None:
            self._ended += [self._latest.session_id] if self._latest.session_id else []
            self._written += self._latest.health.written
            self._unrecorded += self._latest.health.unrecorded

    def rest(self) -> Recorder | None:
        """Record no more; who asked closes what is given back, which takes a moment."""
        self.because = self.since_ns = None
        recorder, self._recorder = self._recorder, None
        return recorder

    def close(self, reason: str | None = None) -> None:
        """Write what is left of a session that was begun; what is only kept is lost."""
        recorder = self.rest()
        if recorder is not None:
            recorder.close(reason)
