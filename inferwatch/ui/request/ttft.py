"""The time to first token as one bar, and a legend that says what each part took."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from inferwatch.formatting import about, format_durations, format_share
from inferwatch.metrics.causes.cause import Parts
from inferwatch.ui.kit.renderables.text import Line, TextRun, cells
from inferwatch.ui.request.words import CAUSES, ESTIMATES

NAME_WIDTH = 20
ENTRY_WIDTH = 2 + NAME_WIDTH + 9 + 6
GAP = 3


def ttft_bar(parts: Parts, width: int) -> Line:
    """Each part as long as it took; a part too short for a cell is in the legend only.

    >>> from inferwatch.metrics.causes.cause import Cause
    >>> parts = ((Cause.API, 1.0), (Cause.QUEUE_KV, 2.0), (Cause.PREFILL, 1.0))
    >>> "".join(run.text for run in ttft_bar(parts, 8))
    '··▒▒▒▒██'
    """
    ends = list(accumulate((seconds for _, seconds in parts), initial=0.0))
    if not ends[-1]:
        return ()
    edges = [round(end / ends[-1] * width) for end in ends]
    return tuple(
        TextRun(CAUSES[cause].glyph * (high - low), CAUSES[cause].ink)
        for (cause, _), (low, high) in zip(parts, pairwise(edges), strict=True)
        if high > low
    )


def ttft_legend(parts: Parts, width: int, most_rows: int = 9) -> list[Line]:
    """Glyph, cause, seconds and share of each, in as many columns as there is room.

    Where there are rows for some only, the smallest stand together.
    """
    total_s = sum(seconds for _, seconds in parts)
    if not total_s or most_rows < 1:
        return []
    columns = max((width + GAP) // (ENTRY_WIDTH + GAP), 1)
    room = columns * most_rows
    shown = parts
    if len(parts) > room:
        largest = sorted(parts, key=lambda part: -part[1])[: room - 1]
        shown = tuple(part for part in parts if part in largest)
    rest_s = total_s - sum(seconds for _, seconds in shown)
    seconds_ = [seconds for _, seconds in shown]
    if len(shown) < len(parts):
        seconds_.append(rest_s)
    texts = format_durations(seconds_)
    entries = [
        _entry(*CAUSES[cause], text, seconds / total_s, estimated=cause in ESTIMATES)
        for (cause, seconds), text in zip(shown, texts, strict=False)
    ]
    if len(shown) < len(parts):
        name = f"{len(parts) - len(shown)} smaller ones"
        share = rest_s / total_s
        entries.append(_entry(" ", "", name, texts[-1], share, estimated=False))
    rows = -(-len(entries) // columns)
    return [_row(entries[row::rows]) for row in range(rows)]


def _entry(
    glyph: str, ink: str, name: str, text: str, share: float, *, estimated: bool
) -> Line:
    shown = format_share(share).rjust(6)
    return (
        TextRun(f"{glyph} ", ink),
        cells(name, NAME_WIDTH, "muted"),
        TextRun(about(text) if estimated else text),
        TextRun(about(shown) if estimated else shown, "muted"),
    )


def _row(entries: Sequence[Line]) -> Line:
    line: list[TextRun] = []
    for place, entry in enumerate(entries):
        if place:
            line.append(TextRun(" " * GAP))
        line += entry
    return tuple(line)
