"""A comparison as text: what is said first, what is folded, how wide it is."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from inferwatch.printing.text import WIDTH
from inferwatch.studies.compare.as_json import comparison_json
from inferwatch.studies.compare.comparison import (
    Comparison,
    ComparisonRules,
    MetricResult,
    SessionPair,
    rounded_up,
)
from inferwatch.studies.compare.conclusion import sentence
from inferwatch.studies.compare.fail_if import parse_condition
from inferwatch.studies.compare.printed import comparison_text, open_reason
from inferwatch.studies.compare.quality import Quality, QualityCheck
from inferwatch.studies.compare.reading.configuration import DifferingSetting
from inferwatch.studies.compare.reading.request_kinds import ChangedPart, Cut
from inferwatch.studies.compare.reading.session_numbers import Pairing
from inferwatch.studies.compare.report import (
    more_text,
    nearest_first,
    other_reasons,
    pairing_sentence,
    short_span,
    verdict_text,
)
from inferwatch.studies.compare.runs.matching import NO_PLAN_KNOWN, OTHER_REQUESTS
from inferwatch.studies.compare.runs.selection import ComparisonRequest, run_comparison
from inferwatch.studies.compare.statistics.far_tail import FARTHEST
from inferwatch.studies.compare.verdicts import MetricVerdict
from tests.inferwatch.studies.compare.conftest import TinyEngine, write

HOSTILE = "|`<b>@team\n\x1b[31m" + 90 * "大"


@pytest.fixture(scope="module")
def found(sessions: Path) -> Comparison:
    """``slow`` against ``before``, with two conditions."""
    conditions = ("tpot_mean_s > +5%", "goodput_per_s < -5%")
    rules = ComparisonRules(conditions=tuple(map(parse_condition, conditions)))
    return run_comparison(
        ComparisonRequest(database=sessions, sessions=("before", "slow"), rules=rules)
    )


@pytest.fixture
def pair(found: Comparison) -> SessionPair:
    return found.pairs[0]


def with_verdicts(
    pair: SessionPair, verdicts: Callable[[int], MetricVerdict]
) -> SessionPair:
    """The same rows, with verdicts by their place."""
    results = tuple(
        replace(each, verdict=verdicts(place))
        for place, each in enumerate(pair.results)
    )
    return replace(pair, results=results)


def of_pair(found: Comparison, pair: SessionPair) -> Comparison:
    return replace(found, pairs=(pair,))


def sections(text: str) -> list[str]:
    """The words after the glyphs of headings."""
    heads = (line for line in text.splitlines() if line[:1] in "▼▲≠▽△≈=?" and line)
    return [line[2:].split(",")[0] for line in heads]


def test_rows_that_say_something_come_first_and_the_rest_is_folded(
    found: Comparison, pair: SessionPair
) -> None:
    order = [
        *(MetricVerdict.OPEN, MetricVerdict.SAME, MetricVerdict.PROBABLY_DIFFERS),
        *(MetricVerdict.PROBABLY_BETTER, MetricVerdict.PROBABLY_WORSE),
        *(MetricVerdict.DIFFERS, MetricVerdict.BETTER, MetricVerdict.WORSE),
    ]
    mixed = of_pair(found, with_verdicts(pair, lambda n: order[n % len(order)]))

    text, full = comparison_text(mixed), comparison_text(mixed, every_row=True)

    assert sections(text) == [
        *("worse", "better", "differs"),
        *("probably worse", "probably better", "probably differs"),
        *("no difference shown", "cannot tell"),
    ]
    open_rows = mixed.pairs[0].of(MetricVerdict.OPEN)
    rows = [line for line in text.splitlines() if line.startswith("  ")]
    assert f"? cannot tell, {len(open_rows)} rows (--all shows them)" in text
    more = [line for line in full.splitlines() if line.startswith("  ")]
    assert len(more) >= len(rows) + len(open_rows)


def test_the_surest_row_of_a_verdict_is_first(
    found: Comparison, pair: SessionPair
) -> None:
    worse = with_verdicts(pair, lambda _: MetricVerdict.WORSE)
    results = tuple(
        replace(each, adjusted_p=0.001 * (len(worse.results) - place))
        for place, each in enumerate(worse.results)
    )

    text = comparison_text(of_pair(found, replace(worse, results=results)))

    last, first = results[0].metric, results[-1].metric
    row = f"\n  {first.name:<11}{first.vantage}"
    assert row in text
    assert text.index(row) < text.index(f"\n  {last.name} {last.statistic}")


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        ([MetricVerdict.SAME], "no difference shown in any of 4 rows"),
        (
            [MetricVerdict.OPEN],
            "cannot tell in any of 4 rows",
        ),
        (
            [MetricVerdict.SAME, MetricVerdict.OPEN],
            ("no difference shown in 2 rows; cannot tell in 2 rows"),
        ),
        (
            [MetricVerdict.PROBABLY_WORSE, MetricVerdict.OPEN],
            (
                "nothing surely worse or better; "
                "probably worse in TTFT p50 +100% (+50 … +300%) and 1 more row; "
                "cannot tell in 2 rows; "
                "the conclusion rests on the rows named"
            ),
        ),
        (
            [MetricVerdict.WORSE, MetricVerdict.PROBABLY_WORSE, MetricVerdict.OPEN],
            (
                "worse in TTFT p50 +100% (+50 … +300%) and 1 more row; "
                "probably worse in 1 row; nothing better; "
                "cannot tell in 1 row; "
                "the conclusion rests on the rows named"
            ),
        ),
        (
            [MetricVerdict.BETTER],
            (
                "better in TTFT p50 +100% (+50 … +300%) and 3 more rows; "
                "nothing worse; the conclusion rests on the rows named"
            ),
        ),
        (
            [MetricVerdict.WORSE, MetricVerdict.BETTER],
            (
                "worse in TTFT p50 +100% (+50 … +300%) and 1 more row; "
                "better in TTFT mean +100% (+50 … +300%) and 1 more row; "
                "the conclusion rests on the rows named"
            ),
        ),
        (
            [MetricVerdict.BETTER, MetricVerdict.PROBABLY_WORSE],
            (
                "better in TTFT p50 +100% (+50 … +300%) and 1 more row; "
                "probably worse in 2 rows; "
                "the conclusion rests on the rows named"
            ),
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_the_head_says_what_is_worse_and_better_and_how_much(
    pair: SessionPair, verdicts: list[MetricVerdict], said: str
) -> None:
    few = replace(
        pair,
        quality=(),
        results=tuple(
            replace(
                each,
                verdict=verdicts[place % len(verdicts)],
                ratio=2.0,
                ratio_span=(1.5, 4.0),
            )
            for place, each in enumerate(pair.results[:4])
        ),
    )

    assert sentence(few) == f"slow against before: {said}"


def test_another_load_is_said_with_the_verdict(pair: SessionPair) -> None:
    load = QualityCheck(subject="load", quality=Quality.DOUBTFUL, sentence="Half.")

    assert sentence(replace(pair, quality=(load,))).endswith(
        "; all of it at another load"
    )
    good = replace(load, quality=Quality.GOOD)
    assert "another load" not in sentence(replace(pair, quality=(good,)))


def test_an_interval_in_a_sentence_says_percent_once() -> None:
    assert short_span((1.05, 1.2)) == "+5.0 … +20%"
    assert short_span((1.05, 40.0)) == "+5.0% … ×40"
    assert short_span((0.5, 0.9)) == "-50 … -10%"


def test_pairs_are_counted_and_their_lack_is_explained(pair: SessionPair) -> None:
    run = replace(pair.b.first, pairing=Pairing(requests=1_980, of=2_000))
    paired = replace(pair, b=replace(pair.b, runs=(run,)))

    assert pairing_sentence(paired).startswith("paired: 1,980 of 2,000 requests")
    assert pairing_sentence(pair).startswith(
        "not paired (their loads differ: seed 1 and 3); "
    )
    assert "`inferwatch load --like s1`" in pairing_sentence(pair)


def test_repeating_a_load_is_advised_only_where_it_makes_pairs(
    pair: SessionPair,
) -> None:
    first = pair.a.first
    imported = replace(first.row, imported_from="vllm bench")

    def said(because: str, **changes: Any) -> str:
        a = replace(pair.a, runs=(replace(first, **changes),))
        b = replace(pair.b, unpaired_because=because)
        return pairing_sentence(replace(pair, a=a, b=b))

    assert said("before holds 2 load runs") == "not paired (before holds 2 load runs)"
    assert "--like" in said(OTHER_REQUESTS)
    assert "--like" not in said(OTHER_REQUESTS, row=imported)
    assert "--like s1" in said(f"{NO_PLAN_KNOWN} slow was sent")


def test_no_smaller_number_would_tell_than_can_be_known(sessions: Path) -> None:
    """Of thirty blocks at most, needs are known to a quarter: not to one request."""
    rules = ComparisonRules(draws=200, places=False)
    found = run_comparison(
        ComparisonRequest(database=sessions, sessions=("before", "after"), rules=rules)
    )

    (alike,) = found.pairs
    more = [each.more_requests for each in alike.results if each.more_requests]
    sent = min(each.load.requests for each in (alike.a, alike.b))
    assert sent / 4 <= min(more)


@pytest.mark.parametrize(
    ("number", "up"),
    [(0.1, 10), (10.1, 15), (98, 100), (181, 200), (1_010, 1_500), (2_010, 3_000)],
)
def test_an_estimate_is_rounded_up_as_coarsely_as_it_is(number: float, up: int) -> None:
    assert rounded_up(number) == up


def test_what_could_not_be_judged_is_not_nearest(pair: SessionPair) -> None:
    """So many requests let it be judged, which need not tell anything."""
    row = replace(pair.results[0], verdict=MetricVerdict.OPEN, more_requests=100)
    unjudged = replace(row, p_value=None)

    assert nearest_first([unjudged, row]) == [row]
    assert next(open_reason(row, pair, "a side")).endswith("a side would tell")
    assert next(open_reason(unjudged, pair, "a side")).endswith(" s) a side")
    assert "at least +100 requests" in next(open_reason(unjudged, pair, "a side"))
    assert verdict_text(row).endswith(" +100 req")
    assert verdict_text(unjudged).endswith(" ≥ +100 req")


def test_reasons_are_counted_for_what_more_data_does_not_tell(
    pair: SessionPair,
) -> None:
    row = replace(
        pair.results[0], verdict=MetricVerdict.OPEN, why="too short", more_requests=100
    )
    never = replace(row, more_requests=None)

    assert other_reasons([row, never, never]) == [("too short", 2)]


def test_more_is_said_in_the_unit_that_helps(pair: SessionPair) -> None:
    result = pair.results[0]
    rate = min(each.load.per_s or 0 for each in (pair.a, pair.b))

    requests = more_text(replace(result, more_requests=400), pair)
    runs = more_text(replace(result, more_runs=2), pair)

    assert requests == f"+400 requests ({400 / rate:.0f} s)"
    assert runs == "+2 runs"
    assert more_text(replace(result, more_requests=None), pair) is None


def test_repeated_runs_are_counted_in_place_of_pairs(pair: SessionPair) -> None:
    several = replace(pair, a=replace(pair.a, runs=(pair.a.first, pair.b.first)))

    assert pairing_sentence(several).startswith("2 runs against 1: ")


def test_sessions_of_one_schedule_are_said_to_be_paired(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    write(path, "a", TinyEngine(1).run(20))
    write(path, "b", TinyEngine(1).run(20))

    text = comparison_text(
        run_comparison(ComparisonRequest(database=path, sessions=("a", "b")))
    )

    assert "\npaired: 143 of 143 requests" in text
    assert "not paired" not in text


def test_what_was_checked_stands_below_the_table(
    found: Comparison, pair: SessionPair
) -> None:
    checks = [
        ("load", Quality.GOOD, "Both got the same."),
        ("drift", Quality.DOUBTFUL, "b got slower."),
        ("clocks", Quality.UNKNOWN, "Not recorded."),
    ]
    quality = tuple(
        QualityCheck(subject=subject, quality=quality, sentence=said)
        for subject, quality, said in checks
    )

    text = comparison_text(of_pair(found, replace(pair, quality=quality)))

    head, about = (text.split("\n\n")[place] for place in (0, -5))
    assert "one run each, one drifts: repeat twice" in " ".join(head.split())
    assert "! b got slower." in about
    assert "checked and good: load." in about
    assert "not recorded: clocks." in about


def test_what_is_void_is_said_first_and_once(
    found: Comparison, pair: SessionPair
) -> None:
    void = QualityCheck(
        subject="model", quality=Quality.VOID, sentence="The models differ."
    )

    text = comparison_text(of_pair(found, replace(pair, quality=(void,))))

    assert text.startswith(
        "max_num_seqs 8 and max_num_seqs 16 cannot be compared: The models differ.\n"
    )
    assert text.count("The models differ") == 1


def test_what_holds_of_many_rows_is_said_once(
    found: Comparison, pair: SessionPair
) -> None:
    results = tuple(
        replace(each, verdict=MetricVerdict.OPEN, why="too few", more_requests=None)
        for each in pair.results
    )

    text = comparison_text(of_pair(found, replace(pair, results=results)))

    assert text.count("      too few\n") == 1


def test_a_setting_is_said_once_a_side(found: Comparison) -> None:
    a, b = found.sides
    sides = (replace(a, runs=(a.first, a.first)), replace(b, runs=3 * (b.first,)))
    settings = (
        DifferingSetting(name="seqs", values=("16", "16", "8", "4", "8")),
        DifferingSetting(name="gpu", values=(None, None, "A", "A", "A")),
    )

    text = comparison_text(replace(found, sides=sides, settings=settings))

    assert "\n  seqs: before 16 · slow 8 or 4\n  gpu: before – · slow A\n" in text


def test_what_nobody_waits_for_is_no_difference_however_wide(
    found: Comparison, pair: SessionPair
) -> None:
    queue = next(each for each in pair.results if each.metric.key == "queue_p99_s")
    tiny = replace(
        queue,
        verdict=MetricVerdict.SAME,
        difference_span=(-2e-6, 71e-6),
        ratio_span=(0.9, 3.4),
    )
    large = replace(tiny, difference_span=(-2e-3, 71e-3))
    sure = replace(large, ratio_span=(1.001, 1.002))

    said, unsaid, small = (
        comparison_text(of_pair(found, replace(pair, results=(each,))))
        for each in (tiny, large, sure)
    )

    assert "      less than 100 µs apart, which nobody waits for\n" in said
    assert "apart" not in unsaid
    assert "      too small a change to count\n" in small


def test_where_a_metric_changed_stands_under_its_row(
    found: Comparison, pair: SessionPair
) -> None:
    metric = pair.of(MetricVerdict.WORSE)[0].metric
    place = ChangedPart(
        metric=metric,
        cut=Cut.PROMPT,
        part="over 1k",
        a=1.0,
        b=3.0,
        n_a=90,
        n_b=90,
        ratio=3.0,
        sentence="all of it in prompts over 1k",
    )

    lines = comparison_text(of_pair(found, replace(pair, places=(place,)))).splitlines()

    row = lines.index("      all of it in prompts over 1k") - 1
    assert metric.name in lines[row]


def hostile(results: tuple[MetricResult, ...]) -> Iterator[MetricResult]:
    """Every row as wide as it can be."""
    for place, each in enumerate(results):
        yield replace(
            each,
            a=0.0123456,
            b=99_999.4,
            ratio=1e9,
            ratio_span=(12_345.0, 1e12),
            more_requests=987_654_321,
            verdict=list(MetricVerdict)[place % len(MetricVerdict)],
            why=HOSTILE,
        )


def test_no_line_is_wider_than_the_terminal(
    found: Comparison, pair: SessionPair
) -> None:
    side = replace(pair.a, runs=(replace(pair.a.first, label=HOSTILE),))
    other = replace(pair.b, runs=(replace(pair.b.first, label=2 * HOSTILE),))
    worst = replace(
        pair,
        a=side,
        b=other,
        results=tuple(hostile(pair.results)),
        quality=(
            QualityCheck(subject=HOSTILE, quality=Quality.GOOD, sentence=HOSTILE),
            QualityCheck(
                subject=HOSTILE, quality=Quality.DOUBTFUL, sentence=200 * HOSTILE
            ),
        ),
    )
    comparison = replace(found, pairs=(worst, worst), sides=(side, other))

    text = comparison_text(comparison, every_row=True)

    assert [line for line in text.splitlines() if cells_of(line) > WIDTH] == []
    assert "\x1b" not in text
    assert "×10⁴+ … ×10⁴+" in text
    assert len(text) < 40_000


def cells_of(line: str) -> int:
    """As wide as a terminal shows it."""
    return cell_len(line)


def test_conditions_that_cannot_be_told_say_what_becomes_of_them(
    found: Comparison,
) -> None:
    text = " ".join(comparison_text(found).split())

    assert "--fail-if 'tpot_mean_s > +5%': FAILED (+" in text
    said = "--fail-if 'goodput_per_s < -5%': cannot tell, so it passes: before has no"
    assert said in text
    assert "would end with exit status 4" in text


def test_what_cannot_be_told_may_fail(found: Comparison) -> None:
    pair = found.pairs[0]
    checks = tuple(replace(each, open_fails=True) for each in pair.checks)

    text = comparison_text(of_pair(found, replace(pair, checks=checks)))

    assert "cannot tell, so it fails: before has no" in " ".join(text.split())
    assert "; exit status 4" in " ".join(text.split())


def test_an_end_that_is_not_known_is_not_made_up(found: Comparison) -> None:
    pair = found.pairs[0]
    seconds = replace(pair.checks[0].condition, relative=False)
    checks = tuple(
        replace(each, condition=condition, span=(0.087, FARTHEST))
        for each, condition in zip(
            pair.checks, (seconds, pair.checks[1].condition), strict=True
        )
    )
    comparison = of_pair(found, replace(pair, checks=checks))

    text = " ".join(comparison_text(comparison).split())

    assert "FAILED (at least +87.0 ms)" in text
    assert "cannot tell, so it passes (at least -91%)" in text
    told = comparison_json(comparison)["pairs"][0]["fail_if"]
    assert [each["interval"] for each in told] == [(0.087, None)] * 2
