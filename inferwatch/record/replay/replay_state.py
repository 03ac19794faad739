"""The Model as of a moment of a recorded session, and how it goes on from there."""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from collectors.contract.readings import Prices, WatchedSlo
from inferwatch.errors import StorageError
from inferwatch.metrics.load.receipt_clock import ReceiptClock
from inferwatch.metrics.model.model import Model
from inferwatch.record.checkpoints.checkpoints import Checkpoints, Row
from inferwatch.record.file.cursor import START, Cursor
from inferwatch.record.tables.codec import ReadingDecoder

UNREADABLE = (
    StorageError,
    sqlite3.Error,
    msgspec.MsgspecError,
    ArithmeticError,
    LookupError,
    TypeError,
    ValueError,
)
"""What reading a damaged file may end in."""
PATIENCE = 256
"""Readings between two looks at whether they are still wanted."""


@dataclass(slots=True)
class ReplayState:
    """A Model that took in everything up to a cursor, and what going on needs."""

    model: Model = field(default_factory=Model)
    cursor: Cursor = START
    receipts: ReceiptClock = field(default_factory=ReceiptClock)

    @property
    def t_ns(self) -> int | None:
        """When its last reading was there; None before the first."""
        return self.receipts.latest_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What holds for a whole replay, whatever the record says."""

    slo: WatchedSlo | None = None
    prices: Prices | None = None

    @property
    def any(self) -> bool:
        """Something does: checkpoints made without it are of no use."""
        return self.slo is not None or self.prices is not None

    def beginning(self) -> ReplayState:
        """As of the beginning of the session."""
        return ReplayState(Model(self.slo, self.prices))


AS_RECORDED = Chosen()


@dataclass(frozen=True, slots=True, kw_only=True)
class SeekTarget:
    """Where to go: everything that was there at a moment, or up to a reading."""

    t_ns: int | None = None
    ordinal: int | None = None

    def excludes(self, ordinal: int, t_ns: int) -> bool:
        """The reading lies beyond the target."""
        if self.ordinal is not None:
            return ordinal > self.ordinal
        return self.t_ns is not None and t_ns > self.t_ns

    def is_behind(self, state: ReplayState) -> bool:
        """The state is past the target: going on does not lead there."""
        return state.t_ns is not None and self.excludes(
            state.cursor.ordinal, state.t_ns
        )


def restored(checkpoints: Checkpoints, row: Row) -> ReplayState:
    """The state as of a checkpoint.

    Raises:
        REFUSALS: it is none of ours.
    """
    model, cursor = checkpoints.restore(row)
    return ReplayState(model, cursor, ReceiptClock(row[1]))


class Overtaken(Exception):  # noqa: N818 - nothing went wrong
    """A later seek was asked for, so this one is given up."""


def fold_up_to(
    state: ReplayState,
    connection: sqlite3.Connection,
    session: int,
    target: SeekTarget,
    *,
    growing: bool = False,
    overtaken: Callable[[], bool] = lambda: False,
) -> None:
    """Fold the readings up to the target; the state is right wherever this ends.

    Raises:
        Overtaken: on the way.
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
