"""Each cause is planted in scripted readings and found, and none where nothing was."""

from collections.abc import Callable, Iterable

import pytest

from collectors.contract.readings import (
    AnyReading,
    BoundBy,
    Deferral,
    EngineInfo,
    EventKind,
    GpuSample,
    Note,
    NoteKind,
    Phase,
    RequestRecord,
    Tick,
)
from inferwatch.metrics.causes.cause import CAUSE_OF_DEFERRAL, Cause
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.requests.request_row import RequestRow, RequestState
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from tests.inferwatch.metrics.causes.scripted_engine import ENGINE, MS, Script

S = 1_000_000_000
USUAL = {1: 1, 2: 1}
"""Two that decode all the time."""


def see(readings: Iterable[AnyReading]) -> Snapshot:
    model = Model()
    for reading in readings:
        model.fold(reading)
    return model.snapshot(60 * S, SnapshotQuery(Window.SESSION))


def row(shown: Snapshot, number: int) -> RequestRow:
    return next(each for each in shown.requests if each.request_id == f"r0-{number}")


def queued(bound: BoundBy, deferral: str | None = None) -> Script:
    """One waits for 40 ms of steps that were bound so."""
    script = Script().running(1, 2)
    script.arrive(9, script.now_ns + 1_000_000)
    script.decode(1, 2, steps=1)
    for _ in range(8):
        script.step(USUAL, waiting=1, bound_by=bound, deferred_by=deferral)
    script.step({**USUAL, 9: 30}, first=(9,))
    script.sent(9)
    return script


def held_chunks() -> Script:
    script = Script().running(1, 2)
    script.arrive(9, script.now_ns - 1_000)
    script.step({**USUAL, 9: 30}, first=(9,), produced={9: 0})
    for _ in range(9):
        script.step(USUAL, deferred_by=Deferral.HELD)
    script.step({**USUAL, 9: 30})
    script.sent(9)
    return script


def in_api() -> Script:
    script = Script().running(1, 2)
    script.arrive(9, script.now_ns, api_ns=80 * MS)
    script.decode(1, 2, steps=17)
    script.step({**USUAL, 9: 30}, first=(9,))
    script.sent(9)
    return script


def running_step() -> Script:
    script = Script().running(1, 2)
    script.arrive(9, script.now_ns + 1_000_000)
    script.step(USUAL, 90)
    script.step({**USUAL, 9: 30}, first=(9,))
    script.sent(9)
    return script


def own_prefill() -> Script:
    script = Script().running(1, 2)
    script.arrive(9, script.now_ns - 1_000)
    script.step({**USUAL, 9: 2_000}, 90, first=(9,))
    script.sent(9)
    return script


def others_prefill() -> Script:
    script = Script().running(1, 2)
    script.arrive(9, script.now_ns - 1_000)
    script.step({**USUAL, 9: 30}, 90, first=(9,), prefill=2_000)
    script.sent(9)
    return script


def left_out() -> Script:
    script = Script().running(1, 2)
    script.arrive(9, script.now_ns - 1_000)
    script.step({**USUAL, 9: 30}, first=(9,), produced={9: 0})
    script.decode(1, 2, steps=9)
    script.step({**USUAL, 9: 30})
    script.sent(9)
    return script


def preempted() -> Script:
    script = Script().running(1, 2)
    script.arrive(9, script.now_ns - 1_000)
    script.step({**USUAL, 9: 30}, first=(9,), produced={9: 0})
    script.step(USUAL, preempted=(9,), waiting=1, bound_by=BoundBy.KV)
    script.decode(1, 2, steps=9)
    script.step({**USUAL, 9: 60}, recomputed_tokens=30)
    script.sent(9)
    return script


def sent_late() -> Script:
    script = Script().running(1, 2)
    script.arrive(9, script.now_ns - 1_000)
    script.step({**USUAL, 9: 30}, first=(9,))
    script.sent(9, late_ns=90 * MS)
    return script


def lost_sight() -> Script:
    script = Script().running(1, 2)
    script.arrive(9, script.now_ns + 1_000_000)
    script.decode(1, 2, steps=1)
    script.step(USUAL, waiting=1, bound_by=BoundBy.KV)
    script.now_ns, script.index = script.now_ns + 80 * MS, script.index + 16
    script.told.append(Note(t_ns=script.now_ns, kind=NoteKind.DROPPED, text="16 lost"))
    script.step({**USUAL, 9: 30}, first=(9,))
    script.sent(9)
    return script


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        (in_api(), Cause.API),
        (running_step(), Cause.QUEUE_STEP),
        (queued(BoundBy.SEQS), Cause.QUEUE_SEQS),
        (queued(BoundBy.KV), Cause.QUEUE_KV),
        (queued(BoundBy.TOKENS), Cause.QUEUE_TOKENS),
        *(
            (queued(BoundBy.DEFERRED, reason), cause)
            for reason, cause in CAUSE_OF_DEFERRAL.items()
        ),
        (queued(BoundBy.DEFERRED, "of tomorrow"), Cause.QUEUE_DEFERRED),
        (queued(BoundBy.OTHER), Cause.QUEUE_OTHER),
        (queued(BoundBy.NOTHING), Cause.UNKNOWN),
        (own_prefill(), Cause.PREFILL),
        (others_prefill(), Cause.PREFILL_SHARED),
        (left_out(), Cause.PREFILL_DELAYED),
        (held_chunks(), Cause.PREFILL_HELD),
        (preempted(), Cause.RECOMPUTE),
        (sent_late(), Cause.SEND),
        (lost_sight(), Cause.UNKNOWN),
    ],
    ids=lambda each: each.name if isinstance(each, Cause) else "",
)
def test_what_a_first_token_waited_for_is_found(script: Script, cause: Cause) -> None:
    shown = see(script)
    found = row(shown, 9)

    assert found.cause is cause
    assert found.ttft_s is not None
    parts = dict(found.ttft_parts)
    assert sum(parts.values()) == pytest.approx(found.ttft_s, abs=1e-12)
    assert parts[cause] > 0.6 * found.ttft_s
    slowest = shown.slowest
    assert slowest is not None
    assert (slowest.n, slowest.of, slowest.is_p99) == (1, 3, False)
    assert slowest.groups[0].cause is cause
    assert slowest.worst_key == slowest.groups[0].worst_key == found.key
    assert sum(group.share for group in slowest.groups) == pytest.approx(1)


def test_who_waits_is_told_what_for_while_it_waits() -> None:
    script = queued(BoundBy.KV)
    model, told = Model(), []
    for reading in script:
        model.fold(reading)
        shown = model.snapshot(S, SnapshotQuery(Window.MINUTE))
        told += [
            each.cause
            for each in shown.requests
            if each.request_id == "r0-9" and each.state is RequestState.QUEUED
        ]

    assert told[0] is Cause.QUEUE_STEP
    assert told[-1] is Cause.QUEUE_KV


def late(how: Callable[[Script], None]) -> Script:
    script = Script().running(1, 2)
    how(script)
    script.decode(1, 2, steps=5)
    return script


def clock(t_ns: int, mhz: int, reasons: int = 0x20) -> GpuSample:
    return GpuSample(
        source="GPU-0", t_ns=t_ns, sm_clock_mhz=mhz, throttle_reasons=reasons
    )


def put_back(script: Script) -> None:
    script.step({2: 1}, preempted=(1,), waiting=1, bound_by=BoundBy.KV)
    script.decode(2, steps=8)
    script.step({1: 60, 2: 1}, 20, recomputed_tokens=60)


def prompt(script: Script) -> None:
    script.arrive(9, script.now_ns - 2_000)
    script.step({**USUAL, 9: 3_000}, 60, first=(9,))


def no_step(script: Script) -> None:
    script.now_ns += 60 * MS
    script.step(USUAL)


def slow(script: Script) -> None:
    script.step(USUAL, 60)


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        (late(prompt), Cause.LONG_PREFILL),
        (late(put_back), Cause.RECOMPUTE),
        (late(slow), Cause.SLOW_STEP),
        (late(no_step), Cause.HOST_STALL),
    ],
    ids=lambda each: each.name if isinstance(each, Cause) else "",
)
def test_why_a_token_was_late_is_found(script: Script, cause: Cause) -> None:
    assert row(see(script), 1).itl_cause is cause


@pytest.mark.parametrize(
    ("gpus", "reasons", "cause"),
    [
        (["GPU-0"], 0x20, Cause.CLOCK_DROP),
        ([], 0x4, Cause.CLOCK_DROP),
        (["GPU-7"], 0x20, Cause.SLOW_STEP),
        (["GPU-0"], 0x1, Cause.SLOW_STEP),
    ],
    ids=["its GPU", "whose GPU nobody knows", "another's GPU", "an idle GPU"],
)
@pytest.mark.parametrize("sampled_first", [False, True])
def test_clocks_that_fell_explain_a_slow_step(
    gpus: list[str], reasons: int, cause: Cause, *, sampled_first: bool
) -> None:
    script = Script().running(1, 2)
    before = [clock(script.now_ns - n * MS, 1_980) for n in range(9, 0, -1)]
    info = EngineInfo(
        source=ENGINE, t_ns=0, pid=1, model="m", vllm_version="0", gpus=gpus
    )
    dropped = clock(script.now_ns + 50 * MS, 900, reasons)
    step = script.step(USUAL, 60)
    told = [info, *script.told[:-1], *before]
    told += [dropped, step] if sampled_first else [step, dropped]

    assert row(see(told), 1).itl_cause is cause


@pytest.mark.parametrize("told_first", [False, True])
def test_two_compilations_in_a_row_explain_it_together(*, told_first: bool) -> None:
    script = Script().running(1, 2)
    pair = [compilation(script.now_ns + at_ms * MS, 20 * MS) for at_ms in (0, 25)]
    step = script.step(USUAL, 60)
    told: list[AnyReading] = [*script.told[:-1]]
    told += [*pair, step] if told_first else [step, *pair]

    assert row(see(told), 1).itl_cause is Cause.COMPILATION


def test_nothing_is_late_where_nothing_happened() -> None:
    shown = see(Script().running(1, 2))

    assert {each.itl_cause for each in shown.requests} == {None}


def test_the_longest_gap_has_the_word() -> None:
    script = late(slow)
    script.now_ns += 200 * MS
    script.step(USUAL)

    assert row(see(script), 1).itl_cause is Cause.HOST_STALL


def test_a_long_wait_is_told_where_it_has_ended_without_a_token() -> None:
    script = queued(BoundBy.SEQS)
    cut = next(
        place
        for place, each in enumerate(script.told)
        if getattr(each, "kind", None) is EventKind.SCHEDULED
        and getattr(each, "request_id", "") == "r0-9"
    )
    script.told = script.told[:cut]
    script.finish(9, "abort")

    ended = row(see(script), 9)

    assert ended.state is RequestState.ABORTED
    assert ended.cause is Cause.QUEUE_SEQS
    assert ended.ttft_parts == ()


def test_the_engine_alone_tells_causes_but_no_parts() -> None:
    script = queued(BoundBy.KV)
    engine = [each for each in script if getattr(each, "ordinal", 0) is not None]

    shown = see(engine)

    assert row(shown, 9).cause is Cause.QUEUE_KV
    assert row(shown, 9).ttft_parts == ()
    assert shown.slowest is None


def test_the_front_end_alone_tells_no_cause() -> None:
    script = queued(BoundBy.KV)
    front = [each for each in script if getattr(each, "ordinal", 0) is None]

    shown = see(front)

    assert row(shown, 9).ttft_s is not None
    assert row(shown, 9).cause is None
    assert row(shown, 9).ttft_parts == ()
    assert shown.slowest is None


@pytest.mark.parametrize("engine_first", [True, False])
def test_whichever_stream_is_behind_the_parts_are_the_same(
    *, engine_first: bool
) -> None:
    script = queued(BoundBy.KV)
    script.finish(9)
    front = [each for each in script if getattr(each, "ordinal", 0) is None]
    engine = [each for each in script if getattr(each, "ordinal", 0) is not None]
    order = [*engine, *front] if engine_first else [*front, *engine]

    shown, expected = see(order), see(script)

    assert row(shown, 9).ttft_parts == row(expected, 9).ttft_parts != ()
    assert shown.slowest == expected.slowest


@pytest.mark.parametrize("told_first", [True, False])
def test_a_client_says_which_class_a_request_is_of(*, told_first: bool) -> None:
    script = Script()
    script.arrive(1, 1_000, external_id="cmpl-load-7-0")
    record = RequestRecord(
        index=7,
        external_id="load-7",
        phase=Phase.STEADY,
        intended_ns=0,
        class_name="chat",
        source="load-1",
    )
    told = [record, *script] if told_first else [*script, record]

    assert row(see(told), 1).class_name == "chat"


def test_of_two_servers_each_has_its_slowest() -> None:
    one = queued(BoundBy.KV)
    others = Script(source="engine-2")
    others.running(1, 2)
    others.arrive(9, others.now_ns + 1_000_000)
    others.decode(1, 2, steps=1)
    for _ in range(20):
        others.step(USUAL, waiting=1, bound_by=BoundBy.SEQS)
    others.step({**USUAL, 9: 30}, first=(9,))
    others.sent(9)
    told = [*one, *others]

    for source, cause in (
        (ENGINE, Cause.QUEUE_KV),
        ("engine-2", Cause.QUEUE_SEQS),
        (None, Cause.QUEUE_SEQS),
    ):
        model = Model()
        for reading in told:
            model.fold(reading)
        slowest = model.snapshot(
            60 * S, SnapshotQuery(Window.SESSION, source=source)
        ).slowest
        assert slowest is not None
        assert slowest.groups[0].cause is cause


def compilation(t_ns: int, duration_ns: int | None) -> Note:
    kind, text = NoteKind.COMPILATION, "compiled while serving: torch.compile 3/1"
    return Note(source=ENGINE, t_ns=t_ns, kind=kind, text=text, duration_ns=duration_ns)


@pytest.mark.parametrize(
    ("at_ms", "duration_ns", "cause"),
    [
        (5, 50 * MS, Cause.COMPILATION),
        (5, None, Cause.COMPILATION),
        (5, 4 * MS, Cause.SLOW_STEP),
        (5, 20 * MS, Cause.SLOW_STEP),
        (-60, 50 * MS, Cause.SLOW_STEP),
    ],
    ids=[
        "most of the step",
        "of unknown length",
        "a little of it",
        "a third of it",
        "before it",
    ],
)
@pytest.mark.parametrize("told_first", [False, True])
def test_a_compilation_explains_a_slow_step(
    at_ms: int, duration_ns: int | None, cause: Cause, *, told_first: bool
) -> None:
    script = Script().running(1, 2)
    compiled = compilation(script.now_ns + at_ms * MS, duration_ns)
    step = script.step(USUAL, 60)
    told: list[AnyReading] = [*script.told[:-1]]
    both = [compiled, compiled]  # two workers tell of it
    told += [*both, step] if told_first else [step, *both]

    assert row(see(told), 1).itl_cause is cause


def test_a_look_long_after_a_silence_was_called_a_stall_is_answered() -> None:
    script = Script().running(1, 2)
    model = Model()
    for reading in script:
        model.fold(reading)
    for second in range(1, 12):
        model.fold(Tick(t_ns=script.now_ns + second * S))

    shown = model.snapshot(script.now_ns + 200 * S, SnapshotQuery(Window.SESSION))

    assert shown.verdict.health is not None
