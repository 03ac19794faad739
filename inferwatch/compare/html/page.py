"""A comparison as one page for people: verdicts first, then both sides overlaid.

It needs no network and runs nothing; every text that others chose is escaped.
"""

import json
from collections.abc import Iterator, Sequence

from inferwatch.compare.as_json import comparison_json
from inferwatch.compare.comparison import Comparison, SessionPair
from inferwatch.compare.fail_if import ConditionOutcome
from inferwatch.compare.html.distributions import distributions
from inferwatch.compare.html.over_time import over_time
from inferwatch.compare.html.result_table import result_table
from inferwatch.compare.quality import Quality
from inferwatch.compare.report import (
    check_text,
    method_text,
    not_compared,
    peak_text,
    sentence,
    window_text,
)
from inferwatch.compare.verdicts import MetricVerdict
from inferwatch.export.destination import Destination
from inferwatch.export.html.document import head, stylesheet
from inferwatch.export.html.table import table
from inferwatch.formatting import UNKNOWN, counted
from inferwatch.visible import as_html

QUALITY_GLYPHS = {
    Quality.GOOD: "✓",
    Quality.DOUBTFUL: "▲",
    Quality.VOID: "✗",
    Quality.UNKNOWN: "?",
}
"""Beside the word and the colour."""
OUTCOME_GLYPHS = {
    ConditionOutcome.FAILED: "✗",
    ConditionOutcome.HELD: "✓",
    ConditionOutcome.OPEN: "?",
}
OUTCOME_CLASSES = {
    ConditionOutcome.FAILED: Quality.VOID,
    ConditionOutcome.HELD: Quality.GOOD,
    ConditionOutcome.OPEN: Quality.UNKNOWN,
}
NOT_PAIRED = (
    "Not paired: the two were not sent the same requests at the same times. "
    "inferwatch load --like A sends what A was sent, and finds smaller changes."
)


def write_comparison(comparison: Comparison, destination: Destination) -> None:
    """Write the page; it needs no network."""
    with destination.file() as out:
        for part in page(comparison):
            out.write(part.encode())
            out.write(b"\n")


def page(comparison: Comparison) -> Iterator[str]:
    """The parts of the page, in order."""
    first, *others = (side.name for side in comparison.sides)
    title = f"{', '.join(others)} against {first}"
    yield from head(title, stylesheet(), stylesheet(__package__))
    yield f"<h1>{as_html(title)}</h1>"
    several = len(comparison.pairs) > 1
    for pair in comparison.pairs:
        yield '<section class="pair">'
        if several:
            yield f"<h2>{as_html(f'{pair.b.name} against {pair.a.name}')}</h2>"
        yield from _pair(pair, comparison)
        yield "</section>"
    yield from _settings(comparison)
    yield from _method(comparison)
    yield (
        "<h2>All numbers</h2><details><summary>As compare --json prints them</summary>"
        f"<pre>{as_html(json.dumps(comparison_json(comparison), indent=1))}</pre>"
        "</details></body></html>\n"
    )


def _pair(pair: SessionPair, comparison: Comparison) -> Iterator[str]:
    yield f'<p class="lead {_tone(pair)}">{as_html(sentence(pair))}</p>'
    yield f"<p>{as_html(_pairing(pair))}</p>"
    yield from _quality(pair)
    yield from _checks(pair)
    yield from result_table(pair, comparison.rules.matters)
    yield from _charts(
        "Distributions",
        "How many of all (upwards) took at most so long (to the right): the further "
        "left a line, the faster. Time is logarithmic, and the axis of shares gives "
        "room to both tails. Dots are the percentiles of the table.",
        distributions(pair),
    )
    yield from _charts(
        "Over time",
        "From when each load began; what was not compared is shaded.",
        over_time(pair),
    )


def _tone(pair: SessionPair) -> str:
    """What the sentence at the head is coloured by."""
    if pair.void:
        return "void"
    for verdict in (MetricVerdict.WORSE, MetricVerdict.BETTER):
        if pair.of(verdict):
            return verdict
    return "open"


def _pairing(pair: SessionPair) -> str:
    if pair.pairing is None:
        return NOT_PAIRED
    both = f"{pair.pairing.requests:,} of {counted(pair.pairing.of, 'request')}"
    return (
        f"Paired: {both} of the same schedule were answered by both, and are compared "
        "with each other."
    )


def _quality(pair: SessionPair) -> Iterator[str]:
    """Whether the two can be compared; a word beside each sign."""
    if not pair.quality:
        return
    yield '<h3>Can they be compared?</h3><ul class="checks">'
    for each in pair.quality:
        quality = each.quality
        glyph = QUALITY_GLYPHS[quality]
        yield _item(quality, glyph, quality, each.subject, each.sentence)
    yield "</ul>"


def _checks(pair: SessionPair) -> Iterator[str]:
    if not pair.checks:
        return
    yield '<h3>Conditions</h3><ul class="checks">'
    for check in pair.checks:
        outcome = check.outcome
        word, said = outcome.value, check_text(check)
        glyph = OUTCOME_GLYPHS[outcome]
        yield _item(OUTCOME_CLASSES[outcome], glyph, word, "", said)
    yield "</ul>"


def _item(kind: str, glyph: str, word: str, subject: str, said: str) -> str:
    of = f"<b>{as_html(subject)}</b> " if subject else ""
    return (
        f'<li class="{kind}"><span class="sign">{glyph} {as_html(word)}</span>'
        f"<span>{of}{as_html(said)}</span></li>"
    )


def _charts(heading: str, about: str, figures: Sequence[str]) -> Iterator[str]:
    if figures:
        yield f'<h3>{heading}</h3><p class="about">{about}</p><div class="charts">'
        yield from figures
        yield "</div>"


def _settings(comparison: Comparison) -> Iterator[str]:
    if not comparison.settings:
        yield "<h2>Settings</h2><p>No recorded setting differs.</p>"
        return
    names = [as_html(each.name) for each in comparison.sessions]
    rows = (
        (each.name, *(UNKNOWN if value is None else value for value in each.values))
        for each in comparison.settings
    )
    yield '<div class="settings">'
    yield from table("Settings that differ", names, rows)
    yield "</div>"


def _method(comparison: Comparison) -> Iterator[str]:
    said = [
        *(window_text(each) for each in comparison.sessions),
        method_text(comparison),
        *(peaks for pair in comparison.pairs if (peaks := peak_text(pair))),
        not_compared(comparison),
    ]
    yield "<h2>How it was judged</h2>"
    for each in said:
        yield f"<p>{as_html(each)}</p>"
