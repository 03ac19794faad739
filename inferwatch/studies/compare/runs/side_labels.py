"""What the runs of a side are called together."""

import re
from collections.abc import Sequence

BETWEEN = " -_.:/#"
LIKE_AN_ID = re.compile(r"s\d+")


def label_of(runs: Sequence[str], said: str | None = None) -> str:
    """A name of its own, or what the names of its runs begin with; and how many.

    Args:
        runs: Their names, each another.
        said: What people call them: a tag, a directory.
    """
    if len(runs) == 1:
        return runs[0]
    return f"{said or _common(runs) or _ends(runs)} ×{len(runs)}"


def distinct(labels: Sequence[str], runs: Sequence[Sequence[str]]) -> list[str]:
    """The labels; where two are the same, from the first to the last of their runs."""
    return [
        label
        if list(labels).count(label) == 1
        else (f"{_ends(names)} ×{len(names)}" if len(names) > 1 else label)
        for label, names in zip(labels, runs, strict=True)
    ]


def _ends(runs: Sequence[str]) -> str:
    return f"{runs[0]} … {runs[-1]}"


def _common(runs: Sequence[str]) -> str | None:
    """``before`` of before1 and before2; None where words would be cut."""
    if any(LIKE_AN_ID.fullmatch(run) for run in runs):
        return None
    begun = _alike(runs)
    rests = [run[len(begun) :] for run in runs]
    if any(rest[:1].isdigit() for rest in rests):
        begun = begun.rstrip("0123456789")
    elif any(rest[:1].isalpha() for rest in rests) and begun[-1:].isalnum():
        begun = begun[: max(begun.rfind(each) for each in BETWEEN) + 1]
    return begun.rstrip(BETWEEN) or None


def _alike(runs: Sequence[str]) -> str:
    """What all begin with, letter by letter."""
    first, last = min(runs), max(runs)
    places = range(len(first) + 1)
    return next(first[:n] for n in reversed(places) if last.startswith(first[:n]))
