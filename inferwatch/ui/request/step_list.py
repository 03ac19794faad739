"""The steps of a request, and the other requests prefilled in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from rich.cells import set_cell_size

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import bound_text, format_count, format_duration
from inferwatch.metrics.story.story import Companion, RequestStory, StoryStep
from inferwatch.ui.kit.renderables.bars import gauge
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    cells,
    cells_of,
    end_of,
    fit,
    join_whole,
    last_letters,
    without_prefix,
)
from inferwatch.ui.request.moments import StoryMoments
from inferwatch.visible import visible

GAUGE_WIDTH, GAUGE_MOST = 8, 32
NAME_LEAST = 12


@dataclass(frozen=True, slots=True)
class StepListColumn:
    """A column of the list of steps."""

    title: str
    width: int
    right: bool = True


STEP_COLUMNS = (
    StepListColumn("step", 9),
    StepListColumn("ended", 9),
    StepListColumn("took", 9),
    StepListColumn("its own", 9),
    StepListColumn("batch", 6),
    StepListColumn("tokens", 8),
    StepListColumn("of budget", GAUGE_WIDTH + 7),
    StepListColumn("prefill", 9),
    StepListColumn("waiting", 9),
    StepListColumn("  bound by", 24, right=False),
)
"""By priority: the last ones are left out first."""
BUDGET = 6
"""Index of the column that needs the token budget."""


def steps_title(story: RequestStory, width: int, *, slowest: bool) -> Line:
    """Return the title: how many steps the request had, and how full they were."""
    steps = story.steps
    facts: list[Line] = [(TextRun("its steps", "strong"),)]
    facts.append((TextRun(format_count(story.steps_total).strip()),))
    if slowest:
        facts.append((TextRun("the slowest of them", "muted"),))
    if steps:
        batch = fmean(each.requests for each in steps)
        tokens = fmean(each.tokens for each in steps)
        facts.append((TextRun("mean batch ", "muted"), TextRun(f"{batch:.1f}")))
        facts.append((TextRun("tokens ", "muted"), TextRun(f"{tokens:,.0f}")))
    if len(steps) < story.steps_total:
        facts.append((TextRun(f"the last {len(steps):,} are told", "muted"),))
    return join_whole(facts, width - 8)


def step_rows(
    moments: StoryMoments,
    cursor_ns: int | None,
    budget: int | None,
    width: int,
    rows: int,
) -> list[Line]:
    """Return the request's steps around the cursor; without it, the slowest by time."""
    steps = moments.story.steps
    if not steps or rows < 2:
        return [(TextRun(" no step of it is told", "muted"),)] if rows > 0 else []
    at = None if cursor_ns is None else moments.step_at(cursor_ns)
    count = min(rows - 1, len(steps))
    if at is None:
        slowest = sorted(steps, key=lambda each: each.duration_ns)[-count:]
        visible: Sequence[StoryStep] = sorted(slowest, key=lambda each: each.end_ns)
    else:
        place = steps.index(at)
        first = min(max(place - count // 2, 0), len(steps) - count)
        visible = steps[first : first + count]
    columns = _columns_within(width, with_budget=budget is not None)
    used = 2 + sum(STEP_COLUMNS[index].width for index in columns)
    more = min(max(width - used - 2, 0), GAUGE_MOST - GAUGE_WIDTH)
    titles = [TextRun("  ")]
    for index in columns:
        column = STEP_COLUMNS[index]
        wide = column.width + (more if index == BUDGET else 0)
        titles.append(cells(column.title, wide, "muted", right=column.right))
    lines = [tuple(titles)]
    for step in visible:
        mark = TextRun("▸ ", "accent") if step is at else TextRun("  ")
        line: list[TextRun] = [mark]
        for index in columns:
            if index == BUDGET and budget:
                line += _budget_cell(step, budget, GAUGE_WIDTH + more)
            else:
                line.append(_step_cell(index, step, moments.arrived_ns))
        if step is at:
            line = [run._replace(ink=f"{run.ink} chosen".strip()) for run in line]
        lines.append(tuple(line))
    return lines


def _columns_within(width: int, *, with_budget: bool) -> list[int]:
    room, columns = width - 2, list[int]()
    for index, column in enumerate(STEP_COLUMNS):
        if index == BUDGET and not with_budget:
            continue
        if column.width > room:
            if index == BUDGET:
                continue
            break
        columns.append(index)
        room -= column.width
    return columns


def _budget_cell(step: StoryStep, budget: int, width: int) -> Sequence[TextRun]:
    share = step.tokens / budget
    return (TextRun("  "), *gauge(share, width, "tokens"), TextRun(f"{share:>5.0%}"))


def _step_cell(index: int, step: StoryStep, zero_ns: int) -> TextRun:
    column = STEP_COLUMNS[index]
    since_s = (step.end_ns - zero_ns) / NS_PER_S
    texts = {
        0: f"#{step.index:,}",
        1: format_duration(since_s).strip(),
        2: format_duration(step.duration_ns / NS_PER_S).strip(),
        3: _own(step),
        4: f"{step.requests:,}",
        5: f"{step.tokens:,}",
        7: f"{step.prefill_tokens:,}",
        8: f"{step.waiting:,}",
        9: f"  {bound_text(step.bound_by, step.deferred_by)}",
    }
    return cells(texts[index], column.width, right=column.right)


def _own(step: StoryStep) -> str:
    """Return the request's tokens in a step: scheduled, and produced if they differ."""
    if step.produced in {0, step.scheduled}:
        return f"{step.scheduled:,}"
    return f"{step.scheduled:,}→{step.produced:,}"


def companion_rows(
    companions: Sequence[Companion], chosen: int | None, width: int, rows: int
) -> list[Line]:
    """Return a table of the requests prefilled in the same steps, most tokens first."""
    if rows < 1:
        return []
    if not companions:
        return [(TextRun("  nobody else", "muted"),)]
    name_width = max(width - 2 - 9 - 8 - 1, NAME_LEAST)
    head = (
        TextRun("  "),
        cells("request", name_width, "muted"),
        cells("tokens", 9, "muted", right=True),
        cells("steps", 8, "muted", right=True),
    )
    count = rows - 1
    first = min(max((chosen or 0) - count // 2, 0), max(len(companions) - count, 0))
    lines = [fit(head, width)]
    for place in range(first, min(first + count, len(companions))):
        each, here = companions[place], place == chosen
        ink, action = "chosen" if here else "", f"screen.companion({place})"
        lines.append(
            (
                TextRun("▸ " if here else "  ", "accent", action),
                cells(
                    end_of(without_prefix(each.name), name_width), name_width, ink
                )._replace(action=action),
                cells(f"{each.prefill_tokens:,}", 9, ink, right=True),
                cells(f"{each.steps:,}", 8, ink, right=True),
            )
        )
    return lines


def companions_title(story: RequestStory, width: int) -> Line:
    """Return a title: how many other prompts were computed in the same steps."""
    title = (TextRun("prefilled in the same steps", "strong"),)
    count = (TextRun(f"{len(story.companions):,}", "muted"),)
    return join_whole((title, count if story.companions else ()), width - 6)


def shortened(name: str, room: int) -> str:
    """Return a name shortened to its head and tail.

    >>> shortened("chatcmpl-0123456789", 12), shortened("short", 12)
    ('chatc…456789', 'short')
    >>> shortened("大大大大大大", 8)
    '大…大大'
    """
    name = visible(name)
    if cells_of(name) <= room or room < NAME_LEAST // 2:
        return name
    head = set_cell_size(name, (room - 1) // 2).rstrip()
    return f"{head}…{last_letters(name, room - 1 - cells_of(head))}"
