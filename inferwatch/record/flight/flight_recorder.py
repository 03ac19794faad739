"""A recorder that includes the minutes before it was started.

Otherwise readings are only kept in memory. Each start creates a session with its own
times, which is like any other session.
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
"""Readings arrive up to this much after the times in them, which must not be
negative."""


class BackfilledQueue(ReadingQueue):
    """First the kept readings, decompressed as they are written, then new ones.

    Times are converted to the session's on the way out, in the writer's thread.
    """

    def __init__(
        self, clock: SessionClock, kept: int, readings: Iterator[AnyReading]
    ) -> None:
        super().__init__(QUEUE_CAPACITY)
        self._clock = clock
        self._kept = kept
        self._readings = enumerate(readings, 1)

    def __len__(self) -> int:
        """Number of waiting readings, including those that were kept in memory."""
        return self._kept + super().__len__()

    def take(self, limit: int) -> list[Queued]:
        batch: list[Queued] = list(islice(self._readings, min(limit, self._kept)))
        self._kept -= len(batch)
        batch += super().take(limit - len(batch))
        return [(number, self._moved(each)) for number, each in batch]

    def shut(self) -> None:
        """Refuse all readings from now on."""
        self.refused += self._kept
        self._kept = 0
        super().shut()

    def _moved(self, reading: AnyReading | Checkpoint) -> AnyReading:
        if isinstance(reading, Checkpoint):
            raise TypeError("a Model that knows more than this session is none of it")
        return self._clock.rebase(reading)


class FlightRecorder:
    """Keeps the latest readings; has the interface of a :class:`Recorder`."""

    keeps = False
    """Takes no checkpoints: the Model includes what preceded the session."""
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
        """The recorder of the last session, even if it has ended."""
        self._ended: list[str] = []
        """Ids of earlier sessions, and counts of their readings."""
        self._written = self._unrecorded = 0
        self.because: str | None = None
        """Why a session is recorded; None while none is."""
        self.since_ns: int | None = None
        self.zero_ns = 0
        """Start of the last session in our own session time."""

    @property
    def recording(self) -> bool:
        """Whether a session is being written."""
        return self._recorder is not None

    @property
    def session_id(self) -> str:
        """Id of the session being written; empty without one or before it is known."""
        return self._recorder.session_id if self._recorder else ""

    @property
    def sessions(self) -> tuple[str, ...]:
        """Ids of all sessions written, oldest first."""
        latest = self._latest.session_id if self._latest else ""
        return (*self._ended, latest) if latest else tuple(self._ended)

    @property
    def health(self) -> RecorderHealth:
        """State of recording, over all sessions together."""
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
        """Keep a reading, and record it if a session is being written; never blocks."""
        del ordinal  # each session counts its own
        self.kept.add(reading)
        if self._recorder is not None:
            self._recorder.put(next(self._numbers), reading)

    def keep(self, checkpoint: Checkpoint) -> None:
        """Discard a checkpoint, as the Model includes what preceded the session."""

    def begin(self, name: str, because: str, now_ns: int) -> None:
        """Start a session with everything kept; never blocks.

        Its id is known a moment later, see ``session_id``.
        """
        if self._recorder is not None:
            return
        self.because, self.since_ns = because, now_ns
        self.zero_ns = max(self.kept.since_ns - LATE_NS, 0)
        number, readings = self.kept.contents(self.zero_ns)
        queue = BackfilledQueue(SessionClock(self.zero_ns), number, readings)
        self._numbers = count(number + 1)
        clock = SessionClock(self._clock.start_ns + self.zero_ns)
        about = NewSession(clock=clock, name=name, command=self._command)
        self._add_up_counts()
        self._latest = self._recorder = Recorder.begin(self.path, about, queue)

    def _add_up_counts(self) -> None:
        """Add up the counts of the last session before another one starts."""
        if self._latest is not None:
            self._ended += [self._latest.session_id] if self._latest.session_id else []
            self._written += self._latest.health.written
            self._unrecorded += self._latest.health.unrecorded

    def rest(self) -> Recorder | None:
        """Stop recording; the caller must close the returned recorder."""
        self.because = self.since_ns = None
        recorder, self._recorder = self._recorder, None
        return recorder

    def close(self, reason: str | None = None) -> None:
        """Finish a session being written; readings only kept are discarded."""
        recorder = self.rest()
        if recorder is not None:
            recorder.close(reason)
