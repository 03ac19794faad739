"""The recorder: accepts readings without blocking, writes them in its own thread.

The thread commits a transaction every 200 ms. A failure (disk full, file locked,
read-only) is reported and retried: the current batch is kept and new readings wait in
the queue, so a temporary failure loses nothing.
"""

import sqlite3
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Self

from collectors.contract.clock import SessionClock
from collectors.contract.readings import AnyReading
from inferwatch.errors import SessionDeletedError, StorageError
from inferwatch.record.checkpoints.checkpoints import (
    Checkpoint,
    CheckpointWriter,
    no_checkpoints,
)
from inferwatch.record.checkpoints.file import checkpoint_folder, make_room
from inferwatch.record.file.location import free_floor_bytes, too_little_room
from inferwatch.record.file.sqlite import explain, file_id
from inferwatch.record.tables.codec import Queued
from inferwatch.record.tables.table import Numbered, RowBatch
from inferwatch.record.writing.session_writer import NewSession, SessionWriter

QUEUE_CAPACITY = 50_000
"""Readings: about four minutes of a busy engine."""
INTERVAL_S = 0.2
LONGEST_WAIT_S = 2.0
"""Longest pause between attempts while a failure lasts."""
BATCH_LIMIT = 5_000


class ReadingQueue:
    """A bounded queue of readings to be written.

    One thread fills it, another empties it; deque's ends are atomic.
    """

    def __init__(self, capacity: int = QUEUE_CAPACITY) -> None:
        self.refused = 0
        """Readings that found no space, or came after the end."""
        self._capacity = capacity
        self._waiting: deque[Queued] = deque()

    def put(self, numbered: Numbered) -> None:
        """Queue a reading, or count it as refused; never blocks."""
        if len(self._waiting) < self._capacity:
            self._waiting.append(numbered)
        else:
            self.refused += 1

    def put_if_room(self, numbered: tuple[int, Checkpoint]) -> None:
        """Queue a checkpoint if there is space; if not, it can be created later."""
        if len(self._waiting) < self._capacity:
            self._waiting.append(numbered)

    def take(self, limit: int) -> list[Queued]:
        count = min(limit, len(self._waiting))
        return [self._waiting.popleft() for _ in range(count)]

    def shut(self) -> None:
        """Refuse all readings, waiting ones included."""
        self._capacity = 0
        for _, each in self.take(len(self._waiting)):
            self.refused += not isinstance(each, Checkpoint)

    def __len__(self) -> int:
        return len(self._waiting)


class RecordingLoop:
    """The work of the recorder's thread: commits queued readings as rows."""

    def __init__(
        self, path: Path, about: NewSession, queue: ReadingQueue, free_floor_bytes: int
    ) -> None:
        self.message: str | None = None
        """The current failure; None while all is well."""
        self.written = 0
        self.session: SessionWriter | None = None
        """None until the file could be opened."""
        self.closing = Event()
        self.reason: str | None = None
        """Why the session ends; set before ``closing``."""
        self._path = path
        self._about = about
        self._queue = queue
        self._free_floor_bytes = free_floor_bytes
        self._batch: RowBatch | None = None
        self._lost = 0
        self.checkpoint_writer = CheckpointWriter(path)

    @property
    def unrecorded(self) -> int:
        """Readings that will be missing in the recording."""
        return self._queue.refused + self._lost

    def run(self) -> None:
        """Run until told to close."""
        try:
            self._until_closing()
        except Exception as error:  # noqa: BLE001  a mistake of ours must be seen
            self.message = f"recording stopped, please report this: {error!r}"
        finally:
            self._let_go()

    def turn(self) -> bool:
        """Write everything queued; False while a failure prevents it."""
        try:
            self._write_all()
        except SessionDeletedError as error:
            self._count_deleted(error)
        except StorageError as error:
            self.message = str(error)
        except (sqlite3.Error, OSError) as error:
            self.message = explain(error, self._path)
        else:
            self.message = None
        return self.message is None

    def _until_closing(self) -> None:
        wait_s = INTERVAL_S
        while not self.closing.wait(wait_s):
            wait_s = INTERVAL_S if self.turn() else min(wait_s * 2, LONGEST_WAIT_S)
        if not self.turn():
            self.turn()  # a lock may be gone by now; other failures are not waited for

    def _write_all(self) -> None:
        if self.session is None:
            self.session = SessionWriter.begin(self._path, self._about)
        self._check_file(self.session.file)
        while self._batch is not None or self._queue:
            if self._batch is None:
                self._batch = self.session.batch(self._queue.take(BATCH_LIMIT))
                self._lost += self._batch.lost
            lost = self.session.write(self._batch, self.unrecorded)
            self.written += self._batch.readings - lost
            self._lost += lost
            models, self._batch = self._batch.checkpoints, None
            if models and self.unrecorded == 0:
                session = self.session
                self.checkpoint_writer.keep(session.number, session.started_ns, models)

    def _check_file(self, opened: tuple[int, int]) -> None:
        """Detect a removed or replaced file, to which SQLite would keep writing."""
        try:
            current = file_id(self._path)
        except FileNotFoundError:
            raise StorageError(
                f"{self._path} was removed: start inferwatch again to record"
            ) from None
        if current != opened:
            raise StorageError(
                f"{self._path} was replaced by another file: start inferwatch "
                "again to record"
            )
        if message := too_little_room(self._path, self._free_floor_bytes):
            # delete first what can be created again
            self.checkpoint_writer.give_up(no_checkpoints(StorageError(message)))
            make_room(checkpoint_folder(self._path), 0)
        if message := too_little_room(self._path, self._free_floor_bytes):
            raise StorageError(message)

    def _let_go(self) -> None:
        """Count what cannot be written any more, and end the session."""
        self._lost += self._batch.readings if self._batch else 0
        self._batch = None
        self._queue.shut()
        self.checkpoint_writer.close()
        if self.session is not None:
            try:
                self.session.end(self.unrecorded, self.reason)
            except SessionDeletedError as error:
                self._count_deleted(error)

    def _count_deleted(self, error: SessionDeletedError) -> None:
        """Count all written readings as lost: they were deleted with the session."""
        self._lost += self.written
        self.written = 0
        self.message = str(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderHealth:
    """State of recording, as shown in the header and summary."""

    ok: bool
    message: str | None
    """What is wrong and what to do; None while all is well."""
    written: int
    """Readings committed."""
    unrecorded: int
    """Readings that will be missing in the recording."""
    file_bytes: int
    """Size of the file and its write-ahead log."""
    grown_bytes: int = 0
    """By how much both grew at most since the session began: it never falls."""


class Recorder:
    """Records one session.

    A failure never affects what is watched: it is shown in ``health``, readings wait
    while there is space and are counted when there is none, and recording resumes by
    itself.
    """

    def __init__(self, path: Path, loop: RecordingLoop, queue: ReadingQueue) -> None:
        self.path = path
        self._loop = loop
        self._queue = queue
        self._files = (path, path.with_name(path.name + "-wal"))
        self._began_bytes, self._grown_bytes = sum(map(_size, self._files)), 0
        self._thread = Thread(target=loop.run, name="recorder", daemon=True)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        clock: SessionClock | None = None,
        name: str | None = None,
        command: str = "",
        floor_bytes: int | None = None,
        capacity: int = QUEUE_CAPACITY,
    ) -> Self:
        """Start a session in a file; failures are shown in ``health``."""
        queue = ReadingQueue(capacity)
        about = NewSession(clock=clock or SessionClock(), name=name, command=command)
        floor_bytes = free_floor_bytes() if floor_bytes is None else floor_bytes
        loop = RecordingLoop(path, about, queue, floor_bytes)
        loop.turn()  # here, so that the session has its id at once
        recorder = cls(path, loop, queue)
        recorder._thread.start()
        return recorder

    @classmethod
    def begin(cls, path: Path, about: NewSession, queue: ReadingQueue) -> Self:
        """Start without waiting for the file, with readings already queued.

        The session has its id a moment later.
        """
        loop = RecordingLoop(path, about, queue, free_floor_bytes())
        recorder = cls(path, loop, queue)
        recorder._thread.start()
        return recorder

    @property
    def session_id(self) -> str:
        """The id users type for this session; empty until the file could be opened."""
        session = self._loop.session
        return "" if session is None else f"s{session.number}"

    @property
    def health(self) -> RecorderHealth:
        message = self._loop.message
        file_bytes = sum(map(_size, self._files))
        grown_bytes = file_bytes - self._began_bytes
        self._grown_bytes = max(self._grown_bytes, grown_bytes)
        return RecorderHealth(
            ok=message is None,
            message=message,
            written=self._loop.written,
            unrecorded=self._loop.unrecorded,
            file_bytes=file_bytes,
            grown_bytes=self._grown_bytes,
        )

    def put(self, ordinal: int, reading: AnyReading) -> None:
        """Record a reading; never blocks, never raises."""
        self._queue.put((ordinal, reading))

    @property
    def keeps(self) -> bool:
        """Whether checkpoints are written; not if readings are missing."""
        return self._loop.unrecorded == 0 and not self._loop.checkpoint_writer.given_up

    @property
    def keeps_no_more(self) -> str | None:
        """Why no more checkpoints are written; None while all is well."""
        return self._loop.checkpoint_writer.trouble

    def keep(self, checkpoint: Checkpoint) -> None:
        """Store a Model that includes exactly the readings so far, if possible."""
        self._queue.put_if_room((checkpoint.ordinal, checkpoint))

    @property
    def ended_ns(self) -> int | None:
        """When the session ended, as recorded; None while it goes on."""
        session = self._loop.session
        return session.ended_ns if session else None

    def close(self, reason: str | None = None) -> None:
        """Write what is queued and end the session; blocks, safe to call twice."""
        if not self._loop.closing.is_set():
            self._loop.reason = reason
            self._loop.closing.set()
        self._thread.join()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
