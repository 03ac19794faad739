"""Of what changed somewhere it is said where, and of what did not, nothing."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inferwatch.studies.compare.comparison import ComparisonRules, compare
from inferwatch.studies.compare.reading.request_kinds import Cut
from inferwatch.studies.compare.reading.session_numbers import ComparedSide
from inferwatch.studies.compare.where.places import PlaceFinder
from tests.inferwatch.studies.compare.placed_sessions import (
    Floats,
    Sent,
    compared,
    said,
)

SEEDS = 2


def alike(factor: float) -> Callable[[Sent], Floats]:
    """All are as much slower."""
    return lambda sent: np.full(len(sent.at_s), factor)


def times(factor: float, these: Callable[[Sent], np.ndarray]) -> Callable[..., Floats]:
    """Those are slower, all others as they were."""
    return lambda sent: np.where(these(sent), factor, 1.0)


def both_ways(cases: dict[str, tuple[Any, ...]], *always: str) -> list[Any]:
    """Each case paired and alone; all but those that are named are for a soak."""
    return [
        pytest.param(
            *(*values, how == "paired"),
            id=f"{name}-{how}",
            marks=() if f"{name}-{how}" in always else pytest.mark.soak,
        )
        for name, values in cases.items()
        for how in ("paired", "alone")
    ]


@pytest.mark.parametrize(
    ("these", "cut", "part", "words", "paired"),
    both_ways(
        {
            "long": (
                lambda sent: sent.prompt_tokens > 1024,
                Cut.PROMPT,
                "over 1k",
                "in prompts over 1k",
            ),
            "middling": (
                lambda sent: (sent.prompt_tokens > 128) & (sent.prompt_tokens <= 512),
                Cut.PROMPT,
                "128 to 512",
                "in prompts 128 to 512",
            ),
            "class": (
                lambda sent: sent.classes == 1,
                Cut.CLASS,
                "batch",
                "in class batch",
            ),
            "turn": (
                lambda sent: sent.turns >= 3,
                Cut.TURN,
                "turns from 3 on",
                "in turns from 3 on",
            ),
        },
        *("long-alone", "middling-paired", "class-paired", "turn-alone"),
    ),
)
def test_those_who_wait_longer_are_named(
    these: Callable[[Sent], np.ndarray],
    cut: Cut,
    part: str,
    words: str,
    *,
    paired: bool,
) -> None:
    for seed in range(SEEDS):
        pair = compared(seed, times(2.0, these), paired=paired)

        (mean,) = [each for each in pair.places if each.metric.key == "ttft_mean_s"]
        assert (mean.cut, mean.part) == (cut, part)
        assert mean.ratio == pytest.approx(2.0, rel=0.2)
        assert mean.rest_ratio == pytest.approx(1.0, rel=0.15)
        assert words in mean.sentence


def test_all_of_it_is_said_where_nothing_else_changed() -> None:
    pair = compared(0, times(2.0, lambda sent: sent.prompt_tokens > 1024))

    assert said(pair)["ttft_mean_s"].startswith("all of it in prompts over 1k (+100%, ")


def test_mostly_is_said_where_others_changed_a_little() -> None:
    pair = compared(0, lambda sent: np.where(sent.prompt_tokens > 1024, 2.0, 1.15))

    assert said(pair)["ttft_mean_s"].startswith("mostly in prompts over 1k (+100%, ")


@pytest.mark.parametrize("paired", [True, False], ids=["paired", "alone"])
@pytest.mark.parametrize("seeds", [6, pytest.param(24, marks=pytest.mark.soak)])
def test_nothing_is_named_where_all_changed_alike(*, paired: bool, seeds: int) -> None:
    pairs = [compared(seed, alike(1.4), paired=paired) for seed in range(seeds)]

    assert all(pair.results[0].verdict == "worse" for pair in pairs)
    assert sum(bool(pair.places) for pair in pairs) <= seeds / 12


def test_nothing_is_named_where_nothing_changed() -> None:
    pairs = [compared(seed, alike(1.0)) for seed in range(6)]

    assert not any(pair.places for pair in pairs)


def test_a_part_too_small_for_a_p99_is_judged_by_what_it_can_tell() -> None:
    pair = compared(0, times(2.0, lambda sent: sent.prompt_tokens > 1024))

    (p99,) = [each for each in pair.places if each.metric.key == "ttft_p99_s"]
    assert p99.n_a < 1_000
    assert p99.statistic == "p95"
    assert "(p95 +" in p99.sentence


def test_lengths_that_are_not_known_are_no_cut() -> None:
    def unknown(sent: Sent) -> Floats:
        long = sent.prompt_tokens > 1024
        sent.prompt_tokens[::8] = 0
        return np.where(long, 2.0, 1.0)

    pair = compared(0, unknown)

    assert not [each for each in pair.places if each.cut is Cut.PROMPT]


@pytest.mark.parametrize(
    ("these", "words", "other", "paired"),
    both_ways(
        {
            "from": (lambda at_s: at_s >= 40, "from 00:40", "before"),
            "until": (lambda at_s: at_s < 25, "until 00:25", "afterwards"),
            "between": (
                lambda at_s: (at_s >= 20) & (at_s < 40),
                "between 00:20 and 00:40",
                "elsewhere",
            ),
        },
        *("from-alone", "until-paired", "between-paired"),
    ),
)
def test_a_time_is_named_even_where_the_whole_cannot_tell(
    these: Callable[[Floats], np.ndarray], words: str, other: str, *, paired: bool
) -> None:
    for seed in range(SEEDS):
        pair = compared(seed, times(2.0, lambda sent: these(sent.at_s)), paired=paired)

        places = {each.metric.key: each for each in pair.places}
        mean, tokens = places["ttft_mean_s"], places["output_tokens_per_s"]
        assert mean.cut is tokens.cut is Cut.TIME
        assert mean.ratio == pytest.approx(2.0, rel=0.2)
        assert tokens.ratio == pytest.approx(0.5, rel=0.15)
        assert _moments(mean.part) == pytest.approx(_moments(words), abs=4)
        assert f", {other} " in mean.sentence
        if paired:
            assert mean.sentence.startswith(f"all of it {words} (+")


def _moments(part: str) -> list[int]:
    """In seconds."""
    found = [word.split(":") for word in part.split() if ":" in word]
    return [60 * int(minutes) + int(seconds) for minutes, seconds in found]


def test_for_whom_is_asked_within_the_time() -> None:
    pair = compared(
        1, times(3.0, lambda sent: (sent.prompt_tokens > 1024) & (sent.at_s >= 40))
    )

    (mean,) = [each for each in pair.places if each.metric.key == "ttft_mean_s"]
    assert (mean.cut, mean.part) == (Cut.PROMPT, "over 1k")
    assert mean.ratio == pytest.approx(3.0, rel=0.2)
    assert mean.also is not None
    assert mean.also.part == "from 00:40"
    assert mean.sentence.startswith("all of it in prompts over 1k (+")
    assert mean.sentence.endswith("), from 00:40")


def test_a_slow_wander_of_the_load_is_no_time() -> None:
    pairs = [compared(seed, alike(1.3), memory=39, paired=False) for seed in range(12)]

    assert sum(bool(pair.places) for pair in pairs) <= 2


@pytest.mark.parametrize("runs", [2, 3])
def test_repeated_runs_are_looked_at_together(runs: int) -> None:
    long = compared(
        0, times(2.0, lambda sent: sent.prompt_tokens > 1024), runs=runs, requests=800
    )
    late = compared(
        0, times(2.0, lambda sent: sent.at_s >= 40), runs=runs, requests=800
    )
    same = compared(0, alike(1.4), runs=runs, requests=800)

    assert "in prompts over 1k" in said(long)["ttft_mean_s"]
    assert "from 00:40" in said(late)["ttft_mean_s"]
    assert not same.places


def test_what_the_host_may_have_done_is_not_said_of_the_setting() -> None:
    pair = compared(0, times(1.4, lambda sent: sent.prompt_tokens > 1024))
    mean = next(e.metric for e in pair.results if e.metric.key == "ttft_mean_s")

    idle, busy = (
        list(PlaceFinder(pair.a, pair.b, 0, allowed).places([mean]))
        for allowed in (0.1, 0.6)
    )

    assert [each.part for each in idle] == ["over 1k"]
    assert not busy


def test_a_small_change_for_a_time_is_not_said_where_the_whole_cannot_tell() -> None:
    late = compared(0, times(1.2, lambda sent: sent.at_s >= 40), memory=1)
    mean = next(e.metric for e in late.results if e.metric.key == "ttft_mean_s")
    finder = PlaceFinder(late.a, late.b, 0)

    (said_of,) = finder.places([], [mean], 0.05)
    assert said_of.part.startswith("from 00:4")
    assert not list(finder.places([], [mean], 0.25))


def test_nothing_is_named_where_the_comparison_is_void() -> None:
    pair = compared(0, times(2.0, lambda sent: sent.at_s >= 40))
    failed = replace(pair.b.first, load=replace(pair.b.load, failed=1_500))

    void = compare(
        [pair.a, ComparedSide.of(failed)], ComparisonRules(draws=1_000)
    ).pairs[0]

    assert pair.places
    assert void.void
    assert not void.places
