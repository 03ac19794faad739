"""The writer thread: a transaction every 200 ms, and patience when that fails.

A fault (disk full, file locked, read-only) is said and tried again; the batch in hand
is kept and new readings wait in the inbox, so what ends in time costs nothing.
"""

import sqlite3
from pathlib import Path
from threading import Event

from inferwatch.errors import StorageError
from inferwatch.storage.checkpoints.checkpoints import no_checkpoints
from inferwatch.storage.checkpoints.file import checkpoint_folder, make_room
from inferwatch.storage.checkpoints.keeper import Keeper
from inferwatch.storage.file.connect import file_id
from inferwatch.storage.file.faults import explain, too_little_room
from inferwatch.storage.recording.inbox import Inbox
from inferwatch.storage.recording.recorded_session import About, RecordedSession
from inferwatch.storage.tables.batch import Batch

INTERVAL_S = 0.2
LONGEST_WAIT_S = 2.0
"""Between two tries while a fault lasts."""
BATCH_LIMIT = 5_000


class Writer:
    """Takes readings from the inbox and commits them as rows of one session."""

    def __init__(
        self, path: Path, about: About, inbox: Inbox, free_floor_bytes: int
    ) -> None:
        self.message: str | None = None
        """What is wrong; None when all is well."""
        self.written = 0
        self.session: RecordedSession | None = None
        """None until the file lets us begin."""
        self.closing = Event()
        self.reason: str | None = None
        """Why the session ends; set before ``closing``."""
        self._path = path
        self._about = about
        self._inbox = inbox
        self._free_floor_bytes = free_floor_bytes
        self._batch: Batch | None = None
        self._lost = 0
        self.keeper = Keeper(path)

    @property
    def unrecorded(self) -> int:
        """Readings that will not be in the record."""
        return self._inbox.refused + self._lost

    def run(self) -> None:
        """What the thread does, until told to close."""
        try:
            self._until_closing()
        except Exception as error:  # noqa: BLE001  a mistake of ours must be seen
            self.message = f"recording stopped, please report this: {error!r}"
        finally:
            self._let_go()

    def turn(self) -> bool:
        """Write what has come; False while a fault prevents it."""
        try:
            self._write_all()
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
            self.turn()  # a lock may have gone; what else is wrong, nobody waits for

    def _write_all(self) -> None:
        if self.session is None:
            self.session = RecordedSession.begin(self._path, self._about)
        self._check_file(self.session.file)
        while self._batch is not None or self._inbox:
            if self._batch is None:
                self._batch = self.session.batch(self._inbox.take(BATCH_LIMIT))
                self._lost += self._batch.lost
            lost = self.session.write(self._batch, self.unrecorded)
            self.written += self._batch.readings - lost
            self._lost += lost
            kept, self._batch = self._batch.checkpoints, None
            if kept and self.unrecorded == 0:
                session = self.session
                self.keeper.keep(session.number, session.started_ns, kept)

    def _check_file(self, opened: tuple[int, int]) -> None:
        """SQLite writes on into a file that has lost its name."""
        try:
            found = file_id(self._path)
        except FileNotFoundError:
            raise StorageError(
                f"{self._path} was removed: start again to record"
            ) from None
        if found != opened:
            raise StorageError(
                f"{self._path} was replaced by another file: start again to record"
            )
        if message := too_little_room(self._path, self._free_floor_bytes):
            # what can be made again goes first
            self.keeper.give_up(no_checkpoints(StorageError(message)))
            make_room(checkpoint_folder(self._path), 0)
        if message := too_little_room(self._path, self._free_floor_bytes):
            raise StorageError(message)

    def _let_go(self) -> None:
        """Count what can no longer be written, and end the session."""
        self._lost += self._batch.readings if self._batch else 0
        self._batch = None
        self._inbox.shut()
        self.keeper.close()
        if self.session is not None:
            self.session.end(self.unrecorded, self.reason)
