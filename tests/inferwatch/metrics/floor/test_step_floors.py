"""The floor of each step, against values worked out by hand."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as with_fields

from collectors.contract.readings import (
    AnyReading,
    EventKind,
    Note,
    NoteKind,
    Reading,
    RequestEvent,
    Vantage,
)
from inferwatch.metrics.floor.budget import Budget
from inferwatch.metrics.floor.view import Bound, Limits, OperatingPoint
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.samples import CounterTotals
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from tests.inferwatch.metrics.floor.scripted_limits import (
    BANDWIDTH,
    ENGINE,
    FFN,
    FLOPS,
    KV,
    LINEAR,
    MS,
    NORMS,
    PARAMETERS,
    TABLE,
    Script,
    bytes_read,
    config,
    flops_of,
    gpu,
    info,
    processor,
    started,
)

See = Callable[..., Snapshot]


def limits_of(see: See, readings: Sequence[Reading], **fields: Any) -> Limits:
    limits = see(readings, **fields).limits
    assert limits is not None
    return limits


def decode_of(limits: Limits) -> OperatingPoint:
    assert limits.decode is not None
    return limits.decode


def test_a_decode_step_reads_weights_and_the_context_of_each_request(
    see: See,
) -> None:
    script = Script()
    readings = [*started(), *script.prompt(0, 100), *script.prompt(1, 50)]
    readings.append(script.step({0: 1, 1: 1}))

    point = decode_of(limits_of(see, readings))

    moved = bytes_read(2, 100 + 50)
    assert point.steps == 1
    assert point.floor_s == pytest.approx(moved / BANDWIDTH, rel=1e-4)
    assert point.bytes_per_s == pytest.approx(moved / 0.001, rel=1e-4)
    assert point.mbu == pytest.approx(moved / BANDWIDTH / 0.001, rel=1e-4)
    computed = flops_of(2, 2, 101 + 51)
    assert point.flops == pytest.approx(computed / 0.001, rel=1e-3)
    assert point.intensity == pytest.approx(computed / moved, rel=1e-3)
    assert point.bound is Bound.OVERHEAD  # 56 µs of 1 ms


def test_a_step_near_its_floor_is_bound_by_what_sets_that(see: See) -> None:
    script = Script()
    took_ms = bytes_read(1, 400) / BANDWIDTH * 1e3 / 0.6
    readings = [
        *started(),
        *script.prompt(0, 400),
        script.step({0: 1}, took_ms=took_ms),
    ]

    assert decode_of(limits_of(see, readings)).bound is Bound.MEMORY


def test_a_long_prompt_is_bound_by_what_it_computes(see: See) -> None:
    script = Script()
    readings = [*started(), *script.prompt(0, 4000)]

    limits = limits_of(see, readings)

    computed = flops_of(4000, 1, 4000 * 4001 // 2)
    point = limits.prefill
    assert point is not None
    assert point.bound is Bound.COMPUTE
    assert point.floor_s == pytest.approx(computed / FLOPS, rel=1e-3)
    assert point.mfu == pytest.approx(computed / FLOPS / 0.001, rel=1e-3)
    assert limits.decode is None


def test_a_chunk_sees_what_was_computed_before_it(see: See) -> None:
    script = Script()
    readings = [*started(), *script.request(0, 3000)]
    readings.append(script.step({0: 2000}, produced=[0], prefilling=[0]))
    first = limits_of(see, readings).prefill
    readings.append(script.step({0: 1000}, prefilling=[0]))
    both = limits_of(see, readings).prefill

    assert first is not None
    assert both is not None
    pairs = 2000 * 2001 // 2 + 1000 * 2000 + 1000 * 1001 // 2
    expected = flops_of(3000, 2, pairs) / 0.002
    assert both.flops == pytest.approx(expected, rel=1e-4)
    moved = bytes_read(2000, 0) + bytes_read(1000, 2000)
    assert both.bytes_per_s == pytest.approx(moved / 0.002, rel=1e-4)


def test_a_request_that_joins_late_prefills_beside_those_that_decode(
    see: See,
) -> None:
    script = Script()
    readings = [*started(), *script.prompt(0, 100)]
    readings += [script.step({0: 1}), *script.request(1, 64)]
    alone = decode_of(limits_of(see, readings))
    readings.append(script.step({0: 1, 1: 64}, prefilling=[1]))

    limits = limits_of(see, readings)

    assert decode_of(limits) == alone
    point = limits.prefill
    assert point is not None
    assert point.steps == 2
    moved = bytes_read(100, 0) + bytes_read(65, 101)
    assert point.bytes_per_s == pytest.approx(moved / 0.002, rel=1e-4)
    floors = [bytes_read(1, 100) / BANDWIDTH, bytes_read(65, 101) / BANDWIDTH]
    assert limits.tpot_floor_s == pytest.approx(sum(floors) / 2, rel=1e-3)


def test_a_preempted_request_begins_anew(see: See) -> None:
    script = Script()
    readings = [*started(), *script.prompt(0, 100), *script.prompt(1, 50)]
    readings.append(script.step({0: 1}, preempted=[1]))
    before = decode_of(limits_of(see, readings))
    readings.append(script.step({0: 1, 1: 51}, prefilling=[1]))
    readings.append(script.step({0: 1, 1: 1}))

    after = decode_of(limits_of(see, readings))

    assert before.bytes_per_s == pytest.approx(bytes_read(1, 100) / 1e-3, rel=1e-4)
    moved = bytes_read(1, 100) + bytes_read(2, 102 + 51)
    assert after.bytes_per_s == pytest.approx(moved / 2e-3, rel=1e-4)


def test_the_timeline_has_floors_and_gaps(see: See) -> None:
    script = Script()
    readings = [*started(), *script.prompt(0, 100)]
    readings += [script.step({0: 1}, gap_ms=0.5) for _ in range(3)]

    line = see(readings, 10).timeline

    floors = [bytes_read(100, 0)] + [bytes_read(1, 100 + k) for k in range(3)]
    assert line.floor_mean_s[-1] == pytest.approx(sum(floors) / 4 / BANDWIDTH, rel=1e-3)
    assert line.gap_mean_s[-1] == pytest.approx(3 * 0.0005 / 4)


def test_time_is_split_into_floors_what_is_beyond_and_gaps(see: See) -> None:
    script = Script()
    readings = [*started(), *script.prompt(0, 100)]
    readings += [script.step({0: 1}, gap_ms=0.25) for _ in range(100)]

    split = limits_of(see, readings, now_ms=250).split

    assert split is not None
    shares = (split.memory_floor, split.compute_floor, split.inefficiency)
    assert None not in {*shares, split.host_gap}
    assert sum([*shares, split.host_gap]) == pytest.approx(1)  # type: ignore[list-item]
    whole_s = 0.101 + 0.025
    assert split.host_gap == pytest.approx(0.025 / whole_s)
    floor_s = sum(bytes_read(1, 100 + k) for k in range(100)) / BANDWIDTH
    floor_s += bytes_read(100, 0) / BANDWIDTH
    assert split.memory_floor == pytest.approx(floor_s / whole_s, rel=1e-3)
    assert split.compute_floor == 0
    assert split.idle_share == pytest.approx(1 - whole_s / 0.25)


def test_of_a_window_only_the_layers_without_one_see_all(see: See) -> None:
    script = Script()
    # Mistral's, in all layers; what is read is bounded, what is kept is not.
    windowed = config({"model_type": "mistral", "sliding_window": 64})
    readings = [gpu(), info(), windowed, *script.prompt(0, 100), script.step({0: 1})]

    point = decode_of(limits_of(see, readings))

    moved = bytes_read(1, 64)
    assert point.bytes_per_s == pytest.approx(moved / 0.001, rel=1e-4)
    assert point.flops == pytest.approx(flops_of(1, 1, 64) / 0.001, rel=1e-3)


def test_of_experts_those_are_read_that_tokens_may_touch(see: See) -> None:
    script = Script()
    mixture = {
        "model_type": "mixtral",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }
    readings = [gpu(), info(), config(mixture)]
    readings += [*script.prompt(0, 10), *script.prompt(1, 10)]
    readings.append(script.step({0: 1, 1: 1}))

    point = decode_of(limits_of(see, readings))

    experts = 4 * 8 * 3 * 1024 * 4096
    router = 4 * 8 * 1024
    dense = bytes_read(2, 20) - 2 * 4 * 3 * 1024 * 4096 + 2 * router
    moved = dense + 2 * experts * (1 - (1 - 2 / 8) ** 2)
    assert point.bytes_per_s == pytest.approx(moved / 0.001, rel=1e-4)
    active = LINEAR + 4 * 3 * 1024 * 4096 + router
    computed = flops_of(2, 2, 22) + 2 * 2 * (active - LINEAR)
    assert point.flops == pytest.approx(computed / 0.001, rel=1e-3)


def test_tensor_parallel_gpus_share_the_work(see: See) -> None:
    script = Script()
    two = [gpu(), gpu(source="GPU-2", uuid="GPU-2")]
    readings = [*two, info(gpus=["GPU-1", "GPU-2"], tensor_parallel=2), config()]
    readings += [*script.prompt(0, 100), script.step({0: 1})]

    limits = limits_of(see, readings)

    assert limits.peak.devices == 2
    assert limits.peak.bytes_per_s == 2 * BANDWIDTH
    assert limits.peak.flops == pytest.approx(2 * FLOPS, rel=1e-3)
    floor_s = decode_of(limits).floor_s
    rows = 2 * 1024  # each GPU has its part of a row
    assert floor_s == pytest.approx(
        (bytes_read(1, 100) - rows) / 2 / BANDWIDTH, rel=1e-3
    )


def test_stages_of_a_pipeline_add_up_for_a_token(see: See) -> None:
    script = Script()
    readings = [gpu(), info(pipeline_parallel=4), config(), *script.prompt(0, 100)]
    readings.append(script.step({0: 1}))

    limits = limits_of(see, readings)

    floor_s = decode_of(limits).floor_s
    assert floor_s == pytest.approx(bytes_read(1, 100) / 4 / BANDWIDTH, rel=1e-3)
    assert floor_s is not None
    assert limits.tpot_floor_s == pytest.approx(4 * floor_s)


def test_what_the_model_is_is_told(see: See) -> None:
    limits = limits_of(see, [*started(), Script().step({0: 1})])

    assert limits.parameters == PARAMETERS
    assert limits.active_parameters == PARAMETERS
    assert limits.weight_bytes == 2 * PARAMETERS
    assert limits.kv_bytes_per_token == KV
    assert limits.peak.device == "NVIDIA H100 80GB HBM3"
    assert limits.peak.read_from == "data sheet"
    assert limits.missing == ()


def test_without_a_configuration_memory_alone_bounds_a_step(see: See) -> None:
    script = Script()
    sizes = {"weight_bytes": 1_000_000_000, "kv_bytes_per_token": 1_000}
    readings = [gpu(), info(**sizes), *script.prompt(0, 100), script.step({0: 1})]

    limits = limits_of(see, readings)

    floor_s = (1e9 + 1_000 * 101) / BANDWIDTH
    assert decode_of(limits).floor_s == pytest.approx(floor_s, rel=1e-3)
    assert limits.shape is None
    assert limits.peak.flops is None
    (why,) = limits.missing
    assert "does not tell its configuration" in why
    assert "of memory alone" in why


EXPERTS: dict[str, Any] = {
    "model_type": "mixtral",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}


def test_traffic_is_of_the_experts_that_are_touched_as_floors_are(see: See) -> None:
    script = Script()
    sizes = {"weight_bytes": 1_000_000_000, "kv_bytes_per_token": KV}
    readings = [gpu(), info(**sizes), config(EXPERTS), *script.prompt(0, 100)]
    readings += [script.step({0: 1}, took_ms=10) for _ in range(200)]

    shown = see(readings)

    assert shown.limits is not None
    moved = decode_of(shown.limits).bytes_per_s
    touched = 2 * (LINEAR + NORMS + TABLE + 4 * (8 * 1024 + FFN)) + KV * 201
    assert moved * 10e-3 == pytest.approx(touched, rel=0.01)
    (*_, told) = (each for each in shown.timeline.derived_bytes_per_s if each)
    assert told == pytest.approx(moved, rel=0.05)


@pytest.mark.parametrize(
    "parted", [EXPERTS, {"sliding_window": 16}, {"hidden_size_per_layer_input": 256}]
)
def test_a_model_of_which_steps_read_a_part_has_no_floor_by_its_sizes(
    see: See, parted: dict[str, Any]
) -> None:
    sizes = {"weight_bytes": 1_000_000_000, "kv_bytes_per_token": 1_000}
    strange = config({**parted, "layer_types": ["linear_attention"] * 4})

    shown = see([gpu(), info(**sizes), strange, Script().step({0: 1})])

    assert shown.limits is not None
    assert shown.limits.decode is None
    assert "steps have no floor" in shown.limits.missing[0]
    assert shown.hardware.derived_bytes_per_s is None


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "{}", '{"a":' * 9000],
    ids=["no JSON", "a list", "nothing told", "too deep"],
)
def test_of_a_configuration_that_nobody_can_read_no_floor_is_known(
    see: See, text: str
) -> None:
    sizes = {"weight_bytes": 1_000_000_000, "kv_bytes_per_token": 1_000}
    unread = with_fields(config(), config=text)

    shown = see([gpu(), info(**sizes), unread, Script().step({0: 1})])

    assert shown.limits is not None
    assert shown.limits.decode is None


def test_a_value_of_another_kind_is_told_as_a_reason(see: See) -> None:
    odd = config(
        {"model_type": "exaone4", "sliding_window": 9, "sliding_window_pattern": ["L"]}
    )

    limits = limits_of(see, [gpu(), info(), odd])

    assert limits.shape is None
    assert "sliding_window_pattern is 'L'" in limits.missing[0]


def test_without_peaks_steps_have_no_floor_and_the_flags_are_named(see: See) -> None:
    script = Script()
    readings = [info(), config(), *script.prompt(0, 100), script.step({0: 1})]

    snapshot = see(readings)

    limits = snapshot.limits
    assert limits is not None
    assert decode_of(limits).floor_s is None
    assert decode_of(limits).intensity > 0
    assert limits.tpot_floor_s is None
    assert snapshot.timeline.floor_mean_s == ()
    assert "(--gpus, --dcgm)" in limits.missing[0]


def test_of_a_gpu_that_no_data_sheet_has_people_may_say_what_it_can(see: See) -> None:
    strange = gpu(name="NVIDIA Strange", peak_bytes_per_s=None)
    readings = [strange, info(), config(), Script().step({0: 1})]
    assert "--peak-gbps" in limits_of(see, readings).missing[0]

    readings[0] = gpu(name="NVIDIA Strange")

    limits = limits_of(see, readings)
    assert decode_of(limits).floor_s is not None
    assert decode_of(limits).mfu is None
    (why,) = limits.missing
    assert "bfloat16" in why
    assert "--peak-tflops" in why


def test_you_may_know_better_what_a_gpu_computes(see: See) -> None:
    readings = [gpu(peak_flops=5e14), info(), config(), Script().step({0: 1})]

    peak = limits_of(see, readings).peak

    assert peak.flops == 5e14
    assert peak.read_from == "data sheet, you (--peak-tflops)"


def test_nothing_is_said_where_no_engine_tells_of_steps(see: See) -> None:
    assert see([]).limits is None


def test_a_configuration_that_makes_no_shape_says_why(see: See) -> None:
    broken = config({"hidden_size": None})

    limits = limits_of(see, [gpu(), info(), broken, Script().step({0: 1})])

    assert "steps have no floor" in limits.missing[0]
    assert limits.decode is None


def test_a_processor_does_what_was_measured_of_it(see: See) -> None:
    script = Script()
    readings: list[AnyReading] = [processor(), info(device="cpu", gpus=[]), config()]
    readings += [*script.prompt(0, 100), script.step({0: 1}, took_ms=20)]

    limits = limits_of(see, readings)

    assert limits.peak.read_from == "measured here"
    assert limits.peak.flops == 2e11
    floor_s = bytes_read(1, 100) / 2e10
    assert decode_of(limits).floor_s == pytest.approx(floor_s, rel=1e-3)


def test_weights_that_fit_into_caches_are_read_at_their_rate(see: See) -> None:
    rates = {1_000_000: 2e11, 100_000_000: 1e11, 1_000_000_000: 1.5e10}
    peak = processor(cached_bytes_per_s=rates)
    readings = [peak, info(device="cpu", gpus=[]), config(), Script().step({0: 1})]

    limits = limits_of(see, readings)

    assert limits.weight_bytes == pytest.approx(256e6, rel=0.1)
    assert limits.peak.bytes_per_s == 1e11


def test_a_processor_that_nobody_measured_is_unknown(see: See) -> None:
    readings = [info(device="cpu", gpus=[]), config(), Script().step({0: 1})]

    limits = limits_of(see, readings)

    assert limits.peak.bytes_per_s is None
    assert "doctor --measure-peak" in limits.missing[0]


def test_a_step_that_is_faster_than_its_floor_is_impossible(see: See) -> None:
    script = Script()
    readings = [*started(), *script.prompt(0, 100), script.step({0: 1})]
    assert limits_of(see, readings).impossible is None
    floor_s = bytes_read(1, 101) / BANDWIDTH
    readings.append(script.step({0: 1}, took_ms=floor_s * 1e3 / 2))
    readings += [script.step({0: 1}), script.step({0: 1}, took_ms=floor_s * 1e3 / 1.5)]

    for window in (Window.TEN_SECONDS, Window.SESSION):
        impossible = limits_of(see, readings, now_ms=100, window=window).impossible
        assert impossible is not None
        assert impossible.steps == 2
        assert impossible.worst_ratio == pytest.approx(2, rel=1e-3)
        assert impossible.step == 2
        assert impossible.t_ns == 2 * MS + round(floor_s * 1e9 / 2)
    later = limits_of(see, readings, now_ms=20_000, window=Window.TEN_SECONDS)
    assert later.impossible is None


def test_clocks_may_err_by_one_in_a_hundred(see: See) -> None:
    script = Script()
    readings = [*started(), *script.prompt(0, 100)]
    floor_ms = bytes_read(1, 100) / BANDWIDTH * 1e3
    readings.append(script.step({0: 1}, took_ms=0.992 * floor_ms))

    assert limits_of(see, readings).impossible is None


def test_steps_that_overlap_are_judged_by_when_the_device_can_be_done(
    see: See,
) -> None:
    """Asynchronous scheduling: a late end makes the next step look short."""
    script = Script()
    readings = [*started(), *script.prompt(0, 100)]
    floor_ns = round(bytes_read(1, 100) / BANDWIDTH * 1e9)
    ends = [0, 2 * floor_ns, 4 * floor_ns, 4 * floor_ns + floor_ns // 2]
    readings += overlapping(script, ends)

    assert limits_of(see, readings).impossible is None

    ends += [ends[-1] + n * floor_ns // 2 for n in range(1, 4)]
    readings += overlapping(script, ends)[3:]
    assert limits_of(see, readings).impossible is not None


def test_steps_before_the_session_began_are_not_impossible(see: See) -> None:
    """What a probe remembers comes with times below zero, as seen on an H100."""
    script = Script(start_ms=-200_000)
    readings = [*started(), *script.prompt(0, 100), script.step({0: 1})]

    assert limits_of(see, readings, window=Window.SESSION).impossible is None


def overlapping(script: Script, ends_ns: list[int]) -> list[AnyReading]:
    """Steps that are scheduled while the one before is under way."""
    return [
        with_fields(
            script.step({0: 1}),
            index=place,
            start_ns=MS + ends_ns[max(place - 2, 0)],
            end_ns=MS + end_ns,
            duration_ns=end_ns - ends_ns[place - 1],
        )
        for place, end_ns in enumerate(ends_ns)
        if place
    ]


def test_another_life_of_an_engine_has_floors_of_its_own(see: See) -> None:
    script = Script()
    readings = [*started(), *script.prompt(0, 100)]
    readings.append(
        Note(t_ns=script.now_ns, kind=NoteKind.LOST, text="", source=ENGINE)
    )
    readings += [info(), config(), script.step({0: 1})]

    point = decode_of(limits_of(see, readings))

    assert point.floor_s == pytest.approx(bytes_read(1, 0) / BANDWIDTH, rel=1e-4)


def test_requests_that_end_leave_the_batch(see: See) -> None:
    script = Script()
    readings = [*started(), *script.prompt(0, 100), *script.prompt(1, 50)]
    readings.append(
        RequestEvent(
            source=ENGINE,
            t_ns=script.now_ns,
            kind=EventKind.FINISHED,
            vantage=Vantage.ENGINE,
            request_id="r0",
            ordinal=0,
        )
    )
    readings.append(script.step({1: 1}))

    point = decode_of(limits_of(see, readings))

    assert point.bytes_per_s == pytest.approx(bytes_read(1, 50) / 1e-3, rel=1e-4)


def test_how_many_fit_follows_from_the_context_they_have(see: See) -> None:
    script = Script()
    readings = [*started(), *script.prompt(0, 400), script.step({0: 1})]

    limits = limits_of(see, readings)

    assert limits.tokens_per_request == 401
    assert limits.max_requests == pytest.approx(16_000 / (401 + 7.5), rel=2e-3)


def test_formats_it_does_not_have_would_free_memory(see: See) -> None:
    script = Script()
    readings = [*started(), *script.prompt(0, 400), script.step({0: 1})]

    limits = limits_of(see, readings)

    eight, four, cache = limits.savings
    assert [each.name for each in limits.savings] == [
        "FP8 weights",
        "4-bit weights",
        "FP8 KV cache",
    ]
    assert eight.freed_bytes == LINEAR
    assert four.freed_bytes == round(LINEAR * (16 - 4.25) / 8)
    assert cache.freed_bytes == 16_000 * KV // 2
    assert eight.more_requests == pytest.approx(LINEAR / (408 * KV), rel=0.01)
    assert cache.more_requests == pytest.approx(limits.max_requests, rel=0.01)
    assert eight.floor_s == pytest.approx(
        (bytes_read(1, 400) - LINEAR) / BANDWIDTH, rel=1e-3
    )
    assert [each.helps for each in limits.savings] == [False] * 3  # far from its floor


def test_a_format_helps_where_it_eases_what_binds(see: See) -> None:
    script = Script()
    near = bytes_read(1, 400) / BANDWIDTH * 1e3 / 0.8
    readings = [*started(), *script.prompt(0, 400)]
    readings.append(script.step({0: 1}, took_ms=near))

    helps = [each.helps for each in limits_of(see, readings).savings]
    assert helps == [True, True, False]  # weights are nearly all that is read

    readings.append(script.step({0: 1}, preempted=[7]))
    helps = [each.helps for each in limits_of(see, readings).savings]
    assert helps == [True, True, True]


@pytest.mark.parametrize("bound", [Bound.OVERHEAD, Bound.COMPUTE, Bound.MEMORY])
def test_a_format_eases_only_what_binds_now_and_usually(see: See, bound: Bound) -> None:
    script = Script()
    near = bytes_read(1, 400) / BANDWIDTH * 1e3 / 0.8
    readings = [*started(), *script.prompt(0, 400)]
    readings.append(script.step({0: 1}, took_ms=near))
    usual = decode_of(limits_of(see, readings))
    other = replace(usual, bound=bound)
    budget = Budget(
        needs=None,
        infos=[],
        decoding=CounterTotals(0, {}, {}),
        tokens_per_request=None,
        kv_binds=False,
    )

    helps = budget._helps(other, usual, 0.0), budget._helps(usual, other, 0.0)

    assert usual.bound is Bound.MEMORY
    assert helps == (bound is Bound.MEMORY,) * 2


def test_a_model_in_fp8_is_offered_four_bits_alone(see: See) -> None:
    script = Script()
    quantised = config(quantization="fp8", kv_dtype="fp8_e4m3")
    readings = [gpu(), info(), quantised, *script.prompt(0, 9), script.step({0: 1})]

    limits = limits_of(see, readings)

    assert [each.name for each in limits.savings] == ["4-bit weights"]


def test_ranks_of_one_server_are_shown_as_one(see: See) -> None:
    readings: list[AnyReading] = [gpu(), gpu(source="GPU-2", uuid="GPU-2")]
    for rank in (0, 1):
        script = Script(rank=rank)
        readings += [info(rank=rank, gpus=[f"GPU-{rank + 1}"]), config(rank=rank)]
        readings.append(script.step({rank << 40: 1}))

    limits = limits_of(see, readings)

    assert limits.peak.bytes_per_s == BANDWIDTH
    assert decode_of(limits).steps == 2
    assert decode_of(limits).mbu == pytest.approx(
        bytes_read(1, 0) / BANDWIDTH / 1e-3, rel=1e-3
    )


def test_engines_that_differ_have_no_roofline_together() -> None:
    model = Model()
    slower = gpu(
        source="GPU-2",
        uuid="GPU-2",
        name="NVIDIA A100-SXM4-80GB",
        peak_bytes_per_s=2.039e12,
    )
    for reading in [*started(), slower, Script().step({0: 1})]:
        model.fold(reading)
    for reading in (
        info(source="engine-2", gpus=["GPU-2"]),
        config(source="engine-2"),
        Script("engine-2", start_ms=2).step({0: 1}),
    ):
        model.fold(reading)

    both = model.snapshot(10 * MS, SnapshotQuery(Window.SESSION)).limits
    one = model.snapshot(10 * MS, SnapshotQuery(Window.SESSION, source=ENGINE)).limits
    other = model.snapshot(
        10 * MS, SnapshotQuery(Window.SESSION, source="engine-2")
    ).limits

    assert both is not None
    assert one is not None
    assert other is not None
    assert both.peak.bytes_per_s is None
    assert "differ" in both.missing[0]
    assert decode_of(both).floor_s is not None
    assert one.peak.bytes_per_s == BANDWIDTH
    assert other.peak.bytes_per_s == 2.039e12
    assert decode_of(other).floor_s == pytest.approx(
        bytes_read(1, 0) / 2.039e12, rel=1e-3
    )


def test_what_a_step_costs_is_told_if_asked_for() -> None:
    model = Model()
    for each in started():
        model.fold(each)
    asked = SnapshotQuery(Window.MINUTE, needs=True)
    needs = model.snapshot(5, asked).step_needs

    assert needs is not None
    assert [*needs] == [("engine-1", 0)]
    assert needs["engine-1", 0].pair_flops > 0
    assert model.snapshot(5, SnapshotQuery(Window.MINUTE)).step_needs is None
