"""The phases of one request, each as long as it took."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from inferwatch.ui.shared.renderables.text import Line, TextRun

Phase = tuple[str, float | None, str]
"""Name, seconds, ink."""


def waterfall(phases: Sequence[Phase], width: int, glyphs: str = "█") -> Line:
    """One bar of all known phases, true to half a cell.

    >>> [run.text for run in waterfall([("a", 1, ""), ("b", 3, "")], 8, "░█")]
    ['░░', '██████']
    """
    ends = list(accumulate((seconds or 0.0 for _, seconds, _ in phases), initial=0.0))
    if not ends[-1]:
        return ()
    edges = [round(end / ends[-1] * width) for end in ends]
    return tuple(
        TextRun(glyphs[index % len(glyphs)] * (high - low), ink)
        for index, ((_, _, ink), (low, high)) in enumerate(
            zip(phases, pairwise(edges), strict=True)
        )
        if high > low
    )
