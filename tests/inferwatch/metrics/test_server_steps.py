"""Steps that a server publishes itself, beside what its scrapes count."""

from typing import Any

import pytest

from collectors.contract.readings import AnyReading, BoundBy, EngineInfo, Step
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.metrics.steps.health import Health
from tests.inferwatch.metrics.scraped_servers import (
    NAME,
    S,
    Served,
    contact,
    model_of,
    see,
)
from tests.inferwatch.metrics.test_saved import Keeps

MS = 1_000_000
QUERY = SnapshotQuery(Window.MINUTE)


def step(index: int, end_s: float, source: str = NAME, **more: Any) -> Step:
    """A step of 50 ms with three requests that decode, and one that waits."""
    end_ns = round(end_s * S)
    fields: dict[str, Any] = {
        "decode_requests": 3,
        "waiting": 1,
        "duration_ns": 50 * MS,
    } | more
    return Step(
        source=source,
        index=index,
        start_ns=end_ns - fields["duration_ns"],
        end_ns=end_ns,
        bound_by=BoundBy.OTHER,
        memberless=True,
        **fields,
    )


def told() -> list[AnyReading]:
    server = Served()
    readings: list[AnyReading] = [contact(0), server.at(0)]
    for second in range(1, 10):
        server.request()
        readings += [step(2 * second, second), step(2 * second + 1, second + 0.5)]
        readings.append(server.at(second + 0.6, running=3, waiting=1))
    prefill = step(90, 9.9, prefill_requests=1, prefill_tokens=700, duration_ns=S)
    return [*readings, prefill]


def test_what_steps_tell_is_shown_and_the_rest_is_what_scrapes_count() -> None:
    seen = see(told(), 10)
    steps, line = seen.steps, seen.timeline
    assert seen.without_steps
    assert seen.tells_steps
    assert (steps.count, steps.batch_max, steps.duration_s.max) == (19, 4, 1.0)
    assert steps.batch_mean == pytest.approx((18 * 3 + 4) / 19)
    assert (steps.prefill_tokens, steps.output_tokens) == (700, 90)
    assert sum(line.steps) == 19
    assert max(each or 0 for each in line.step_max_s) == 1.0
    assert seen.latest_step is not None
    assert seen.latest_step.index == 90


def test_nothing_is_made_up_of_steps_without_members() -> None:
    seen = see(told(), 10)
    assert seen.steps.share_by_bound == {} == seen.steps.steps_by_bound
    assert seen.steps.gap_share is None
    assert not any(seen.timeline.bound_other)
    assert (seen.stalls, seen.batch_curve, seen.slowest) == ((), None, None)
    assert seen.requests_seen == 0
    assert seen.flow.running == 3
    assert seen.engines == ()
    bound = [each for each in seen.findings if "queue" in each.name]
    assert bound == []


def test_a_server_beside_others_has_its_own_steps() -> None:
    other = Served("far:1")
    more: list[AnyReading] = [
        contact(0, "far:1"),
        other.at(1),
        other.at(9),
        step(1, 5, "far:1"),
    ]
    readings = [*told(), *more]
    assert see(readings, 10).steps.count == 20
    assert see(readings, 10, source="far:1").steps.count == 1
    assert see(readings, 10, source=NAME).steps.count == 19


def stuck(*more: AnyReading, rank: str = "0") -> Model:
    """A server that runs and counts no token for eight seconds, and what it published.

    It has two ranks, the other one idle.
    """
    busy, idle = Served(rank=rank), Served(rank="7")
    samples = [
        each.at(t_s, running=running)
        for t_s in range(9)
        for each, running in ((busy, 2), (idle, 0))
    ]
    return model_of([contact(0), *samples[:16], *more, *samples[16:]])


def test_a_server_whose_steps_run_is_not_stalled() -> None:
    silent, steps = stuck(), [step(n, n) for n in range(1, 8)]
    assert silent.snapshot(8 * S, QUERY).verdict.health is Health.STALLED
    assert silent.stalls_now(8 * S) == {NAME: 0}
    runs = stuck(*steps)
    assert runs.snapshot(8 * S, QUERY).verdict.health is Health.HEALTHY
    assert runs.stalls_now(8 * S) == {}


def test_steps_of_long_ago_or_of_another_rank_do_not_refute_a_stall() -> None:
    ended = stuck(step(1, 1.0), step(2, 2.0))
    assert ended.stalls_now(8 * S) == {NAME: 2 * S}
    assert stuck(step(1, 7.0), rank="1").stalls_now(8 * S) == {NAME: 0}


def test_the_steps_of_a_probe_are_better() -> None:
    info = EngineInfo(t_ns=0, source=NAME, pid=1, model="tiny", vllm_version="0.32.0")
    seen = see([info, *told()], 10)
    assert seen.server_steps is None
    assert seen.steps.count == 0


def test_they_are_kept_by_checkpoints() -> None:
    model, keeps = Model(), Keeps()
    for reading in told():
        model.fold(reading)
    saved = model.saved()
    keeps.keep(saved)
    again = keeps.restored(saved)
    for window in (Window.MINUTE, Window.SESSION):
        query = SnapshotQuery(window)
        seen = again.snapshot(10 * S, query)
        assert seen.steps.count == 19
        assert seen == model.snapshot(10 * S, query)
