"""The table of predictions and outcomes of limits."""

from collections.abc import Callable, Iterator, Sequence
from textwrap import wrap

from inferwatch.feed import Mark
from inferwatch.formatting import (
    TimeUnit,
    about,
    format_change,
    format_in,
    format_rate,
    shared_unit,
)
from inferwatch.studies.what_if.answer import answers
from inferwatch.studies.what_if.prediction import WhatIf
from inferwatch.studies.what_if.table import INDENT, NAMES, NOT_TOLD, rows, sentences
from inferwatch.ui.kit.renderables.text import Line, TextRun, cells_of, fit, ruled
from inferwatch.ui.knobs.span_numbers import (
    LATENCIES,
    PERCENTS,
    TOKENS_PER_S,
    WAITING,
    SpanFigure,
    SpanNumbers,
)

UNKNOWN = "–"
PREDICTED = (
    "TTFT p50",
    "TTFT p99",
    "TPOT p50",
    "TPOT p99",
    "tokens/s",
    "queueing for",
)
"""Rows of the what-if table that matter for limits."""
SAME, CANNOT = "not told apart", "cannot tell"
ALIGN = "  "
MOST_CHANGES = 20


def text_lines(title: str, text: str, width: int) -> list[Line]:
    """Return a heading and a text, to be shown in place of a table."""
    return [_head(title, width), *_sentences([text], width)]


def prediction_lines(title: str, prediction: WhatIf, width: int) -> list[Line]:
    """Return the answer, and the last minutes: measured, predicted, the error."""
    table = [["", "measured", "predicted", "error of the model"]]
    metrics = [
        r
        for r in rows(prediction)
        if r.name.split(",")[0] in PREDICTED or r.name.startswith(INDENT)
    ]
    table += [[r.name, r.measured, r.predicted[0], r.error] for r in metrics]
    said = (f"{each}." for each in answers(prediction))
    lines = [
        _head(title, width),
        *((TextRun(row, "strong"),) for each in said for row in wrap(each, width)),
        *_columns(table, ("muted", "strong", "muted")),
    ]
    every = list(sentences(prediction))
    doubts = [each for each in every if "cannot say" in each or "Less sure" in each]
    return [
        *lines,
        *_sentences([*doubts, *(e for e in every if e not in doubts)], width),
    ]


def outcome_lines(
    title: str,
    before: SpanNumbers,
    after: SpanNumbers | None,
    waits: str,
    width: int,
) -> list[Line]:
    """Return a table of numbers before and after a change, with their intervals."""
    table = [["", "before", waits or "after", "change"]]
    table += [
        _outcome_row(name, unit, before, after) for name, unit in _rows(before, after)
    ]
    lines = [_head(title, width), *_columns(table, ("muted", "strong", "strong"))]
    return [*lines, *_sentences(_notes(before, after), width)]


def change_list(
    marks: Sequence[Mark], wall_text: Callable[[int], str], width: int
) -> list[Line]:
    if not marks:
        return []
    lines: list[Line] = [_head("changes", width)]
    for mark in marks[: -MOST_CHANGES - 1 : -1]:
        at = TextRun(f"{wall_text(mark.t_ns)}  ", "muted")
        lines.append(fit((at, TextRun(mark.text)), width))
    return lines


def _rows(
    before: SpanNumbers, after: SpanNumbers | None
) -> Iterator[tuple[str, TimeUnit | None]]:
    for metric in LATENCIES:
        for percent in PERCENTS:
            name = f"{metric} {percent}"
            sides = [each.of(name).value for each in (before, after) if each]
            yield name, shared_unit(sides)
    yield from ((TOKENS_PER_S, None), (WAITING, None))


def _outcome_row(
    name: str, unit: TimeUnit | None, before: SpanNumbers, after: SpanNumbers | None
) -> list[str]:
    was = before.of(name)
    now = after.of(name) if after else SpanFigure()
    metric, _, percent = name.partition(" ")
    label = f"{NAMES[metric]} {percent}, {unit.name}" if unit else name
    return [label, _figure(was, unit), _figure(now, unit), _change(was, now)]


def _figure(figure: SpanFigure, unit: TimeUnit | None) -> str:
    """Format a value and its interval: ``82.1 (74.0–91.2)``."""
    if figure.value is None:
        return UNKNOWN

    def text(value: float | None) -> str:
        if value is None:
            return "?"
        return (format_rate(value) if unit is None else format_in(unit, value)).strip()

    value = text(figure.value)
    if figure.weak:
        value = about(f" {value}").strip()
    low, high = figure.interval
    if low is None and high is None:
        return value
    return f"{value} ({text(low)}–{text(high)})"


def _change(was: SpanFigure, now: SpanFigure) -> str:
    if was.value is None or now.value is None:
        return UNKNOWN
    apart = was.is_apart(now)
    if not apart:
        return SAME if apart is False else CANNOT
    return format_change(now.value / was.value) if was.value else "more"


def _notes(before: SpanNumbers, after: SpanNumbers | None) -> Iterator[str]:
    if before.forgotten or (after is not None and after.forgotten):
        yield "more requests ended since than are kept: latencies are not known."
    yield (
        "In brackets: where the number lies with 95% confidence; ? is unbounded by so "
        "few, no bracket by too few or too much alike. A change is told where the two "
        "have nothing in common. Load that came otherwise changes numbers, too."
    )


def _head(title: str, width: int) -> Line:
    return ruled((TextRun(title, "strong"),), (), width)


def _columns(table: Sequence[Sequence[str]], inks: Sequence[str]) -> list[Line]:
    """Align a table's columns to the right, the first to the left."""
    widths = [max(cells_of(row[n]) for row in table) for n in range(len(table[0]))]
    lines: list[Line] = []
    for place, row in enumerate(table):
        runs = [TextRun(_padded(row[0], widths[0], right=False), "muted")]
        for cell, width, ink in zip(row[1:], widths[1:], inks, strict=True):
            own = "muted" if not place else "warn" if cell == NOT_TOLD else ink
            runs.append(TextRun(ALIGN + _padded(cell, width, right=True), own))
        lines.append(tuple(runs))
    return lines


def _padded(text: str, width: int, *, right: bool) -> str:
    pad = " " * (width - cells_of(text))
    return pad + text if right else text + pad


def _sentences(sentences: Sequence[str] | Iterator[str], width: int) -> list[Line]:
    return [
        (TextRun(each, "warn" if "annot say" in text else "muted"),)
        for text in sentences
        for each in wrap(text, max(width, 20))
    ]
