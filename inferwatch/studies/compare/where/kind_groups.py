"""Groups both sides' requests by prompt length, class or turn, to compare them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inferwatch.metrics.series.quantiles import Ints
from inferwatch.studies.compare.reading.request_kinds import (
    NOT_KNOWN,
    Cut,
    KindCounts,
    most_tokens,
)
from inferwatch.studies.compare.where.measure import FEWEST

UNLABELLED = 0.05
"""With a larger share of unlabelled requests a property is not used."""
FEWEST_SHARE = 0.005
"""Smallest share of a side's requests for a group of its own."""
MOST_GROUPS = 10
LABELS = 64


@dataclass(frozen=True, slots=True)
class KindPart:
    """One or several groups with a common name, such as ``over 1k``."""

    groups: tuple[int, ...]
    name: str


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups that one property divides both sides' requests into."""

    cut: Cut
    group_of: tuple[Ints, ...]
    """For each run, A's before B's: the group of each label, or -1."""
    count: int
    parts: tuple[KindPart, ...]


def groups_of(
    cut: Cut, a: Sequence[KindCounts], b: Sequence[KindCounts]
) -> "Groups | None":
    """Groups of requests by ``cut``; None if fewer than two are large enough."""
    if cut is Cut.CLASS:
        return _classes(a, b)
    n_a, n_b = _numbers(cut, a), _numbers(cut, b)
    for numbers in (n_a, n_b):
        if numbers[NOT_KNOWN] > UNLABELLED * numbers.sum():
            return None
    tops = _tops(n_a, n_b)
    if len(tops) < 2:
        return None
    group = np.searchsorted(tops, np.arange(LABELS))
    group = np.minimum(group, len(tops) - 1)
    group[NOT_KNOWN] = -1
    name = _prompt_name if cut is Cut.PROMPT else _turn_name
    ranges = [
        (first, last)
        for first in range(len(tops))
        for last in range(first, len(tops))
        if last - first < len(tops) - 1
    ]
    return Groups(
        cut=cut,
        group_of=(group,) * (len(a) + len(b)),
        count=len(tops),
        parts=tuple(
            KindPart(tuple(range(first, last + 1)), name(tops, first, last))
            for first, last in ranges
        ),
    )


def _numbers(cut: Cut, runs: Sequence[KindCounts]) -> npt.NDArray[np.float64]:
    counts = [np.bincount(r.labels[cut], r.counts, minlength=LABELS) for r in runs]
    return np.asarray(np.sum(counts, axis=0), np.float64)


def _tops(n_a: npt.NDArray[np.float64], n_b: npt.NDArray[np.float64]) -> list[int]:
    """The last label of each group; neighbours merge until each is large enough."""
    least_a, least_b = (max(FEWEST, FEWEST_SHARE * n.sum()) for n in (n_a, n_b))
    tops: list[int] = []
    a = b = 0.0
    for label in range(1, LABELS):
        a, b = a + n_a[label], b + n_b[label]
        if a >= least_a and b >= least_b:
            tops.append(label)
            a = b = 0.0
    if tops:
        tops[-1] = max(tops[-1], int(np.flatnonzero(n_a + n_b)[-1]))
    while len(tops) > MOST_GROUPS:
        del tops[0]
    return tops


def _prompt_name(tops: Sequence[int], first: int, last: int) -> str:
    if last == len(tops) - 1:
        return f"over {_tokens(tops[first - 1])}"
    if first == 0:
        return f"up to {_tokens(tops[last])}"
    return f"{_tokens(tops[first - 1])} to {_tokens(tops[last])}"


def _tokens(label: int) -> str:
    """A number of tokens as text, such as ``64`` or ``1k``; always a power of two."""
    most = most_tokens(label)
    for unit, size in (("M", 1 << 20), ("k", 1 << 10)):
        if most >= size:
            return f"{most // size}{unit}"
    return str(most)


def _turn_name(tops: Sequence[int], first: int, last: int) -> str:
    begin = tops[first - 1] + 1 if first else 1
    if last == len(tops) - 1:
        return f"turns from {begin} on"
    if begin == tops[last]:
        return f"turn {begin}"
    return (
        f"turns up to {tops[last]}" if begin == 1 else f"turns {begin} to {tops[last]}"
    )


def _classes(a: Sequence[KindCounts], b: Sequence[KindCounts]) -> Groups | None:
    """One group per class with enough requests, and one unnamed group for the rest."""
    n_a, n_b = _by_name(a), _by_name(b)
    names = [
        name
        for name in sorted(n_a.keys() & n_b.keys() - {""})
        if min(n_a[name], n_b[name]) >= FEWEST
    ][:MOST_GROUPS]
    others = any(n.keys() - set(names) for n in (n_a, n_b))
    if len(names) + others < 2 or not names:
        return None
    place = {name: index for index, name in enumerate(names)}
    return Groups(
        cut=Cut.CLASS,
        group_of=tuple(
            _padded([place.get(name, len(names)) for name in run.classes])
            for run in (*a, *b)
        ),
        count=len(names) + 1,
        parts=tuple(KindPart((index,), name) for name, index in place.items()),
    )


def _by_name(runs: Sequence[KindCounts]) -> dict[str, float]:
    counts: dict[str, float] = {}
    for run in runs:
        for name, n in _counted(run):
            counts[name] = counts.get(name, 0.0) + n
    return counts


def _counted(run: KindCounts) -> Iterator[tuple[str, float]]:
    numbers = np.bincount(run.labels[Cut.CLASS], run.counts, minlength=1)
    for label in np.flatnonzero(numbers):
        yield run.classes[label], float(numbers[label])


def _padded(groups: Sequence[int]) -> Ints:
    return np.array([*groups, *[-1] * (LABELS - len(groups))], np.int64)
