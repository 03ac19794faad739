"""The kind of each request: prompt length, class, and turn of a conversation.

Kinds are integers, so that latencies can be counted by kind, time and size at once. The
memory for a session grows with the number of kinds, not of requests.
"""

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from inferwatch.metrics.requests.outcomes import client_id
from inferwatch.metrics.series.quantiles import Ints
from inferwatch.studies.compare.metrics import JudgedMetric
from inferwatch.studies.compare.reading.requests import (
    UNKNOWN,
    ClientRequests,
    ServerRequests,
    TimedValues,
)
from inferwatch.studies.compare.statistics.resampling import (
    BINS,
    CELLS,
    PIECES,
    cells_of,
    middle_of,
)
from inferwatch.studies.compare.statistics.significance import Interval


class Cut(StrEnum):
    """The property by which requests are grouped."""

    TIME = "schedule time"
    PROMPT = "prompt tokens"
    CLASS = "class"
    TURN = "turn"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedPart:
    """A part of both sides' requests in which a metric changed most."""

    metric: JudgedMetric
    cut: Cut
    part: str
    """The part in words: ``from 00:40``, ``over 1k``, or the name of a class."""
    a: float
    b: float
    n_a: int
    n_b: int
    ratio: float
    ratio_span: Interval | None = None
    rest_ratio: float | None = None
    """The ratio for all other requests; None if they are too few."""
    statistic: str | None = None
    """The statistic of a and b, where the part is too small for the metric's own."""
    is_all: bool = False
    """Whether the rest shows no change; otherwise most of the change is here."""
    also: "ChangedPart | None" = None
    """When the change happened, if this part says which requests it affected."""
    sentence: str = ""
    """To be shown after the name of the metric."""


NOT_KNOWN = 0
"""The label of requests without a known kind."""
PROMPTS, CLASSES, TURNS = 64, 64, 32
"""How many labels each property has; the rest share one label."""
FINER = 8
"""This many histogram cells are merged; the merged cell is half a percent wide."""
COARSE = CELLS // FINER + 1
ASKED = (
    "SELECT ordinal, external_id, coalesce(class_name, ''), coalesce(turn, 0) "
    "FROM client_requests WHERE session = ? AND phase != 'warmup'"
)
HAS_KINDS = (
    "SELECT max(class_name IS NOT NULL), max(coalesce(turn, 0)) > 1 "
    "FROM client_requests WHERE session = ?"
)
NAMED = "SELECT ordinal, external_id FROM requests WHERE session = ?"


def prompt_label(tokens: Ints) -> Ints:
    """Label prompt lengths by powers of two: 1 for 1 token, 2 up to 2, 3 up to 4."""
    known = tokens > 0
    power = np.ceil(np.log2(np.where(known, tokens, 1))).astype(np.int64)
    return np.where(known, np.minimum(power + 1, PROMPTS - 1), NOT_KNOWN)


def most_tokens(label: int) -> int:
    return 1 << (label - 1)


@dataclass(frozen=True, slots=True)
class KindCounts:
    """Counts of a latency's values by kind of request, time and size."""

    labels: Mapping[Cut, Ints]
    """One entry per non-empty cell, as in the next three fields."""
    pieces: Ints
    cells: Ints
    counts: Ints
    classes: tuple[str, ...]
    """Class names by label; label 0 is for requests without a class."""

    def in_blocks(self, block_of: Ints) -> "KindCounts":
        """Regroup the counts by block; pieces of time whose block is -1 are dropped."""
        blocks = block_of[self.pieces]
        kept = blocks >= 0
        return KindCounts(
            labels={cut: labels[kept] for cut, labels in self.labels.items()},
            pieces=blocks[kept],
            cells=self.cells[kept],
            counts=self.counts[kept],
            classes=self.classes,
        )


@dataclass(frozen=True, slots=True)
class Kinds:
    """The kind of each request of a table, in the table's order."""

    numbers: Ints
    classes: tuple[str, ...]

    @classmethod
    def made_of(
        cls, prompt_tokens: Ints, classes: Ints, turns: Ints, names: tuple[str, ...]
    ) -> "Kinds":
        turns = np.clip(turns, NOT_KNOWN, TURNS - 1)
        numbers = (prompt_label(prompt_tokens) * CLASSES + classes) * TURNS + turns
        return cls(numbers, names)

    def class_names(self) -> list[str]:
        labels = self.numbers // TURNS % CLASSES
        return [self.classes[label] for label in labels.tolist()]

    def counted(self, place: Ints, timed: TimedValues) -> KindCounts:
        """Count values by kind of request, histogram cell and time of arrival."""
        inside = (place >= 0) & (place < BINS)
        piece = place[inside] // (BINS // PIECES)
        cell = cells_of(timed.values_ns[inside]) // FINER
        kind = self.numbers[timed.rows[inside]]
        keys, counts = np.unique(
            (kind * PIECES + piece) * COARSE + cell, return_counts=True
        )
        kind, pieces = np.divmod(keys // COARSE, PIECES)
        return KindCounts(
            labels={
                Cut.PROMPT: kind // TURNS // CLASSES,
                Cut.CLASS: kind // TURNS % CLASSES,
                Cut.TURN: kind % TURNS,
            },
            pieces=pieces,
            cells=keys % COARSE,
            counts=counts,
            classes=self.classes,
        )


def middle_of_coarse(cells: Ints) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The duration that stands for each coarse cell, in ns."""
    return np.asarray(middle_of(cells * FINER + FINER // 2), np.float64)


class KindReader:
    """Reads the class and turn of each request of a session."""

    def __init__(self, connection: sqlite3.Connection, session: int) -> None:
        self._connection, self._session = connection, session
        self._by_ordinal: dict[int, tuple[int, int]] = {}
        self._by_name: dict[str, tuple[int, int]] = {}
        self._names = [""]
        # Most sessions have no classes or turns, so nothing is read.
        if any(connection.execute(HAS_KINDS, (session,)).fetchone()):
            self._read()

    def _read(self) -> None:
        known = {"": NOT_KNOWN}
        for ordinal, name, class_name, turn in self._connection.execute(
            ASKED, (self._session,)
        ):
            if class_name not in known and len(known) < CLASSES:
                known[class_name] = len(known)
            kind = known.get(class_name, NOT_KNOWN), turn
            self._by_ordinal[ordinal] = self._by_name[name] = kind
        self._names = list(known)

    def of_client(self, client: ClientRequests) -> Kinds:
        found = (
            self._by_ordinal.get(each) for each in client.columns["ordinal"].tolist()
        )
        return self._kinds(client.columns["prompt_tokens"], found)

    def of_server(self, requests: ServerRequests) -> Kinds:
        """The kinds of server requests; the client's records give class and turn."""
        known: dict[int, tuple[int, int]] = {}
        if self._by_name:
            for ordinal, name in self._connection.execute(NAMED, (self._session,)):
                kind = self._by_name.get(client_id(name or ""))
                if kind is not None:
                    known[ordinal] = kind
        found = (known.get(each) for each in requests.columns["ordinal"].tolist())
        return self._kinds(requests.columns["prompt_tokens"], found)

    def _kinds(
        self, prompt_tokens: Ints, found: Iterator[tuple[int, int] | None]
    ) -> Kinds:
        tokens = np.where(prompt_tokens == UNKNOWN, 0, prompt_tokens)
        nothing = np.zeros(len(tokens), np.int64)
        if not self._by_ordinal:
            return Kinds.made_of(tokens, nothing, nothing, ("",))
        pairs = np.array([each or (NOT_KNOWN, 0) for each in found], np.int64)
        classes, turns = pairs.reshape(-1, 2).T
        return Kinds.made_of(tokens, classes, turns, tuple(self._names))
