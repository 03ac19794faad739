"""What a trial's session says, on records whose numbers are known beforehand."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from collectors.contract.readings import (
    AnyReading,
    BoundBy,
    ClientSample,
    EngineInfo,
    HostSample,
    LimitChange,
    LiveLimits,
    LoadEvent,
    LoadKind,
    LoadPlanned,
    Note,
    NoteKind,
    Phase,
    ProcessUsage,
    RequestRecord,
    Step,
)
from inferwatch.errors import UsageError
from inferwatch.live.load.running_load import public_plan
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.record.writing.recorder import Recorder
from inferwatch.sample import sample_file
from inferwatch.studies.tune.plan import TunePlan
from inferwatch.studies.tune.reading.numbers import numbers_of

MS, SECOND = 1_000_000, 1_000_000_000
SLO = "ttft_s<0.5"


def plan_of(run_id: str = "load-1", **asked: Any) -> LoadPlan:
    common: dict[str, Any] = {"rate_per_s": 10.0, "slo": SLO}
    return LoadPlan(run_id=run_id, url="http://x", model="m", **{**common, **asked})


def tune_plan(**asked: Any) -> TunePlan:
    return TunePlan(tune_id="t1", model="m", vary=(), load=plan_of(), **asked)


def run_of(
    plan: LoadPlan, ttfts_ms: list[int], *, at_s: float = 0.0, **odd: Any
) -> Iterator[AnyReading]:
    """One load run: a warm-up request, then ten a second with these TTFTs."""
    source, begin_ns = plan.run_id, round(at_s * SECOND)
    yield LoadPlanned(t_ns=begin_ns + 1, plan=public_plan(plan))
    yield LoadEvent(source=source, t_ns=begin_ns + 2, kind=LoadKind.STARTED)
    yield request(source, 0, begin_ns + 3, 30_000, phase=Phase.WARMUP)
    yield LoadEvent(source=source, t_ns=begin_ns + 4, kind=LoadKind.WARMUP_ENDED)
    for index, ttft_ms in enumerate(ttfts_ms, 1):
        yield request(source, index, begin_ns + index * SECOND // 10, ttft_ms, **odd)
    ended_ns = begin_ns + len(ttfts_ms) * SECOND // 10 + 1
    yield LoadEvent(source=source, t_ns=ended_ns, kind=LoadKind.DRAINING)


def request(
    source: str,
    index: int,
    at_ns: int,
    ttft_ms: int,
    phase: Phase = Phase.STEADY,
    **odd: Any,
) -> RequestRecord:
    """Eleven tokens, ten milliseconds apart."""
    first_ns = at_ns + ttft_ms * MS
    last_ns = first_ns + 100 * MS
    return RequestRecord(
        source=source,
        index=index,
        external_id=f"{source}-{index}",
        phase=phase,
        intended_ns=at_ns,
        sent_ns=at_ns,
        first_token_ns=first_ns,
        last_token_ns=last_ns,
        end_ns=last_ns,
        prompt_tokens=20,
        output_tokens=11,
        **odd,
    )


def step(index: int, end_ms: int, **told: Any) -> Step:
    return Step(
        source="engine-1",
        index=index,
        start_ns=(end_ms - 10) * MS,
        end_ns=end_ms * MS,
        duration_ns=10 * MS,
        **told,
    )


@pytest.fixture
def record(tmp_path: Path) -> Any:
    def record(*readings: AnyReading) -> Path:
        path = tmp_path / "sessions.db"
        recorder = Recorder.open(path, name="trial", command="tune", floor_bytes=0)
        for ordinal, reading in enumerate(readings):
            recorder.put(ordinal, reading)
        recorder.close()
        return path

    return record


def test_numbers_leave_out_the_warm_up_and_count_what_was_good(record: Any) -> None:
    ttfts_ms = [100] * 30 + [600] * 10

    found = numbers_of(record(*run_of(plan_of(), ttfts_ms)), "trial", tune_plan())

    span_s = 3.9 + 0.7
    assert found.requests == 40
    assert found.failed == 0
    assert found.requests_per_s == pytest.approx(40 / span_s)
    assert found.tokens_per_s == pytest.approx(440 / span_s)
    assert found.goodput_per_s == pytest.approx(30 / span_s)
    assert found.good_share == 0.75
    assert found.latencies["ttft_s"].quantiles.max == pytest.approx(0.6)
    assert found.latencies["tpot_s"].quantiles.p50 == pytest.approx(0.01)
    assert found.knee_per_s is None
    assert found.doubts == ()


def test_the_price_is_of_good_tokens_alone(record: Any) -> None:
    ttfts_ms = [100] * 30 + [600] * 10
    path = record(*run_of(plan_of(), ttfts_ms))

    found = numbers_of(path, "trial", tune_plan(gpu_hour=3.6))

    assert found.cost == pytest.approx(3.6 / 3600 * 1e6 / (330 / 4.6))
    assert numbers_of(path, "trial", tune_plan()).cost is None


def test_of_tokens_that_nobody_counted_there_is_no_price(record: Any) -> None:
    plan = plan_of()
    last = request(plan.run_id, 41, 5 * SECOND, 100)
    uncounted = msgspec.structs.replace(last, output_tokens=None)
    path = record(*run_of(plan, [100] * 40), uncounted)

    found = numbers_of(path, "trial", tune_plan(gpu_hour=3.6))

    assert found.good_share == 1.0
    assert found.tokens_per_s is None
    assert found.cost is None


def test_nothing_is_good_where_nobody_said_what_good_is(record: Any) -> None:
    path = record(*run_of(plan_of(), [100] * 40))
    load = msgspec.structs.replace(plan_of(), slo=None)

    found = numbers_of(path, "trial", msgspec.structs.replace(tune_plan(), load=load))

    assert found.goodput_per_s is None
    assert found.good_share is None
    assert found.tokens_per_s is not None


def test_steps_say_what_bound_the_engine_and_what_it_took(record: Any) -> None:
    engine = EngineInfo(
        source="engine-1", t_ns=0, pid=7, model="m", vllm_version="0", num_kv_blocks=100
    )
    usage = [
        ProcessUsage(pid=7, role="core", cpu_s=1.0, rss_bytes=3_000),
        ProcessUsage(pid=8, role="api", cpu_s=1.0, rss_bytes=500),
        ProcessUsage(pid=9, role="load", cpu_s=1.0, rss_bytes=90_000),
    ]
    seqs = {"bound_by": BoundBy.SEQS, "kv_used_blocks": 40}

    found = numbers_of(
        record(
            engine,
            *run_of(plan_of(), [100] * 40),
            step(1, 20, kv_used_blocks=99),
            step(2, 1_000, kv_used_blocks=20, preempted=[1, 2]),
            *(step(3 + n, 1_100 + 20 * n, **seqs) for n in range(3)),
            HostSample(t_ns=2 * SECOND, processes=usage),
        ),
        "trial",
        tune_plan(),
    )

    assert found.bound_share == {"nothing": 0.25, "seqs": 0.75}
    assert found.kv_peak_usage == 0.4
    assert found.preemptions == 2
    assert found.memory_bytes == 3_500


def test_what_no_probe_told_is_unknown(record: Any) -> None:
    found = numbers_of(record(*run_of(plan_of(), [100] * 40)), "trial", tune_plan())

    assert found.kv_peak_usage is None
    assert found.preemptions is None
    assert found.memory_bytes is None
    assert found.bound_share == {}


def test_the_knee_is_the_highest_rate_that_held(record: Any) -> None:
    good, bad = [100] * 200, [900] * 200
    path = record(
        *run_of(plan_of("load-1", rate_per_s=4.0), good),
        *run_of(plan_of("load-2", rate_per_s=8.0), bad, at_s=60),
        *run_of(plan_of("load-3", rate_per_s=6.0), [200] * 200, at_s=120),
        *run_of(plan_of("load-4", rate_per_s=7.0), bad, at_s=180),
        *run_of(plan_of("load-5", rate_per_s=6.5), bad, at_s=240),
    )

    found = numbers_of(path, "trial", tune_plan())

    assert found.knee_per_s == 6.0
    assert found.latencies["ttft_s"].quantiles.p50 == pytest.approx(0.2)
    assert found.doubts == ()


def test_a_search_that_did_not_end_says_so(record: Any) -> None:
    path = record(
        *run_of(plan_of("load-1", rate_per_s=4.0), [100] * 200),
        *run_of(plan_of("load-2", rate_per_s=8.0), [100] * 200, at_s=60),
    )

    found = numbers_of(path, "trial", tune_plan())

    assert found.knee_per_s == 8.0
    assert found.doubts == ("the search for the knee did not come to its end",)


def test_doubts_say_who_else_may_have_made_the_numbers(record: Any) -> None:
    late = ClientSample(
        source="load-1",
        t_ns=5 * SECOND,
        span_ns=4 * SECOND,
        final=True,
        transport="raw",
        sends=40,
        cpu_s=3.9,
    )
    lost = Note(t_ns=2 * SECOND, kind=NoteKind.DROPPED, text="lost", count=12)

    found = numbers_of(
        record(*run_of(plan_of(), [100] * 40), late, lost), "trial", tune_plan()
    )

    assert len(found.doubts) == 2
    assert found.doubts[0].startswith("the client was too slow: ")
    assert found.doubts[1] == "12 readings were lost"


def turned(at_s: float, limit: int) -> LiveLimits:
    return LiveLimits(
        source="engine-1",
        t_ns=round(at_s * SECOND),
        version=limit,
        change=LimitChange.SET,
        max_num_seqs=limit,
        max_num_batched_tokens=512,
        start_max_num_seqs=32,
        start_max_num_batched_tokens=512,
    )


def test_limits_that_were_turned_on_the_way_are_said(record: Any) -> None:
    run = run_of(plan_of(), [100] * 40)

    found = numbers_of(record(turned(0, 32), *run, turned(2, 8)), "trial", tune_plan())

    said = "max_num_seqs 32 → 8, max_num_batched_tokens 512"
    assert found.doubts == (f"limits were changed while it was measured ({said})",)


def test_limits_that_the_first_step_goes_by_were_turned_before(record: Any) -> None:
    run = run_of(plan_of(), [100] * 40)
    path = record(turned(0, 32), *run, turned(0.15, 8))

    assert numbers_of(path, "trial", tune_plan()).doubts == ()


def test_a_ttft_that_rises_throughout_is_said(record: Any) -> None:
    steady = [100 + (n * 37) % 50 for n in range(2_000)]
    rising = [each + n for n, each in enumerate(steady)]

    calm = numbers_of(record(*run_of(plan_of(), steady)), "trial", tune_plan())
    assert calm.doubts == ()

    found = numbers_of(record(*run_of(plan_of(), rising)), "trial", tune_plan())
    assert len(found.doubts) == 1
    assert found.doubts[0].startswith("TTFT rose throughout, 6.")


def test_a_tpot_that_drifts_is_said(record: Any) -> None:
    plan = plan_of()
    readings = list(run_of(plan, [100] * 2_000))
    chance = random.Random(5)

    def drifted(each: AnyReading) -> AnyReading:
        """Up to a fifth slower, and never twice the same."""
        if not isinstance(each, RequestRecord):
            return each
        later_ns = round(each.index / 2_000 * 20 * MS + chance.uniform(0, 10 * MS))
        end_ns = (each.last_token_ns or 0) + later_ns
        return msgspec.structs.replace(each, last_token_ns=end_ns, end_ns=end_ns)

    found = numbers_of(record(*map(drifted, readings)), "trial", tune_plan())

    assert len(found.doubts) == 1
    assert "TPOT rose by 12% from the first to the last third" in found.doubts[0]


def test_a_session_of_real_vllm_is_read_whole() -> None:
    """The sample that comes with the program."""
    found = numbers_of(sample_file(), "last", tune_plan())

    assert found.requests == 299
    assert found.bound_share.keys() <= {*BoundBy}
    assert sum(found.bound_share.values()) == pytest.approx(1)
    assert 0 < (found.kv_peak_usage or 0) <= 1
    ttft = found.latencies["ttft_s"].quantiles
    assert 0 < (ttft.p50 or 0) < (ttft.p99 or 0)
    assert (found.memory_bytes or 0) > 100_000_000


def test_a_session_without_a_load_is_refused(record: Any) -> None:
    path = record(Note(t_ns=1, kind=NoteKind.STARTED, text="hello"))

    with pytest.raises(UsageError, match="no requests"):
        numbers_of(path, "trial", tune_plan())
