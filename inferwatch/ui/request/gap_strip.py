"""The gaps between the tokens of a request, one column each, late ones marked."""

from collections import Counter
from collections.abc import Sequence
from textwrap import wrap

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import format_duration
from inferwatch.metrics.causes.cause import SPIKE_FACTOR, Cause
from inferwatch.metrics.story.story import Spike
from inferwatch.ui.kit.renderables.plot import axis_top, tick_text
from inferwatch.ui.kit.renderables.text import Line, TextRun, join, ruled, width_of
from inferwatch.ui.kit.renderables.time_track import bars
from inferwatch.ui.request.axis import BLANK, Cell, pointed, row
from inferwatch.ui.request.moments import GapColumns, StoryMoments
from inferwatch.ui.request.styles import LATE
from inferwatch.visible import visible

LEVEL = "╌"
NAMED_FROM = 100
"""Least width for names of causes in the list of late tokens."""
EVIDENCE_LEAST = 12


def gap_heading(moments: StoryMoments, columns: GapColumns, width: int) -> Line:
    """Return the strip's heading: number of gaps, gaps a column, and percentiles."""
    range_text = f"{len(moments.gaps):,}"
    if len(columns.worst) < len(moments.gaps) and columns.fold == 1:
        first, last = columns.first + 1, columns.first + len(columns.worst)
        range_text = f"{first:,} to {last:,} of {range_text}"
    if columns.fold > 1:
        range_text += f", the worst of {columns.fold:,} a column"
    aside = TextRun(f"  {range_text}", "muted")
    levels, late = _level_facts(moments), late_legend(moments)
    name = TextRun("gaps between tokens", "strong")
    choices = (
        ((name, aside), join((late, *levels), "  ")),
        ((name, aside), join(levels, "  ")),
        ((TextRun("gaps", "strong"), aside), join(levels, "  ")),
        ((TextRun("gaps", "strong"), aside), join(levels[:2], "  ")),
    )
    fits = (
        each for each in choices if width_of(each[0]) + width_of(each[1]) + 8 <= width
    )
    title, right = next(fits, choices[-1])
    return ruled(title, right, width)


def legend_is_below(moments: StoryMoments, columns: GapColumns, width: int) -> bool:
    """Return True if the heading has no room for the legend of late tokens."""
    late = late_legend(moments)
    heading = gap_heading(moments, columns, width)
    return bool(late) and not set(late) <= set(heading)


def _level_facts(moments: StoryMoments) -> list[Line]:
    """Return median, p99 and maximum of the gaps between tokens."""
    story = moments.story
    most_ns = int(moments.gaps.max()) if len(moments.gaps) else None
    levels = (("p50", story.gap_p50_ns), ("p99", story.gap_p99_ns), ("max", most_ns))
    return [
        (TextRun(f"{name} ", "muted"), TextRun(_text(value_ns)))
        for name, value_ns in levels
        if value_ns is not None
    ]


def gap_rows(
    moments: StoryMoments, columns: GapColumns, room: int, rows: int, cursor: int | None
) -> list[Line]:
    """Return the gaps as bars from the top, and a row of letters under late ones.

    The scale has room for a late gap. ``cursor`` is the column of the time cursor.
    """
    gaps_s = moments.gaps[columns.worst] / NS_PER_S
    usual_s = (moments.median_ns or 0) * SPIKE_FACTOR / NS_PER_S
    top_s = axis_top(max(float(gaps_s.max()), usual_s))
    late = _late(moments, columns)
    inks = [f"{LATE[late[i]].ink}" if i in late else "decode" for i in range(room)]
    levels = _levels(moments, top_s, rows)
    lines: list[Line] = []
    for height, text in zip(
        reversed(range(rows)), bars(gaps_s.tolist(), rows, top_s), strict=True
    ):
        cells: list[Cell] = list(zip(text, inks, strict=False))
        named = levels.get(height, "")
        blank = sum(cell[0] == " " for cell in cells)
        if named and blank > len(cells) // 2:  # a line among bars is hard to see
            cells = [cell if cell[0] != " " else (LEVEL, "faint") for cell in cells]
        cells += [BLANK] * (room - len(cells))
        label = tick_text(top_s, "s") if height == rows - 1 else ""
        label = "0" if height == 0 and rows > 1 else label
        lines.append(row(label, pointed(cells, cursor), named))
    marks: list[Cell] = [BLANK] * room
    if not late:
        _number(marks, columns)
    for column, cause in late.items():
        marks[column] = (LATE[cause].glyph, f"{LATE[cause].ink} bold")
    if cursor is not None and cursor not in late:
        marks[cursor] = ("▲", "accent")
    elif cursor is not None:
        marks[cursor] = (marks[cursor][0], f"{marks[cursor][1]} chosen")
    lines.append(row("late" if late else "token", marks, ""))
    return lines


def _number(marks: list[Cell], columns: GapColumns) -> None:
    """Write the numbers of the tokens that end the first and the last gap."""
    first, last = columns.first + 2, int(columns.edges[-1]) + 1
    used = len(columns.worst)
    for text, at in ((f"{first:,}", 0), (f"{last:,}", used - len(f"{last:,}"))):
        if at >= 0 and all(cell == BLANK for cell in marks[at : at + len(text) + 1]):
            marks[at : at + len(text)] = [(letter, "faint") for letter in text]


def late_legend(moments: StoryMoments) -> Line:
    """Return the causes of late tokens with their letters and counts."""
    return join(late_entries(moments), "  ")


def late_entries(moments: StoryMoments) -> list[Line]:
    """Return the legend's entries for late tokens, the most frequent cause first."""
    counts = Counter(spike.cause for spike in moments.story.spikes)
    return [
        (
            TextRun(f"{LATE[cause].glyph} ", f"{LATE[cause].ink} bold"),
            TextRun(f"{LATE[cause].name} ", "muted"),
            TextRun(f"{count}"),
        )
        for cause, count in counts.most_common()
    ]


def _late(moments: StoryMoments, columns: GapColumns) -> dict[int, Cause]:
    """Return the cause of the longest late gap in each column that has one."""
    worst: dict[int, tuple[int, Cause]] = {}
    for gap, spike in moments.spikes.items():
        column = columns.column_of(gap)
        if column is not None and (spike.gap_ns, spike.cause) > worst.get(
            column, (0, spike.cause)
        ):
            worst[column] = (spike.gap_ns, spike.cause)
    return {column: cause for column, (_, cause) in worst.items()}


def _levels(moments: StoryMoments, top_s: float, rows: int) -> dict[int, str]:
    """Return the names of the percentiles, by the row of the strip they lie on."""
    story, names_by_row = moments.story, dict[int, list[str]]()
    for name, value_ns in (("p50", story.gap_p50_ns), ("p99", story.gap_p99_ns)):
        if value_ns is not None:
            height = min(int(value_ns / NS_PER_S / top_s * rows), rows - 1)
            names_by_row.setdefault(height, []).append(name)
    return {height: " ".join(names) for height, names in names_by_row.items()}


def late_list(
    moments: StoryMoments, here: int | None, width: int, rows: int
) -> Sequence[Line]:
    """Return late tokens with their evidence, among them the one at the cursor."""
    entries = [
        _late_lines(gap, spike, width, "chosen" if gap == here else "")
        for gap, spike in moments.spikes.items()
    ]
    at = next((i for i, gap in enumerate(moments.spikes) if gap == here), 0)
    first = 0
    while first < at and sum(map(len, entries[first : at + 1])) > rows:
        first += 1
    lines: list[Line] = []
    for each in entries[first:]:
        if len(lines) + len(each) > rows:
            break
        lines += each
    return lines


def _late_lines(gap: int, spike: Spike, width: int, chosen: str) -> list[Line]:
    look = LATE[spike.cause]
    name = f"{look.name:<13} " if width >= NAMED_FROM else ""
    head = (
        TextRun(f" {look.glyph} ", f"{look.ink} bold {chosen}".strip()),
        TextRun(f"token {gap + 2:>7,} ", chosen),
        TextRun(f"after {_text(spike.gap_ns):>7}  ", chosen),
        TextRun(name, f"{look.ink} {chosen}".strip()),
    )
    room = max(width - width_of(head) - 1, EVIDENCE_LEAST)
    ink = f"muted {chosen}".strip()
    first, *more = wrap(visible(spike.evidence), room) or [""]
    below = TextRun(" " * width_of(head))
    return [(*head, TextRun(first, ink)), *((below, TextRun(m, ink)) for m in more)]


def _text(value_ns: int | None) -> str:
    return format_duration(None if value_ns is None else value_ns / NS_PER_S).strip()
