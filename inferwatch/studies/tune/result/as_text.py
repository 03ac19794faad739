"""A tune for people, in a terminal: the sentence, the table, the plot, the command."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence

from inferwatch.formatting import counted
from inferwatch.studies.compare.as_text import wrapped
from inferwatch.studies.tune.plan import TunePlan
from inferwatch.studies.tune.result.command import (
    flags_line,
    inferwatch_command,
    vllm_command,
)
from inferwatch.studies.tune.result.plot import (
    PlotRow,
    PlotStyle,
    latencies_of,
    tune_plot,
)
from inferwatch.studies.tune.result.table import (
    BEST,
    PRESENT,
    ResultColumn,
    ResultTable,
    result_table,
)
from inferwatch.studies.tune.result.tune_result import TuneResult, scenario_lines
from inferwatch.visible import visible

WIDTH = 80
WIDEST = 160
"""Wider lines are hard to follow."""
APART = 2
"""Blanks between columns."""
MARK, SIGN = 2, 3
PLOT_HEIGHT = 18
MOST_DOUBTS = 8
ANSWERS = "Answers at temperature 0 against the present setting's:"
NO_COST = "It was not shown to cost anything in TTFT, TPOT, E2EL or memory."
Paint = Callable[[str, PlotStyle], str]
"""Colours a piece of text; colour is never the only signal."""


def plain(text: str, style: PlotStyle) -> str:
    """No colour."""
    del style
    return text


def tune_text(
    result: TuneResult, plan: TunePlan, width: int = WIDTH, paint: Paint = plain
) -> str:
    """Lines no wider than that, but for the command, which is to be pasted."""
    room = min(max(width, WIDTH), WIDEST)
    table = result_table(result, plan)
    blocks: list[Iterable[str]] = [
        wrapped(f"{result.verdict}.", width=room),
        _table(table, room, paint),
        _others(table, room),
        _plots(result, plan, room, paint),
        _doubts(table, room),
        _answers(table, room),
        _follows(result, room),
        _command(result, plan, room),
    ]
    texts = ["\n".join(block) for block in blocks]
    return "\n\n".join(text for text in texts if text)


def _table(table: ResultTable, room: int, paint: Paint) -> Iterator[str]:
    """A setting that takes too much room stands on a line of its own."""
    if not table.marks:
        return
    setting = max(len("setting"), *map(len, table.settings))
    columns, alone = _fitting(table, room - MARK - SIGN, setting)
    heads = "".join(each.head.rjust(_width(each)) for each in columns)
    yield from wrapped(f"setting: {table.flags}", width=room)
    yield f"{'':{MARK + SIGN}}{'' if alone else 'setting'.ljust(setting)}{heads}"
    for n, mark in enumerate(table.marks):
        sign, name = table.signs[n], table.settings[n]
        cells = "".join(c.texts[n].strip().rjust(_width(c)) for c in columns)
        head = f"{mark:<{MARK}}{sign:<{SIGN}}{name}"
        style = _style(sign)
        if alone:
            yield paint(head, style)
            yield paint(f"{'':{MARK + SIGN}}{cells}", style)
        else:
            yield paint(f"{head:<{MARK + SIGN + setting}}{cells}", style)
    yield from wrapped("; ".join(table.legend), width=room)


def _fitting(
    table: ResultTable, room: int, setting: int
) -> tuple[list[ResultColumn], bool]:
    """The columns there is room for, and whether settings stand above them."""
    left = room - sum(_width(each) for each in table.columns if each.needed)
    alone = left < setting
    left -= 0 if alone else setting
    shown = []
    for each in table.columns:
        if not each.needed:
            if _width(each) > left:
                continue
            left -= _width(each)
        shown.append(each)
    return shown, alone


def _width(column: ResultColumn) -> int:
    texts = (each.strip() for each in column.texts)
    return APART + max(map(len, (column.head, *texts)))


def _style(sign: str) -> PlotStyle:
    if BEST in sign:
        return PlotStyle.BEST
    return PlotStyle.PRESENT if PRESENT in sign else PlotStyle.NONE


def _others(table: ResultTable, room: int) -> Iterator[str]:
    """What has no number, and why; what has still to come, together."""
    waiting = [name for name, _, why in table.others if not why]
    for name, outcome, why in table.others:
        if why:
            yield from wrapped(f"{name}: {outcome}: {why}", width=room)
    if waiting:
        yield from wrapped(f"not measured: {', '.join(waiting)}", width=room)


def _plots(
    result: TuneResult, plan: TunePlan, room: int, paint: Paint
) -> Iterator[str]:
    plots = [
        tune_plot(result, room, PLOT_HEIGHT, latency)
        for latency in latencies_of(plan.load.slo)
    ]
    yield "\n\n".join("\n".join(_painted(plot, paint)) for plot in plots if plot)


def _painted(rows: Sequence[PlotRow], paint: Paint) -> Iterator[str]:
    for row in rows:
        yield "".join(paint(text, style) for text, style in row).rstrip()


def _doubts(table: ResultTable, room: int) -> Iterator[str]:
    for whose, doubt in table.doubts[:MOST_DOUBTS]:
        yield from wrapped(f"! {whose}: {doubt}", width=room)
    if (more := len(table.doubts) - MOST_DOUBTS) > 0:
        yield f"! and {counted(more, 'more doubt')} (--json tells all)"


def _answers(table: ResultTable, room: int) -> Iterator[str]:
    if table.answers:
        yield ANSWERS
    for whose, said in table.answers:
        yield from wrapped(f"{whose}: {said}", width=room, first="  ", then="    ")


def _follows(result: TuneResult, room: int) -> Iterator[str]:
    """What binds, and what it costs elsewhere."""
    if result.binds:
        yield from wrapped(f"At the best setting {result.binds}.", width=room)
    if result.costs:
        said = f"Against the present it costs: {'; '.join(result.costs)}."
        yield from wrapped(said, width=room)
    elif shows_no_cost(result):
        yield from wrapped(NO_COST, width=room)
    for line in scenario_lines(result):
        yield from wrapped(line, width=room)


def shows_no_cost(result: TuneResult) -> bool:
    """It could have been shown: both were measured more than once."""
    best, present = result.best, result.present
    return (
        best is not None
        and present is not None
        and best.point != present.point
        and best.against_present is not None
    )


def _command(result: TuneResult, plan: TunePlan, room: int) -> Iterator[str]:
    """As few lines as fit, each but the last with the shell's sign that it goes on."""
    if result.best is None:
        return
    point = result.best.point
    lines = [inferwatch_command(point, plan), vllm_command(point, plan)]
    known = [each for each in lines if each is not None]
    yield "To serve with the best setting:" if known else "The best setting's flags:"
    for line in known or [flags_line(point)]:
        yield from _continued(visible(line), room)


def _continued(line: str, room: int) -> Iterator[str]:
    begun = ""
    for word in (shlex.quote(each) for each in shlex.split(line)):
        if begun and len(begun) + len(word) + 5 > room:
            yield f"  {begun} \\"
            begun = f"  {word}"
        else:
            begun = f"{begun} {word}" if begun else word
    yield f"  {begun}"
