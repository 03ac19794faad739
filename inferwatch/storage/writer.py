"""The writer thread: a transaction every 200 ms, and patience when that fails.

A fault (disk full, file locked, read-only) is said and tried again; the batch in hand
is kept and new readings wait in the inbox, so what ends in time costs nothing.
"""

import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from threading import Event

from inferwatch.errors import StorageError
from inferwatch.storage.batch import UNSTORABLE, Batch
from inferwatch.storage.connections import close_after_writing, open_for_writing
from inferwatch.storage.faults import explain, too_little_room
from inferwatch.storage.inbox import Inbox
from inferwatch.storage.ledger import Ledger
from inferwatch.storage.session_log import SessionLog
from inferwatch.storage.transaction import transaction

INTERVAL_S = 0.2
LONGEST_WAIT_S = 2.0
"""Between two tries while a fault lasts."""
PATIENCE_S = 3.0
"""For a fault at the end, when someone waits for us to leave."""
BATCH_LIMIT = 5_000


class Writer:
    """Takes readings from the inbox and commits them as rows of one session."""

    def __init__(
        self, path: Path, log: SessionLog, inbox: Inbox, free_floor_bytes: int
    ) -> None:
        self.message: str | None = None
        self.written = 0
        self.unstorable = 0
        self.session: int | None = None
        self.closing = Event()
        self.reason: str | None = None
        self._path = path
        self._log = log
        self._inbox = inbox
        self._free_floor_bytes = free_floor_bytes
        self._connection: sqlite3.Connection | None = None
        self._ledger: Ledger | None = None
        self._batch: Batch | None = None

    @property
    def unrecorded(self) -> int:
        """Readings that will not be in the record."""
        return self._inbox.refused + self.unstorable

    def run(self) -> None:
        """What the thread does, until told to close."""
        try:
            self._until_closing()
            self._finish()
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

    def _finish(self) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not self.turn() and time.monotonic() < deadline_s:
            time.sleep(INTERVAL_S)

    def _write_all(self) -> None:
        connection, ledger = self._opened()
        self._check_file()
        while self._batch is not None or self._inbox:
            if self._batch is None:
                self._batch = ledger.batch(self._inbox.take(BATCH_LIMIT))
            self._commit(connection, self._batch)
            self._batch = None

    def _opened(self) -> tuple[sqlite3.Connection, Ledger]:
        if self._connection is None:
            connection = open_for_writing(self._path)
            try:
                with transaction(connection):
                    self.session = self._log.begin(connection)
            except sqlite3.Error:
                connection.close()
                raise
            self._connection = connection
            self._ledger = Ledger(self.session)
        assert self._ledger is not None  # noqa: S101  both or neither
        return self._connection, self._ledger

    def _check_file(self) -> None:
        if not self._path.exists():
            raise StorageError(f"{self._path} was removed: start again to record")
        if message := too_little_room(self._path, self._free_floor_bytes):
            raise StorageError(message)

    def _commit(self, connection: sqlite3.Connection, batch: Batch) -> None:
        try:
            with transaction(connection):
                batch.insert(connection)
                self._progress(connection, batch)
        except UNSTORABLE:
            with transaction(connection):
                unstorable = batch.insert_what_can_be(connection)
                batch.readings -= unstorable
                self.unstorable += unstorable
                self._progress(connection, batch)
        self.written += batch.readings

    def _progress(self, connection: sqlite3.Connection, batch: Batch) -> None:
        assert self.session is not None  # noqa: S101  begun before any batch
        self._log.progress(connection, self.session, batch, self.unrecorded)

    def _let_go(self) -> None:
        """End the session's row and leave one plain file."""
        if self._batch is not None:
            self.unstorable += self._batch.readings
        self._inbox.shut()
        if self._connection is None or self.session is None:
            return
        with suppress(sqlite3.Error), transaction(self._connection):
            end = (self.session, self.unrecorded, self.reason)
            self._log.end(self._connection, *end)
        close_after_writing(self._connection)
        self._connection = None
