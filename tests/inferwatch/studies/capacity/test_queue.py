"""The simulated wait, beside what queueing theory says of it."""

import pytest

from inferwatch.metrics.requests.slo import parse_slo
from inferwatch.studies.capacity.batch import NO_SLO, ServerSetting
from inferwatch.studies.capacity.queue import simulate
from tests.inferwatch.studies.capacity.setups import option, workload

ONE = ServerSetting(max_num_seqs=1, max_num_batched_tokens=8_192)


@pytest.mark.parametrize("busy", [0.3, 0.6])
def test_as_many_requests_do_not_wait_as_the_server_is_idle(busy: float) -> None:
    """M/D/1: a request that comes at random finds the server idle 1 − ρ of the time."""
    times = option(load=workload(2_000, 1)).times
    alone_s = times.alone_s()
    slo = parse_slo(f"ttft_s<={alone_s * 1.0001:.9f}")

    outcome = simulate(times, ONE, busy / alone_s, slo, 0.95)
    assert outcome.good_share == pytest.approx(1 - busy, abs=0.05)


@pytest.mark.parametrize(("busy", "overloaded"), [(0.8, False), (1.2, True)])
def test_a_queue_that_grows_is_told(busy: float, overloaded: bool) -> None:
    times = option(load=workload(2_000, 1)).times

    outcome = simulate(times, ONE, busy / times.alone_s(), NO_SLO, 0.95)
    assert outcome.overloaded is overloaded
    assert outcome.holds(0.95) is not overloaded


def test_the_longest_gap_is_that_beside_a_prompt() -> None:
    """Chunks of 8,192 tokens take 100 ms and more, between decode steps of 5 ms."""
    times = option(load=workload(8_000, 256)).times
    setting = ServerSetting(max_num_seqs=64, max_num_batched_tokens=8_192)

    worst = simulate(times, setting, 2.0, parse_slo("itl_s<60ms"), 0.95)
    mean = simulate(times, setting, 2.0, parse_slo("tpot_s<60ms"), 0.95)
    assert worst.good_share < 0.5
    assert worst.missed == "itl_s"
    assert mean.good_share == 1


def test_few_requests_an_hour_are_simulated_quickly() -> None:
    """Steps are bounded, and idle time takes none."""
    times = option().times
    setting = ServerSetting(max_num_seqs=8, max_num_batched_tokens=8_192)

    outcome = simulate(times, setting, 0.001, NO_SLO, 0.95)
    assert outcome.ttft_s == pytest.approx(times.alone_s(), rel=0.01)
    assert 20 <= outcome.requests < 100
