"""The verdicts: rows that say something first, with their intervals drawn."""

from collections.abc import Iterable, Iterator, Sequence

from inferwatch.compare.comparison import MetricResult, SessionPair
from inferwatch.compare.html.forest import ForestAxis, forest
from inferwatch.compare.html.plot import axis_labels
from inferwatch.compare.report import (
    GLYPHS,
    MORE,
    SLOW_CLIENT,
    change_text,
    span_text,
    title,
    values_text,
    verdict_text,
)
from inferwatch.compare.verdicts import MetricVerdict
from inferwatch.formatting import counted, format_count
from inferwatch.visible import as_html

ORDER = (
    MetricVerdict.WORSE,
    MetricVerdict.BETTER,
    MetricVerdict.DIFFERS,
    MetricVerdict.PROBABLY_WORSE,
    MetricVerdict.PROBABLY_BETTER,
    MetricVerdict.PROBABLY_DIFFERS,
    MetricVerdict.SAME,
)
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
COLUMNS = 7


def fold(
    results: Iterable[MetricResult],
) -> tuple[list[MetricResult], list[MetricResult]]:
    """Those that say something, the surest and most asked for first; and the rest."""
    held = list(results)
    told = [each for each in held if each.verdict is not MetricVerdict.OPEN]
    rank = {verdict: place for place, verdict in enumerate(ORDER)}
    told.sort(key=lambda each: (rank[each.verdict], -each.metric.weight))
    return told, [each for each in held if each.verdict is MetricVerdict.OPEN]


def result_table(pair: SessionPair, matters: float) -> Iterator[str]:
    """Both values, the change, its interval drawn, and what may be said."""
    told, still_open = fold(pair.results)
    axis = ForestAxis.of(told or still_open, matters)
    yield "<h3>What changed</h3>"
    if told:
        yield from _rows(pair, told, axis)
    else:
        yield "<p>No row says anything.</p>"
    if still_open:
        heading = f"{counted(len(still_open), 'row')}: cannot tell"
        yield f"<details><summary>{heading}</summary>"
        yield from _rows(pair, still_open, axis)
        if any(each.more_requests for each in still_open):
            yield f"<p>{as_html(MORE)}</p>"
        if any(each.client_alone for each in still_open):
            yield f"<p>{as_html(SLOW_CLIENT)}</p>"
        yield "</details>"


def _rows(
    pair: SessionPair, results: Sequence[MetricResult], axis: ForestAxis
) -> Iterator[str]:
    marks = axis_labels(axis.ticks())
    yield '<table class="results"><thead><tr><th></th>'
    for side in (pair.a, pair.b):
        name = as_html(side.name)
        yield f'<th class="side" title="{name}"><span>{name}</span></th>'
    yield (
        "<th>change</th><th>95% interval</th>"
        f'<th class="scale"><div class="xs">{marks}</div></th><th>verdict</th>'
        "</tr></thead><tbody>"
    )
    for each in results:
        yield _row(pair, each, axis)
        yield from _places(pair, each)
    yield "</tbody></table>"


def _row(pair: SessionPair, result: MetricResult, axis: ForestAxis) -> str:
    before, after = (as_html(text.strip()) for text in values_text(result))
    counts = ", ".join(format_count(n).strip() for n in (result.n_a, result.n_b))
    why = f'<span class="unit why">{as_html(result.why)}</span>' if result.why else ""
    a, b = (as_html(side.name) for side in (pair.a, pair.b))
    return (
        f'<tr class="{TONES[result.verdict]}"><th scope="row">{as_html(title(result))} '
        f'<span class="unit">{as_html(result.metric.vantage)} · n {counts}</span></th>'
        f'<td class="value" data-of="{a}">{before}</td>'
        f'<td class="value" data-of="{b}">{after}</td>'
        f'<td class="change">{as_html(change_text(result.ratio))}</td>'
        f'<td class="span">{as_html(span_text(result.ratio_span))}</td>'
        f'<td class="drawn">{forest(axis, result)}</td>'
        f'<td class="verdict"><span class="sign">{GLYPHS[result.verdict]} '
        f"{as_html(verdict_text(result))}</span>{why}</td></tr>"
    )


def _places(pair: SessionPair, result: MetricResult) -> Iterator[str]:
    """When and for whom the change is largest."""
    said = [
        place.sentence
        for place in pair.places
        if place.metric.key == result.metric.key and place.sentence
    ]
    for each in said:
        yield (f'<tr class="place"><td colspan="{COLUMNS}">↳ {as_html(each)}</td></tr>')
