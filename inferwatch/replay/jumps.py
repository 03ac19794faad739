"""The short way to a moment: from the last checkpoint before it."""

import sqlite3
from contextlib import suppress
from pathlib import Path

from inferwatch.replay.frame import Frame, Target, restored
from inferwatch.storage.checkpoints.checkpoints import REFUSALS, Checkpoints

WORTH = 1_000
"""Readings that are folded as fast as a Model is restored."""


class Jumps:
    """Checkpoints that somebody wrote, or still writes; None is needed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._checkpoints: Checkpoints | None = None
        self.refused = False
        """They are not used any more."""

    def towards(self, target: Target, frame: Frame) -> Frame:
        """Where to go on from: here, a checkpoint or the beginning."""
        here = Frame() if target.is_behind(frame) else frame
        try:
            return self._nearest(target, here) or here
        except REFUSALS:
            self.refuse()
            return here

    def refuse(self) -> None:
        """They are none of ours: do without."""
        self.refused = True
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        if self._checkpoints is not None:
            self._checkpoints.close()
            self._checkpoints = None

    def _nearest(self, target: Target, here: Frame) -> Frame | None:
        checkpoints = self._opened()
        if checkpoints is None:
            return None
        with checkpoints.held():
            row = checkpoints.row_before(t_ns=target.t_ns, ordinal=target.ordinal)
            if row is None or row[0] <= here.place.ordinal + WORTH:
                return None
            return restored(checkpoints, row)

    def _opened(self) -> Checkpoints | None:
        if self._checkpoints is None and not self.refused and self._path.exists():
            with suppress(OSError, sqlite3.Error):
                self._checkpoints = Checkpoints.open(self._path, to_write=False)
        return self._checkpoints
