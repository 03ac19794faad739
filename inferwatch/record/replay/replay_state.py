"""The Model at a moment of a recorded session, and how to reach other moments."""

import asyncio
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from collectors.contract.garbage import collecting_later
from collectors.contract.readings import Prices, WatchedSlo
from inferwatch.errors import StorageError
from inferwatch.metrics.load.receipt_clock import ReceiptClock
from inferwatch.metrics.model.model import Model
from inferwatch.record.checkpoints.checkpoints import Checkpoints, Row
from inferwatch.record.file.sqlite import START, Cursor
from inferwatch.record.tables.codec import ReadingDecoder


async def until_done(work: Callable[[], None], give_up: Callable[[], None]) -> None:
    """Run the work in a thread; when cancelled, call ``give_up`` and wait.

    A thread that went on reading would keep the file open, and the recorder could not
    leave one plain file behind.
    """
    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(working)
    except asyncio.CancelledError:
        give_up()
        await asyncio.wait([working])
        raise


UNREADABLE = (
    StorageError,
    sqlite3.Error,
    msgspec.MsgspecError,
    ArithmeticError,
    LookupError,
    TypeError,
    ValueError,
)
"""The exceptions that reading a damaged file can raise."""
PATIENCE = 256
"""Readings between two checks whether the seek was overtaken."""


@dataclass(slots=True)
class ReplayState:
    """A Model that has folded the readings up to a cursor, and can go on from there."""

    model: Model = field(default_factory=Model)
    cursor: Cursor = START
    receipts: ReceiptClock = field(default_factory=ReceiptClock)

    @property
    def t_ns(self) -> int | None:
        """Receipt time of the last reading folded; None before the first."""
        return self.receipts.latest_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOverrides:
    """Objectives and prices for a whole replay, in place of the recorded ones."""

    slo: WatchedSlo | None = None
    prices: Prices | None = None

    @property
    def any(self) -> bool:
        """Whether there is any override, so that existing checkpoints are useless."""
        return self.slo is not None or self.prices is not None

    def beginning(self) -> ReplayState:
        """Return the state at the beginning of the session."""
        return ReplayState(Model(self.slo, self.prices))


AS_RECORDED = ReplayOverrides()


@dataclass(frozen=True, slots=True, kw_only=True)
class SeekTarget:
    """Where a seek goes: to a moment, or to the ordinal of a reading."""

    t_ns: int | None = None
    ordinal: int | None = None

    def excludes(self, ordinal: int, t_ns: int) -> bool:
        """Tell whether the reading lies beyond the target."""
        if self.ordinal is not None:
            return ordinal > self.ordinal
        return self.t_ns is not None and t_ns > self.t_ns

    def is_behind(self, state: ReplayState) -> bool:
        """Tell whether the state is past the target, so folding cannot reach it."""
        return state.t_ns is not None and self.excludes(
            state.cursor.ordinal, state.t_ns
        )


def restored_state(checkpoints: Checkpoints, row: Row) -> ReplayState:
    """Return the state saved in a checkpoint.

    Raises:
        Exception: one of REFUSALS, as the checkpoint cannot be used.
    """
    with collecting_later():
        model, cursor = checkpoints.restore(row)
    return ReplayState(model, cursor, ReceiptClock(row[1]))


class Overtaken(Exception):  # noqa: N818 - it is not an error
    """Raised to abandon a seek because a later one was requested."""


def fold_up_to(
    state: ReplayState,
    connection: sqlite3.Connection,
    session: int,
    target: SeekTarget,
    *,
    growing: bool = False,
    overtaken: Callable[[], bool] = lambda: False,
) -> None:
    """Fold readings up to the target; the state is consistent however this ends.

    Raises:
        Overtaken: ``overtaken`` returned true on the way.
    """
    connection.execute("BEGIN")
    reader = ReadingDecoder(connection, session, state.cursor)
    ordinal = state.cursor.ordinal
    try:
        for number, (following, reading) in enumerate(reader):
            if number % PATIENCE == 0 and overtaken():
                raise Overtaken
            t_ns = state.receipts.after(reading)
            if target.excludes(following, t_ns):
                break
            state.receipts.latest_ns = t_ns
            state.model.fold(reading)
            ordinal = following
    finally:
        state.cursor = reader.cursor(ordinal, growing=growing)
        connection.execute("ROLLBACK")
