"""What is planted in a set-up is named by its review, and nothing else."""

import ast
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from collectors.contract.readings import (
    AnyReading,
    EngineInfo,
    GpuSample,
    LoadEvent,
    LoadKind,
    LoadPlanned,
    Tick,
)
from inferwatch.limits.shape import ModelShape
from inferwatch.metrics.findings.finding import Effort, Finding, Knob
from inferwatch.metrics.findings.tracker import BY_NAME
from inferwatch.metrics.floor.view import Bound, EnginePeak, Limits, OperatingPoint
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Quantiles, Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.studies import review as package
from inferwatch.studies.review.line import LineVerdict, Reviewed
from inferwatch.studies.review.printed import review_json, review_markdown, review_text
from inferwatch.studies.review.review import (
    LINES,
    Review,
    cannot_review,
    review,
    with_predictions,
)
from inferwatch.studies.review.setup import ReviewUse, Setup
from inferwatch.studies.what_if.heard import CannotTellError
from inferwatch.studies.what_if.outcome import LATENCIES, Outcome
from inferwatch.studies.what_if.prediction import Prediction, WhatIf
from inferwatch.studies.what_if.setting import SchedulerSetting, SettingChange
from tests.inferwatch.metrics.findings.planted import PLANTED, SMALL_BATCH, host
from tests.inferwatch.metrics.findings.planted import together as beside
from tests.inferwatch.metrics.findings.simulated_engine import Engine, S
from tests.inferwatch.metrics.scripted_hardware import gpu_info, uuid

GB = 1 << 30
SETTINGS: dict[str, str | int | float | bool | None] = {
    "enforce_eager": False,
    "cudagraph_mode": "FULL_AND_PIECEWISE",
    "gpu_memory_utilization": 0.9,
    "kv_cache_dtype": "auto",
    "api_server_count": 1,
}
Told = Callable[[], Iterable[AnyReading]]


def on_gpu(engine: Engine, **fields: Any) -> Told:
    """An engine that tells all of its set-up."""
    told = replace(engine, settings=SETTINGS | engine.settings)
    known: dict[str, Any] = {
        "device": "cuda",
        "async_scheduling": True,
        "max_model_len": 4_096,
        "tensor_parallel": 1,
    }

    def readings() -> Iterator[AnyReading]:
        for each in replace(told).run(40):
            if isinstance(each, EngineInfo):
                yield structs.replace(each, **(known | fields))
            else:
                yield each

    return readings


def with_load(told: Told, **plan: Any) -> Told:
    """The same under a load of ours."""

    def load() -> Iterator[AnyReading]:
        text = json.dumps({"run_id": "load-1", **plan})
        yield LoadPlanned(source="load-1", t_ns=1, plan=text)
        yield LoadEvent(source="load-1", t_ns=2, kind=LoadKind.STARTED)

    return beside(load, told)


def with_gpu(told: Told, used: float) -> Told:
    """The same on a GPU of which such a share is in use."""

    def gpu() -> Iterator[AnyReading]:
        yield gpu_info(0, memory_bytes=80 * GB)
        for n in range(1, 40):
            used_bytes = round(used * 80 * GB)
            yield GpuSample(source=uuid(0), t_ns=n * S, memory_used_bytes=used_bytes)

    return beside(gpu, told)


def seen(told: Told) -> Snapshot:
    model, now_ns = Model(), 0
    for each in told():
        model.fold(each)
        now_ns = each.t_ns if isinstance(each, Tick) else now_ns
    return model.snapshot(now_ns, SnapshotQuery(Window.SESSION))


def flags(judged: Review) -> list[tuple[str, str | None]]:
    advised = ((each.name, each.judged.advised) for each in judged.changes)
    return [(name, each.flag if each else None) for name, each in advised]


def line(judged: Review, name: str) -> Reviewed:
    (found,) = (each for each in judged.lines if each.name == name)
    return found


HEALTHY = Engine()
TURNS = Engine(prompt=lambda _: 1_000, prefix_caching=False, rate_per_s=1.5)
GROWING = Engine(
    kv_blocks=200,
    rate_per_s=6,
    prompt=lambda _: 30,
    output=lambda r: r.randint(300, 600),
    settings={"gpu_memory_utilization": 0.5},
)
EAGER = Engine(gap_s=0.02, settings={"enforce_eager": True, "cudagraph_mode": "NONE"})


@pytest.mark.parametrize("use", ReviewUse)
def test_a_healthy_set_up_is_left_as_it_is(use: ReviewUse) -> None:
    judged = review(seen(beside(on_gpu(HEALTHY), host())), use)

    assert flags(judged) == []
    unknown = {each.name for each in judged.of(LineVerdict.UNKNOWN)}
    assert unknown == {"log-probs"}


@pytest.mark.parametrize(
    ("told", "use", "name", "flag"),
    [
        (
            with_load(on_gpu(TURNS), turns={"type": "fixed", "value": 5}),
            ReviewUse.AGENTS,
            "prefix caching",
            "--enable-prefix-caching",
        ),
        (on_gpu(SMALL_BATCH), ReviewUse.BATCH, "max_num_seqs", "--max-num-seqs 128"),
        (
            on_gpu(GROWING),
            ReviewUse.INTERACTIVE,
            "KV cache memory",
            "--gpu-memory-utilization 0.9",
        ),
        (on_gpu(EAGER), ReviewUse.INTERACTIVE, "CUDA graphs", "--enforce-eager"),
    ],
    ids=["no prefix caching", "a small batch", "little memory", "eager"],
)
def test_what_is_planted_is_named_and_nothing_else(
    told: Told, use: ReviewUse, name: str, flag: str
) -> None:
    judged = review(seen(told), use)

    assert flags(judged) == [(name, flag)]
    (found,) = judged.changes
    assert " watched)" in found.judged.seen  # how long it lasted
    assert found.present is not None
    assert found.judged.advised is not None
    assert found.judged.advised.risk


def test_prompts_that_no_two_share_need_no_prefix_cache() -> None:
    judged = review(seen(with_load(on_gpu(TURNS))), ReviewUse.AGENTS)

    assert flags(judged) == []
    assert "random" in line(judged, "prefix caching").judged.seen


def test_whether_prompts_repeat_is_not_guessed() -> None:
    judged = review(seen(on_gpu(TURNS)), ReviewUse.INTERACTIVE)

    caching = line(judged, "prefix caching").judged
    assert caching.verdict is LineVerdict.UNKNOWN
    assert "not known" in caching.seen
    agents = review(seen(on_gpu(TURNS)), ReviewUse.AGENTS)  # whose turns do
    assert flags(agents) == [("prefix caching", "--enable-prefix-caching")]


def test_more_are_not_let_in_where_kv_blocks_are_short() -> None:
    (turns,) = (e for e in PLANTED if e.what.startswith("sequences and KV blocks"))

    judged = review(seen(turns.told), ReviewUse.BATCH)

    assert "max_num_seqs" not in dict(flags(judged))
    assert "no KV blocks" in line(judged, "max_num_seqs").judged.seen


def test_no_more_are_let_in_than_fit() -> None:
    now = replace(seen(on_gpu(SMALL_BATCH)), limits=Limits(max_requests=10.4))

    judged = review(now, ReviewUse.BATCH)

    assert flags(judged) == [("max_num_seqs", "--max-num-seqs 10")]
    assert "KV blocks hold 10 such" in line(judged, "max_num_seqs").judged.seen


def test_memory_that_others_hold_is_not_promised() -> None:
    full = review(seen(with_gpu(on_gpu(GROWING), 0.96)), ReviewUse.INTERACTIVE)
    roomy = review(seen(with_gpu(on_gpu(GROWING), 0.85)), ReviewUse.INTERACTIVE)

    assert flags(full) == [("KV cache dtype", "--kv-cache-dtype fp8")]
    assert flags(roomy) == [("KV cache memory", "--gpu-memory-utilization 0.6")]


def test_a_cpu_is_not_told_to_use_cuda_graphs() -> None:
    judged = review(seen(on_gpu(EAGER, device="cpu")), ReviewUse.INTERACTIVE)

    assert flags(judged) == []


def test_launches_that_hold_nothing_up_are_left_alone() -> None:
    judged = review(seen(on_gpu(replace(EAGER, gap_s=0.0002))), ReviewUse.INTERACTIVE)

    assert flags(judged) == []


def test_a_batch_load_does_not_mind_that_prompts_hold_tokens_up() -> None:
    long = next(e for e in PLANTED if e.finding == "prefill_stalls_decode")
    now = seen(long.told)

    batch, chat = (
        review(now, each) for each in (ReviewUse.BATCH, ReviewUse.INTERACTIVE)
    )

    assert flags(batch) == []
    assert flags(chat) == [
        ("max_num_batched_tokens", "--max-num-batched-tokens 4096"),
    ]


SHARED = Finding(
    name="tensor_parallel_too_high",
    title="TP too high for this batch",
    sentence="Two replicas on its 8 GPUs would decode as fast",
    since_ns=0,
    cost=0.05,
    cost_text="what its GPUs send each other",
    evidence=(),
    knobs=(
        Knob(
            text="Share layers among half the GPUs",
            flag="--tensor-parallel-size 4",
            expected="tokens as fast",
            effort=(Effort.RESTART,),
        ),
    ),
)


@pytest.mark.parametrize(
    ("findings", "flag"), [((SHARED,), "--tensor-parallel-size 4"), ((), None)]
)
def test_what_gpus_tell_each_other_is_said_and_a_finding_on_it_followed(
    findings: tuple[Finding, ...], flag: str | None
) -> None:
    shape = ModelShape(
        layers=32,
        hidden=4096,
        heads=32,
        kv_heads=8,
        head_dim=128,
        ffn=14336,
        vocab=128256,
    )
    decode = OperatingPoint(
        steps=9,
        intensity=2.0,
        flops=1e12,
        bytes_per_s=1e12,
        bound=Bound.MEMORY,
        floor_s=0.0006,
        step_s=0.002,
    )
    peak = EnginePeak(device="NVIDIA H100 80GB HBM3")
    now = seen(on_gpu(HEALTHY, tensor_parallel=8))
    limits = Limits(peak=peak, shape=shape, decode=decode)

    judged = review(
        replace(now, limits=limits, findings=findings), ReviewUse.INTERACTIVE
    )

    assert dict(flags(judged)).get("tensor parallelism") == flag
    told = line(judged, "tensor parallelism").judged.seen
    sent = "send each other for ~646 µs a step over NVLink"  # 64 calls of 10 µs
    assert f"{sent}; steps take 2.0 ms" in told


def test_a_limit_far_beyond_what_is_asked_for_is_named_where_it_can_do_harm() -> None:
    asked = Engine(kv_blocks=2_100, rate_per_s=4)
    now = seen(on_gpu(asked, max_model_len=32_768))

    roomy = seen(on_gpu(replace(asked, kv_blocks=9_000), max_model_len=32_768))

    chat, agents = (
        review(now, each) for each in (ReviewUse.INTERACTIVE, ReviewUse.AGENTS)
    )

    assert flags(review(roomy, ReviewUse.INTERACTIVE)) == []
    assert flags(chat) == [("max_model_len", "--max-model-len 2048")]
    assert flags(agents) == []  # their contexts grow
    assert "98% of the KV cache" in line(chat, "max_model_len").judged.seen


SETTING = SchedulerSetting(max_num_seqs=2, max_num_batched_tokens=2_048)


def predicted(then_s: float | None, *might_s: float, **then: Any) -> WhatIf:
    """All latencies are 1 s; changed so, they are or might be others."""

    def outcome(p50: float) -> Outcome:
        told = dict.fromkeys(LATENCIES, Quantiles(n=2_000, p50=p50, p99=p50))
        return Outcome(requests=2_000, latencies=told, output_tokens_per_s=100.0)

    setting = replace(SETTING, **(then or {"max_num_seqs": 128}))
    to = Prediction(setting=setting, cannot="steps are too large")
    if then_s is not None:
        unsure = {f"{e} {p}": 0.5 for e in LATENCIES for p in ("p50", "p99")}
        low, high = map(outcome, might_s or (then_s, then_s))
        to = Prediction(
            setting=setting,
            outcome=outcome(then_s),
            unsure=unsure if might_s else {},
            low=low,
            high=high,
        )
    return WhatIf(
        setting=SETTING,
        measured=outcome(1.0),
        simulated=outcome(1.0),
        step_error=0.0,
        near_s=0.0,
        most_members=2,
        predictions=(to,),
    )


def gain(judged: Review) -> str:
    (found,) = judged.changes
    assert found.judged.advised is not None
    return found.judged.advised.gain or found.judged.advised.untold or ""


def test_what_a_change_would_gain_is_predicted_as_far_as_can_be_told() -> None:
    judged = review(seen(on_gpu(SMALL_BATCH)), ReviewUse.BATCH)
    asked: list[int | None] = []

    def up_to_four(change: SettingChange) -> WhatIf:
        asked.append(change.max_num_seqs)
        return predicted(0.1 if change.max_num_seqs == 4 else None)

    def untold(_: SettingChange) -> WhatIf:
        raise CannotTellError("too few requests")

    far = with_predictions(judged, up_to_four)

    assert "TTFT p50 falls from 1,000 ms to 100 ms" in gain(far)
    assert asked == [128, 4]
    assert flags(far) == [("max_num_seqs", "--max-num-seqs 4")]
    assert gain(with_predictions(judged, lambda _: predicted(None))) == (
        "steps are too large"
    )
    assert gain(with_predictions(judged, untold)) == "too few requests"


def test_a_change_that_is_predicted_to_gain_nothing_is_not_advised() -> None:
    judged = review(seen(on_gpu(SMALL_BATCH)), ReviewUse.BATCH)

    same = with_predictions(judged, lambda _: predicted(1.0))

    assert same.changes == ()
    assert "stays at about" in line(same, "max_num_seqs").judged.seen


def test_a_gain_that_may_as_well_be_none_is_not_known() -> None:
    judged = review(seen(on_gpu(SMALL_BATCH)), ReviewUse.BATCH)

    told = with_predictions(judged, lambda _: predicted(0.8, 0.7, 0.9))
    unsure = with_predictions(judged, lambda _: predicted(0.8, 0.7, 1.1))

    for each, known in ((told, True), (unsure, False)):
        (found,) = each.changes
        assert found.judged.advised is not None
        assert (found.judged.advised.gain is not None) is known
    assert "ITL p99 700–1,100 ms (was 1,000 ms)" in gain(unsure)


def test_what_a_smaller_chunk_is_for_is_told_first() -> None:
    long = next(e for e in PLANTED if e.finding == "prefill_stalls_decode")
    judged = review(seen(long.told), ReviewUse.INTERACTIVE)

    told = gain(
        with_predictions(judged, lambda _: predicted(0.5, max_num_batched_tokens=64))
    )

    assert "instead of 2,048, ITL p99 falls from 1,000 ms to 500 ms, TTFT" in told


def test_a_trouble_told_twice_lasts_no_longer_than_was_watched() -> None:
    now = seen(on_gpu(HEALTHY))
    kv, preempted = (
        replace(SHARED, name=name, since_ns=10 * S)
        for name in ("kv_bound", "preemptions")
    )

    setup = Setup(now=replace(now, findings=(kv, preempted)), use=ReviewUse.BATCH)

    assert now.covered_ns == 40 * S
    assert setup.kv_short is not None
    assert setup.kv_short.sentence.endswith("(for 30.0 s of the 40.0 s watched)")


@pytest.mark.parametrize(
    ("body", "asks"),
    [
        ({"logprobs": True}, True),
        ({"logprobs": 0}, True),  # completions: of the tokens that are sent
        ({"prompt_logprobs": 1}, True),
        ({"logprobs": False}, False),
        ({"logprobs": None, "top_p": 1}, False),
    ],
)
def test_log_probs_are_advised_against_only_where_they_are_asked_for(
    body: dict[str, Any], *, asks: bool
) -> None:
    judged = review(
        seen(with_load(on_gpu(HEALTHY), extra_body=body)), ReviewUse.INTERACTIVE
    )

    assert ("log-probs" in dict(flags(judged))) is asks


def test_what_was_not_told_is_not_drawn_as_off_none_or_empty() -> None:
    now = seen(beside(on_gpu(SMALL_BATCH), host()))
    (state,) = now.hosts
    bare = replace(
        now,
        settings={},
        kv=replace(now.kv, peak_used_blocks=None),
        hosts=(replace(state, cores=None, processes=()),),
    )

    known, unknown = (review(each, ReviewUse.BATCH) for each in (now, bare))

    assert line(known, "speculative decoding").present == "off"
    assert line(unknown, "speculative decoding").present is None
    assert flags(unknown) == []
    assert "full the KV cache was" in line(unknown, "max_num_seqs").judged.seen
    cores = [line(each, "CPU cores and quota").judged.seen for each in (known, unknown)]
    assert cores == [
        "1.2 of 8 cores are busy; no quota holds the engine back",
        "1.2 cores are busy; no quota is told",
    ]


@pytest.mark.parametrize("held", [None, "cpu_quota", "host_busy"])
def test_more_api_servers_are_started_only_where_cores_are_left(
    held: str | None,
) -> None:
    slow = replace(SHARED, name="front_end")
    others = (replace(SHARED, name=held),) if held else ()
    now = replace(seen(on_gpu(HEALTHY)), findings=(slow, *others))

    servers = line(review(now, ReviewUse.INTERACTIVE), "API servers").judged

    assert (servers.advised is None) is (held is not None)


def test_nothing_seen_and_several_servers_are_nothing_to_judge_by() -> None:
    two = next(e for e in PLANTED if e.finding == "imbalance")

    assert "no engine" in (cannot_review(seen(lambda: iter(()))) or "")
    assert "no request ran" in (cannot_review(seen(on_gpu(Engine(rate_per_s=0)))) or "")
    assert "choose one of a, b" in (cannot_review(seen(two.told)) or "")
    assert cannot_review(seen(on_gpu(HEALTHY))) is None


def test_every_line_is_in_every_form() -> None:
    judged = review(seen(on_gpu(SMALL_BATCH)), ReviewUse.BATCH)

    text, told = review_text(judged), review_json(judged, "s1")

    assert max(map(len, text.splitlines())) <= 80
    assert text.index("▲ max_num_seqs, now 2") < text.index("✓ CUDA graphs")
    assert "  gain: not known" in text
    assert "- gain: not known" in review_markdown(judged)
    assert [each["name"] for each in told["lines"]] == [each.NAME for each in LINES]
    (change,) = (each["change"] for each in told["lines"] if each["change"])
    assert change["flag"] == "--max-num-seqs 128"
    assert change["gain"] is None


def test_every_finding_that_a_line_asks_for_exists() -> None:
    asked = {
        name
        for path in Path(*package.__path__).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        for name in node.args
        if node.func.attr == "held" and isinstance(name, ast.Constant)
    }

    names = {str(each.value) for each in asked}
    assert {"batch_too_small", "front_end", "prefix_evicted"} <= names
    assert names <= {*BY_NAME}
