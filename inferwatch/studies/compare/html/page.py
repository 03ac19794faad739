"""A comparison as one page for people: verdicts first, then both sides overlaid.

It needs no network and runs nothing; every text that others chose is escaped.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import UNKNOWN, format_count, format_rate, format_share
from inferwatch.printing.destination import Destination
from inferwatch.printing.html.document import head, stylesheet
from inferwatch.printing.html.table import table
from inferwatch.studies.compare.as_json import comparison_json
from inferwatch.studies.compare.comparison import Comparison, SessionPair
from inferwatch.studies.compare.fail_if import ConditionOutcome
from inferwatch.studies.compare.html.distributions import distributions
from inferwatch.studies.compare.html.over_time import over_time
from inferwatch.studies.compare.html.result_table import result_table
from inferwatch.studies.compare.quality import Quality, doubts, not_recorded
from inferwatch.studies.compare.reading.session_numbers import SessionNumbers
from inferwatch.studies.compare.report import (
    A_PEAK,
    check_text,
    method_text,
    not_compared,
    pairing_sentence,
    sentence,
)
from inferwatch.studies.compare.verdicts import MetricVerdict
from inferwatch.visible import as_html, strict_json

QUALITY_GLYPHS = {
    Quality.GOOD: "✓",
    Quality.DOUBTFUL: "▲",
    Quality.VOID: "✗",
    Quality.UNKNOWN: "?",
}
"""Beside the word and the colour."""
OUTCOMES = {
    ConditionOutcome.FAILED: Quality.VOID,
    ConditionOutcome.HELD: Quality.GOOD,
    ConditionOutcome.OPEN: Quality.UNKNOWN,
}
"""By whose sign and colour each is told."""


SHARES = (
    "How many of all (upwards) took at most so long (to the right): the further left a "
    "line, the faster. Time is logarithmic, and the axis of shares gives room to both "
    "tails. Dots are the percentiles of the table."
)
SINGLE_RUNS = " Thin lines are single runs."
TIMES = "Seconds are counted from when the load of a session began."
A_KV_PEAK = f"A KV peak is {A_PEAK}."


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
    yield from _sessions(comparison)
    yield from _method(comparison)
    yield (
        '<div class="numbers"><h2>All numbers</h2><details><summary>As compare '
        "--json prints them</summary>"
        f"<pre>{as_html(strict_json(comparison_json(comparison), indent=1))}</pre>"
        "</details></div></body></html>\n"
    )


def _pair(pair: SessionPair, comparison: Comparison) -> Iterator[str]:
    yield f'<p class="lead {_tone(pair)}">{as_html(sentence(pair))}.</p>'
    yield f'<p class="pairing">{as_html(pairing_sentence(pair))}</p>'
    yield from _quality(pair)
    yield from _checks(pair)
    yield from result_table(pair, comparison.rules.matters)
    runs = SINGLE_RUNS if pair.a.is_repeated or pair.b.is_repeated else ""
    yield from _charts("Distributions", f"{SHARES}{runs}", distributions(pair))
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


def _quality(pair: SessionPair) -> Iterator[str]:
    """Whether the two can be compared: doubts in full, what is good in one line."""
    if not pair.quality:
        return
    yield '<h3>Can they be compared?</h3><ul class="checks">'
    for doubt in doubts(pair.quality):
        yield _item(doubt.quality, doubt.quality, doubt.sentence, of=doubt.subject)
    good = [each for each in pair.quality if each.quality is Quality.GOOD]
    if good:
        names = as_html(", ".join(each.subject for each in good))
        said = "".join(f"<p>{as_html(each.sentence)}</p>" for each in good)
        folded = f"<details><summary>{names}</summary>{said}</details>"
        yield _item(Quality.GOOD, Quality.GOOD, "", more=folded)
    if unknown := not_recorded(pair.quality):
        yield _item(Quality.UNKNOWN, Quality.UNKNOWN, unknown)
    yield "</ul>"


def _checks(pair: SessionPair) -> Iterator[str]:
    if not pair.checks:
        return
    yield '<h3>Conditions</h3><ul class="checks">'
    for check in pair.checks:
        yield _item(
            OUTCOMES[check.outcome], check.outcome.value, f"{check_text(check)}."
        )
    yield "</ul>"


def _item(
    quality: Quality, word: str, said: str, *, of: str = "", more: str = ""
) -> str:
    """A sign and a word, in a colour, before what they are said of; more is markup."""
    subject = f"<b>{as_html(of)}</b> " if of else ""
    return (
        f'<li class="{quality}"><span class="sign">{QUALITY_GLYPHS[quality]} '
        f"{as_html(word)}</span><div>{subject}{as_html(said)}{more}</div></li>"
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


def _sessions(comparison: Comparison) -> Iterator[str]:
    """What was compared, a row each."""
    names = (
        *("id", "recorded", "model", "compared", "warm-up cut", "requests"),
        *("requests/s", "prompt tokens", "output tokens", "KV peak"),
    )
    rows = (_session(each) for each in comparison.sessions)
    yield '<div class="sessions">'
    yield from table("Sessions", names, rows)
    yield "</div>"


def _session(numbers: SessionNumbers) -> Iterator[str]:
    row, load, span = numbers.row, numbers.load, numbers.span
    began = datetime.fromtimestamp(row.started_ns / NS_PER_S, UTC)
    yield from (numbers.name, row.id, f"{began:%Y-%m-%d %H:%M:%S} UTC")
    yield from (row.model or UNKNOWN, f"{span.from_s:.1f} to {span.to_s:.1f} s")
    yield from (span.cut, format_count(load.requests), format_rate(load.per_s))
    yield from map(format_rate, (load.prompt_tokens, load.output_tokens))
    yield format_share(numbers.kv_peak)


def _method(comparison: Comparison) -> Iterator[str]:
    said = (TIMES, A_KV_PEAK, method_text(comparison), not_compared(comparison))
    yield "<h2>How it was judged</h2>"
    for each in said:
        yield f"<p>{as_html(each)}</p>"
