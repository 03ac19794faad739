"""A comparison for people, in 80 columns: what says something comes first."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from textwrap import wrap
from unicodedata import east_asian_width

from inferwatch.formatting import counted
from inferwatch.studies.compare.comparison import Comparison, MetricResult, SessionPair
from inferwatch.studies.compare.quality import Quality, doubts, not_recorded
from inferwatch.studies.compare.reading.session_numbers import SessionNumbers
from inferwatch.studies.compare.report import (
    GLYPHS,
    by_side,
    change_text,
    check_text,
    in_order,
    meaning,
    method_text,
    more_text,
    not_compared,
    pairing_sentence,
    peak_text,
    sentence,
    span_text,
    title,
    too_small,
    values_text,
    whose,
    window_text,
)
from inferwatch.studies.compare.verdicts import MetricVerdict
from inferwatch.visible import visible

WIDTH = 80
NAME, VANTAGE, VALUE, CHANGE, SPAN = 13, 9, 12, 8, 19
MOST_NEEDS = 4
MOST_WHYS = 3
MOST_CHARACTERS = 2_000
"""Of a sentence that quotes what others named."""
WIDE = "\0"
"""Stands before what takes two columns while lines are made."""
Paint = Callable[[str, MetricVerdict], str]
"""Colours what a verdict says; colour is never the only signal."""


def plain(text: str, verdict: MetricVerdict) -> str:
    """No colour."""
    del verdict
    return text


def comparison_text(
    comparison: Comparison, paint: Paint = plain, *, every_row: bool = False
) -> str:
    """Verdicts, doubts, tables, settings, method; what others named is visible.

    Args:
        comparison: What was found.
        paint: Colours a text by its verdict.
        every_row: Also those of which nothing can be told.
    """
    blocks: list[Iterable[str]] = [_head(pair) for pair in comparison.pairs]
    for pair in comparison.pairs:
        blocks.append(_table(comparison, pair, paint, every_row=every_row))
        blocks.append(_below(comparison, pair))
    blocks += [
        _settings(comparison),
        _checks(comparison),
        (line for each in comparison.sessions for line in _window(each)),
        wrap(method_text(comparison), WIDTH),
    ]
    texts = ["\n".join(block) for block in blocks]
    return "\n\n".join(text for text in texts if text)


def wrapped(
    text: str, *, first: str = "", then: str = "  ", width: int | None = None
) -> list[str]:
    """Lines of a sentence, none too long; what others named is visible.

    With a width of its own, words with hyphens stay whole: flags are to be read.
    """
    shown = visible(text)
    if len(shown) > MOST_CHARACTERS:
        shown = f"{shown[:MOST_CHARACTERS]}…"
    marked = "".join(f"{WIDE}{each}" if is_wide(each) else each for each in shown)
    room = (width or WIDTH) - (marked != shown)  # a mark may end a line
    lines = wrap(
        marked,
        room,
        initial_indent=first,
        subsequent_indent=then,
        break_on_hyphens=width is None,
    )
    return [line.replace(WIDE, "") for line in lines]


def is_wide(character: str) -> bool:
    """It takes two columns."""
    return east_asian_width(character) in {"W", "F"}


def _head(pair: SessionPair) -> Iterator[str]:
    yield from wrapped(f"{sentence(pair)}.")
    said = dict.fromkeys((pairing_sentence(pair), pair.about_runs))
    yield from wrapped(f"{'; '.join(said)}.")
    for doubt in doubts(pair.quality):
        if doubt.quality is not Quality.VOID:  # that is in the first line
            yield from wrapped(f"! {doubt.sentence}")
    good = [each.subject for each in pair.quality if each.quality is Quality.GOOD]
    if good:
        yield from wrapped(f"checked and good: {', '.join(good)}.")
    if unknown := not_recorded(pair.quality):
        yield from wrapped(f"{unknown}.")


def _window(numbers: SessionNumbers) -> list[str]:
    return wrapped(window_text(numbers))


def _table(
    comparison: Comparison, pair: SessionPair, paint: Paint, *, every_row: bool
) -> Iterator[str]:
    if comparison.pairs[1:]:
        yield from wrapped(f"{pair.b.name} against {pair.a.name}")
    found = in_order(pair)
    folded = not every_row and len(found) > 1
    if not folded or set(found) != {MetricVerdict.OPEN}:
        yield (
            f"{'':<{NAME + VANTAGE}}{cut(pair.a.name, VALUE)}{cut(pair.b.name, VALUE)}"
            f"{'change':>{CHANGE}}{'95% interval':>{SPAN}}"
        )
    explained: set[str] = set()
    matters = comparison.rules.matters
    for verdict, results in found.items():
        of_many = f"{GLYPHS[verdict]} {verdict}, {counted(len(results), 'row')}"
        if verdict is MetricVerdict.OPEN and folded:
            yield from _folded(of_many, pair, results, paint)
            continue
        means = meaning(verdict, matters)
        known = means in explained or verdict is MetricVerdict.OPEN
        head = of_many if known else f"{of_many}: {means}"
        explained.add(means)
        yield from (paint(line, verdict) for line in wrapped(head))
        for notes, rows in groupby(results, lambda e: list(_notes(e, pair, matters))):
            yield from map(_row, rows)
            yield from notes


def _row(result: MetricResult) -> str:
    values = "".join(text.rjust(VALUE) for text in values_text(result))
    return (
        f"  {title(result):<{NAME - 2}}{result.metric.vantage:<{VANTAGE}}{values}"
        f"{change_text(result.ratio):>{CHANGE}}{span_text(result.ratio_span):>{SPAN}}"
    )


def _notes(result: MetricResult, pair: SessionPair, matters: float) -> Iterator[str]:
    """Under a row, or under several alike: where it changed most, what would tell."""
    indent = "      "
    for place in pair.places:
        if place.metric.key == result.metric.key:
            yield from wrapped(place.sentence, first=indent, then=indent)
    if said := too_small(result, matters):
        yield from wrapped(said, first=indent, then=indent)
    if result.verdict is MetricVerdict.OPEN:
        more = more_text(result, pair)
        would = f"{more} a side would tell" if more else None
        said = "; ".join(each for each in (result.why, would) if each)
        yield from wrapped(said, first=indent, then=indent)


def _folded(
    head: str, pair: SessionPair, results: Sequence[MetricResult], paint: Paint
) -> Iterator[str]:
    """Rows of which nothing can be told, in a few lines."""
    yield paint(f"{head} (--all shows them)", MetricVerdict.OPEN)
    said = []
    if needs := _needs(pair, results):
        said.append(f"about so many more a side would tell: {needs}")
    whys = Counter(each.why for each in results if not more_text(each, pair))
    for why, many in whys.most_common(MOST_WHYS):
        said += [f"{counted(many, 'row')}: {why}"] if why else []
    for each in [*_for_a_time(pair, results), *said]:
        yield from wrapped(each, first="  ", then="    ")


def _for_a_time(pair: SessionPair, results: Sequence[MetricResult]) -> Iterator[str]:
    """What changed on the way is why nothing can be told of the whole: that first."""
    places = {each.metric.key: each for each in pair.places}
    said: set[str] = set()
    for each in sorted(results, key=lambda e: -e.metric.weight):
        if each.metric.key in places and each.metric.of not in said:
            said.add(each.metric.of)
            yield f"{whose(each)}: {places[each.metric.key].sentence}"


def _needs(pair: SessionPair, results: Sequence[MetricResult]) -> str:
    """Of the metrics people ask about first; the nearest first."""
    known = [each for each in results if each.more_requests or each.more_runs]
    known.sort(key=lambda e: (-e.metric.weight, e.more_runs or 0, e.more_requests or 0))
    said = [f"{whose(each)} {more_text(each, pair)}" for each in known[:MOST_NEEDS]]
    if more := len(known[MOST_NEEDS:]):
        said.append(f"and {counted(more, 'other row')}")
    return ", ".join(said)


def _below(comparison: Comparison, pair: SessionPair) -> Iterator[str]:
    if peaks := peak_text(pair):
        yield from wrapped(peaks)
    yield from wrapped(not_compared(comparison))


def _settings(comparison: Comparison) -> Iterator[str]:
    if not comparison.settings:
        yield "No recorded setting differs."
        return
    yield "Settings that differ:"
    for setting in comparison.settings:
        values = ", ".join(by_side(comparison, setting))
        yield from wrapped(f"{setting.name}: {values}", first="  ", then="    ")


def _checks(comparison: Comparison) -> Iterator[str]:
    several = len(comparison.pairs) > 1
    for pair in comparison.pairs:
        for check in pair.checks:
            of = f"{pair.b.name}: " if several else ""
            yield from wrapped(f"{of}{check_text(check)}")


def cut(name: str, width: int) -> str:
    """A name that others chose, in so many columns, with a blank before it."""
    shown, room = "", width - 1
    for each in visible(name):
        room -= 1 + is_wide(each)
        if room < 0:
            shown = f"{shown[:-1]}…"
            break
        shown += each
    return " " * (width - len(shown) - sum(map(is_wide, shown))) + shown
