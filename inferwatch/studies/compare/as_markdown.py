"""A comparison as a summary for pull requests, in GitHub's Markdown."""

import re
from collections.abc import Iterable, Iterator, Sequence

from inferwatch.formatting import counted
from inferwatch.studies.compare.comparison import Comparison, MetricResult, SessionPair
from inferwatch.studies.compare.quality import Quality, doubts, not_recorded
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
    not_compared,
    pairing_sentence,
    peak_text,
    sentence,
    span_text,
    title,
    values_text,
    verdict_text,
    window_text,
)
from inferwatch.studies.compare.verdicts import MetricVerdict
from inferwatch.visible import as_html, visible

MOST_CHARACTERS = 60_000
"""GitHub takes 65,536 in a comment, and whoever posts it may add some."""
MOST_OF_A_NAME = 60
MOST_OF_A_SENTENCE = 1_000
MOST_SETTINGS = 30
_MARKUP = re.compile(r"([\\`*_\[\]~$])")
_JOINER = "\N{WORD JOINER}"
"""It has no width, and no text that others chose has one: it was made visible."""
_ENTITIES = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    "|": "&#124;",
    _JOINER: "&#8288;",
}
_BEGINS = re.compile(r"^(\s*\d*)([#+=.)-])")
"""A heading, a list, a rule."""
_CALLS = re.compile(r"(?i)([@#]|\bwww|\bGH-)(?=[\w.])")
"""What GitHub makes a mention, an issue or a link of."""


def comparison_markdown(comparison: Comparison) -> str:
    """What people are to see first, then the rest, as much as there is room for."""
    shown = [_shown(comparison, pair) for pair in comparison.pairs]
    rest = [_rest(comparison, pair) for pair in comparison.pairs]
    head = f"### inferwatch compare: {_headline(comparison)}"
    first = [head, *(part for parts in shown for part in parts)]
    return _within(first, [_settings(comparison), *rest, _method(comparison)])


def _within(first: Sequence[str], rest: Sequence[str]) -> str:
    """All that fits, in order; what does not is said."""
    last = "_The rest was left out: it would not fit into a comment._"
    room = MOST_CHARACTERS - len(last)
    kept, left_out = [], False
    for part in (part for part in (*first, *rest) if part):
        room -= len(part) + 2
        if room < 0:
            left_out = True
            break
        kept.append(part)
    return "\n\n".join([*kept, last] if left_out else kept)


def escaped(text: str) -> str:
    r"""Text that others chose, in a line of its own or in a cell: nothing is markup.

    >>> print(escaped("a|b `c` <b> @team\n#12"))
    a&#124;b \`c\` &lt;b&gt; @&#8288;team␊#&#8288;12
    """
    plain = _apart(_cut(visible(text), MOST_OF_A_SENTENCE))
    marked = _BEGINS.sub(r"\1\\\2", _MARKUP.sub(r"\\\1", plain))
    return "".join(_ENTITIES.get(each, each) for each in marked)


def _apart(text: str) -> str:
    """It calls nobody and links to nothing."""
    return _CALLS.sub(rf"\1{_JOINER}", text.replace("://", f":{_JOINER}//"))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _name(text: str) -> str:
    return escaped(_cut(visible(text), MOST_OF_A_NAME))


def aligned_table(
    head: Sequence[str], align: str, rows: Iterable[Sequence[str]]
) -> str:
    """Its cells are escaped already; ``align`` has l or r a column."""
    marks = ["---:" if each == "r" else ":---" for each in align]
    lines = (f"| {' | '.join(cells)} |" for cells in (head, marks, *rows))
    return "\n".join(lines)


def _headline(comparison: Comparison) -> str:
    """A few words, for whoever only scrolls past."""
    words = []
    if comparison.failed:
        words.append("FAILED")
    if any(pair.void for pair in comparison.pairs):
        words.append("⊘ cannot be compared")
    verdicts = {each.verdict for pair in comparison.pairs for each in pair.results}
    said = [verdict for verdict in SHOWN if verdict in verdicts]
    words += [f"{GLYPHS[verdict]} {verdict}" for verdict in said]
    if not said and verdicts & set(PROBABLE):
        words.append("nothing surely worse or better")
    if not words:
        known = MetricVerdict.SAME if MetricVerdict.SAME in verdicts else None
        verdict = known or MetricVerdict.OPEN
        words.append(f"{GLYPHS[verdict]} {verdict}")
    return escaped(", ".join(words))


def _shown(comparison: Comparison, pair: SessionPair) -> Iterator[str]:
    """Verdict, conditions, doubts, and the rows that say something."""
    yield f"**{escaped(sentence(pair))}.**"
    yield "\n".join(_checks(pair))
    yield "\n".join(_quality(pair))
    found = in_order(pair)
    told = [each for v in (*SHOWN, *PROBABLE) for each in found.get(v, [])]
    if told:
        yield _results(pair, told)
        yield "\n".join(_places(pair))
    probable = next((v for v in PROBABLE if v in found), None)
    if probable:
        why = meaning(probable, comparison.rules.matters)
        yield f"_probably: {why}; the others hold over all rows together._"


def _checks(pair: SessionPair) -> Iterator[str]:
    for check in pair.checks:
        yield f"- {escaped(check_text(check))}".replace("FAILED", "**FAILED**", 1)


def _quality(pair: SessionPair) -> Iterator[str]:
    said = dict.fromkeys((pairing_sentence(pair), pair.about_runs))
    yield from (f"- {escaped(each)}" for each in said)
    for doubt in doubts(pair.quality):
        if doubt.quality is not Quality.VOID:  # that is the verdict
            yield f"- **!** {escaped(doubt.sentence)}"
    good = [each.subject for each in pair.quality if each.quality is Quality.GOOD]
    if good:
        yield f"- checked and good: {escaped(', '.join(good))}"
    if unknown := not_recorded(pair.quality):
        yield f"- {escaped(unknown)}"


def _results(pair: SessionPair, results: Sequence[MetricResult]) -> str:
    head = ("metric", "seen by", _name(pair.a.name), _name(pair.b.name), "change")
    rows = (tuple(_row(pair, each)) for each in results)
    return aligned_table(
        (*head, "95% interval", "verdict"),
        "llrrrrl",
        rows,
    )


def _row(pair: SessionPair, result: MetricResult) -> Iterator[str]:
    yield title(result)
    yield result.metric.vantage
    yield from (text.strip() for text in values_text(result))
    yield change_text(result.ratio)
    yield span_text(result.ratio_span)
    yield escaped(f"{GLYPHS[result.verdict]} {_verdict(pair, result)}")


def _verdict(pair: SessionPair, result: MetricResult) -> str:
    more = more_text(result, pair)
    if result.verdict is MetricVerdict.OPEN and more:
        return f"{result.verdict}: {more}"
    return verdict_text(result)


def _places(pair: SessionPair) -> Iterator[str]:
    for place in pair.places:
        by_key = {each.metric.key: title(each) for each in pair.results}
        name = by_key.get(place.metric.key, place.metric.name)
        yield f"- {name}: {escaped(place.sentence)}"


def _rest(comparison: Comparison, pair: SessionPair) -> str:
    """Rows that say nothing for sure."""
    found = in_order(pair)
    kinds = [v for v in (MetricVerdict.SAME, MetricVerdict.OPEN) if v in found]
    if not kinds:
        return ""
    counts = (f"{counted(len(found[v]), 'row')}: {v}" for v in kinds)
    of = ""
    if len(comparison.pairs) > 1:
        of = f"{as_html(_apart(_cut(visible(pair.b.name), MOST_OF_A_NAME)))}, "
    return folded(
        f"{of}{', '.join(counts)}", _results(pair, [e for v in kinds for e in found[v]])
    )


def folded(summary: str, body: str) -> str:
    """What is seen once somebody asks for it; both are escaped already."""
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"


def _settings(comparison: Comparison) -> str:
    if not comparison.settings:
        return "No recorded setting differs."
    names = [_name(each.name) for each in comparison.sides]
    rows = [
        (
            _name(setting.name),
            *(_name(each) for each in by_side(comparison, setting)),
        )
        for setting in comparison.settings[:MOST_SETTINGS]
    ]
    more = len(comparison.settings) - len(rows)
    said = [
        aligned_table(("setting that differs", *names), "l" * (1 + len(names)), rows)
    ]
    return "\n\n".join([*said, *([f"… and {more} more."] if more > 0 else [])])


def _method(comparison: Comparison) -> str:
    """What was compared, and how."""
    peaks = [text for pair in comparison.pairs if (text := peak_text(pair))]
    said = [
        *map(window_text, comparison.sessions),
        *peaks,
        not_compared(comparison),
        method_text(comparison),
    ]
    return folded(
        "What was compared, and how", "\n".join(f"- {escaped(each)}" for each in said)
    )
