"""Writes the checkpoints that a recorded session lacks, in the background."""

import os
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep

from inferwatch.errors import StorageError
from inferwatch.metrics.series.saving import CheckpointPace
from inferwatch.record.checkpoints.checkpoints import (
    UNSAVABLE,
    Checkpoint,
    Checkpoints,
    no_checkpoints,
)
from inferwatch.record.checkpoints.file import checkpoint_path, settle_checkpoints
from inferwatch.record.connections import open_for_reading
from inferwatch.record.replay.replay_state import (
    AS_RECORDED,
    UNREADABLE,
    ReplayOverrides,
    ReplayState,
    restored_state,
    until_done,
)
from inferwatch.record.sessions.sessions import SessionRow
from inferwatch.record.tables.codec import ReadingDecoder
from inferwatch.record.tables.session_state import SessionState

SLICE = 128
"""How many readings are folded between two pauses, which leave time for the screens."""
REST_S = 0.001


class CheckpointBuilder:
    """Folds a session from its last checkpoint on, to write those that are missing.

    While a session is being recorded, the recorder writes them; this one starts only if
    there is none.
    """

    def __init__(
        self,
        database: Path,
        session: SessionRow,
        overrides: ReplayOverrides = AS_RECORDED,
    ) -> None:
        self.covered_ns = 0
        """The session time up to which any moment can be reached at once."""
        self.trouble: str | None = None
        """Why there are no checkpoints beyond that; None while there is no error."""
        self._database = database
        self._session = session
        self._overrides = overrides
        self._given_up = False
        self._elsewhere: TemporaryDirectory[str] | None = None
        self.path = checkpoint_path(database, session.session, session.started_ns)
        can_keep = self.path.exists() or os.access(database.parent, os.W_OK)
        if overrides.any or not can_keep:
            self._elsewhere = TemporaryDirectory(prefix="inferwatch-replay-")
            self.path = Path(self._elsewhere.name) / self.path.name

    async def run(self) -> None:
        """Write all missing checkpoints; when cancelled, those written so far stay."""
        await until_done(self.build, self._give_up)

    def _give_up(self) -> None:
        self._given_up = True

    def build(self) -> None:
        """Write the missing checkpoints; an error ends this and sets ``trouble``."""
        try:
            with closing(Checkpoints.open(self.path, to_write=True)) as checkpoints:
                if not self._made_by_recorder(checkpoints):
                    self._build(checkpoints)
        except (OSError, StorageError, *UNREADABLE, *UNSAVABLE) as error:
            self.trouble = no_checkpoints(error)

    def close(self) -> None:
        """Stop, leave the checkpoints as one plain file, and delete a temporary one."""
        self._given_up = True
        settle_checkpoints(self.path)
        if self._elsewhere is not None:
            self._elsewhere.cleanup()

    def _made_by_recorder(self, checkpoints: Checkpoints) -> bool:
        last = checkpoints.last
        self.covered_ns = last[1] if last else 0
        if self._overrides.any:
            return False
        goes_on = self._session.state is SessionState.RECORDING
        return goes_on and last is not None

    def _build(self, checkpoints: Checkpoints) -> None:
        state = self._last_state(checkpoints)
        with closing(open_for_reading(self._database)) as connection:
            connection.execute("BEGIN")
            reader = ReadingDecoder(connection, self._session.session, state.cursor)
            self._fold(state, reader, checkpoints)

    def _fold(
        self, state: ReplayState, reader: ReadingDecoder, checkpoints: Checkpoints
    ) -> None:
        pace, t_ns = CheckpointPace(state.t_ns), state.t_ns or 0
        for number, (ordinal, reading) in enumerate(reader):
            t_ns = state.receipts.take(reading)
            state.model.fold(reading)
            if pace.due(reading, t_ns):
                checkpoint = Checkpoint(ordinal, t_ns, state.model.saved())
                checkpoints.keep(checkpoint, reader.cursor(ordinal).open_requests)
                self.covered_ns = t_ns
            if number % SLICE == 0:
                if self._given_up:
                    return
                sleep(REST_S)
        self.covered_ns = max(t_ns, self._session.duration_ns)

    def _last_state(self, checkpoints: Checkpoints) -> ReplayState:
        """Return the state at the last checkpoint, or at the session's beginning."""
        if checkpoints.last is None:
            return self._overrides.beginning()
        row = checkpoints.row_before(ordinal=checkpoints.last[0])
        return (
            self._overrides.beginning()
            if row is None
            else restored_state(checkpoints, row)
        )
