"""Totals of a server's counters and histograms while it was watched.

A server counts since its process began; what is needed are counts of a window. So each
sample becomes an increase over the one before, and increases are added up from the
first sample on: the difference of two such totals is the count of a window, even across
restarts. The first sample after a restart only says where its counts begin. What
happened just before it is unknown: it is in no total, and its time is not counted.
"""

import zlib
from collections import deque
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from collectors.contract.readings import REFUSED, EngineSample, Histogram
from collectors.servers.families import (
    BY_POSITION,
    CACHES,
    MEANS,
    SCHEDULER,
    TIMES,
    speculation_in,
)
from inferwatch.metrics.series.histograms import Buckets, Floats, is_sound
from inferwatch.metrics.series.samples import KEPT_NS
from inferwatch.metrics.series.saving import CHUNK, Parts, WrittenParts

Bools = npt.NDArray[np.bool_]

LATENCIES = ("ttft_s", "queue_s", "prefill_s", "tpot_s", "itl_s", "e2el_s", "decode_s")
"""Latencies whose means are charted."""
COUNTERS = (
    "prompt_tokens",
    "output_tokens",
    "prefix_queries",
    "prefix_hits",
    "preemptions",
)
SPECULATED = ("drafts", "drafted_tokens", "accepted_tokens")
"""Counters of speculative decoding, besides those by position."""
CHARTED = (
    "prompt_tokens",
    "output_tokens",
    "preemptions",
    "prefix_hits",
    *SPECULATED,
)
SUMS = tuple(chain.from_iterable(names for _, *names in (*MEANS, *TIMES)))
OTHERS = frozenset((*chain.from_iterable(CACHES.values()), *SUMS))
"""Counters of ``EngineSample.others`` that are counted too."""
LABELLED = (*SCHEDULER, *(f"{name}{{" for name in SUMS))
"""How the names of more of them begin."""
TIME, RUNNING, WAITING, KV_USAGE, FOLLOWED, FIRST_COUNT = range(6)
"""Columns of a moment: session time in ns, gauges, time watched so far, counters.

FOLLOWED is the time so far between consecutive samples. From FIRST_COUNT on are the
totals of CHARTED, then sum and count of each of LATENCIES.
"""
WIDTH = FIRST_COUNT + len(CHARTED) + 2 * len(LATENCIES)
MOST_SESSION_ROWS = 512
MOST_COLUMNS = 4_096
"""Largest number of columns, in case a server exports new names every time."""
GAUGED = ("acceptance", "acceptance_length")
"""What servers tell of speculative decoding as gauges."""
WAY = "finished "
"""Prefix of the counters of ended requests by finish reason."""
KIND = f"{REFUSED}{{"
"""Prefix of the counters of refused requests by kind."""
LEAST = 1e-6
"""A sum may go back by less than this, as it was written as text."""
LONGEST_INTERVAL_NS = 150_000_000_000
"""Samples further apart than this do not count as consecutive."""


@lru_cache(maxsize=4_096)
def _is_counted(name: str) -> bool:
    """Whether increases of a number in ``EngineSample.others`` are added up."""
    return name in OTHERS or name.startswith(LABELLED)


class SampleMoments:
    """Rows of WIDTH numbers in order of time, in one growing array."""

    def __init__(self) -> None:
        self._rows: Floats = np.empty((CHUNK, WIDTH))
        self._first = self._end = 0

    @property
    def rows(self) -> Floats:
        return self._rows[self._first : self._end]

    def append(self, row: Floats) -> None:
        if self._end == len(self._rows):
            rows = self.rows
            room = np.empty((2 * max(len(rows), CHUNK), WIDTH))
            room[: len(rows)] = rows
            self._rows, self._first, self._end = room, 0, len(rows)
        self._rows[self._end] = row
        self._end += 1

    def extend(self, rows: Iterable[Floats]) -> None:
        for row in rows:
            self.append(row)

    def drop(self, count: int) -> None:
        self._first += count

    def __len__(self) -> int:
        return self._end - self._first


class SessionMoments:
    """The moments of a whole session, further apart the longer it is."""

    def __init__(self) -> None:
        self._held = SampleMoments()
        self._apart_ns = 0.0
        self._packed: list[bytes] = []
        """Packed chunks that do not change until all are thinned out."""

    @property
    def rows(self) -> Floats:
        return self._held.rows

    def append(self, row: Floats) -> None:
        """Add a row, merged with the latest if that is close to its predecessor."""
        rows = self._held.rows
        if len(rows) > 1 and row[TIME] - rows[-2][TIME] < self._apart_ns:
            rows[-1] = _joined(rows[-1], row)
        else:
            self._held.append(row)
        if len(self._held) > MOST_SESSION_ROWS:
            self._thin()

    def _thin(self) -> None:
        rows = self._held.rows
        span_ns = float(rows[-1][TIME] - rows[0][TIME])
        self._apart_ns = max(2 * self._apart_ns, 2 * span_ns / MOST_SESSION_ROWS)
        self._held, self._packed = SampleMoments(), []
        for row in rows:
            self.append(row)

    def saved(self, parts: Parts) -> tuple[float, list[int]]:
        """Return the state for a checkpoint; full chunks are in lasting ``parts``."""
        done = (len(self.rows) - 1) // CHUNK
        for at in range(len(self._packed) * CHUNK, done * CHUNK, CHUNK):
            self._packed.append(_packed(self.rows[at : at + CHUNK]))
        numbers = [parts.add(each, lasts=True) for each in self._packed]
        if len(self.rows):
            latest = _packed(self.rows[done * CHUNK :])
            numbers.append(parts.add(latest, lasts=False))
        return self._apart_ns, numbers

    def restore(self, saved: tuple[float, list[int]], parts: WrittenParts) -> None:
        self._apart_ns, numbers = saved
        packed = (parts.get(number, bytes) for number in numbers)
        for each in packed:
            self._held.extend(_unpacked(each, WIDTH))


def _joined(before: Floats, after: Floats) -> Floats:
    """Merge two moments: the later one, with the highest running and waiting."""
    joined = after.copy()
    highest = slice(RUNNING, KV_USAGE)
    joined[highest] = np.fmax(before[highest], after[highest])
    return joined


class Group(msgspec.Struct, array_like=True):
    """Columns of a histogram with these bounds: its sum, then its counts."""

    key: str
    bounds: list[float]
    start: int


class Sealed(NamedTuple):
    """A packed chunk of rows that does not change."""

    totals: bytes
    width: int
    moments: bytes
    """The packed moments of these rows."""


class SavedCounted(msgspec.Struct, array_like=True):
    """A Counted as checkpoints keep it."""

    names: dict[str, int]
    groups: list[Group]
    seen: bytes
    total: bytes
    charted: bytes
    watched_ns: float
    charted_ns: float
    fresh: bool
    blank: bool
    missed: bool
    sealed: list[tuple[int, int, int]]
    """For each chunk: part number of the rows, their width, part number of the moments.
    """
    open_width: int
    open: bytes
    moments: bytes
    """The packed moments of the open rows."""
    session: tuple[float, list[int]]


class Counted:
    """Totals of one rank of a server since first contact, at each recent moment."""

    def __init__(self) -> None:
        self.session = SessionMoments()
        self._moments = SampleMoments()
        self._increases: dict[int | None, tuple[tuple[float, float], Increase]] = {}
        """The latest increase of each span, with the samples it lies between."""
        self._names: dict[str, int] = {}
        self.refusals: dict[str, int] = {}
        """Columns of refused requests, by name."""
        self._no_progress: list[int] = []
        """Columns that grow though a server is stalled."""
        self._groups: dict[str, Group] = {}
        """The latest bounds of each histogram."""
        self._all_groups: list[Group] = []
        self._seen: Floats = np.empty(0)
        """The latest value of each column since the last restart; NaN before the first.
        """
        self._total: Floats = np.empty(0)
        self._charted: Floats = np.full(WIDTH - FIRST_COUNT, np.nan)
        self._watched_ns = 0.0
        self._charted_ns = 0.0
        self._fresh = True
        self._blank = False
        """Whether nothing was counted yet at the first sample after the last restart.
        """
        self._missed = False
        self.added: Floats = np.empty(0)
        """Increases of the latest sample, of counters that tell progress."""
        self._sealed: deque[Sealed] = deque()
        self._open: list[Floats] = []
        self._unpacked: tuple[bytes, Floats] | None = None

    # Readings.

    def begin_anew(self) -> None:
        """Mark a restart: the next sample only says where its counts begin."""
        self._fresh = True

    def miss(self) -> None:
        """Mark a failed scrape: the time until the next sample is not watched."""
        self._missed = True

    def take(self, sample: EngineSample) -> bool:
        """Add a sample unless it is old; return whether the server restarted."""
        before_ns = self.last_ns
        if before_ns is not None and sample.t_ns <= before_ns:
            return False
        now = self._columns(sample)
        known = ~np.isnan(now)
        seen = _widened(self._seen, len(now), np.nan)
        began = self._fresh or bool((now - seen < -LEAST).any())
        if began:
            self._blank = not bool((now[known] > 0).any())
            seen = np.where(known, now, np.nan)
        before = self._before(now, seen, known & np.isnan(seen))
        self.added = np.maximum(np.nan_to_num(now - before), 0.0)
        self._seen = np.where(known, now, seen)
        self._total = _widened(self._total, len(now), 0.0) + self.added
        self._moment(sample, before_ns, began=began)
        self.added[self._no_progress] = 0.0
        restarted = began and not self._fresh
        self._fresh = self._missed = False
        return restarted

    def _before(self, now: Floats, seen: Floats, newborn: Bools) -> Floats:
        """Return the earlier totals; for columns that are new, those to compare with.

        A server that had counted nothing counts from zero, and so does a finish reason
        or a position of drafts not seen before; for other columns the increase is
        unknown.
        """
        if not newborn.any():
            return seen
        before = np.where(newborn, 0.0 if self._blank else now, seen)
        for name, column in self._names.items():
            if newborn[column] and name.startswith((WAY, BY_POSITION, KIND)):
                before[column] = 0.0
        return before

    def _moment(
        self, sample: EngineSample, before_ns: int | None, *, began: bool
    ) -> None:
        row = np.full(WIDTH, np.nan)
        gauges = (sample.running, sample.waiting, sample.kv_usage)
        row[TIME] = sample.t_ns
        for place, gauge in enumerate(gauges, RUNNING):
            if gauge is not None:
                row[place] = gauge
        took_ns = 0 if before_ns is None else sample.t_ns - before_ns
        followed = not began and not self._missed and took_ns < LONGEST_INTERVAL_NS
        if not began:
            self._watched_ns += took_ns
        self._charted_ns += took_ns if followed else 0
        for place, column in self._places():
            if np.isnan(self._charted[place]):
                self._charted[place] = 0.0
            if followed:
                self._charted[place] += self.added[column]
        row[FOLLOWED] = self._charted_ns
        row[FIRST_COUNT:] = self._charted
        self._moments.append(row)
        self.session.append(row)
        self._open.append(np.concatenate(([self._watched_ns], self._total)))
        if len(self._open) == CHUNK:
            self._seal()

    def _places(self) -> Iterable[tuple[int, int]]:
        """Yield the place of each charted total, and its column."""
        for place, name in enumerate(CHARTED):
            if (column := self._names.get(name)) is not None:
                yield place, column
        for place, key in enumerate(LATENCIES):
            if (group := self._groups.get(key)) is not None:
                at = len(CHARTED) + 2 * place
                yield at, group.start
                yield at + 1, group.start + len(group.bounds) + 1

    def _columns(self, sample: EngineSample) -> Floats:
        """Return the values of a sample in the order of the columns, new ones last."""
        scalars = [(name, getattr(sample, name)) for name in COUNTERS]
        ended = ((f"{WAY}{how}", count) for how, count in sample.finished.items())
        speculated = (
            (name, value)
            for name, value in speculation_in(sample.others).items()
            if name not in GAUGED
        )
        others = (
            each
            for each in sample.others.items()
            if each[0].startswith(KIND) or _is_counted(each[0])
        )
        pairs = [
            (column, float(value))
            for name, value in chain(scalars, ended, speculated, others)
            if value is not None and (column := self._named(name)) is not None
        ]
        groups = [
            (group.start, each)
            for key, each in sample.histograms.items()
            if (group := self._grouped(key, each)) is not None
        ]
        now = np.full(self._width, np.nan)
        for column, value in pairs:
            now[column] = value
        for start, each in groups:
            now[start] = each.sum
            now[start + 1 : start + 1 + len(each.counts)] = each.counts
        now[~((now >= 0) & (now < np.inf))] = np.nan
        return now

    def _named(self, name: str) -> int | None:
        column = self._names.get(name)
        if column is None and self._width < MOST_COLUMNS:
            column = self._names[name] = self._width
            self._sort(name, column)
        return column

    def _sort(self, name: str, column: int) -> None:
        """Say of a column what it counts: refused requests, or progress, or neither."""
        if name.startswith(KIND):
            self.refusals[name] = column
        if name in self.refusals or _is_counted(name):
            self._no_progress.append(column)

    def _grouped(self, key: str, histogram: Histogram) -> Group | None:
        group = self._groups.get(key)
        if group is None or group.bounds != histogram.bounds:
            if not is_sound(histogram.bounds, histogram.counts):
                return None
            if self._width > MOST_COLUMNS:
                return None
            groups = (g for g in self._all_groups if g.key == key)
            group = next((g for g in groups if g.bounds == histogram.bounds), None)
            if group is None:
                group = Group(key, [*histogram.bounds], self._width)
                self._all_groups.append(group)
            self._groups[key] = group
        return group if len(histogram.counts) == len(group.bounds) + 1 else None

    @property
    def _width(self) -> int:
        groups = self._all_groups
        after = groups[-1].start + len(groups[-1].bounds) + 2 if groups else 0
        return max(after, 1 + max(self._names.values(), default=-1))

    def _seal(self) -> None:
        """Pack the open rows, and drop chunks that are out of every window."""
        rows = self._moments.rows
        totals, moments = _packed(self._open), _packed(rows[-CHUNK:])
        self._sealed.append(Sealed(totals, len(self._open[-1]), moments))
        self._open = []
        oldest = rows[-1][TIME] - KEPT_NS - LONGEST_INTERVAL_NS
        while len(self._sealed) > 1 and self._moments.rows[CHUNK][TIME] < oldest:
            self._moments.drop(CHUNK)
            self._sealed.popleft()

    # Queries.

    @property
    def last_ns(self) -> int | None:
        return int(self._moments.rows[-1][TIME]) if len(self._moments) else None

    @property
    def recent(self) -> Floats:
        return self._moments.rows

    def within(self, now_ns: int, span_ns: int | None) -> "Increase | None":
        """Return the increase in the window that ends now; None without two samples.

        The first sample inside is the one to compare with. A window shorter than two
        and a half scrape intervals is extended to that.
        """
        rows = self._moments.rows
        if not len(rows):
            return None
        first = 0 if span_ns is None else self._first_within(now_ns, span_ns)
        if span_ns is not None and first >= len(rows) - 1:
            return None
        begins_ns = -1.0 if span_ns is None else rows[first, TIME]
        between = begins_ns, rows[-1, TIME]
        latest = self._increases.get(span_ns)
        if latest is None or latest[0] != between:
            latest = self._increases[span_ns] = between, self._between(first, span_ns)
        return latest[1]

    def _first_within(self, now_ns: int, span_ns: int) -> int:
        """Return the first row in the window; the number of rows if under two."""
        rows = self._moments.rows
        if len(rows) < 2:
            return len(rows)
        interval_ns = min(rows[-1, TIME] - rows[-2, TIME], LONGEST_INTERVAL_NS)
        since_ns = now_ns - max(span_ns, 2.5 * interval_ns)
        return int(rows[:, TIME].searchsorted(since_ns, "right"))

    def _between(self, first: int, span_ns: int | None) -> "Increase":
        rows = self._moments.rows
        latest = self._totals(len(rows) - 1)
        begin = (np.zeros(1), self.session.rows[0])
        if span_ns is not None:
            begin = (self._totals(first), rows[first])
        return Increase(self, begin, (latest, rows[-1]))

    def _totals(self, row: int) -> Floats:
        """Return the totals at one of the kept rows, unpacked if need be."""
        number, place = divmod(row, CHUNK)
        if number == len(self._sealed):
            return self._open[place]
        packed, width, _ = self._sealed[number]
        if self._unpacked is None or self._unpacked[0] is not packed:
            self._unpacked = packed, _unpacked(packed, width)
        rows: Floats = self._unpacked[1][place]
        return rows

    @property
    def first_ns(self) -> int | None:
        rows = self.session.rows
        return int(rows[0][TIME]) if len(rows) else None

    def just_added(self, name: str) -> float:
        """Return what the latest sample added to a counter."""
        column = self._names.get(name)
        known = column is not None and column < len(self.added)
        return float(self.added[column]) if known else 0.0

    @property
    def speculates(self) -> bool:
        """Whether the server speculates: by position, or with a draft so far.

        Some export counters of drafts, at zero, though they draft nothing.
        """
        column = self._names.get("drafted_tokens")
        if column is None:
            return False
        return f"{BY_POSITION}{{0}}" in self._names or bool(self._seen[column] > 0)

    @property
    def has_refused(self) -> bool:
        """Whether any request was refused in the session."""
        return any(self._total[column] for column in self.refusals.values())

    @property
    def names(self) -> Mapping[str, int]:
        """Columns of the counters, by name."""
        return self._names

    def groups_of(self, key: str) -> list[Group]:
        """Return the columns of a histogram, once for each set of bounds it has had."""
        return [group for group in self._all_groups if group.key == key]

    @property
    def keys(self) -> set[str]:
        """Names of all histograms in the samples so far."""
        return {*self._groups}

    # Checkpoints.

    def saved(self, parts: Parts) -> SavedCounted:
        """Return the state for a checkpoint; full chunks are in lasting ``parts``."""
        rows = self._moments.rows
        return SavedCounted(
            names=self._names,
            groups=self._all_groups,
            seen=zlib.compress(self._seen.tobytes(), 1),
            total=zlib.compress(self._total.tobytes(), 1),
            charted=self._charted.tobytes(),
            watched_ns=self._watched_ns,
            charted_ns=self._charted_ns,
            fresh=self._fresh,
            blank=self._blank,
            missed=self._missed,
            sealed=[
                (
                    parts.add(each.totals, lasts=True),
                    each.width,
                    parts.add(each.moments, lasts=True),
                )
                for each in self._sealed
            ],
            open_width=len(self._open[-1]) if self._open else 0,
            open=_packed(self._open) if self._open else b"",
            moments=_packed(rows[-len(self._open) :]) if self._open else b"",
            session=self.session.saved(parts),
        )

    def restore(self, saved: SavedCounted, parts: WrittenParts) -> None:
        self._names = saved.names
        for name, column in saved.names.items():
            self._sort(name, column)
        self._all_groups = saved.groups
        self._groups = {group.key: group for group in saved.groups}
        self._seen = np.frombuffer(zlib.decompress(saved.seen))
        self._total = np.frombuffer(zlib.decompress(saved.total))
        self._charted = np.frombuffer(saved.charted).copy()
        self._watched_ns, self._charted_ns = saved.watched_ns, saved.charted_ns
        self._fresh, self._blank = saved.fresh, saved.blank
        self._missed = saved.missed
        for totals, width, moments in saved.sealed:
            each = Sealed(parts.get(totals, bytes), width, parts.get(moments, bytes))
            self._sealed.append(each)
            self._moments.extend(_unpacked(each.moments, WIDTH))
        if saved.open:
            self._open = [*_unpacked(saved.open, saved.open_width)]
            self._moments.extend(_unpacked(saved.moments, WIDTH))
        self.session.restore(saved.session, parts)


class Increase:
    """Increase of one rank's counters and histograms between two of its samples."""

    __slots__ = (
        "_buckets",
        "_counted",
        "_gained",
        "finished",
        "in_flight",
        "refused",
        "watched_ns",
    )

    def __init__(
        self,
        counted: Counted,
        first: tuple[Floats, Floats],
        last: tuple[Floats, Floats],
    ) -> None:
        """Subtract the totals and the moments of two samples."""
        gained = last[0] - _widened(first[0], len(last[0]), 0.0)
        self._counted = counted
        self._gained = gained[1:]
        self.watched_ns = float(gained[0])
        """Time between the samples, without time between restarts."""
        work = slice(RUNNING, KV_USAGE)
        self.in_flight = float((last[1][work] - first[1][work]).sum())
        """Increase of running and waiting requests; NaN where unknown."""
        self.finished = {
            name.removeprefix(WAY): self.of(name) or 0
            for name in counted.names
            if name.startswith(WAY)
        }
        """Ended requests by finish reason."""
        self.refused = {
            name[len(KIND) : -1]: self.of(name) or 0 for name in counted.refusals
        }
        """Refused requests by reason, or by route and status."""
        self._buckets: dict[str, list[Buckets]] = {}

    @property
    def names(self) -> Iterable[str]:
        """Names of the counters."""
        return self._counted.names

    def total(self, name: str) -> float | None:
        """Return the increase of a counter; None where the server lacks it."""
        column = self._counted.names.get(name)
        if column is None or column >= len(self._gained):
            return None
        return float(self._gained[column])

    def of(self, name: str) -> int | None:
        """Return the increase of a counter of whole numbers."""
        total = self.total(name)
        return None if total is None else round(total)

    @property
    def accepted_by_position(self) -> list[int]:
        """Drafted tokens accepted, by position; empty where the server lacks it."""
        accepted: list[int] = []
        while (each := self.of(f"{BY_POSITION}{{{len(accepted)}}}")) is not None:
            accepted.append(each)
        return accepted

    def count(self, key: str) -> int | None:
        """Return how many values a histogram gained; None if the server lacks it."""
        if key not in self._counted.keys:
            return None
        return sum(each.n for each in self.histograms(key))

    def histograms(self, key: str) -> list[Buckets]:
        """Return the new values of a histogram: several if its bounds changed."""
        buckets = self._buckets.get(key)
        if buckets is None:
            buckets = self._buckets[key] = self._histograms(key)
        return buckets

    def _histograms(self, key: str) -> list[Buckets]:
        buckets = []
        for group in self._counted.groups_of(key):
            counts = group.start + 1
            upto = self._gained[counts : counts + len(group.bounds) + 1]
            if len(upto) and upto[-1] > 0:
                rising = np.maximum.accumulate(upto)
                total = float(self._gained[group.start])
                buckets.append(Buckets(tuple(group.bounds), rising, total))
        return buckets


def _widened(row: Floats, width: int, filled: float) -> Floats:
    if len(row) >= width:
        return row
    return np.concatenate((row, np.full(width - len(row), filled)))


def _packed(rows: Iterable[Floats]) -> bytes:
    """Compress rows, each as its difference from the one before."""
    every = [*rows]
    width = len(every[-1])
    whole = np.array([_widened(each, width, 0.0) for each in every]).view(np.int64)
    whole[1:] ^= whole[:-1].copy()
    return zlib.compress(whole.tobytes(), 1)


def _unpacked(packed: bytes, width: int) -> Floats:
    differences = np.frombuffer(zlib.decompress(packed), np.int64).reshape(-1, width)
    return np.bitwise_xor.accumulate(differences, axis=0).view(np.float64)
