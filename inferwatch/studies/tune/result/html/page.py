"""A tune's result as one page for people: it needs no network and runs nothing."""

from collections.abc import Iterator, Sequence

from inferwatch.formatting import (
    UNKNOWN,
    format_about,
    format_durations,
    format_figure,
    format_rate,
)
from inferwatch.printing.destination import Destination
from inferwatch.printing.html.document import head, stylesheet
from inferwatch.printing.html.table import table
from inferwatch.studies.tune.plan import TunePlan
from inferwatch.studies.tune.result.as_json import SCORES, tune_json
from inferwatch.studies.tune.result.as_text import NO_COST, shows_no_cost
from inferwatch.studies.tune.result.command import (
    flags_line,
    inferwatch_command,
    vllm_command,
)
from inferwatch.studies.tune.result.html.frontier import frontier_figure
from inferwatch.studies.tune.result.plot import latencies_of
from inferwatch.studies.tune.result.table import ResultTable, result_table
from inferwatch.studies.tune.result.tune_result import TuneResult, scenario_lines
from inferwatch.studies.tune.result.verdict import goal_text, values_text
from inferwatch.studies.tune.trial import Trial
from inferwatch.visible import as_html, strict_json, visible

OF_COMPARISONS = "inferwatch.studies.compare.html"
"""Whose style sheet has axes, lists of checks and leading sentences."""
ABOUT = (
    "Each letter is a setting, each line through it a 95% interval. The dotted line is "
    "the frontier: what lies below and right of it, another setting beats in both. "
    "Filled is the best setting, in a square frame the present one; a line that ends "
    "at the edge goes on beyond it."
)


def write_tune(
    result: TuneResult,
    plan: TunePlan,
    trials: Sequence[Trial],
    destination: Destination,
) -> None:
    """Write the page.

    Raises:
        UsageError: there is something already, or it cannot be written.
    """
    with destination.file() as out:
        for part in page(result, plan, trials):
            out.write(part.encode())
            out.write(b"\n")


def page(
    result: TuneResult, plan: TunePlan, trials: Sequence[Trial] = ()
) -> Iterator[str]:
    """The parts of the page, in order."""
    title = f"{plan.name or plan.model}, tuned"
    styles = (stylesheet(), stylesheet(OF_COMPARISONS), stylesheet(__package__))
    shown = result_table(result, plan)
    yield from head(title, *styles)
    yield f"<h1>{as_html(title)}: {as_html(goal_text(plan.goal, plan))}</h1>"
    yield f'<p class="lead">{as_html(result.verdict)}.</p>'
    yield from _command(result, plan)
    yield from _follows(result)
    yield from _figures(result, plan)
    yield from _settings(shown)
    yield from _notes(shown)
    yield from _trials(trials, plan)
    numbers = as_html(strict_json(tune_json(result, plan, trials), indent=1))
    yield (
        '<div class="numbers"><h2>All numbers</h2><details><summary>As tune --json '
        f"prints them</summary><pre>{numbers}</pre></details></div></body></html>\n"
    )


def _command(result: TuneResult, plan: TunePlan) -> Iterator[str]:
    if result.best is None:
        return
    point = result.best.point
    known = [inferwatch_command(point, plan), vllm_command(point, plan)]
    for line in [each for each in known if each is not None] or [flags_line(point)]:
        yield f'<pre class="command">{as_html(visible(line))}</pre>'


def _follows(result: TuneResult) -> Iterator[str]:
    said = [f"At the best setting {result.binds}."] if result.binds else []
    if result.costs:
        said.append(f"Against the present it costs: {'; '.join(result.costs)}.")
    elif shows_no_cost(result):
        said.append(NO_COST)
    said += scenario_lines(result)
    if said:
        items = "".join(f"<li>{as_html(each)}</li>" for each in said)
        yield f'<ul class="follows">{items}</ul>'


def _figures(result: TuneResult, plan: TunePlan) -> Iterator[str]:
    found = [frontier_figure(result, each) for each in latencies_of(plan.load.slo)]
    drawn = [each for each in found if each]
    if drawn:
        yield f'<h2>Throughput against p99</h2><p class="about">{ABOUT}</p>'
        yield f'<div class="charts">{"".join(drawn)}</div>'


def _settings(shown: ResultTable) -> Iterator[str]:
    if not shown.marks:
        return
    names = [as_html(each.head) for each in shown.columns]
    rows = (
        (
            f"{mark} {shown.settings[n]} {shown.signs[n]}",
            *(each.texts[n] for each in shown.columns),
        )
        for n, mark in enumerate(shown.marks)
    )
    yield '<div class="settings-table">'
    yield from table(f"Settings: {as_html(shown.flags)}", names, rows)
    yield f'<p class="legend-line">{as_html("; ".join(shown.legend))}</p></div>'


def _notes(shown: ResultTable) -> Iterator[str]:
    """What has no number, and what throws doubt on some."""
    if not (shown.others or shown.doubts or shown.answers):
        return
    yield '<h2>What else there is to know</h2><ul class="checks">'
    for setting, outcome, why in shown.others:
        yield _item("unknown", f"– {outcome}", setting, why)
    for whose, doubt in shown.doubts:
        yield _item("doubtful", "▲ doubtful", whose, doubt)
    for whose, said in shown.answers:
        yield _item("unknown", "= answers", whose, said)
    yield "</ul>"


def _item(kind: str, sign: str, whose: str, said: str) -> str:
    return (
        f'<li class="{kind}"><span class="sign">{as_html(sign)}</span>'
        f"<div><b>{as_html(whose)}</b> {as_html(said)}</div></li>"
    )


def _trials(trials: Sequence[Trial], plan: TunePlan) -> Iterator[str]:
    """Each in the order of measurement, so that drift can be seen."""
    if not trials:
        return
    names = (
        *("setting", "outcome", "how", "engine", "took", as_html(SCORES[plan.goal])),
        *("tokens/s", "TTFT p99", "session"),
    )
    yield "<details><summary>All trials, in the order of measurement</summary>"
    yield from table("Trials", names, (_trial(each, plan) for each in trials))
    yield "</details>"


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
