"""A comparison as text in 80 columns, and as Markdown for pull requests.

Both show what changed first; the Markdown folds the rest away.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from inferwatch.formatting import counted
from inferwatch.printing.document import (
    Block,
    FactList,
    Folded,
    Item,
    Items,
    PrintedColumn,
    PrintedHeading,
    PrintedRow,
    RowGroup,
    Sentence,
    Table,
)
from inferwatch.printing.markdown import document_markdown, shortened_name
from inferwatch.printing.text import Paint, document_text, plain
from inferwatch.studies.compare.comparison import Comparison, MetricResult, SessionPair
from inferwatch.studies.compare.conclusion import conclusion, sentence
from inferwatch.studies.compare.quality import Quality, doubts, not_recorded
from inferwatch.studies.compare.reading.configuration import setting_name
from inferwatch.studies.compare.report import (
    GLYPHS,
    PROBABLE,
    SHOWN,
    by_side,
    change_text,
    check_text,
    in_order,
    meaning,
    method_text,
    more_text,
    nearest_first,
    not_compared,
    other_reasons,
    pairing_sentence,
    peak_text,
    span_text,
    startup_rows,
    title,
    too_small,
    values_text,
    verdict_text,
    whose,
    window_text,
    would_text,
)
from inferwatch.studies.compare.side_names import heads, long_heads, short_names
from inferwatch.studies.compare.verdicts import MetricVerdict

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
Results = Sequence[MetricResult]


def of_many(verdict: MetricVerdict, results: Results) -> str:
    return f"{GLYPHS[verdict]} {verdict}, {counted(len(results), 'row')}"


def _doubts(pair: SessionPair) -> Items:
    """The doubts, but not those that make the comparison void, as they come first."""
    return Items(
        items=[
            Item(text=each.sentence, is_doubt=True)
            for each in doubts(pair.quality)
            if each.quality is not Quality.VOID
        ]
    )


def _checked(pair: SessionPair) -> Iterator[str]:
    good = [each.subject for each in pair.quality if each.quality is Quality.GOOD]
    if good:
        yield f"checked and good: {', '.join(good)}"
    if unknown := not_recorded(pair.quality):
        yield unknown


def _about_pairs(pair: SessionPair) -> list[str]:
    texts = [pairing_sentence(pair), pair.about_runs]
    if pair.answers is not None:
        texts.append(f"answers of {pair.b.name}: {pair.answers.sentence}")
    return list(dict.fromkeys(texts))


def sentences(texts: Iterable[str | None]) -> list[Block]:
    return [Sentence(text=each) for each in texts if each]


# As text.

SHORT_NAME = 12
NAME, VANTAGE, VALUE, CHANGE, SPAN = 13, 9, 14, 8, 19
MOST_NEEDS = 4
MOST_WHYS = 3


def comparison_text(
    comparison: Comparison, paint: Paint = plain, *, every_row: bool = False
) -> str:
    """The conclusions, tables, doubts, settings and method, as text.

    Args:
        comparison: The comparison to print.
        paint: Colours a text by its tone.
        every_row: Include inconclusive rows.
    """
    sections: list[Iterable[Block]] = [
        [Sentence(text=f"{conclusion(pair)}.")] for pair in comparison.pairs
    ]
    for pair in comparison.pairs:
        sections.append(_table(comparison, pair, every_row=every_row))
        sections.append(sentences([peak_text(pair), not_compared(comparison)]))
    sections += map(_about, comparison.pairs)
    sections += [
        _settings(comparison),
        sentences(_checks(comparison)),
        sentences(map(window_text, comparison.sessions)),
        [Sentence(text=method_text(comparison), hangs=False)],
    ]
    return document_text(sections, paint=paint)


def _about(pair: SessionPair) -> Iterator[Block]:
    """How many rows changed which way, and how well the two can be compared."""
    if not pair.void:  # which the conclusion says
        yield Sentence(text=f"{sentence(pair)}.")
    yield Sentence(text=f"{'; '.join(_about_pairs(pair))}.")
    yield _doubts(pair)
    yield from sentences(f"{each}." for each in _checked(pair))


def _table(
    comparison: Comparison, pair: SessionPair, *, every_row: bool
) -> Iterator[Block]:
    if comparison.pairs[1:]:
        yield Sentence(text=f"{pair.b.name} against {pair.a.name}")
    a, b = heads(pair, VALUE - 1)
    by_verdict = in_order(pair)
    folded = not every_row and len(by_verdict) > 1
    yield Table(
        columns=[
            PrintedColumn(is_left=True, width=NAME),
            PrintedColumn(is_left=True, width=VANTAGE),
            PrintedColumn(head=a, width=VALUE, is_name=True),
            PrintedColumn(head=b, width=VALUE, is_name=True),
            PrintedColumn(head="change", width=CHANGE),
            PrintedColumn(head="95% interval", width=SPAN),
        ],
        groups=[*_groups(pair, by_verdict, comparison.rules.matters, folded=folded)],
    )


def _groups(
    pair: SessionPair,
    by_verdict: dict[MetricVerdict, list[MetricResult]],
    matters: float,
    *,
    folded: bool,
) -> Iterator[RowGroup]:
    explained: set[str] = set()
    for verdict, results in by_verdict.items():
        head, means = of_many(verdict, results), meaning(verdict, matters)
        if verdict is MetricVerdict.OPEN and folded:
            yield RowGroup(
                head=f"{head} (--all shows them)",
                rows=(),
                notes=[*_folded(pair, results)],
                tone=TONES[verdict],
            )
            continue
        known = means in explained or verdict is MetricVerdict.OPEN
        explained.add(means)
        yield RowGroup(
            head=head,
            about="" if known else means,
            rows=[*_rows(pair, results, matters)],
            tone=TONES[verdict],
        )


def _rows(pair: SessionPair, results: Results, matters: float) -> Iterator[PrintedRow]:
    """Table rows; notes that apply to several rows follow the last of them."""
    for notes, alike in groupby(results, lambda e: list(_notes(e, pair, matters))):
        *others, last = alike
        yield from (PrintedRow(cells=_cells(each)) for each in others)
        yield PrintedRow(cells=_cells(last), notes=notes)


def _cells(result: MetricResult) -> list[str]:
    return [
        f"  {title(result)}",
        result.metric.vantage,
        *values_text(result),
        change_text(result.ratio),
        span_text(result.ratio_span),
    ]


def _notes(result: MetricResult, pair: SessionPair, matters: float) -> Iterator[str]:
    for place in pair.places:
        if place.metric.key == result.metric.key:
            yield place.sentence
    if text := too_small(result, matters):
        yield text
    yield from open_reason(result, pair, "a side")


def open_reason(result: MetricResult, pair: SessionPair, of: str) -> Iterator[str]:
    if result.verdict is MetricVerdict.OPEN:
        texts = (result.why, would_text(result, pair, of))
        if text := "; ".join(filter(None, texts)):
            yield text


def _folded(pair: SessionPair, results: Results) -> Iterator[str]:
    yield from _for_a_time(pair, results)
    nearest = nearest_first(results)
    if nearest:
        needs = _needs(pair, nearest)
        yield f"about so many more a side would tell: {needs}"
    for why, many in other_reasons(results)[:MOST_WHYS]:
        yield f"{counted(many, 'row')}: {why}"


def _for_a_time(pair: SessionPair, results: Results) -> Iterator[str]:
    """Sentences on changes limited to some of the time, for inconclusive metrics."""
    places = {each.metric.key: each for each in pair.places}
    names: set[str] = set()
    for each in sorted(results, key=lambda e: -e.metric.weight):
        if each.metric.key in places and each.metric.of not in names:
            names.add(each.metric.of)
            yield f"{whose(each)}: {places[each.metric.key].sentence}"


def _needs(pair: SessionPair, rows: Results) -> str:
    """How much more data would give a verdict on the first of them."""
    texts = [f"{whose(each)} {more_text(each, pair)}" for each in rows[:MOST_NEEDS]]
    if more := len(rows[MOST_NEEDS:]):
        texts.append(f"and {counted(more, 'other row')}")
    return ", ".join(texts)


def _settings(comparison: Comparison) -> Iterator[Block]:
    differ = comparison.settings
    yield Sentence(
        text="Settings that differ:" if differ else "No recorded setting differs."
    )
    names = short_names(comparison.sides, SHORT_NAME)
    yield FactList(
        pairs=[
            (
                setting_name(each.name),
                " · ".join(
                    f"{name} {value}"
                    for name, value in zip(
                        names, by_side(comparison, each), strict=True
                    )
                ),
            )
            for each in differ
        ]
    )


def _checks(comparison: Comparison) -> Iterator[str]:
    several = len(comparison.pairs) > 1
    for pair in comparison.pairs:
        of = f"{pair.b.name}: " if several else ""
        yield from (f"{of}{check_text(check)}" for check in pair.checks)


# As a summary for pull requests.

MOST_SETTINGS = 30


def comparison_markdown(comparison: Comparison) -> str:
    """The comparison as Markdown: first the changes, then other rows as room allows."""
    blocks: list[Block] = [
        PrintedHeading(f"inferwatch compare: {_headline(comparison)}", level=3)
    ]
    for pair in comparison.pairs:
        blocks += _shown(comparison, pair)
    blocks += _settings_table(comparison)
    blocks += _startup_table(comparison)
    blocks += (_rest(comparison, pair) for pair in comparison.pairs)
    return document_markdown([*blocks, _method(comparison)])


def _headline(comparison: Comparison) -> str:
    words = []
    if comparison.failed:
        words.append("FAILED")
    if any(pair.void for pair in comparison.pairs):
        words.append("⊘ cannot be compared")
    verdicts = {each.verdict for pair in comparison.pairs for each in pair.results}
    changes = [verdict for verdict in SHOWN if verdict in verdicts]
    words += [f"{GLYPHS[verdict]} {verdict}" for verdict in changes]
    if not changes and verdicts & set(PROBABLE):
        words.append("nothing surely worse or better")
    if not words:
        known = MetricVerdict.SAME if MetricVerdict.SAME in verdicts else None
        verdict = known or MetricVerdict.OPEN
        words.append(f"{GLYPHS[verdict]} {verdict}")
    return ", ".join(words)


def _list(texts: Iterable[str]) -> Items:
    return Items(items=[Item(text=each) for each in texts])


def _shown(comparison: Comparison, pair: SessionPair) -> Iterator[Block]:
    """The conclusion, conditions, the rows that show a change, then all doubts."""
    yield Sentence(text=f"{conclusion(pair)}.", is_lead=True)
    yield Items(items=[Item(text=check_text(e), alarm="FAILED") for e in pair.checks])
    by_verdict = in_order(pair)
    changes = [each for v in (*SHOWN, *PROBABLE) for each in by_verdict.get(v, [])]
    if changes:
        yield _results(pair, changes)
        yield _list(_places(pair))
    items = [*_list(_about_pairs(pair)).items, *_doubts(pair).items]
    yield Items(
        items=[
            *([] if pair.void else _list([f"{sentence(pair)}."]).items),
            *items,
            *_list(_checked(pair)).items,
        ]
    )
    probable = next((v for v in PROBABLE if v in by_verdict), None)
    if probable:
        why = meaning(probable, comparison.rules.matters)
        note = f"probably: {why}; the others hold over all rows together."
        yield Sentence(text=note, is_aside=True)


def _places(pair: SessionPair) -> Iterator[str]:
    by_key = {each.metric.key: title(each) for each in pair.results}
    for place in pair.places:
        name = by_key.get(place.metric.key, place.metric.name)
        yield f"{name}: {place.sentence}"


def _results(pair: SessionPair, results: Results) -> Table:
    a, b = long_heads(pair)
    return Table(
        columns=[
            PrintedColumn(head="metric", is_left=True),
            PrintedColumn(head="seen by", is_left=True),
            PrintedColumn(head=a),
            PrintedColumn(head=b),
            PrintedColumn(head="change"),
            PrintedColumn(head="95% interval"),
            PrintedColumn(head="verdict", is_left=True),
        ],
        groups=[RowGroup(rows=[_result(pair, each) for each in results])],
    )


def _result(pair: SessionPair, result: MetricResult) -> PrintedRow:
    more = more_text(result, pair)
    still_open = result.verdict is MetricVerdict.OPEN and more
    verdict = f"{result.verdict}: {more}" if still_open else verdict_text(result)
    cells = [text.strip() for text in _cells(result)]
    return PrintedRow(cells=[*cells, f"{GLYPHS[result.verdict]} {verdict}"])


def _rest(comparison: Comparison, pair: SessionPair) -> Folded:
    by_verdict = in_order(pair)
    kinds = [v for v in (MetricVerdict.SAME, MetricVerdict.OPEN) if v in by_verdict]
    counts = [f"{counted(len(by_verdict[v]), 'row')}: {v}" for v in kinds]
    of = [shortened_name(pair.b.name)] if len(comparison.pairs) > 1 else []
    rows = [each for v in kinds for each in by_verdict[v]]
    return Folded(summary=", ".join([*of, *counts]), blocks=[_results(pair, rows)])


def _settings_table(comparison: Comparison) -> Iterator[Block]:
    if not comparison.settings:
        yield Sentence(text="No recorded setting differs.")
        return
    names = ["setting that differs", *(each.name for each in comparison.sides)]
    settings = comparison.settings[:MOST_SETTINGS]
    rows = [
        PrintedRow(cells=[setting_name(each.name), *by_side(comparison, each)])
        for each in settings
    ]
    yield Table(
        columns=[PrintedColumn(head=name, is_left=True) for name in names],
        groups=[RowGroup(rows=rows)],
        has_names=True,
    )
    if more := len(comparison.settings) - len(settings):
        yield Sentence(text=f"… and {more} more.")


def _startup_table(comparison: Comparison) -> Iterator[Block]:
    rows = startup_rows(comparison)
    if not rows:
        return
    names = ["start-up", *(each.name for each in comparison.sessions)]
    yield Table(
        columns=[
            PrintedColumn(head=name, is_left=not at) for at, name in enumerate(names)
        ],
        groups=[RowGroup(rows=[PrintedRow(cells=row) for row in rows])],
        has_names=True,
    )


def _method(comparison: Comparison) -> Folded:
    lines = [
        *map(window_text, comparison.sessions),
        *map(peak_text, comparison.pairs),
        not_compared(comparison),
        method_text(comparison),
    ]
    texts = filter(None, lines)
    return Folded(summary="What was compared, and how", blocks=[_list(texts)])
