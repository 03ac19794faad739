"""The rows of a comparison by verdict, each with its interval drawn."""

from collections.abc import Iterator, Sequence

from inferwatch.formatting import counted, format_count
from inferwatch.studies.compare.comparison import MetricResult, SessionPair
from inferwatch.studies.compare.html.forest import ForestAxis, forest
from inferwatch.studies.compare.html.plot import axis_labels
from inferwatch.studies.compare.report import (
    GLYPHS,
    change_text,
    in_order,
    meaning,
    more_text,
    span_text,
    title,
    values_text,
)
from inferwatch.studies.compare.verdicts import MetricVerdict
from inferwatch.visible import as_html

TONES = {
    MetricVerdict.BETTER: "better",
    MetricVerdict.WORSE: "worse",
    MetricVerdict.DIFFERS: "differs",
    MetricVerdict.PROBABLY_BETTER: "better probably",
    MetricVerdict.PROBABLY_WORSE: "worse probably",
    MetricVerdict.PROBABLY_DIFFERS: "differs probably",
    MetricVerdict.SAME: "same",
    MetricVerdict.OPEN: "open",
}
"""Classes of the style sheet."""
COLUMNS = 6
Groups = dict[MetricVerdict, list[MetricResult]]


def result_table(pair: SessionPair, matters: float) -> Iterator[str]:
    """What says something first; what cannot tell is folded under it."""
    found = in_order(pair)
    still_open = found.pop(MetricVerdict.OPEN, [])
    told = [each for results in found.values() for each in results]
    axis = ForestAxis.of(told or still_open, matters)
    if told or still_open:
        yield "<h3>What changed</h3>"
    if told:
        yield from _table(pair, found, axis)
    if still_open:
        verdict = MetricVerdict.OPEN
        yield "<details>" if told else "<details open>"
        yield f"<summary>{_head(verdict, still_open, axis)}</summary>"
        yield from _table(pair, {verdict: still_open}, axis)
        yield "</details>"


def _head(
    verdict: MetricVerdict, results: Sequence[MetricResult], axis: ForestAxis
) -> str:
    """How many rows say that, and what it means."""
    about = as_html(meaning(verdict, axis.matters))
    return (
        f'<span class="sign">{GLYPHS[verdict]} {verdict}, '
        f'{counted(len(results), "row")}</span> <span class="unit">{about}</span>'
    )


def _table(pair: SessionPair, found: Groups, axis: ForestAxis) -> Iterator[str]:
    yield '<table class="results"><thead><tr><th></th>'
    for side in (pair.a, pair.b):
        name = as_html(side.name)
        yield f'<th class="side" title="{name}"><span>{name}</span></th>'
    yield "<th>change</th><th>95% interval</th><th></th></tr></thead>"
    for verdict, results in found.items():
        yield f'<tbody class="{TONES[verdict]}">'
        yield from _group(pair, verdict, results, axis)
        yield "</tbody>"
    yield "</table>"


def _group(
    pair: SessionPair,
    verdict: MetricVerdict,
    results: Sequence[MetricResult],
    axis: ForestAxis,
) -> Iterator[str]:
    """Rows of one verdict, with the marks of the axis above them."""
    drawn = any(each.ratio_span is not None for each in results)
    marks = axis_labels(axis.ticks()) if drawn else ""
    head = "" if verdict is MetricVerdict.OPEN else _head(verdict, results, axis)
    if head or marks:
        yield (
            f'<tr class="group"><th colspan="{COLUMNS - 1}" scope="rowgroup">{head}'
            f'</th><th class="scale"><div class="xs">{marks}</div></th></tr>'
        )
    for each in results:
        yield _row(pair, each, axis)
        for note in _notes(pair, each):
            yield (
                f'<tr class="note"><td colspan="{COLUMNS}">↳ {as_html(note)}</td></tr>'
            )


def _row(pair: SessionPair, result: MetricResult, axis: ForestAxis) -> str:
    before, after = (as_html(text.strip()) for text in values_text(result))
    counts = ", ".join(format_count(n).strip() for n in (result.n_a, result.n_b))
    change = as_html(change_text(result.ratio))
    if result.ratio is not None:
        change = f"{GLYPHS[result.verdict]} {change}"
    a, b = (as_html(side.name) for side in (pair.a, pair.b))
    return (
        f'<tr><th scope="row">{as_html(title(result))} '
        f'<span class="unit">{as_html(result.metric.vantage)} · n {counts}</span></th>'
        f'<td class="value" data-of="{a}">{before}</td>'
        f'<td class="value" data-of="{b}">{after}</td>'
        f'<td class="change">{change}</td>'
        f'<td class="span">{as_html(span_text(result.ratio_span))}</td>'
        f'<td class="drawn">{forest(axis, result)}</td></tr>'
    )


def _notes(pair: SessionPair, result: MetricResult) -> Iterator[str]:
    """Where it changed most, or what would tell."""
    for place in pair.places:
        if place.metric.key == result.metric.key and place.sentence:
            yield place.sentence
    if result.verdict is MetricVerdict.OPEN:
        more = more_text(result, pair)
        would = f"{more} in each would tell" if more else None
        if said := "; ".join(each for each in (result.why, would) if each):
            yield said
