"""Imbalance: a server is named when it has stood out from its like for a while."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from collectors.contract.readings import ServerInfo, Vantage
from inferwatch.metrics.series.window import Latency, Quantiles
from inferwatch.metrics.servers.imbalance import Steady, with_remarks
from inferwatch.metrics.servers.server_state import ServerState


def state(
    source: str,
    *,
    model: str = "llama",
    answers: bool = True,
    ttft_s: float = 0.1,
    itl_s: float = 0.01,
    n: int = 1_000,
) -> ServerState:
    info = ServerInfo(t_ns=0, name=source, family="vllm", models=[model])
    latencies = tuple(
        Latency(metric=key, vantage=Vantage.SCRAPE, quantiles=Quantiles(n=n, mean=mean))
        for key, mean in (("ttft_s", ttft_s), ("itl_s", itl_s))
    )
    return ServerState(source=source, info=info, answers=answers, latencies=latencies)


def remarks_of(
    waiting: Sequence[float] = (0, 0, 0),
    kv: Sequence[float] = (0.5, 0.5, 0.5),
    running: Sequence[float] = (9, 9, 9),
) -> list[str | None]:
    states = [state(f"s{number}") for number in range(len(waiting))]
    steady = {
        (each.source, "0"): Steady(running=runs, waiting=waits, kv_usage=used)
        for each, waits, used, runs in zip(states, waiting, kv, running, strict=False)
    }
    return [each.remark for each in with_remarks(states, steady)]


@pytest.mark.parametrize(
    ("waiting", "told"),
    [
        ((2, 2, 10), "queue 5× the median"),
        ((0, 0, 10), "queue 10, elsewhere none"),
        ((2, 2, 5), None),
        ((0, 0, 3), None),
        ((40, 40, 60), None),
        ((1, 12), "queue 12× the median"),
    ],
    ids=str,
)
def test_a_queue_is_named_with_how_much_longer_it_is(
    waiting: tuple[float, ...], told: str | None
) -> None:
    remarks = remarks_of(waiting)

    assert remarks[-1] == told
    assert set(remarks[:-1]) == {None}


def test_a_fuller_cache_is_named_by_points() -> None:
    assert remarks_of(kv=(0.4, 0.42, 0.72)) == [None, None, "KV 30 points above"]
    assert remarks_of(kv=(0.4, 0.42, 0.6)) == [None] * 3


def test_one_that_gets_nothing_to_do_is_named() -> None:
    assert remarks_of(running=(12, 0, 14)) == [
        None,
        "mostly idle, elsewhere 12 run",
        None,
    ]
    assert remarks_of(running=(1, 0, 1)) == [None] * 3, "all are nearly idle"


def test_everything_that_sets_one_apart_is_said_the_queue_first() -> None:
    remarks = remarks_of(waiting=(1, 1, 9), kv=(0.4, 0.4, 0.9))

    assert remarks[2] == "queue 9× the median, KV 50 points above"


def test_slow_steps_and_late_first_tokens_are_named() -> None:
    slow = state("slow", itl_s=0.021, ttft_s=0.5)

    *others, seen = with_remarks([state("a"), state("b"), slow], {})

    assert seen.remark == "TTFT 5× the median, ITL 2.1× the median"
    assert [each.remark for each in others] == [None, None]


def test_a_latency_of_few_requests_names_nobody() -> None:
    seen = with_remarks([state("a"), state("b"), state("c", ttft_s=9, n=3)], {})

    assert seen[2].remark is None


def test_servers_of_other_models_and_lost_ones_are_not_compared_with() -> None:
    states = [
        state("a"),
        state("b", model="embedder", ttft_s=5),
        state("c", answers=False, ttft_s=5),
        state("d"),
    ]

    assert [each.remark for each in with_remarks(states, {})] == [None] * 4


def test_ranks_of_one_server_are_compared_with_each_other() -> None:
    ranks = [replace(state("a"), rank=str(number)) for number in range(4)]
    steady = {("a", str(n)): Steady(waiting=20 if n == 2 else 2) for n in range(4)}

    told = [each.remark for each in with_remarks(ranks, steady)]

    assert told == [None, None, "queue 10× the median", None]


def test_a_burst_that_is_over_names_nobody() -> None:
    steady = Steady.of([9] * 60, [0] * 50 + [80] * 10, [0.5] * 60)

    assert steady.waiting == 0


def test_what_lasts_is_named_until_it_is_mostly_over() -> None:
    lasting = Steady.of([9] * 60, [0] * 25 + [80] * 35, [0.5] * 60)

    assert lasting.waiting == 80


def test_too_few_samples_tell_nothing() -> None:
    steady = Steady.of([9, None, 9], [80, 80], [None] * 9)

    assert steady == Steady()
