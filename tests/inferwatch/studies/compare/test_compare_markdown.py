"""A comparison as Markdown: what a parser makes of it, whatever sessions are called."""

import doctest
import shlex
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from inferwatch.printing import markdown as printing_markdown
from inferwatch.printing.markdown import MOST_CHARACTERS, escaped, prose
from inferwatch.studies.compare.comparison import Comparison, ComparisonRules
from inferwatch.studies.compare.fail_if import parse_condition
from inferwatch.studies.compare.printed import comparison_markdown
from inferwatch.studies.compare.quality import Quality, QualityCheck
from inferwatch.studies.compare.reading.configuration import DifferingSetting
from inferwatch.studies.compare.reading.request_kinds import ChangedPart, Cut
from inferwatch.studies.compare.reading.session_numbers import ComparedSide
from inferwatch.studies.compare.runs.selection import ComparisonRequest, run_comparison
from inferwatch.studies.compare.verdicts import MetricVerdict

HOSTILE = (
    "# a|b `c` **d** _e_ <img src=x> @team #12 GH-3 [x](http://x.y) www.x.y &lt; \\| "
    "</details> ~~f~~ $g$ !\n| h |\r\n\n- i \x1b[31m\u202e"
)
OURS = {
    *("h3", "p", "strong", "em", "ul", "li", "details", "summary", "code"),
    *("table", "thead", "tbody", "tr", "th", "td"),
}


@pytest.fixture(scope="module")
def found(sessions: Path) -> Comparison:
    """``slow`` against ``before``, with two conditions."""
    conditions = ("tpot_mean_s > +5%", "joules_per_token > +5%")
    rules = ComparisonRules(conditions=tuple(map(parse_condition, conditions)))
    return run_comparison(
        ComparisonRequest(database=sessions, sessions=("before", "slow"), rules=rules)
    )


class Page(HTMLParser):
    """Its elements, its text, and the cells of each row."""

    def __init__(self, markdown: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.open: list[str] = []
        self.text = ""
        self.rows: list[list[str]] = []
        self.feed(MarkdownIt("gfm-like").render(markdown))

    def handle_starttag(self, tag: str, attrs: object) -> None:
        del attrs  # a link would be an element, too
        self.tags[tag] += 1
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if {"td", "th"} & {*self.open}:
            self.rows[-1][-1] += data


def named(side: ComparedSide, label: str) -> ComparedSide:
    return replace(side, runs=(replace(side.first, label=label),))


def hostile(found: Comparison) -> Comparison:
    """All that others may have named is the same nonsense."""
    pair = found.pairs[0]
    metric = pair.of(MetricVerdict.WORSE)[0].metric
    sides = tuple(named(side, HOSTILE) for side in found.sides)
    place = ChangedPart(
        metric=metric,
        cut=Cut.CLASS,
        part=HOSTILE,
        a=1.0,
        b=2.0,
        n_a=90,
        n_b=90,
        ratio=2.0,
        sentence=HOSTILE,
    )
    doubt = QualityCheck(
        subject=HOSTILE, quality=Quality.DOUBTFUL, sentence=9 * HOSTILE
    )
    pair = replace(
        pair,
        a=sides[0],
        b=sides[1],
        places=(place,),
        quality=(doubt, replace(doubt, quality=Quality.GOOD)),
    )
    settings = (DifferingSetting(name=HOSTILE, values=(HOSTILE, None)),)
    return replace(found, sides=sides, pairs=(pair, pair), settings=settings)


def test_the_summary_says_the_verdict_and_what_differs(found: Comparison) -> None:
    page = Page(comparison_markdown(found))

    assert page.text.startswith("inferwatch compare: FAILED, ▼ worse")
    assert "slow against before: worse in" in page.text
    assert "not paired (their loads differ: seed 1 and 3)" in page.text
    assert "--fail-if 'tpot_mean_s > +5%': FAILED" in page.text
    assert ["max_num_seqs", "16", "8"] in page.rows
    assert page.tags["details"] == 2
    assert {*page.tags} <= OURS


def test_rows_that_say_something_are_in_the_first_table(found: Comparison) -> None:
    markdown = comparison_markdown(found)

    shown = Page(markdown.split("<details>")[0])
    told = {cells[-1][2:] for cells in shown.rows if len(cells) == 7}
    assert "worse" in told
    assert not {"no difference shown", "cannot tell"} & told
    rows = [cells for cells in Page(markdown).rows if len(cells) == 7]
    assert len(rows) == 2 + len(found.pairs[0].results)


def test_no_name_becomes_markup(found: Comparison) -> None:
    markdown = comparison_markdown(hostile(found))

    page = Page(markdown)

    assert {*page.tags} <= OURS
    assert page.open == []
    assert page.tags["h3"] == 1
    assert page.tags["details"] == 3
    assert {len(cells) for cells in page.rows} == {3, 7}
    assert "# a|b `c` **d** _e_ <img src=x>" in page.text
    for call in ("@team", "#12", "GH-3", "http://", "www.x"):
        assert call not in page.text
        assert call[0] in page.text
    assert "\x1b" not in markdown


def test_a_command_to_paste_is_code(found: Comparison) -> None:
    markdown = comparison_markdown(found)

    page = Page(markdown)

    assert "`inferwatch load --like s1" in markdown
    assert page.tags["code"] == 1
    assert "`" not in page.text


@pytest.mark.parametrize("name", ["`a`", "``", "'`'", "|`*", "a b"])
def test_a_command_is_code_whatever_it_names(name: str) -> None:
    command = f"inferwatch load --like {shlex.quote(name)}"

    page = Page(prose(f"first `x` *y*, then `{command}`, then `z`"))

    assert page.text.strip() == f"first `x` *y*, then {command}, then `z`"
    assert page.tags["code"] == 1
    assert page.tags["em"] == 0


def test_a_line_of_ours_is_one_line(found: Comparison) -> None:
    shown = comparison_markdown(hostile(found)).split("<details>")[0]

    starts = ("#", "|", "-", "*", "_", "No", "…")
    assert all(line.startswith(starts) for line in shown.splitlines() if line)


@pytest.mark.parametrize(
    "text", ["# a", "- a", "1. a", "2) a", "+ a", "===", "---", "> a", "| a | b |"]
)
def test_a_name_that_begins_like_a_block_is_text(text: str) -> None:
    page = Page(escaped(text))

    assert page.text.strip() == text
    assert {*page.tags} == {"p"}


def test_it_fits_into_a_comment(found: Comparison) -> None:
    large = hostile(found)
    many = replace(large, pairs=60 * large.pairs)

    markdown = comparison_markdown(many)

    assert MOST_CHARACTERS * 0.8 < len(markdown) <= MOST_CHARACTERS
    assert "The rest was left out" in markdown
    assert Page(markdown).open == []


def test_what_is_void_is_the_head_line(found: Comparison) -> None:
    void = QualityCheck(
        subject="model", quality=Quality.VOID, sentence="The models differ."
    )
    pair = replace(found.pairs[0], quality=(void,), checks=())

    page = Page(comparison_markdown(replace(found, pairs=(pair,))))

    assert page.text.startswith("inferwatch compare: ⊘ cannot be compared")
    assert "8 and max_num_seqs 16 cannot be compared: The models differ." in page.text


def test_the_examples_are_so() -> None:
    outcome = doctest.testmod(printing_markdown)

    assert outcome.attempted == 2
    assert outcome.failed == 0
