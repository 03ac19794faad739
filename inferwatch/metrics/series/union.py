"""The union of spans of time: what overlaps counts once."""

from collections.abc import Iterable

Span = tuple[int, int]
"""Start and end, in nanoseconds."""


def united(spans: Iterable[Span]) -> list[Span]:
    """Return spans in order of time, those that overlap as one.

    >>> united([(8, 9), (0, 4), (3, 5), (5, 6), (0, 0)])
    [(0, 5), (5, 6), (8, 9)]
    """
    parts: list[Span] = []
    for start, end in sorted(spans):
        if parts and (start < parts[-1][1] or start == parts[-1][0]):
            parts[-1] = parts[-1][0], max(parts[-1][1], end)
        else:
            parts.append((start, end))
    return parts


def union_ns(spans: Iterable[Span], start_ns: int, end_ns: int) -> int:
    """Return how long at least one of the spans was under way between two moments.

    >>> union_ns([(0, 4), (3, 5), (8, 20)], 1, 10)
    6
    """
    return sum(
        max(0, min(end, end_ns) - max(start, start_ns)) for start, end in united(spans)
    )
