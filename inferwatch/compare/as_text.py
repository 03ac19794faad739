"""A comparison for people, in 80 columns."""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from textwrap import wrap

from inferwatch.compare.comparison import Comparison, MetricResult, SessionPair
from inferwatch.compare.quality import doubts
from inferwatch.compare.report import (
    GLYPHS,
    MORE,
    SLOW_CLIENT,
    change_text,
    check_text,
    method_text,
    not_compared,
    peak_text,
    sentence,
    span_text,
    values_text,
    verdict_text,
    window_text,
)
from inferwatch.compare.session_numbers import SessionNumbers
from inferwatch.compare.verdicts import MetricVerdict
from inferwatch.formatting import UNKNOWN, format_count
from inferwatch.visible import visible

WIDTH = 80
NAME, VALUE, CHANGE, SPAN = 9, 9, 8, 18
Paint = Callable[[str, MetricVerdict], str]
"""Colours what a verdict says; colour is never the only signal."""


def plain(text: str, verdict: MetricVerdict) -> str:
    """No colour."""
    del verdict
    return text


def comparison_text(comparison: Comparison, paint: Paint = plain) -> str:
    """Verdicts, doubts, tables, settings, method; what others named is visible."""
    blocks = [
        _visible(_heads(comparison)),
        *(
            [*_table(pair, paint), *_below(comparison, pair)]
            for pair in comparison.pairs
        ),
        _visible(_settings(comparison)),
        _visible(_checks(comparison)),
        _visible(line for each in comparison.sessions for line in _window(each)),
        wrap(method_text(comparison), WIDTH),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _visible(lines: Iterable[str]) -> list[str]:
    return [visible(line) for line in lines]


def _window(numbers: SessionNumbers) -> list[str]:
    return wrap(window_text(numbers), WIDTH, subsequent_indent="  ")


def _heads(comparison: Comparison) -> Iterator[str]:
    for pair in comparison.pairs:
        for doubt in doubts(pair.quality):
            yield from wrap(f"! {doubt.sentence}", WIDTH, subsequent_indent="  ")
        yield from wrap(sentence(pair), WIDTH, subsequent_indent="  ")


def _table(pair: SessionPair, paint: Paint) -> Iterator[str]:
    yield (
        f"{'':<{NAME}}{_cut(pair.a.name, VALUE)}{_cut(pair.b.name, VALUE)}"
        f"{'change':>{CHANGE}}{'95% interval':>{SPAN}}  verdict"
    )
    for (name, vantage), group in groupby(
        pair.results, lambda each: (each.metric.name, each.metric.vantage)
    ):
        results = list(group)
        yield _group_head(f"{name} ({vantage})", results[0])
        yield from (_row(each, paint) for each in results)


def _below(comparison: Comparison, pair: SessionPair) -> Iterator[str]:
    if peaks := peak_text(pair):
        yield visible(peaks)
    yield not_compared(comparison)
    if any(each.more_requests for each in pair.results):
        yield MORE
    if any(each.client_alone for each in pair.results):
        yield SLOW_CLIENT


def _group_head(name: str, result: MetricResult) -> str:
    before, after = (format_count(n).strip() for n in (result.n_a, result.n_b))
    return f"{name}, n {before} and {after}"


def _row(result: MetricResult, paint: Paint) -> str:
    label = f"  {result.metric.statistic or 'value'}"
    values = "".join(text.rjust(VALUE) for text in values_text(result))
    glyph = f"{GLYPHS[result.verdict]} {verdict_text(result)}"
    return (
        f"{label:<{NAME}}{values}{change_text(result.ratio):>{CHANGE}}"
        f"{span_text(result.ratio_span):>{SPAN}}  {paint(glyph, result.verdict)}"
    )


def _settings(comparison: Comparison) -> Iterator[str]:
    if not comparison.settings:
        yield "No recorded setting differs."
        return
    yield "Settings that differ:"
    for setting in comparison.settings:
        values = ", ".join(UNKNOWN if each is None else each for each in setting.values)
        yield from wrap(f"  {setting.name}: {values}", WIDTH, subsequent_indent="    ")


def _checks(comparison: Comparison) -> Iterator[str]:
    several = len(comparison.pairs) > 1
    for pair in comparison.pairs:
        for check in pair.checks:
            of = f"{pair.b.name}: " if several else ""
            yield from wrap(f"{of}{check_text(check)}", WIDTH, subsequent_indent="  ")


def _cut(name: str, width: int) -> str:
    name = visible(name)
    short = name if len(name) < width else f"{name[: width - 2]}…"
    return short.rjust(width)
