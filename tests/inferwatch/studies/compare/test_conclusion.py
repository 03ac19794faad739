"""The conclusion of a comparison: which side to keep, never more than was shown."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inferwatch.studies.compare.as_json import comparison_json
from inferwatch.studies.compare.comparison import (
    Comparison,
    ComparisonRules,
    MetricResult,
    SessionPair,
)
from inferwatch.studies.compare.conclusion import conclusion, sentence
from inferwatch.studies.compare.metrics import KEYS
from inferwatch.studies.compare.page import comparison_page
from inferwatch.studies.compare.printed import comparison_markdown, comparison_text
from inferwatch.studies.compare.quality import Quality, QualityCheck
from inferwatch.studies.compare.reading.session_numbers import (
    ComparedSide,
    Pairing,
    SessionNumbers,
)
from inferwatch.studies.compare.runs.selection import ComparisonRequest, run_comparison
from inferwatch.studies.compare.side_names import heads, long_heads
from inferwatch.studies.compare.verdicts import MetricVerdict

BETTER, WORSE, OPEN = MetricVerdict.BETTER, MetricVerdict.WORSE, MetricVerdict.OPEN
BUSY = QualityCheck(
    subject="host",
    quality=Quality.DOUBTFUL,
    sentence="Other work took some of the host's cores (30% in a).",
)
OTHER_LOAD = QualityCheck(
    subject="load", quality=Quality.DOUBTFUL, sentence="Another load."
)
Changes = Mapping[str, tuple[float, MetricVerdict]]
"""The ratio and the verdict of metrics, by key."""


@pytest.fixture(scope="module")
def found(sessions: Path) -> Comparison:
    request = ComparisonRequest(
        database=sessions,
        sessions=("before", "slow"),
        rules=ComparisonRules(draws=200, places=False),
    )
    return run_comparison(request)


def run(numbers: SessionNumbers, name: str, **settings: str) -> SessionNumbers:
    """The numbers as those of a session with this name and these settings alone."""
    named = {f"engine {key}": value for key, value in settings.items()}
    row = replace(numbers.row, name=name, id=name)
    return replace(numbers, row=row, configuration=named, label=None)


def pair_of(
    found: Comparison, changes: Changes, *quality: QualityCheck, **given: Any
) -> SessionPair:
    """``s7`` with max_num_seqs 32 against ``s8`` with 4, and these changes."""
    pair = found.pairs[0]
    results = [
        MetricResult(
            metric=KEYS[key],
            a=100.0,
            b=100.0 * ratio,
            n_a=900,
            n_b=900,
            ratio=ratio,
            verdict=verdict,
        )
        for key, (ratio, verdict) in changes.items()
    ]
    a = run(pair.a.first, "s7", max_num_seqs="32", **given.get("a", {}))
    b = run(pair.b.first, "s8", max_num_seqs="4", **given.get("b", {}))
    return replace(
        pair,
        a=ComparedSide.of(a),
        b=ComparedSide.of(b),
        results=tuple(results),
        quality=quality,
        places=(),
    )


TRADE: Changes = {
    "ttft_p50_s": (17.0, WORSE),
    "tpot_p50_s": (0.38, BETTER),
}


def test_it_says_which_to_keep_how_much_it_is_and_how_sure(found: Comparison) -> None:
    pair = pair_of(found, {**TRADE, "e2el_p50_s": (1.7, WORSE)}, BUSY)

    assert conclusion(pair) == (
        "Keep max_num_seqs 32: with 4, TTFT p50 is 17× worse, E2EL p50 70% worse, "
        "though time per token is 62% better; one run each, host busy: repeat twice"
    )


def test_a_name_keeps_its_capitals(found: Comparison) -> None:
    pair = pair_of(found, {"e2el_p50_s": (1.7, WORSE)})
    a, b = (
        run(each.first, name)
        for each, name in zip((pair.a, pair.b), NAMES, strict=True)
    )

    named = replace(pair, a=ComparedSide.of(a), b=ComparedSide.of(b))

    assert conclusion(named).startswith("Keep Qwen-Base: with Qwen-Large, E2EL p50 is")


NAMES = ("Qwen-Base", "Qwen-Large")


def test_what_a_request_takes_in_all_decides_and_without_it_nothing(
    found: Comparison,
) -> None:
    better = pair_of(found, {**TRADE, "e2el_p50_s": (0.8, BETTER)})
    unknown = pair_of(found, TRADE)
    goodput = {**TRADE, "e2el_p50_s": (0.8, BETTER), "goodput_per_s": (0.5, WORSE)}

    assert conclusion(better).startswith(
        "Take max_num_seqs 4: with 4, time per token is 62% better"
    )
    assert conclusion(unknown).startswith("max_num_seqs 32 or 4 is a trade: with 4, ")
    assert conclusion(pair_of(found, goodput)).startswith(
        "Keep max_num_seqs 32: with 4, goodput is 50% worse, TTFT p50 17× worse"
    )


def test_what_may_be_the_other_way_keeps_it_from_choosing(found: Comparison) -> None:
    """Tokens come faster, but TTFT measured as five times as long cannot be told."""
    changes: Changes = {
        "tpot_p50_s": (0.38, MetricVerdict.PROBABLY_BETTER),
        "ttft_p50_s": (5.0, OPEN),
    }

    said = conclusion(pair_of(found, changes, BUSY))
    without = conclusion(pair_of(found, {**changes, "ttft_p50_s": (1.02, OPEN)}))

    assert said.startswith(
        "No choice yet between max_num_seqs 32 and 4: with 4, time per token is "
        "probably 62% better, but TTFT p50 cannot be told ("
    )
    assert without.startswith("Probably take max_num_seqs 4: with 4, time per token ")


def test_at_another_load_it_chooses_nothing(found: Comparison) -> None:
    pair = pair_of(found, {"e2el_p50_s": (1.7, WORSE)}, OTHER_LOAD)

    assert conclusion(pair) == (
        "No choice between max_num_seqs 32 and 4, as their loads differ: with 4, E2EL "
        "p50 is 70% worse; one run each: send both the same load"
    )


def test_without_a_change_it_says_what_was_shown(found: Comparison) -> None:
    same = pair_of(found, dict.fromkeys(TRADE, (1.0, MetricVerdict.SAME)))
    still_open = pair_of(found, dict.fromkeys(TRADE, (1.3, OPEN)))

    assert conclusion(same).startswith(
        "No difference shown between max_num_seqs 32 and 4, in 2 rows of 2; one run"
    )
    assert conclusion(still_open).startswith("Cannot tell max_num_seqs 32 and 4 apart")


def test_below_the_table_stands_what_the_conclusion_rests_on(
    found: Comparison,
) -> None:
    """Of all rows those that it names, and what the others are too few runs for."""
    rows: Changes = {
        "e2el_p50_s": (1.7, WORSE),
        "e2el_p99_s": (9.0, WORSE),
        "ttft_p50_s": (1.3, OPEN),
    }
    nothing = dict.fromkeys(rows, (1.0, OPEN))
    sides = {"a": {"unended": 0}, "b": {"unended": 35}}

    some = sentence(pair_of(found, rows))
    left = unanswered(pair_of(found, nothing), sides)
    none = sentence(left)
    other = sentence(pair_of(found, rows, OTHER_LOAD))

    assert some == (
        "s8 against s7: worse in E2EL p50 +70% (–) and 1 more row; nothing better; "
        "cannot tell in 1 row; the conclusion rests on the rows named"
    )
    assert conclusion(left) == (
        "Probably keep max_num_seqs 32: with 4, 35% of requests were left unanswered "
        "instead of none; one run each is too few to judge any row: repeat twice"
    )
    assert none == (
        "s8 against s7: cannot tell in any of 3 rows; the conclusion "
        "rests on nothing but the requests that were left unanswered"
    )
    assert "rests on" not in other


def test_a_side_that_left_more_unanswered_is_named(found: Comparison) -> None:
    pair = pair_of(
        found,
        {"e2el_p50_s": (0.5, BETTER)},
        QualityCheck(subject="requests", quality=Quality.DOUBTFUL, sentence="Some."),
    )
    first = pair.b.first
    many = replace(first.load, requests=100, unended=30)
    left = replace(pair, b=ComparedSide.of(replace(first, load=many)))

    assert "30% of s8's requests were left unanswered" in conclusion(left)
    assert "unanswered" not in conclusion(pair)


def test_who_left_far_more_unanswered_is_not_kept(found: Comparison) -> None:
    """Latencies are of answered requests alone, the quickest."""
    sides = {"a": {"unended": 16}, "b": {"unended": 56}}

    trade = conclusion(unanswered(pair_of(found, TRADE), sides))
    better = conclusion(
        unanswered(pair_of(found, {"e2el_p50_s": (0.5, BETTER)}), sides)
    )
    other = conclusion(unanswered(pair_of(found, TRADE, OTHER_LOAD), sides))

    nothing = conclusion(
        unanswered(pair_of(found, {}), {"a": {"unended": 0}, "b": {"unended": 35}})
    )
    assert nothing.startswith(
        "Probably keep max_num_seqs 32: with 4, 35% of requests were left unanswered "
        "instead of none; one run each"
    )
    assert trade == (
        "Probably keep max_num_seqs 32: with 4, 56% of requests were left unanswered "
        "instead of 16%, TTFT p50 is 17× worse, though time per token is 62% better; "
        "one run each: repeat twice"
    )
    assert better.startswith(
        "No choice yet between max_num_seqs 32 and 4: with 4, 56% of requests were left"
    )
    assert other.startswith("No choice between max_num_seqs 32 and 4, as their loads")


def unanswered(pair: SessionPair, sides: Mapping[str, Any]) -> SessionPair:
    """The pair, sent the same hundred requests each."""
    a, b = (
        ComparedSide.of(
            replace(
                side.first,
                pairing=Pairing(requests=44, of=100),
                load=replace(side.first.load, requests=100, **sides[name]),
            )
        )
        for name, side in (("a", pair.a), ("b", pair.b))
    )
    return replace(pair, a=a, b=b)


def test_columns_are_headed_by_session_and_the_flag_that_differs(
    found: Comparison,
) -> None:
    pair = pair_of(found, TRADE)
    names = ("t5b8a6a #1 max-num-seqs 32", "t5b8a6a #5 max-num-seqs 4")
    long = replace(
        pair,
        a=ComparedSide.of(replace(pair.a.first, label=names[0])),
        b=ComparedSide.of(replace(pair.b.first, label=names[1])),
    )
    several = pair_of(found, TRADE, a={"dtype": "half"}, b={"dtype": "float"})

    config = {"compilation_config": '{"mode": 3, "cudagraph_mode": "FULL"}'}
    wordy = pair_of(found, TRADE, a=config, b={"compilation_config": "{}"})
    assert conclusion(wordy).startswith("s7 or s8 is a trade: with s8, ")
    assert heads(pair, 9) == heads(long, 9) == ("s7: 32", "s8: 4")
    assert heads(several, 9) == ("s7", "s8")
    assert long_heads(several)[1] == "s8, max_num_seqs 4, dtype float"


def test_every_form_says_the_same_sentence(found: Comparison) -> None:
    said = conclusion(found.pairs[0])

    text = " ".join(comparison_text(found).split())
    markdown = comparison_markdown(found).replace("\\_", "_")
    assert text.startswith(f"{said}.")
    assert f"**{said}.**" in markdown
    assert f"{said}." in "".join(comparison_page(found))
    assert comparison_json(found)["pairs"][0]["conclusion"] == said
