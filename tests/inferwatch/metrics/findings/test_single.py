"""Diagnoses that rest on what a simulated scheduler does not tell, one by one."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace as replace_fields

from collectors.contract.readings import (
    BoundBy,
    Deferral,
    EngineInfo,
    GpuInfo,
    HostInfo,
    LimitChange,
    LiveLimits,
    Vantage,
)
from inferwatch.limits.hf_config import shape_of
from inferwatch.limits.presets import PRESETS
from inferwatch.metrics.cache.miss_finder import MissFinder
from inferwatch.metrics.causes.cause import DEFERRAL_CAUSES, Cause
from inferwatch.metrics.findings.cache import (
    BlocksWasted,
    CacheTooSmall,
    KvBound,
    Preemptions,
    PrefixMissed,
)
from inferwatch.metrics.findings.diagnosis import Diagnosis
from inferwatch.metrics.findings.facts import Around, Facts
from inferwatch.metrics.findings.finding import Effort
from inferwatch.metrics.findings.host import CpuBusy, MemoryFull, Stopped
from inferwatch.metrics.findings.queue import BatchTooSmall, Deferred, TokenBudget
from inferwatch.metrics.findings.speculation import (
    LowAcceptance,
    SpeculationAtFullBatch,
)
from inferwatch.metrics.findings.tracker import FindingTracker, SavedFindings
from inferwatch.metrics.findings.traffic import (
    CutOff,
    EngineLost,
    EngineWarmUp,
    Failures,
    RestartLoop,
    SloMissed,
)
from inferwatch.metrics.findings.work import (
    ComputeBound,
    FasterThanFloor,
    MemoryBound,
    TensorParallelTooHigh,
)
from inferwatch.metrics.floor.view import (
    Bound,
    EnginePeak,
    Impossible,
    Limits,
    OperatingPoint,
)
from inferwatch.metrics.hardware.hosts import HostState, ProcessState
from inferwatch.metrics.hardware.view import GpuState
from inferwatch.metrics.objectives.view import SloState
from inferwatch.metrics.series.samples import CounterTotals
from inferwatch.metrics.series.window import Quantiles
from inferwatch.metrics.steps.health import Health, Verdict
from inferwatch.metrics.steps.speculation import COUNTED, POSITIONS
from tests.inferwatch.metrics.scripted_prompts import BLOCK, ScriptedCache

S = 1_000_000_000
NAMES = ("prefill_tokens", "output_tokens", "gap_ns", "preemptions")
INFO = EngineInfo(
    source="engine-1",
    t_ns=0,
    pid=1,
    model="m",
    vllm_version="0",
    num_kv_blocks=1_000,
    kv_block_tokens=16,
    max_num_seqs=32,
)


def steps(rows: int = 500, **sums: int) -> CounterTotals:
    none = dict.fromkeys((*NAMES, *BoundBy, *(f"{b}_ns" for b in BoundBy)), 0)
    return CounterTotals(rows, {**none, **sums}, {})


BUSY = Facts(
    now_ns=100 * S,
    up_s=100,
    covered_s=10,
    minute_s=60,
    infos=(INFO,),
    running=32,
    waiting=20,
    oldest_wait_s=3.0,
    kv_usage=0.5,
    kv_blocks=1_000,
    block_tokens=16,
    steps=steps(nothing_ns=9 * S, prefill_tokens=9_000, output_tokens=4_000),
    prompts=Quantiles(n=40, p50=900.0, p90=1_000.0, max=1_100.0),
    ttft_n=20,
    ttft_ns=20 * S,
    spent_ns={Cause.PREFILL: 12 * S, Cause.QUEUE_SEQS: 8 * S},
)


def limits(**fields: Any) -> Limits:
    return Limits(**fields)


def point(bound: Bound, **fields: Any) -> OperatingPoint:
    return OperatingPoint(
        steps=400,
        intensity=20.0,
        flops=1e13,
        bytes_per_s=2e12,
        bound=bound,
        floor_s=0.008,
        step_s=0.01,
        **fields,
    )


def at_limits(facts: Facts, **fields: Any) -> Facts:
    return replace(facts, around=replace(facts.around, limits=limits(**fields)))


def drafting(facts: Facts, drafted: int, *accepted: int) -> Facts:
    """The same with 100 drafts in a minute, accepted so often up to each position."""
    none = dict.fromkeys((*COUNTED,), 0)
    told = dict(zip(POSITIONS, accepted, strict=False))
    sums = (
        none
        | told
        | {
            "drafts": 100,
            "drafted_tokens": drafted,
            "accepted_tokens": sum(accepted),
            "computed_tokens": 100 + drafted,
        }
    )
    return replace(
        facts,
        drafts=CounterTotals(100, sums, {}),
        steps_minute=steps(100),
        speculates=True,
        settings={"speculative_method": "ngram", "num_speculative_tokens": 3},
    )


def slo(good: int, judged: int = 100, **missed: int) -> SloState:
    return SloState(
        slo="ttft_s<1",
        target=0.99,
        vantage=Vantage.FRONTEND,
        judged=judged,
        good=good,
        missed=missed,
    )


def asked(stamped: bool, salts: int = 1, size: int = 1 << 20) -> Facts:
    """Thirty prompts that share their text, but for a time stamp in front or a salt."""
    cache, finder = ScriptedCache(size), MissFinder()
    text = [*range(100, 100 + 20 * BLOCK)]
    for n in range(30):
        salt = f"user {n % salts}" if salts > 1 else None
        cache.ask([n if stamped else 99, *text, n], salt=salt)
        if size < 1 << 20:
            cache.ask([n * 10_000 + each for each in text])
    for each in cache.prompts:
        finder.take(each)
    result = finder.result()
    return replace(BUSY, hit_rate=result.hit_share, prefix_misses=lambda: result)


def ended(finished: int, cut: int) -> Facts:
    sums = {"finished": finished, "cut": cut, "aborted": 0, "failed": 0}
    return replace(BUSY, outcomes=CounterTotals(finished, sums, {}))


FAST = Impossible(steps=200, worst_ratio=1.6, t_ns=95 * S, step=7)
STALLED = Verdict(
    health=Health.STALLED, sentence="4 running: no step for 9 s", since_ns=91 * S
)
SLOW_START = replace(
    BUSY,
    up_s=30.0,
    minute_s=30.0,
    slow_start=Quantiles(n=900, p50=0.01, max=8.0),
    longest_s=0.03,
)
CASES: tuple[tuple[Diagnosis, Facts, Facts], ...] = (
    (BlocksWasted(), replace(BUSY, waste_share=0.45), replace(BUSY, waste_share=0.1)),
    (
        CacheTooSmall(),
        replace(BUSY, hit_rate=0.1, reachable_hit_rate=0.6),
        replace(BUSY, hit_rate=0.55, reachable_hit_rate=0.6),
    ),
    (PrefixMissed(), asked(stamped=True), asked(stamped=False)),
    (PrefixMissed(), asked(stamped=False, salts=30), asked(stamped=False)),
    (
        PrefixMissed(),
        asked(stamped=False, size=24),
        replace(
            asked(stamped=False, size=24),
            hit_rate=0.1,
            reachable_hit_rate=0.6,  # which another finding tells
        ),
    ),
    (CutOff(), ended(100, 60), ended(100, 10)),
    (CutOff(), ended(100, 90), ended(100, 100)),  # of fixed lengths
    (
        MemoryBound(),
        at_limits(BUSY, decode=point(Bound.MEMORY, mbu=0.8)),
        at_limits(
            replace(BUSY, waiting=0, oldest_wait_s=None),
            decode=point(Bound.MEMORY, mbu=0.8),
        ),
    ),
    (
        ComputeBound(),
        at_limits(BUSY, prefill=point(Bound.COMPUTE, mfu=0.7)),
        at_limits(BUSY, prefill=point(Bound.COMPUTE, mfu=0.2)),
    ),
    (
        ComputeBound(),
        at_limits(BUSY, prefill=point(Bound.COMPUTE, mfu=1.05)),
        at_limits(BUSY, prefill=point(Bound.COMPUTE, mfu=1.24)),
    ),
    (
        FasterThanFloor(),
        at_limits(BUSY, impossible=FAST),
        at_limits(BUSY, impossible=replace(FAST, steps=2)),
    ),
    (LowAcceptance(), drafting(BUSY, 300, 60), drafting(BUSY, 300, 180)),
    (
        SpeculationAtFullBatch(),
        drafting(replace(BUSY, steps=steps(seqs_ns=9 * S)), 300, 150),
        at_limits(
            drafting(replace(BUSY, steps=steps(seqs_ns=9 * S)), 300, 150),
            decode=point(Bound.MEMORY),
        ),
    ),
    (EngineWarmUp(), SLOW_START, replace(SLOW_START, longest_s=7.0)),
    (
        SloMissed(),
        replace(BUSY, around=Around(slo=slo(60, ttft_s=40))),
        replace(BUSY, around=Around(slo=slo(100))),
    ),
)


def test_what_prompts_missed_says_over_which_span() -> None:
    (told,) = PrefixMissed().evidence(asked(stamped=True))

    assert told.text.startswith("30 prompts that ended within 29.0 s; hits that would")


def test_who_decodes_speculatively_is_not_advised_to() -> None:
    ill = at_limits(BUSY, decode=point(Bound.MEMORY, mbu=0.8))

    def flags(*, speculates: bool) -> list[str | None]:
        facts = replace(ill, speculates=speculates)
        return [each.flag for each in MemoryBound().knobs(facts)]

    assert "--speculative-config" in flags(speculates=False)
    assert "--speculative-config" not in flags(speculates=True)


def test_drafts_are_to_end_where_acceptance_falls() -> None:
    def advice(*accepted: int) -> str:
        return LowAcceptance().knobs(drafting(BUSY, 300, *accepted))[0].text

    assert advice(70, 30, 5).startswith("Draft 2 tokens: further on fewer than 20%")
    assert advice(40, 10).startswith("Draft 1 token: ")
    assert advice(10).startswith("Turn it off: not even the first token")
    assert advice(50, 30, 25) == "Draft fewer tokens, or none"


def test_where_memory_binds_wasted_tokens_cost_what_they_take_of_the_compute() -> None:
    ill = drafting(BUSY, 300, 60)
    bound = at_limits(ill, decode=point(Bound.MEMORY, mfu=0.1))

    plain, cheap = LowAcceptance().judge(ill), LowAcceptance().judge(bound)

    assert plain is not None
    assert cheap is not None
    assert plain.share == pytest.approx(0.9 * 240 / 400)
    assert cheap.share == pytest.approx(0.1 * plain.share)
    assert cheap.text == "5% of the compute; memory binds"


def test_few_drafts_say_nothing() -> None:
    assert LowAcceptance().judge(drafting(BUSY, 90, 5)) is None


def test_a_compute_bound_engine_verifies_at_a_loss() -> None:
    ill = at_limits(drafting(BUSY, 300, 150), decode=point(Bound.COMPUTE))

    assert SpeculationAtFullBatch().judge(ill) is not None
    assert "steps are compute-bound" in SpeculationAtFullBatch().sentence(ill)
    assert SpeculationAtFullBatch().judge(drafting(BUSY, 300, 150)) is None


@pytest.mark.parametrize(
    ("diagnosis", "ill", "well"), CASES, ids=[each[0].NAME for each in CASES]
)
def test_it_holds_where_it_is_so_and_not_where_it_nearly_is(
    diagnosis: Diagnosis, ill: Facts, well: Facts
) -> None:
    cost = diagnosis.judge(ill)

    assert cost is not None
    assert diagnosis.judge(well) is None
    found = diagnosis.finding(ill, cost, 0, {})
    assert found.sentence
    assert found.evidence
    assert 0 < found.cost <= 1
    efforts = [each.effort == (Effort.NOW,) for each in found.knobs]
    assert efforts == sorted(efforts, reverse=True)


def test_a_batch_is_not_too_small_where_compute_is_full() -> None:
    queued = replace(BUSY, steps=steps(seqs_ns=9 * S))

    assert BatchTooSmall().judge(queued) is not None
    full = at_limits(queued, prefill=point(Bound.COMPUTE, mfu=0.8))
    assert BatchTooSmall().judge(full) is None


def target_of(diagnosis: Diagnosis, facts: Facts, flag: str) -> tuple[str, str]:
    """The flag with its value, and why."""
    (knob,) = (
        each for each in diagnosis.knobs(facts) if (each.flag or "").startswith(flag)
    )
    return knob.flag or "", knob.text


WAITED = replace(BUSY, waited=12)
LARGE_BLOCKS = replace_fields(
    INFO, kv_bytes_per_token=1 << 16, tensor_parallel=1, pipeline_parallel=1
)


@pytest.mark.parametrize(
    ("facts", "value", "why"),
    [
        (WAITED, " 44", "(up to 12 waited)"),
        (replace(WAITED, kv_usage=0.8), " 40", "(up to 12 waited; KV blocks allow"),
        (replace(WAITED, kv_usage=1.0), "", "at once"),
        (BUSY, "", "at once"),
    ],
    ids=["room for all", "room for some", "no room", "nobody waited"],
)
def test_a_limit_is_raised_as_far_as_requests_waited_and_fit(
    facts: Facts, value: str, why: str
) -> None:
    flag, text = target_of(BatchTooSmall(), facts, "--max-num-seqs")

    assert flag == f"--max-num-seqs{value}"
    assert why in text


LOWERED = LiveLimits(
    source="engine-1",
    t_ns=0,
    rank=0,
    version=2,
    change=LimitChange.SET,
    max_num_seqs=4,
    max_num_batched_tokens=512,
    start_max_num_seqs=32,
    start_max_num_batched_tokens=8_192,
)


@pytest.mark.parametrize(("waited", "seqs", "tokens"), [(3, 7, 1_024), (40, 32, 1_024)])
def test_a_lowered_limit_is_raised_from_where_it_is_to_its_start_at_most(
    waited: int, seqs: int, tokens: int
) -> None:
    facts = replace(
        BUSY, running=4, kv_usage=0.1, waited=waited, live_limits=(LOWERED,)
    )

    flag, text = target_of(BatchTooSmall(), facts, "--max-num-seqs")
    budget, _ = target_of(TokenBudget(), facts, "--max-num-batched-tokens")

    assert flag == f"--max-num-seqs {seqs}"
    assert text.endswith("k turns it live")
    assert budget == f"--max-num-batched-tokens {tokens}"


@pytest.mark.parametrize(
    ("held", "lowered", "value"),
    [(20, (), " 20"), (None, (), ""), (32, (), ""), (4, (LOWERED,), "")],
    ids=["held", "none held", "all held", "is the live limit"],
)
def test_fewer_are_to_run_than_were_preempted(
    held: int | None, lowered: tuple[LiveLimits, ...], value: str
) -> None:
    facts = replace(BUSY, running=1, held_batch=lambda: held, live_limits=lowered)

    flag, _ = target_of(Preemptions(), facts, "--max-num-seqs")

    assert flag == f"--max-num-seqs{value}"


def test_a_step_is_to_hold_the_prompts_that_waited_and_not_over_twice_as_much() -> None:
    facts = replace(WAITED, settings={"max_num_batched_tokens": 8_192})
    few, many = replace(facts, waited=3), replace(facts, waited=30)

    one, other = (
        target_of(TokenBudget(), each, "--max-num-batched-tokens")
        for each in (few, many)
    )

    assert one[0] == f"--max-num-batched-tokens {8_192 + 3 * 900}"
    assert other[0] == "--max-num-batched-tokens 16384"
    assert "kept to twice the present" in other[1]


def with_memory(facts: Facts, device: str | None, host: int, gpu: int | None) -> Facts:
    """An engine there, beside a host and a GPU with so much memory left, in GiB."""
    info = replace_fields(LARGE_BLOCKS, device=device)
    state = HostState(
        info=HostInfo(t_ns=0, name="host", memory_bytes=100 << 30),
        memory_used_bytes=(95 - host) << 30,
        processes=(ProcessState(pid=1, role="core"),),
    )
    card = GpuState(
        source="GPU-1",
        info=GpuInfo(source="GPU-1", t_ns=0, uuid="GPU-1", memory_bytes=100 << 30),
        memory_used_bytes=None if gpu is None else (95 - gpu) << 30,
    )
    around = Around(hosts=(state,), gpus=(card,))
    return replace(facts, infos=(info,), around=around)


@pytest.mark.parametrize(
    ("device", "host", "gpu", "value"),
    [
        ("cpu", 9, 0, " 3000M"),
        ("cpu", 1, 9, " 2024M"),
        ("cuda", 0, 9, " 3000M"),
        ("cuda", 9, 1, " 2024M"),
        ("cuda", 9, None, ""),
        (None, 9, None, ""),
    ],
    ids=["CPU", "CPU, tight", "GPU", "GPU, tight", "GPU, unknown", "unknown"],
)
def test_a_cache_is_to_hold_those_that_waited_as_far_as_its_memory_does(
    device: str | None, host: int, gpu: int | None, value: str
) -> None:
    waited = replace(BUSY, waited=64, kv_usage=1.0)  # 1,000 MiB for 32

    facts = with_memory(waited, device, host, gpu)

    flag, text = target_of(KvBound(), facts, "--kv-cache-memory-bytes")
    assert flag == f"--kv-cache-memory-bytes{value}"
    assert ("memory allows no more; it has 1000M" in text) == (value == " 2024M")


@pytest.mark.parametrize(
    ("settings", "flags"),
    [
        ({}, ["--gpu-memory-utilization", "--kv-cache-memory-bytes 3000M"]),
        ({"kv_cache_memory_bytes": 1000 << 20}, ["--kv-cache-memory-bytes 3000M"]),
        (
            {"kv_cache_memory_bytes": 1, "num_gpu_blocks_override": 1_000},
            ["--num-gpu-blocks-override 3000"],
        ),
    ],
)
def test_a_cache_is_enlarged_by_the_flag_that_counts(
    settings: dict[str, int], flags: list[str]
) -> None:
    waited = replace(BUSY, waited=64, kv_usage=1.0, settings=settings)

    knobs = KvBound().knobs(with_memory(waited, "cpu", 9, 0))

    told = [knob.flag for knob in knobs if knob.flag]
    assert told == [*flags, "--kv-cache-dtype fp8"]  # a CPU has no other GPUs


def test_what_each_of_several_gpus_holds_of_a_cache_is_not_known() -> None:
    facts = with_memory(replace(BUSY, waited=64, kv_usage=1.0), "cpu", 9, 0)
    spread = replace_fields(facts.infos[0], tensor_parallel=2)

    flag, _ = target_of(
        KvBound(), replace(facts, infos=(spread,)), "--kv-cache-memory-bytes"
    )

    assert flag == "--kv-cache-memory-bytes"


def test_a_full_host_has_no_kv_cache_where_the_engine_is_on_a_gpu() -> None:
    def flags(device: str) -> list[str | None]:
        facts = with_memory(BUSY, device, 0, None)
        return [each.flag for each in MemoryFull().knobs(facts)]

    assert "--kv-cache-memory-bytes" in flags("cpu")
    facts = replace(with_memory(BUSY, "cuda", 0, None), around=Around())
    assert [each.flag for each in MemoryFull().knobs(facts)] == [None]


def test_a_log_is_advised_by_its_key_only_where_it_is() -> None:
    for diagnosis in (EngineLost(), RestartLoop(), Failures()):
        (here,) = diagnosis.knobs(replace(BUSY, has_log=True))
        (elsewhere,) = diagnosis.knobs(BUSY)
        assert "(l)" in here.text
        assert "(l)" not in elsewhere.text


def test_a_slow_start_is_not_held_against_steps_that_nobody_takes() -> None:
    idle = replace(SLOW_START, steps=steps(0))

    (busy,) = EngineWarmUp().evidence(SLOW_START)
    (quiet,) = EngineWarmUp().evidence(idle)

    assert EngineWarmUp().judge(idle) is not None
    assert busy.text == "steps now take 18.0 ms"
    assert quiet.text == "no step ran lately"


def test_with_objectives_the_price_is_the_share_that_misses_them() -> None:
    queued = replace(BUSY, steps=steps(seqs_ns=9 * S))
    plain = BatchTooSmall().judge(queued)
    missed = BatchTooSmall().judge(
        replace(queued, around=Around(slo=slo(75, ttft_s=25)))
    )
    kept = BatchTooSmall().judge(replace(queued, around=Around(slo=slo(75, tpot_s=25))))

    assert plain is not None
    assert missed is not None
    assert missed.share == pytest.approx(0.25 * plain.share)
    assert missed.text.startswith("25% of requests miss ttft_s<1; ")
    assert kept is None  # what is missed is not what a queue delays


def test_a_missed_objective_is_told_only_where_nothing_explains_it() -> None:
    missed = replace(BUSY, around=Around(slo=slo(75, ttft_s=25)))
    explained = replace(missed, steps=steps(seqs_ns=9 * S))

    for facts, name in ((missed, "slo_missed"), (explained, "batch_too_small")):
        tracker = FindingTracker()
        for second in range(20):
            tick = replace(facts, now_ns=(100 + second) * S)
            tracker.tick(tick, (BatchTooSmall(), SloMissed()))
        assert [each.name for each in tracker.all()] == [name]


@pytest.mark.parametrize(
    ("now_s", "told"),
    [
        (0.020, "decode steps of 8: 20.0 ms instead of 10.0 ms"),
        (0.0105, "88% of the host's cores"),
    ],
    ids=["slower", "hardly slower"],
)
def test_a_busy_host_compares_steps_with_those_before_it_after_a_restore_too(
    now_s: float, told: str
) -> None:
    host = HostState(
        cores=8, busy=8.0, processes=(ProcessState(pid=1, role="core", cpu_share=1.0),)
    )
    usual, slow = {8: 0.010}, {8: now_s}

    def tick(tracker: FindingTracker, second: int) -> None:
        now_ns = (100 + second) * S

        def steps(_: int, until_ns: int) -> dict[int, float]:
            return slow if until_ns == now_ns else usual

        around = Around(hosts=(host,))
        facts = replace(BUSY, now_ns=now_ns, around=around, decode_steps=steps)
        tracker.tick(facts, (CpuBusy(),))

    tracker = FindingTracker()
    for second in range(12):
        tick(tracker, second)
    saved = msgspec.json.encode(tracker.saved())
    restored = FindingTracker()
    restored.restore(msgspec.json.decode(saved, type=SavedFindings))
    usual = {}
    tick(restored, 13)

    (found,) = restored.all()
    assert found.cost_text == told


def test_an_engine_that_nobody_hears_is_not_called_stopped() -> None:
    quiet = replace(BUSY, verdict=STALLED, silent_s=1.0)

    assert Stopped().judge(quiet) is not None
    assert Stopped().judge(replace(quiet, silent_s=20.0)) is None


def test_of_a_lost_engine_a_finding_says_the_cause_and_not_the_log() -> None:
    died = "EngineCore (pid 7) exited\nTraceback (most recent call last):\n  File ..."
    facts = replace(BUSY, verdict=Verdict(health=Health.LOST, sentence=died))

    assert EngineLost().sentence(facts) == "EngineCore (pid 7) exited"


@pytest.mark.parametrize(
    ("unlisted", "said"),
    [
        (0, "155 requests of the last minute ended in an error"),
        (60, "Requests lists 95 of them; the other 60 only the load generator saw"),
    ],
)
def test_failures_say_how_many_of_them_are_listed(unlisted: int, said: str) -> None:
    sums = {"failed": 155, "failed_unlisted": unlisted}
    facts = replace(BUSY, outcomes=CounterTotals(155, sums, {}))

    assert Failures().sentence(facts).endswith(said)


@pytest.mark.parametrize(
    ("cause", "waits_for", "flag"),
    [
        (Cause.QUEUE_GRAMMAR, "grammars", "--structured-outputs-config.backend"),
        (Cause.QUEUE_TRANSFER, "KV transfers", "--kv-transfer-config"),
        (Cause.QUEUE_ADAPTER, "max_loras others", "--max-loras"),
        (Cause.QUEUE_ENCODER, "the encoder", "--max-num-batched-tokens"),
        (Cause.QUEUE_STREAMING, "the rest of their input", None),
        (Cause.QUEUE_HELD, "computes prompts", "--prefill-schedule-interval"),
        (Cause.QUEUE_DEFERRED, "a grammar, a KV transfer", "--max-loras"),
    ],
)
def test_each_reason_of_a_deferral_has_its_words_and_its_knob(
    cause: Cause, waits_for: str, flag: str | None
) -> None:
    facts = Facts(
        now_ns=60 * S,
        covered_s=10,
        waiting=4,
        steps=steps(deferred_ns=9 * S),
        ttft_n=10,
        ttft_ns=10 * S,
        spent_ns={cause: 8 * S, Cause.PREFILL: S},
    )
    cost = Deferred().judge(facts)

    assert cost is not None
    finding = Deferred().finding(facts, cost, 50 * S, {})
    assert waits_for in finding.sentence
    flags = [each.flag for each in finding.knobs if each.flag]
    assert [each.split()[0] for each in flags] == ([] if flag is None else [flag])
    assert {*DEFERRAL_CAUSES} < {*Deferred.EXPLAINS}


def test_before_a_first_token_steps_tell_what_is_waited_for() -> None:
    facts = Facts(
        now_ns=60 * S,
        covered_s=10,
        waiting=4,
        steps=steps(deferred_ns=9 * S),
        deferrals={Deferral.GRAMMAR: 2 * S, Deferral.HELD: 7 * S},
    )

    assert "computes prompts" in Deferred().sentence(facts)


SMALL = "qwen2.5-0.5b"


def shared_by(gpus: int, *, name: str = SMALL, batch: int = 4) -> Facts:
    """An engine that decodes on so many H100, each step ``batch`` requests."""
    small = {"hidden_size": 896, "num_hidden_layers": 24, "intermediate_size": 4864}
    heads = {"num_attention_heads": 14, "num_key_value_heads": 2}
    presets = {**PRESETS, SMALL: {**PRESETS["qwen2.5-7b"], **small, **heads}}
    shape = shape_of(presets[name])
    peak = EnginePeak(
        bytes_per_s=gpus * 3.35e12,
        flops=gpus * 989.5e12,
        dtype="bfloat16",
        device="NVIDIA H100 80GB HBM3",
        devices=gpus,
    )
    facts = replace(
        BUSY,
        infos=(replace_fields(INFO, tensor_parallel=gpus),),
        running=batch,
        waiting=0,
        steps=steps(500, batch=500 * batch, nothing_ns=9 * S),
    )
    return at_limits(facts, shape=shape, peak=peak, tokens_per_request=1_000.0)


def test_more_gpus_than_help_are_told_with_both_estimates() -> None:
    """By hand: 1.04 GB over 3.35 TB/s is 0.30 ms; half of it and 48 calls 0.64 ms."""
    facts = shared_by(2)

    assert TensorParallelTooHigh().holds(facts) is not None
    text = TensorParallelTooHigh().evidence(facts)[0].text
    assert text.startswith(
        "a step takes ~636 µs on 2 GPUs, and with half the batch ~302 µs on 1"
    )
    (knob,) = TensorParallelTooHigh().knobs(facts)
    assert knob.flag == "--tensor-parallel-size 1"
    assert knob.effort == (Effort.RESTART,)


@pytest.mark.parametrize(
    "facts",
    [
        # 16 GB are worth sharing: 4.5 ms on one, 2.9 ms on two
        shared_by(2, name="llama-3-8b"),
        # calls take as long among four as among two
        shared_by(4),
        shared_by(1),
        # KV of half of all that wait needs both
        replace(shared_by(2), waiting=19_000),
        replace(shared_by(2), speculates=True),
        replace(shared_by(2), around=Around()),
    ],
    ids=["large", "calls of two", "one", "does not fit", "speculates", "unknown"],
)
def test_gpus_that_help_or_of_which_little_is_known_are_not(facts: Facts) -> None:
    assert TensorParallelTooHigh().holds(facts) is None
