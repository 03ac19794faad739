"""All gaps between two tokens of each request, from the members of recorded steps.

Members are read in blobs and processed with numpy. Only the times of each request's
first and latest token are kept, so memory does not grow with the number of tokens.
"""

import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

import msgspec
import numpy as np
import numpy.typing as npt

from inferwatch.metrics.series.quantiles import Ints
from inferwatch.studies.compare.reading.requests import (
    ENGINE_PROPER,
    UNKNOWN,
    ServerRequests,
    TimedValues,
    per_token,
    whole,
)

FIRST_ROOM = 1024
LIVES = 1 << 20
"""More than the number of times any engine restarts."""
BLOBS = 64
"""How many blobs are processed together."""


class EngineLives:
    """Finds the engine start a reading belongs to; member numbers restart with it."""

    def __init__(self, connection: sqlite3.Connection, session: int) -> None:
        rows = whole(connection, "engines", ("source", "ordinal"), session)
        self._began = {
            int(source): np.sort(rows["ordinal"][rows["source"] == source])
            for source in np.unique(rows["source"])
        }

    def of(self, sources: Ints, ordinals: Ints) -> Ints:
        found = sources * LIVES
        for source, began in self._began.items():
            these = sources == source
            # Readings before the engine's own description belong to its first start.
            lives = np.searchsorted(began, ordinals[these], "right")
            found[these] += np.maximum(lives - 1, 0)
        return found


class _LifeTokens:
    """Token times between two engine starts, by request member number."""

    def __init__(self, members: Ints, came_ns: Ints) -> None:
        """``came_ns`` are the known arrival times of ``members``."""
        self.first_ns = np.full(FIRST_ROOM, UNKNOWN, np.int64)
        self.last_ns, self.came_ns = self.first_ns.copy(), self.first_ns.copy()
        self.longest_ns = self.first_ns.copy()
        """The longest gap; UNKNOWN with a single token."""
        self.tokens = np.zeros(FIRST_ROOM, np.int64)
        self.make_room(int(members.max(initial=0)))
        self.came_ns[members] = came_ns

    def make_room(self, highest: int) -> None:
        short = highest + 1 - len(self.tokens)
        if short > 0:
            more = max(short, len(self.tokens))
            unknown = np.full(more, UNKNOWN, np.int64)
            self.first_ns = np.concatenate([self.first_ns, unknown])
            self.last_ns = np.concatenate([self.last_ns, unknown])
            self.came_ns = np.concatenate([self.came_ns, unknown])
            self.longest_ns = np.concatenate([self.longest_ns, unknown])
            self.tokens = np.concatenate([self.tokens, np.zeros(more, np.int64)])

    def take(self, members: Ints, end_ns: Ints, produced: Ints) -> TimedValues:
        """Add steps in time order; returns the gaps that they end."""
        self.make_room(int(members.max()))
        order = np.argsort(members, kind="stable")
        members, end_ns, produced = members[order], end_ns[order], produced[order]
        is_first = np.diff(members, prepend=-1) != 0
        before_ns = np.empty_like(end_ns)
        before_ns[1:] = end_ns[:-1]
        before_ns[is_first] = self.last_ns[members[is_first]]
        is_last = np.append(is_first[1:], [True])
        whose, ended_ns = members[is_first], end_ns[is_first]
        unseen = self.first_ns[whose] == UNKNOWN
        self.first_ns[whose[unseen]] = ended_ns[unseen]
        self.last_ns[members[is_last]] = end_ns[is_last]
        np.add.at(self.tokens, members, produced)
        known = before_ns != UNKNOWN
        # If its request's arrival is unknown, a gap counts when it ended.
        whose, gaps_ns = members[known], end_ns[known] - before_ns[known]
        np.maximum.at(self.longest_ns, whose, gaps_ns)
        came_ns = self.came_ns[whose]
        at_ns = np.where(came_ns != UNKNOWN, came_ns, end_ns[known])
        return TimedValues(at_ns, gaps_ns)


class TokenGaps:
    """All gaps between tokens of a session, and token times of each request."""

    def __init__(
        self, connection: sqlite3.Connection, session: int, requests: ServerRequests
    ) -> None:
        self._connection, self._session = connection, session
        self._engines = EngineLives(connection, session)
        self._requests = requests.columns
        self._came_ns = requests.came_ns
        self._lives_of = self._engines.of(
            self._requests["source"], self._requests["ordinal"]
        )
        self._lives_of[self._requests["member"] < 0] = -1
        self._lives: dict[int, _LifeTokens] = {}

    def gaps(self) -> Iterator[TimedValues]:
        """One gap per step and request, as vLLM counts, in batches."""
        blobs = self._connection.execute(
            "SELECT members FROM step_members WHERE session = ? ORDER BY ordinal",
            (self._session,),
        )
        while some := [_MembersBlob.of(blob) for (blob,) in islice(blobs, BLOBS)]:
            yield from self._take(some)

    def _take(self, some: Sequence["_MembersBlob"]) -> Iterator[TimedValues]:
        ordinals = np.concatenate([each.ordinals for each in some])
        sizes = np.concatenate([each.sizes for each in some])
        members = np.concatenate([each.members for each in some])
        produced = np.concatenate([each.produced for each in some])
        ends_ns, lives = self._steps(ordinals)
        end_ns, life = np.repeat(ends_ns, sizes), np.repeat(lives, sizes)
        came_out = produced > 0
        for number in np.unique(life[came_out]):
            these = came_out & (life == number)
            kept = self._life(int(number))
            yield kept.take(members[these], end_ns[these], produced[these])

    def _life(self, number: int) -> _LifeTokens:
        if number not in self._lives:
            ours = self._lives_of == number
            self._lives[number] = _LifeTokens(
                self._requests["member"][ours], self._came_ns[ours]
            )
        return self._lives[number]

    def _steps(self, ordinals: Ints) -> tuple[Ints, Ints]:
        """The end time and engine start of each step."""
        span = f"AND ordinal BETWEEN {ordinals.min()} AND {ordinals.max()}"
        columns = ("ordinal", "source", "end_ns")
        rows = whole(self._connection, "steps", columns, self._session, span)
        place = np.searchsorted(rows["ordinal"], ordinals)
        sources = rows["source"][place]
        return rows["end_ns"][place], self._engines.of(sources, ordinals)

    def tpot(self) -> TimedValues:
        """TPOT of requests that ended normally; read all gaps first."""
        ended = self._requests["engine_finished_ns"] != UNKNOWN
        ended &= self._requests[ENGINE_PROPER] == 1
        parts = [
            self._tpot_of(life, (self._lives_of == number) & ended)
            for number, life in self._lives.items()
        ]
        return TimedValues(
            np.concatenate([each.at_ns for each in parts] or [_NONE]),
            np.concatenate([each.values_ns for each in parts] or [_NONE]),
            np.concatenate([each.rows for each in parts] or [_NONE]),
        )

    def longest(self) -> tuple[Ints, Ints]:
        """Each request's longest gap, and how many tokens were seen.

        In the order of the requests; read all gaps first.
        """
        longest_ns = np.full(len(self._came_ns), UNKNOWN, np.int64)
        seen = np.zeros(len(self._came_ns), np.int64)
        for number, life in self._lives.items():
            these = self._lives_of == number
            members = self._requests["member"][these]
            life.make_room(int(members.max(initial=0)))
            longest_ns[these], seen[these] = (
                life.longest_ns[members],
                life.tokens[members],
            )
        return longest_ns, seen

    def _tpot_of(self, life: _LifeTokens, these: npt.NDArray[np.bool_]) -> TimedValues:
        members = self._requests["member"][these]
        life.make_room(int(members.max(initial=0)))
        first_ns, last_ns = life.first_ns[members], life.last_ns[members]
        tokens, came_ns = life.tokens[members], self._came_ns[these]
        found = per_token(first_ns, last_ns, tokens, came_ns)
        return replace(found, rows=np.flatnonzero(these)[found.rows])


@dataclass(frozen=True, slots=True)
class _MembersBlob:
    """One blob of step members: its steps, and all their members in a row."""

    ordinals: Ints
    sizes: Ints
    members: Ints
    produced: Ints

    @classmethod
    def of(cls, blob: bytes) -> "_MembersBlob":
        lists = _BLOBS.decode(zlib.decompress(blob))
        return cls(
            np.cumsum(np.array(lists.ordinals, np.int64)),
            np.array([len(each) for each in lists.members], np.int64),
            _flat(lists.members),
            _flat(lists.produced),
        )


class _BlobLists(msgspec.Struct, gc=False):
    """The fields of a blob that are needed; others are skipped."""

    ordinals: list[int]
    members: list[list[int]]
    produced: list[list[int]]


_BLOBS = msgspec.json.Decoder(_BlobLists)
_NONE = np.zeros(0, np.int64)


def _flat(lists: Sequence[Sequence[int]]) -> Ints:
    return np.fromiter(chain.from_iterable(lists), np.int64)
