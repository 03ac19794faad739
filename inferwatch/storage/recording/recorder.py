"""The recorder: takes readings without ever blocking, writes them in its own thread."""

from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Self

from collectors.clock import SessionClock
from collectors.readings import AnyReading
from inferwatch.storage.checkpoints.checkpoints import Checkpoint
from inferwatch.storage.file.location import free_floor_bytes
from inferwatch.storage.recording.inbox import CAPACITY, Inbox
from inferwatch.storage.recording.recorded_session import About
from inferwatch.storage.recording.writer import Writer


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderHealth:
    """How recording goes."""

    ok: bool
    message: str | None
    """What is wrong and what to do; None when all is well."""
    written: int
    """Readings committed."""
    unrecorded: int
    """Readings that will not be in the record."""
    file_bytes: int
    """The file and its write-ahead log."""


class Recorder:
    """One session being recorded.

    A fault never stops what is watched: it shows in ``health``, readings wait while
    there is room and are counted when there is none, and recording resumes by itself.
    """

    def __init__(self, path: Path, writer: Writer, inbox: Inbox) -> None:
        self.path = path
        self._writer = writer
        self._inbox = inbox
        self._files = (path, path.with_name(path.name + "-wal"))
        self._thread = Thread(target=writer.run, name="recorder", daemon=True)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        clock: SessionClock | None = None,
        name: str | None = None,
        command: str = "",
        floor_bytes: int | None = None,
        capacity: int = CAPACITY,
    ) -> Self:
        """Begin a session in that file; what is wrong with it shows in ``health``."""
        inbox = Inbox(capacity)
        about = About(clock=clock or SessionClock(), name=name, command=command)
        floor_bytes = free_floor_bytes() if floor_bytes is None else floor_bytes
        writer = Writer(path, about, inbox, floor_bytes)
        writer.turn()  # here, so that the session has its id at once
        recorder = cls(path, writer, inbox)
        recorder._thread.start()
        return recorder

    @property
    def session_id(self) -> str:
        """What people type to mean this session; empty until the file lets us begin."""
        session = self._writer.session
        return "" if session is None else f"s{session.number}"

    @property
    def health(self) -> RecorderHealth:
        """How recording goes right now."""
        message = self._writer.message
        return RecorderHealth(
            ok=message is None,
            message=message,
            written=self._writer.written,
            unrecorded=self._writer.unrecorded,
            file_bytes=sum(map(_size, self._files)),
        )

    def put(self, ordinal: int, reading: AnyReading) -> None:
        """Record a reading; never blocks, never raises."""
        self._inbox.put((ordinal, reading))

    @property
    def keeps(self) -> bool:
        """Checkpoints are written; not of a record that lacks readings."""
        return self._writer.unrecorded == 0 and not self._writer.keeper.given_up

    @property
    def keeps_no_more(self) -> str | None:
        """Why no checkpoints are written any more; None when all is well."""
        return self._writer.keeper.trouble

    def keep(self, checkpoint: Checkpoint) -> None:
        """Keep a Model that took in exactly what was put so far, if there is room."""
        self._inbox.put_if_room((checkpoint.ordinal, checkpoint))

    @property
    def ended_ns(self) -> int | None:
        """When the session ended, as the record says; None while it goes on."""
        session = self._writer.session
        return session.ended_ns if session else None

    def close(self, reason: str | None = None) -> None:
        """Write what waits and end the session; takes a moment, safe to call twice."""
        if not self._writer.closing.is_set():
            self._writer.reason = reason
            self._writer.closing.set()
        self._thread.join()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
