"""The phases of one request, each as long as it took."""

from collections.abc import Sequence

from inferwatch.renderables.runs import Line, Run

Phase = tuple[str, float | None, str]
"""Name, seconds, ink."""


def waterfall(phases: Sequence[Phase], width: int, glyphs: str = "█") -> Line:
    """One bar of all known phases; each that took any time gets at least a cell."""
    known = [(phase, index) for index, phase in enumerate(phases) if phase[1]]
    total = sum(seconds or 0 for (_, seconds, _), _ in known)
    if not total or width < len(known):
        return (Run("─" * width, "faint"),)
    sizes = _sizes([seconds or 0 for (_, seconds, _), _ in known], total, width)
    return tuple(
        Run(glyphs[index % len(glyphs)] * size, ink)
        for ((_, _, ink), index), size in zip(known, sizes, strict=True)
    )


def _sizes(seconds: Sequence[float], total: float, width: int) -> list[int]:
    sizes = [max(round(each / total * width), 1) for each in seconds]
    while (excess := sum(sizes) - width) != 0:
        longest = sizes.index(max(sizes))
        sizes[longest] -= max(min(excess, sizes[longest] - 1), -width)
    return sizes
