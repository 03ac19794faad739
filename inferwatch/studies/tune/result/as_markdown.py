"""A tune's result as a summary for pull requests, in GitHub's Markdown."""

from collections.abc import Iterator

from inferwatch.studies.compare.as_markdown import aligned_table, escaped, folded
from inferwatch.studies.tune.plan import TunePlan
from inferwatch.studies.tune.result.as_text import NO_COST, shows_no_cost
from inferwatch.studies.tune.result.command import (
    flags_line,
    inferwatch_command,
    vllm_command,
)
from inferwatch.studies.tune.result.plot import latencies_of, tune_plot
from inferwatch.studies.tune.result.table import ResultTable, result_table
from inferwatch.studies.tune.result.tune_result import TuneResult, scenario_lines
from inferwatch.visible import visible

PLOT_WIDTH, PLOT_HEIGHT = 90, 20


def tune_markdown(result: TuneResult, plan: TunePlan) -> str:
    """The sentence, the table, what follows, the command; plots are folded away."""
    table = result_table(result, plan)
    name = plan.name or plan.model
    parts = [
        f"### inferwatch tune: {escaped(name)}",
        f"**{escaped(result.verdict)}.**",
        _table(table),
        "\n".join(_notes(table)),
        "\n".join(_follows(result)),
        _command(result, plan),
        *_plots(result, plan),
    ]
    return "\n\n".join(part for part in parts if part)


def _table(table: ResultTable) -> str:
    if not table.marks:
        return ""
    head = ["", f"setting: {table.flags}", *(each.name for each in table.columns)]
    rows = [
        [
            f"{mark} {table.signs[n]}".strip(),
            escaped(table.settings[n]),
            *(each.texts[n].strip() for each in table.columns),
        ]
        for n, mark in enumerate(table.marks)
    ]
    align = "ll" + "r" * len(table.columns)
    legend = escaped("; ".join(table.legend))
    return f"{aligned_table([escaped(e) for e in head], align, rows)}\n\n_{legend}_"


def _notes(table: ResultTable) -> Iterator[str]:
    """What has no number, and what throws doubt on some."""
    for setting, outcome, why in table.others:
        because = f": {why}" if why else ""
        yield f"- {escaped(f'{setting}: {outcome}{because}')}"
    for whose, doubt in table.doubts:
        yield f"- **!** {escaped(f'{whose}: {doubt}')}"
    for whose, said in table.answers:
        yield f"- answers of {escaped(f'{whose}: {said}')}"


def _follows(result: TuneResult) -> Iterator[str]:
    if result.binds:
        yield f"- {escaped(f'At the best setting {result.binds}.')}"
    if result.costs:
        costs = "; ".join(result.costs)
        yield f"- {escaped(f'Against the present it costs: {costs}.')}"
    elif shows_no_cost(result):
        yield f"- {escaped(NO_COST)}"
    yield from (f"- {escaped(line)}" for line in scenario_lines(result))


def _command(result: TuneResult, plan: TunePlan) -> str:
    if result.best is None:
        return ""
    point = result.best.point
    known = [inferwatch_command(point, plan), vllm_command(point, plan)]
    lines = [each for each in known if each is not None] or [flags_line(point)]
    return _fenced("\n".join(map(visible, lines)), "sh")


def _plots(result: TuneResult, plan: TunePlan) -> Iterator[str]:
    for latency in latencies_of(plan.load.slo):
        rows = tune_plot(result, PLOT_WIDTH, PLOT_HEIGHT, latency)
        drawn = "\n".join("".join(text for text, _ in row).rstrip() for row in rows)
        if drawn:
            summary = f"Output tokens/s against {latency} p99"
            yield folded(summary, _fenced(drawn))


def _fenced(text: str, language: str = "") -> str:
    """A block of code that ends where we say: no line of it is a longer fence."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"
