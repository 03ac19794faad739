"""The profiled steps as columns: each a step, as high as it took, stacked by class."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import (
    duration_text,
    format_durations,
    format_in,
    shared_unit,
)
from inferwatch.printing.summary.profile_words import HOST
from inferwatch.profiles.report import KernelClass, ProfiledStep, RankProfile
from inferwatch.ui.kit.renderables.plot import MARGIN, tick_text
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    fit,
    join,
    merged,
    width_of,
)
from inferwatch.ui.profile.rows import WallText, step_name
from inferwatch.ui.profile.styles import CLASSES, HOST_STYLE, ClassStyle

WIDEST = 4
"""Cells of a step's column at most."""


@dataclass(frozen=True, slots=True)
class StepBars:
    """Which steps are drawn, and where."""

    first: int
    """Position of the first one in ``RankProfile.steps``."""
    count: int
    a_step: int
    """Cells of each column."""

    @classmethod
    def of(cls, steps: int, picked: int | None, width: int) -> "StepBars":
        """Return the columns for a width, the picked one among them."""
        room = max(width - MARGIN - 1, 1)
        count = min(steps, room)
        a_step = min(max(room // max(steps, 1), 1), WIDEST)
        middle = (picked or 0) - count // 2
        return cls(min(max(middle, 0), steps - count), count, a_step)

    def at(self, x: int) -> int | None:
        """Return the position of the step under a cell; None beside them."""
        place = (x - MARGIN) // self.a_step
        return self.first + place if x >= MARGIN and place < self.count else None


def step_bars(
    rank: RankProfile, picked: int | None, width: int, rows: int, wall: WallText
) -> list[Line]:
    """Draw the columns, the mark of the picked step, and what that took."""
    bars = StepBars.of(len(rank.steps), picked, width)
    steps = rank.steps[bars.first : bars.first + bars.count]
    top_ns = max((each.duration_ns for each in rank.steps), default=0) or 1
    columns = [_column(each, top_ns, rows) for each in steps]
    lines: list[Line] = []
    for row in reversed(range(rows)):
        label = tick_text(float(f"{top_ns / NS_PER_S:.2g}"), "s")
        label = label if row == rows - 1 else ""
        gap = 1 if bars.a_step > 2 else 0
        found = [
            (glyph * (bars.a_step - gap) + " " * gap, ink)
            for glyph, ink in (column[row] for column in columns)
        ]
        axis = TextRun(f"{label:>{MARGIN - 2}} │"[-MARGIN:], "faint")
        lines.append(fit((axis, *merged(found)), width))
    return [*lines, *_picked(rank, bars, picked, width, wall)]


def _column(step: ProfiledStep, top_ns: int, rows: int) -> list[tuple[str, str]]:
    """Return a cell per row from below, shared among the classes by their time."""
    height = max(round(step.duration_ns / top_ns * rows), 1)
    parts = parts_of(step)
    whole_ns = sum(took for _, took in parts) or 1
    exact = [took / whole_ns * height for _, took in parts]
    counts = [int(each) for each in exact]
    by_rest = sorted(range(len(parts)), key=lambda i: counts[i] - exact[i])
    for at in by_rest[: height - sum(counts)]:
        counts[at] += 1
    cells = [
        (style.glyph, style.ink)
        for (style, _), count in zip(parts, counts, strict=True)
        for _ in range(count)
    ]
    return [*cells, *[(" ", "")] * (rows - len(cells))]


def parts_of(step: ProfiledStep) -> list[tuple[ClassStyle, int]]:
    """Return the classes of a step in their order, and the host's time above them."""
    told = [
        (style, step.times_ns[name])
        for name, style in CLASSES.items()
        if step.times_ns.get(name)
    ]
    return [*told, (HOST_STYLE, step.host_ns)]


def _picked(
    rank: RankProfile, bars: StepBars, picked: int | None, width: int, wall: WallText
) -> list[Line]:
    """Mark the picked step, and say what it was and where its time went."""
    if picked is None or picked >= len(rank.steps):
        text = f"{'':{MARGIN}}{len(rank.steps):,} steps, a column each: ← → picks one"
        return [fit((TextRun(text, "faint"),), width)]
    step = rank.steps[picked]
    at = MARGIN + (picked - bars.first) * bars.a_step
    took = duration_text(step.duration_ns / NS_PER_S)
    said: Line = (
        TextRun(f"{step_name(rank, picked)} ", "strong"),
        TextRun(f"{step.phase.value} {took} "),
        TextRun(f"at {wall(step.begin_ns, ms=True)}", "muted"),
    )
    mark = TextRun("▲", "marker")
    room = width_of(said)
    if width - at - 3 >= room:
        line: Line = (TextRun(" " * at), mark, TextRun(" "), *said)
    else:
        line = (TextRun(" " * max(at - room - 1, 0)), *said, TextRun(" "), mark)
    where = join(class_parts(step.times_ns, step.host_ns), "  ")
    if width_of(where) > width - MARGIN - 1:
        where = join(_brief_parts(step), " ")
    return [fit(line, width), fit((TextRun(" " * MARGIN), *where), width)]


def _brief_parts(step: ProfiledStep) -> list[Line]:
    """Return the times of a step's classes without names, and their unit."""
    parts = sorted(parts_of(step), key=lambda each: -each[1])
    times_s = [took / NS_PER_S for _, took in parts]
    unit = shared_unit(times_s)
    told: list[Line] = [
        (TextRun(f"{style.glyph} ", style.ink), TextRun(format_in(unit, each).strip()))
        for (style, _), each in zip(parts, times_s, strict=True)
    ]
    return [*told, (TextRun(unit.name, "muted"),)]


def class_parts(times_ns: Mapping[KernelClass, int], host_ns: int) -> Sequence[Line]:
    """Return classes and host of a step with their times, the largest first."""
    known = [
        (name.value, *CLASSES[name], took) for name, took in times_ns.items() if took
    ]
    known.append((HOST, *HOST_STYLE, host_ns))
    known.sort(key=lambda each: -each[3])
    texts = format_durations(each[3] / NS_PER_S for each in known)
    return [
        (
            TextRun(f"{glyph} ", ink),
            TextRun(f"{name} ", "muted"),
            TextRun(text.strip()),
        )
        for (name, glyph, ink, _), text in zip(known, texts, strict=True)
    ]
