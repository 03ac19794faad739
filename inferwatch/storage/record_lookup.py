"""Single readings of a recorded session, found without reading all before them.

Rows stand in order of receipt. What happened in a span is found by halving: readings of
one source come in order of time, those of several are late by seconds at most.
"""

import sqlite3
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any

import msgspec

from collectors.clock import NS_PER_S
from collectors.readings import Step
from inferwatch.storage.tables.codec import SELECT_SOURCES
from inferwatch.storage.tables.steps import LISTS, STEP_COLUMNS
from inferwatch.storage.tables.table import SourceNames

MOST_STEPS = 20_000
"""That are told at once."""
LATEST_NS = 5 * NS_PER_S
"""How much later than those of another source a step may have been heard."""
SESSION = "SELECT session FROM sessions WHERE id = ?"
ENDS = "SELECT min(ordinal), max(ordinal) FROM steps WHERE session = ?"
NEXT_END = (
    "SELECT ordinal, end_ns FROM steps WHERE session = ? AND ordinal >= ? "
    "ORDER BY ordinal LIMIT 1"
)
STEPS = (
    f"SELECT ordinal, source, {', '.join(STEP_COLUMNS.names)} FROM steps "  # noqa: S608  our own names
    "WHERE session = :session AND ordinal BETWEEN :first AND :last "
    "AND end_ns > :start_ns AND end_ns <= :end_ns "
    "AND (:source IS NULL OR source = :source) ORDER BY ordinal DESC LIMIT :most"
)
BLOBS = (
    "SELECT ordinal, members FROM step_members WHERE session = :session "
    "AND ordinal >= (SELECT coalesce(max(ordinal), 0) FROM step_members"
    "  WHERE session = :session AND ordinal <= :first) "
    "AND ordinal <= :last ORDER BY ordinal"
)
Lists = dict[str, Any]
"""Members, scheduled, produced and preempted of a step."""


class HeldSteps(msgspec.Struct):
    """The blob of a batch; lists stay as they are until somebody wants them."""

    ordinals: list[int]
    members: list[msgspec.Raw]
    scheduled: list[msgspec.Raw]
    produced: list[msgspec.Raw]
    preempted: list[msgspec.Raw]


class RecordLookup:
    """Asks one session of an open file."""

    def __init__(self, connection: sqlite3.Connection, session_id: str) -> None:
        """Raise LookupError where the file has no such session."""
        self._connection = connection
        found = connection.execute(SESSION, (session_id,)).fetchone()
        if found is None:
            raise LookupError(session_id)
        self._session = found[0]
        named = connection.execute(SELECT_SOURCES, found).fetchall()
        self.sources = SourceNames(named)
        self._numbers = {name: number for number, name in self.sources.items()}

    def steps(
        self,
        start_ns: int,
        end_ns: int,
        source: str | None = None,
        most: int = MOST_STEPS,
    ) -> list[Step]:
        """Those that ended after the start and up to the end; the latest."""
        if source is not None and source not in self._numbers:
            return []
        first, last = self._ordinals(start_ns, end_ns)
        asked = {
            "session": self._session,
            "first": first,
            "last": last,
            "start_ns": start_ns,
            "end_ns": end_ns,
            "source": None if source is None else self._numbers[source],
            "most": most,
        }
        rows = self._connection.execute(STEPS, asked).fetchall()
        rows.reverse()
        held = self._lists([row[0] for row in rows])
        steps = [
            Step(
                source=self.sources[number],
                **STEP_COLUMNS.restore(values),
                **lists,
            )
            for (ordinal, number, *values) in rows
            if (lists := held.get(ordinal)) is not None
        ]
        steps.sort(key=attrgetter("end_ns"))
        return steps

    def _ordinals(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        """Between which ordinals the steps of a span stand."""
        first, last = self._connection.execute(ENDS, (self._session,)).fetchone()
        if first is None:
            return 0, -1
        begun = self._halved(first, last + 1, start_ns - LATEST_NS)
        return begun, self._halved(begun, last + 1, end_ns + LATEST_NS)

    def _halved(self, low: int, high: int, t_ns: int) -> int:
        """Where steps begin to end later than that."""
        while low < high:
            middle = (low + high) // 2
            asked = (self._session, middle)
            found = self._connection.execute(NEXT_END, asked).fetchone()
            if found is None or found[1] > t_ns:
                high = middle
            else:
                low = found[0] + 1
        return low

    def _lists(self, ordinals: Sequence[int]) -> dict[int, Lists]:
        """Who was in these steps, which rise; equal lists are one and the same."""
        if not ordinals:
            return {}
        asked = {
            "session": self._session,
            "first": ordinals[0],
            "last": ordinals[-1],
        }
        seen: dict[bytes, list[int]] = {}
        found: dict[int, Lists] = {}
        wanted = set(ordinals)
        blobs = self._connection.execute(BLOBS, asked)
        for blob in _with_any(blobs, ordinals):
            held = msgspec.json.decode(zlib.decompress(blob), type=HeldSteps)
            every = zip(
                accumulate(held.ordinals),
                held.members,
                held.scheduled,
                held.produced,
                held.preempted,
                strict=True,
            )
            for ordinal, *lists in every:
                if ordinal in wanted:
                    found[ordinal] = {
                        name: _decoded(each, seen)
                        for name, each in zip(LISTS, lists, strict=True)
                    }
        return found


def _with_any(
    blobs: Iterator[tuple[int, bytes]], ordinals: Sequence[int]
) -> Iterator[bytes]:
    """The blobs that hold any of these steps."""
    here = next(blobs, None)
    while here is not None:
        following = next(blobs, None)
        low = bisect_right(ordinals, here[0] - 1)
        high = len(ordinals)
        if following is not None:
            high = bisect_right(ordinals, following[0] - 1)
        if low < high:
            yield here[1]
        here = following


def _decoded(raw: msgspec.Raw, seen: dict[bytes, list[int]]) -> list[int]:
    """A list of numbers, which from step to step is mostly the same."""
    text = bytes(raw)
    numbers = seen.get(text)
    if numbers is None:
        numbers = seen[text] = msgspec.json.decode(text, type=list[int])
    return numbers
