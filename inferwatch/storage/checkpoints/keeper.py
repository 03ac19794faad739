"""Keeps checkpoints while a session is recorded; when it cannot, it says so."""

import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from inferwatch.storage.checkpoints.checkpoints import (
    Checkpoint,
    Checkpoints,
    no_checkpoints,
)
from inferwatch.storage.checkpoints.file import checkpoint_path

Kept = tuple[Checkpoint, tuple[int, ...]]
"""A checkpoint and the requests that were open then."""


class Keeper:
    """Opens the file with the first checkpoint; after a failure keeps no more.

    Nothing is lost by that: a replay makes those that are missing.
    """

    def __init__(self, database: Path) -> None:
        self._database = database
        self._checkpoints: Checkpoints | None = None
        self.given_up = False
        """No more will be kept."""
        self.trouble: str | None = None
        """Why, if that was not to be so."""

    def keep(self, session: int, started_ns: int, kept: Sequence[Kept]) -> None:
        """Write them; the readings up to there have been committed."""
        if self.given_up:
            return
        try:
            if self._checkpoints is None:
                path = checkpoint_path(self._database, session, started_ns)
                self._checkpoints = Checkpoints.open(path, to_write=True)
            for checkpoint, open_requests in kept:
                self._checkpoints.keep(checkpoint, open_requests)
        except Exception as error:  # noqa: BLE001  it must not cost the record
            self.give_up(no_checkpoints(error))

    def give_up(self, trouble: str) -> None:
        """No more, for a reason that people should hear."""
        if not self.given_up:
            self.trouble = trouble
        self.close()

    def close(self) -> None:
        """No more."""
        self.given_up = True
        if self._checkpoints is not None:
            with suppress(sqlite3.Error):
                self._checkpoints.close()
            self._checkpoints = None
