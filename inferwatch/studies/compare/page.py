"""A comparison as an HTML page: verdicts first, then charts of both sides.

Changes are drawn as dots and their intervals as bars, on one axis of ratios.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import UNKNOWN, format_count, format_rate, format_share
from inferwatch.printing.document import (
    Block,
    Cell,
    Folded,
    Item,
    Items,
    PageSection,
    PrintedColumn,
    PrintedHeading,
    PrintedRow,
    RowGroup,
    Sentence,
    Table,
    headed_charts,
    headed_table,
)
from inferwatch.printing.page import all_numbers, page
from inferwatch.printing.svg import WIDTH, AxisTick, axis_labels, path, stretch, svg
from inferwatch.studies.compare.as_json import comparison_json
from inferwatch.studies.compare.charts.distributions import distributions
from inferwatch.studies.compare.charts.over_time import over_time
from inferwatch.studies.compare.comparison import Comparison, MetricResult, SessionPair
from inferwatch.studies.compare.conclusion import conclusion, sentence
from inferwatch.studies.compare.fail_if import ConditionOutcome
from inferwatch.studies.compare.printed import (
    TONES,
    Results,
    of_many,
    open_reason,
    sentences,
)
from inferwatch.studies.compare.quality import Quality, doubts, not_recorded
from inferwatch.studies.compare.reading.configuration import setting_name
from inferwatch.studies.compare.reading.session_numbers import SessionNumbers
from inferwatch.studies.compare.report import (
    A_PEAK,
    GLYPHS,
    change_text,
    check_text,
    in_order,
    meaning,
    method_text,
    not_compared,
    pairing_sentence,
    span_text,
    startup_rows,
    title,
    values_text,
    verdict_text,
)
from inferwatch.studies.compare.side_names import heads
from inferwatch.studies.compare.verdicts import MetricVerdict
from inferwatch.visible import as_html

# Changes and their intervals, drawn on one axis.

HEIGHT, MIDDLE = 30, 15
FARTHEST = math.log(2)
"""Largest log ratio on the axis; larger ones become arrows, to keep small ones visible.
"""
LEAST = 2.5
"""The axis reaches at least this many times the change that matters, on either side."""
ROOM = 1.1
APART = 0.15
"""Least distance between two tick labels, as a share of the axis."""
MARKS = (
    *(1.0, 2.0, 0.5, 1.5, 0.75, 1.2, 0.8, 3.0, 0.33),
    *(1.1, 0.9, 1.05, 0.95, 1.02, 0.98, 1.01, 0.99),
)
"""Ratios to label on the axis, the most useful first."""


@dataclass(frozen=True, slots=True)
class ForestAxis:
    """The logarithmic axis of ratios, with "no change" inside it."""

    low: float
    high: float
    matters: float
    """A band is drawn for changes up to this share, up or down."""

    @classmethod
    def of(cls, results: Iterable[MetricResult], matters: float) -> "ForestAxis":
        """An axis that covers the intervals of the results, within limits."""
        ends = [each.ratio_span for each in results if each.ratio_span is not None]
        least = LEAST * math.log1p(matters)
        low = min((_log(low) for low, _ in ends), default=0.0)
        high = max((_log(high) for _, high in ends), default=0.0)
        return cls(
            low=max(min(low * ROOM, -least), -FARTHEST),
            high=min(max(high * ROOM, least), FARTHEST),
            matters=matters,
        )

    def share(self, ratio: float) -> float:
        share = (_log(ratio) - self.low) / (self.high - self.low)
        return min(max(share, 0.0), 1.0)

    def holds(self, ratio: float) -> bool:
        return self.low <= _log(ratio) <= self.high

    def ticks(self) -> list[AxisTick]:
        ticks: list[AxisTick] = []
        for ratio in MARKS:
            share = self.share(ratio)
            inside = 0.04 < share < 0.96
            if inside and all(abs(share - each.at) >= APART for each in ticks):
                text = "0" if ratio == 1 else change_text(ratio)
                ticks.append(AxisTick(share, text.replace(".0%", "%")))
        return sorted(ticks, key=lambda tick: tick.at)


def forest(axis: ForestAxis, result: MetricResult) -> str:
    """The drawing of one metric's change; empty if the change is unknown."""
    if result.ratio is None or result.ratio_span is None:
        return ""
    low, high = result.ratio_span
    left, right, dot = (axis.share(each) * WIDTH for each in (low, high, result.ratio))
    less, more = (axis.share(1 + each) for each in (-axis.matters, axis.matters))
    words = as_html(
        f"{change_text(result.ratio)}, 95% interval {span_text(result.ratio_span)}: "
        f"{verdict_text(result)}"
    )
    shapes = [
        f"<title>{words}</title>",
        stretch(less, more, kind="band", height=HEIGHT),
        path("rule", "".join(f"M{t.at * WIDTH:.1f} 0V{HEIGHT}" for t in axis.ticks())),
        path("none", f"M{axis.share(1.0) * WIDTH:.1f} 0V{HEIGHT}"),
        path("bar", f"M{left:.1f} {MIDDLE}H{right:.1f}"),
        _end(axis, low, left),
        _end(axis, high, right),
    ]
    if axis.holds(result.ratio):
        shapes.append(path("dot", f"M{dot:.1f} {MIDDLE}h0"))
    return svg(shapes, words, kind="forest", height=HEIGHT)


def _end(axis: ForestAxis, ratio: float, x: float) -> str:
    """A tick where the interval ends, or an arrow if that is off the axis."""
    if axis.holds(ratio):
        return path("tip", f"M{x:.1f} {MIDDLE - 5}v10")
    inward = 12 if _log(ratio) < axis.low else -12
    return path("tip", f"M{x + inward:.1f} {MIDDLE - 5}L{x:.1f} {MIDDLE}l{inward} 5")


def _log(ratio: float) -> float:
    if ratio <= 0:
        return -math.inf
    return math.log(ratio)


# The page.

QUALITY_GLYPHS = {
    Quality.GOOD: "✓",
    Quality.DOUBTFUL: "▲",
    Quality.VOID: "✗",
    Quality.UNKNOWN: "?",
}
"""Shown beside the word and the colour."""
OUTCOMES = {
    ConditionOutcome.FAILED: Quality.VOID,
    ConditionOutcome.HELD: Quality.GOOD,
    ConditionOutcome.OPEN: Quality.UNKNOWN,
}
"""Which glyph and colour each outcome uses."""
SHARES = (
    "How many of all (upwards) took at most so long (to the right): the further left a "
    "line, the faster. Time is logarithmic, and the axis of shares gives room to both "
    "tails. Dots are the percentiles of the table."
)
HEAD = 24
SINGLE_RUNS = " Thin lines are single runs."
TIMES = "Seconds are counted from when the load of a session began."
A_KV_PEAK = f"A KV peak is {A_PEAK}."


def comparison_page(comparison: Comparison) -> Iterator[str]:
    first, *others = (side.name for side in comparison.sides)
    name = f"{', '.join(others)} against {first}"
    yield from page(name, _page(comparison), "study")


def _page(comparison: Comparison) -> Iterator[Block]:
    several = len(comparison.pairs) > 1
    for pair in comparison.pairs:
        head = (
            [PrintedHeading(f"{pair.b.name} against {pair.a.name}")] if several else []
        )
        yield PageSection(
            tag="section", kind="pair", blocks=[*head, *_pair(pair, comparison)]
        )
    yield from _page_settings(comparison)
    yield from _page_startup(comparison)
    names = (
        *("id", "recorded", "model", "compared", "warm-up cut", "requests"),
        *("requests/s", "prompt tokens", "output tokens", "KV peak"),
    )
    rows = [[*_session(each)] for each in comparison.sessions]
    table = headed_table("Sessions", names, rows)
    yield PageSection(kind="sessions", blocks=table)
    yield PrintedHeading("How it was judged")
    yield from sentences(
        (TIMES, A_KV_PEAK, method_text(comparison), not_compared(comparison))
    )
    yield all_numbers("As compare --json prints them", comparison_json(comparison))


def _pair(pair: SessionPair, comparison: Comparison) -> Iterator[Block]:
    tone = "void" if pair.void else ""
    yield Sentence(text=f"{conclusion(pair)}.", is_lead=True, tone=tone)
    yield from _listed(
        "Conditions",
        [
            _item(OUTCOMES[each.outcome], f"{check_text(each)}.", each.outcome)
            for each in pair.checks
        ],
    )
    runs = SINGLE_RUNS if pair.a.is_repeated or pair.b.is_repeated else ""
    yield from headed_charts(
        "Distributions", distributions(pair), f"{SHARES}{runs}", level=3
    )
    about = "From when each load began; what was not compared is shaded."
    yield from headed_charts("Over time", over_time(pair), about, level=3)
    yield from _changes(pair, comparison.rules.matters)
    yield from _listed("Can they be compared?", [*_quality(pair)])
    if not pair.void:
        yield Sentence(text=f"{sentence(pair)}.")
    yield Sentence(text=pairing_sentence(pair), tone="pairing")


def _listed(heading: str, items: Sequence[Item]) -> Iterator[Block]:
    if items:
        yield PrintedHeading(heading, 3)
        yield Items(items=items, kind="checks")


def _quality(pair: SessionPair) -> Iterator[Item]:
    """The quality checks: doubts in full, good results in one line."""
    for doubt in doubts(pair.quality):
        yield _item(doubt.quality, doubt.sentence, of=doubt.subject)
    good = [each for each in pair.quality if each.quality is Quality.GOOD]
    if good:
        names = ", ".join(each.subject for each in good)
        yield _item(Quality.GOOD, names, folded=[each.sentence for each in good])
    if unknown := not_recorded(pair.quality):
        yield _item(Quality.UNKNOWN, unknown)


def _item(
    quality: Quality,
    text: str,
    word: str = "",
    *,
    of: str = "",
    folded: Sequence[str] = (),
) -> Item:
    return Item(
        text=text,
        of=of,
        sign=f"{QUALITY_GLYPHS[quality]} {word or quality}",
        tone=quality,
        folded=folded,
    )


def _changes(pair: SessionPair, matters: float) -> Iterator[Block]:
    """The metrics with a verdict first; the inconclusive ones folded below."""
    by_verdict = in_order(pair)
    still_open = by_verdict.pop(MetricVerdict.OPEN, [])
    changed = [each for results in by_verdict.values() for each in results]
    axis = ForestAxis.of(changed or still_open, matters)
    if changed or still_open:
        yield PrintedHeading("What changed", 3)
    if changed:
        yield _drawn(
            pair, [_group(pair, v, rows, axis) for v, rows in by_verdict.items()]
        )
    if still_open:
        verdict = MetricVerdict.OPEN
        yield Folded(
            summary=of_many(verdict, still_open),
            about=meaning(verdict, matters),
            blocks=[_drawn(pair, [_group(pair, verdict, still_open, axis)])],
            is_open=not changed,
        )


def _drawn(pair: SessionPair, groups: Sequence[RowGroup]) -> Table:
    a, b = heads(pair, HEAD)
    return Table(
        columns=[
            PrintedColumn(kind="head"),
            PrintedColumn(head=a, kind="value", is_name=True),
            PrintedColumn(head=b, kind="value", is_name=True),
            PrintedColumn(head="change", kind="change"),
            PrintedColumn(head="95% interval", kind="span"),
            PrintedColumn(kind="drawn"),
        ],
        groups=groups,
        kind="results",
    )


def _group(
    pair: SessionPair, verdict: MetricVerdict, results: Results, axis: ForestAxis
) -> RowGroup:
    """The rows of one verdict, with the axis labels above them."""
    has_changes = any(each.ratio_span is not None for each in results)
    is_open = verdict is MetricVerdict.OPEN
    return RowGroup(
        rows=[_drawn_row(pair, each, axis) for each in results],
        head="" if is_open else of_many(verdict, results),
        about=meaning(verdict, axis.matters),
        tone=TONES[verdict],
        marks=axis_labels(axis.ticks()) if has_changes else "",
    )


def _drawn_row(pair: SessionPair, result: MetricResult, axis: ForestAxis) -> PrintedRow:
    counts = ", ".join(format_count(n).strip() for n in (result.n_a, result.n_b))
    change = change_text(result.ratio)
    if result.ratio is not None:
        change = f"{GLYPHS[result.verdict]} {change}"
    places = [
        place.sentence
        for place in pair.places
        if place.metric.key == result.metric.key and place.sentence
    ]
    return PrintedRow(
        cells=[
            Cell(text=title(result), aside=f"{result.metric.vantage} · n {counts}"),
            *values_text(result),
            change,
            span_text(result.ratio_span),
            Cell(markup=forest(axis, result)),
        ],
        notes=[*places, *open_reason(result, pair, "in each")],
    )


def _page_startup(comparison: Comparison) -> Iterator[Block]:
    if rows := startup_rows(comparison):
        names = [each.name for each in comparison.sessions]
        yield from headed_table("Start-up, the slowest worker", names, rows)


def _page_settings(comparison: Comparison) -> Iterator[Block]:
    if not comparison.settings:
        yield PrintedHeading("Settings")
        yield Sentence(text="No recorded setting differs.")
        return
    names = [each.name for each in comparison.sessions]
    rows = [
        [
            setting_name(each.name),
            *(UNKNOWN if value is None else value for value in each.values),
        ]
        for each in comparison.settings
    ]
    table = headed_table("Settings that differ", names, rows)
    yield PageSection(kind="settings", blocks=table)


def _session(numbers: SessionNumbers) -> Iterator[str]:
    row, load, span = numbers.row, numbers.load, numbers.span
    began = datetime.fromtimestamp(row.started_ns / NS_PER_S, UTC)
    yield from (numbers.name, row.id, f"{began:%Y-%m-%d %H:%M:%S} UTC")
    yield from (row.model or UNKNOWN, f"{span.from_s:.1f} to {span.to_s:.1f} s")
    yield from (span.cut, format_count(load.requests), format_rate(load.per_s))
    yield from map(format_rate, (load.prompt_tokens, load.output_tokens))
    yield format_share(numbers.kv_peak)
