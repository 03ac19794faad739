"""A tune's result as text, as Markdown for pull requests, and as an HTML page."""

from collections.abc import Iterable, Iterator, Sequence

from inferwatch.formatting import (
    UNKNOWN,
    counted,
    format_about,
    format_durations,
    format_figure,
    format_rate,
)
from inferwatch.printing.axis import PlotAxis
from inferwatch.printing.canvas import PlotStyle
from inferwatch.printing.command import continued
from inferwatch.printing.document import (
    Block,
    Code,
    FactList,
    Folded,
    Item,
    Items,
    PageSection,
    Plot,
    PrintedColumn,
    PrintedHeading,
    PrintedRow,
    RowGroup,
    Sentence,
    Table,
    headed_charts,
    headed_table,
)
from inferwatch.printing.markdown import document_markdown
from inferwatch.printing.page import all_numbers, page
from inferwatch.printing.svg import HEIGHT, AxisTick, Figure, path
from inferwatch.printing.svg import WIDTH as FRONTIER_WIDTH
from inferwatch.printing.text import GAP, WIDTH, Paint, document_text, plain
from inferwatch.studies.tune.plan import TunePlan
from inferwatch.studies.tune.result.as_json import SCORES, tune_json
from inferwatch.studies.tune.result.plot import (
    PlotLatency,
    PlotPoint,
    latencies_of,
    plot_axes,
    plot_points,
    stairs,
    tune_plot,
)
from inferwatch.studies.tune.result.table import (
    BEST,
    PRESENT,
    ResultColumn,
    ResultTable,
    result_table,
)
from inferwatch.studies.tune.result.tune_result import (
    TuneResult,
    flags_line,
    inferwatch_command,
    scenario_lines,
    vllm_command,
)
from inferwatch.studies.tune.result.verdict import goal_text, values_text
from inferwatch.studies.tune.trial import Trial
from inferwatch.visible import as_html, visible

# A figure of throughput against p99: shapes stretch with the page, letters do not.
#
# Marks differ in frame as well as colour: the best is filled,
# the present setting has a square one, the frontier a round one.

X_TICKS, Y_TICKS = 6, 5


def frontier_figure(result: TuneResult, latency: PlotLatency) -> str:
    """The figure as HTML; empty if fewer than two settings can be plotted."""
    points = plot_points(result, latency)
    if len(points) < 2:
        return ""
    x, y = plot_axes(points)
    return Figure(
        kind="frontier",
        title=f"Output tokens/s against {latency} p99",
        unit="up and left is better" + (", time is logarithmic" if x.is_log else ""),
        shapes=[*_stairs(points, x, y), *(_spans(each, x, y) for each in points)],
        x_ticks=[AxisTick(x.share(at), text) for at, text in x.durations(X_TICKS)],
        y_ticks=[AxisTick(1 - y.share(at), text) for at, text in y.counts(Y_TICKS)],
        over="".join(_marks(points, x, y)),
    ).html()


def _stairs(points: Sequence[PlotPoint], x: PlotAxis, y: PlotAxis) -> Iterator[str]:
    corners = [
        f"{x.share(latency) * FRONTIER_WIDTH:.1f} {(1 - y.share(tokens)) * HEIGHT:.1f}"
        for latency, tokens in stairs(points)
    ]
    if corners:
        yield path("stairs", f"M{'L'.join(corners)}")


def _spans(point: PlotPoint, x: PlotAxis, y: PlotAxis) -> str:
    """Intervals in both directions, clipped at the axes' ends."""
    across, up = x.share(point.latency_s), 1 - y.share(point.tokens_per_s)
    shapes = []
    if point.latency_span is not None:
        low, high = (x.share(end) * FRONTIER_WIDTH for end in point.latency_span)
        shapes.append(f"M{low:.1f} {up * HEIGHT:.1f}H{high:.1f}")
    if point.tokens_span is not None:
        low, high = ((1 - y.share(end)) * HEIGHT for end in point.tokens_span)
        shapes.append(f"M{across * FRONTIER_WIDTH:.1f} {low:.1f}V{high:.1f}")
    return path("span", "".join(shapes)) if shapes else ""


def _marks(points: Sequence[PlotPoint], x: PlotAxis, y: PlotAxis) -> Iterator[str]:
    """Marks with tooltips, the best one last so that nothing covers it."""
    for each in reversed(points):
        left, top = x.share(each.latency_s), 1 - y.share(each.tokens_per_s)
        leads = " leads" if each.on_frontier else ""
        yield (
            f'<span class="mark {each.style}{leads}" title="{as_html(_words(each))}" '
            f'style="left:{left * 100:.2f}%;top:{top * 100:.2f}%">'
            f"{as_html(each.mark)}</span>"
        )


def _words(point: PlotPoint) -> str:
    texts = [point.result.point.text, f"{format_rate(point.tokens_per_s).strip()} /s"]
    at, *ends = format_durations([point.latency_s, *(point.latency_span or ())])
    span = f" ({' to '.join(each.strip() for each in ends)})" if ends else ""
    states = {PlotStyle.BEST: "the best", PlotStyle.PRESENT: "the present setting"}
    named = [states[point.style]] if point.style in states else []
    return ", ".join([*texts, f"{at.strip()}{span}", *named])


WIDEST = 160
"""Wider lines are hard to read."""
MARK, SIGN, INDENT = 2, 3, 2
PLOT_HEIGHT = 18
MOST_DOUBTS = 8
ANSWERS = "Answers at temperature 0 against the present setting's:"
NO_COST = "It was not shown to cost anything in TTFT, TPOT, E2EL or memory."
FOLDED_WIDTH, FOLDED_HEIGHT = 90, 20
"""The size of a plot in Markdown."""
ABOUT = (
    "Each letter is a setting, each line through it a 95% interval. The dotted line is "
    "the frontier: what lies below and right of it, another setting beats in both. "
    "Filled is the best setting, in a square frame the present one; a line that ends "
    "at the edge goes on beyond it."
)


def _limits_and_costs(result: TuneResult) -> Iterator[str]:
    """What limits the best setting, and which other numbers it makes worse."""
    if result.binds:
        yield f"At the best setting {result.binds}."
    if result.costs:
        yield f"Against the present it costs: {'; '.join(result.costs)}."
    elif shows_no_cost(result):
        yield NO_COST
    yield from scenario_lines(result)


def shows_no_cost(result: TuneResult) -> bool:
    """Whether best and present setting were measured often enough to compare."""
    best, present = result.best, result.present
    return (
        best is not None
        and present is not None
        and best.point != present.point
        and best.against_present is not None
    )


def _commands(result: TuneResult, plan: TunePlan) -> list[str]:
    """Commands that serve the best setting, or its flags if no command is known."""
    if result.best is None:
        return []
    point = result.best.point
    known = [inferwatch_command(point, plan), vllm_command(point, plan)]
    lines = [each for each in known if each is not None] or [flags_line(point)]
    return [visible(line) for line in lines]


# As text.


def tune_text(
    result: TuneResult, plan: TunePlan, width: int = WIDTH, paint: Paint = plain
) -> str:
    """The result as text; only the command to paste may be wider than ``width``."""
    room = min(max(width, WIDTH), WIDEST)
    table = result_table(result, plan)
    plots = [
        [Plot(rows=tune_plot(result, room, PLOT_HEIGHT, latency))]
        for latency in latencies_of(plan.load.slo)
    ]
    sections: list[Iterable[Block]] = [
        [Sentence(text=f"{result.verdict}.")],
        _table(table, room),
        _others(table),
        *plots,
        _doubts(table),
        [Sentence(text=ANSWERS), FactList(pairs=table.answers)]
        if table.answers
        else [],
        [Sentence(text=each) for each in _limits_and_costs(result)],
        _pasted(result, plan, room),
    ]
    return document_text(sections, room, paint)


def _table(table: ResultTable, room: int) -> Iterator[Block]:
    """The table of settings; wide settings get a line of their own."""
    if not table.marks:
        return
    setting = max(len("setting"), *map(len, table.settings))
    columns, own_lines = _fitting(table, room - MARK - SIGN, setting)
    head, first = (
        ("", MARK + SIGN)
        if own_lines
        else (f"{'':{MARK + SIGN}}setting", MARK + SIGN + setting)
    )
    rows = []
    for n, mark in enumerate(table.marks):
        sign = table.signs[n]
        name = f"{mark:<{MARK}}{sign:<{SIGN}}{table.settings[n]}"
        cells = [column.texts[n].strip() for column in columns]
        lines = [[name], ["", *cells]] if own_lines else [[name, *cells]]
        rows += [PrintedRow(cells=line, tone=_style(sign)) for line in lines]
    yield Sentence(text=f"setting: {table.flags}")
    yield Table(
        columns=[
            PrintedColumn(head=head, is_left=True, width=first),
            *(PrintedColumn(head=each.head, width=_width(each)) for each in columns),
        ],
        groups=[RowGroup(rows=rows)],
    )
    yield Sentence(text="; ".join(table.legend))


def _fitting(
    table: ResultTable, room: int, setting: int
) -> tuple[list[ResultColumn], bool]:
    """The columns that fit, and whether settings need lines of their own."""
    left = room - sum(_width(each) for each in table.columns if each.needed)
    own_lines = left < setting
    left -= 0 if own_lines else setting
    columns = []
    for each in table.columns:
        if not each.needed:
            if _width(each) > left:
                continue
            left -= _width(each)
        columns.append(each)
    return columns, own_lines


def _width(column: ResultColumn) -> int:
    texts = (each.strip() for each in column.texts)
    return GAP + max(map(len, (column.head, *texts)))


def _style(sign: str) -> PlotStyle:
    if BEST in sign:
        return PlotStyle.BEST
    return PlotStyle.PRESENT if PRESENT in sign else PlotStyle.NONE


def _others(table: ResultTable) -> Iterator[Block]:
    """Settings without a score, and why; those not measured in one sentence."""
    for name, outcome, why in table.others:
        if why:
            yield Sentence(text=f"{name}: {outcome}: {why}")
    if waiting := [name for name, _, why in table.others if not why]:
        yield Sentence(text=f"not measured: {', '.join(waiting)}")


def _doubts(table: ResultTable) -> Iterator[Block]:
    doubts = table.doubts[:MOST_DOUBTS]
    yield Items(items=[Item(of=of, text=text, is_doubt=True) for of, text in doubts])
    if more := len(table.doubts) - len(doubts):
        yield Sentence(text=f"! and {counted(more, 'more doubt')} (--json tells all)")


def _pasted(result: TuneResult, plan: TunePlan, room: int) -> Iterator[Block]:
    if result.best is None:
        return
    point, best = result.best.point, "the setting that measured best"
    head = f"Flags of {best}:"
    if vllm_command(point, plan) is not None:
        head = f"To serve with {best}:"
    elif inferwatch_command(point, plan) is not None:
        head = f"To go on with {best}:"
    yield Sentence(text=head)
    commands = _commands(result, plan)
    lines = (line for each in commands for line in continued(each, room - INDENT))
    yield Code(text="\n".join(f"{'':{INDENT}}{line}" for line in lines))


# As a summary for pull requests.


def tune_markdown(result: TuneResult, plan: TunePlan) -> str:
    """The verdict, the table, notes and the command, with the plots folded."""
    table = result_table(result, plan)
    commands = _commands(result, plan)
    return document_markdown(
        [
            PrintedHeading(f"inferwatch tune: {plan.name or plan.model}", 3),
            Sentence(text=f"{result.verdict}.", is_lead=True),
            *_summary_table(table),
            Items(items=[*_notes(table, "answers of ")]),
            Items(items=[Item(text=each) for each in _limits_and_costs(result)]),
            *([Code(text="\n".join(commands), language="sh")] if commands else []),
            *(
                Folded(
                    summary=f"Output tokens/s against {latency} p99",
                    blocks=[
                        Plot(
                            rows=tune_plot(result, FOLDED_WIDTH, FOLDED_HEIGHT, latency)
                        )
                    ],
                )
                for latency in latencies_of(plan.load.slo)
            ),
        ]
    )


def _summary_table(table: ResultTable) -> Iterator[Block]:
    if not table.marks:
        return
    heads = ["", f"setting: {table.flags}"]
    rows = [
        [
            f"{mark} {table.signs[n]}".strip(),
            table.settings[n],
            *(each.texts[n].strip() for each in table.columns),
        ]
        for n, mark in enumerate(table.marks)
    ]
    yield Table(
        columns=[
            *(PrintedColumn(head=head, is_left=True) for head in heads),
            *(PrintedColumn(head=each.name) for each in table.columns),
        ],
        groups=[RowGroup(rows=[PrintedRow(cells=cells) for cells in rows])],
    )
    yield Sentence(text="; ".join(table.legend), is_aside=True)


def _notes(table: ResultTable, answers: str = "") -> Iterator[Item]:
    for setting, outcome, why in table.others:
        yield Item(
            of=setting, word=outcome, text=why, sign=f"– {outcome}", tone="unknown"
        )
    for whose, doubt in table.doubts:
        sign, tone = "▲ doubtful", "doubtful"
        yield Item(of=whose, text=doubt, sign=sign, tone=tone, is_doubt=True)
    for whose, text in table.answers:
        yield Item(of=f"{answers}{whose}", text=text, sign="= answers", tone="unknown")


# As a page.


def tune_page(
    result: TuneResult, plan: TunePlan, trials: Sequence[Trial] = ()
) -> Iterator[str]:
    title = f"{plan.name or plan.model}, tuned"
    heading = f"{title}: {goal_text(plan.goal, plan)}"
    yield from page(title, _page(result, plan, trials), "study tune", heading)


def _page(
    result: TuneResult, plan: TunePlan, trials: Sequence[Trial]
) -> Iterator[Block]:
    table = result_table(result, plan)
    yield Sentence(text=f"{result.verdict}.", is_lead=True)
    for line in _commands(result, plan):
        yield Code(text=line, kind="command")
    if items := [Item(text=each) for each in _limits_and_costs(result)]:
        yield Items(items=items, kind="follows")
    figures = [frontier_figure(result, each) for each in latencies_of(plan.load.slo)]
    yield from headed_charts("Throughput against p99", figures, ABOUT)
    if table.marks:
        yield PageSection(kind="settings-table", blocks=[*_settings(table)])
    if notes := [*_notes(table)]:
        yield PrintedHeading("What else there is to know")
        yield Items(items=notes, kind="checks")
    if trials:
        yield Folded(
            summary="All trials, in the order of measurement",
            blocks=[*_trials(trials, plan)],
        )
    yield all_numbers("As tune --json prints them", tune_json(result, plan, trials))


def _settings(table: ResultTable) -> Iterator[Block]:
    rows = [
        [
            f"{mark} {table.settings[n]} {table.signs[n]}",
            *(each.texts[n] for each in table.columns),
        ]
        for n, mark in enumerate(table.marks)
    ]
    heads = [each.head for each in table.columns]
    yield from headed_table(f"Settings: {table.flags}", heads, rows)
    yield Sentence(text="; ".join(table.legend), tone="legend-line")


def _trials(trials: Sequence[Trial], plan: TunePlan) -> Iterator[Block]:
    """Trials in the order of measurement, so that drift is visible."""
    names = (
        *("setting", "outcome", "how", "engine", "took", SCORES[plan.goal]),
        *("tokens/s", "TTFT p99", "session"),
    )
    yield from headed_table("Trials", names, (_trial(each, plan) for each in trials))


def _trial(trial: Trial, plan: TunePlan) -> Iterator[str]:
    record, numbers = trial.record, trial.numbers
    ttft = numbers.latencies.get("ttft_s") if numbers is not None else None
    yield f"{record.number}"
    yield values_text(record.point)
    yield f"{record.outcome}: {record.cause}" if record.cause else record.outcome
    yield "turned live" if record.live else "started so"
    yield f"{record.life}"
    yield format_about(record.took_s) if record.took_s else UNKNOWN
    yield format_figure(trial.score(plan.goal))
    yield format_rate(numbers.tokens_per_s if numbers is not None else None)
    yield from format_durations([ttft.quantiles.p99 if ttft is not None else None])
    yield record.session or UNKNOWN
