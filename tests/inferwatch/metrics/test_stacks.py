"""What holds a stalled engine is named by the stacks of its processes."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from collectors.contract.readings import (
    EngineInfo,
    EngineSample,
    EventKind,
    Note,
    NoteKind,
    Stacks,
    ThreadStack,
    Tick,
)
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.metrics.steps.health import Health
from inferwatch.metrics.steps.stacks import StackLog, StalledStacks, stalled_stacks
from inferwatch.printing.summary.stacks import stacks_row

Make = Callable[..., Any]
S = 1_000_000_000
LOOP = ("Runner.run (asyncio/runners.py:118)", "run (uvloop/__init__.py:92)")
QUEUE = ("Condition.wait (threading.py:327)", "Queue.get (queue.py:171)")
UPDATE = "Scheduler.update_from_output (vllm/v1/core/sched/scheduler.py:1203)"
BUSY = "EngineCore.step (vllm/v1/engine/core.py:681)"
RING = "ShmRingBuffer.acquire_read (vllm/distributed/shm_broadcast.py:9)"
REDUCE = "all_reduce (torch/distributed/distributed_c10d.py:5)"
MATRIX = "Linear.forward (torch/nn/modules/linear.py:125)"


def stacks(process: str, *frames: str, **fields: Any) -> Stacks:
    pid = sum(map(ord, process))
    threads = [ThreadStack(name="MainThread", frames=[*frames])] if frames else []
    return Stacks(
        **{
            "source": "engine-1",
            "t_ns": 5 * S,
            "pid": pid,
            "process": process,
            "stalled_ns": 2 * S,
            "threads": threads,
            **fields,
        }
    )


INFO = EngineInfo(source="engine-1", t_ns=0, pid=1, model="tiny", vllm_version="0.32.0")
HALTED = "is stopped by a signal or a debugger"
CORE = stacks("EngineCore", UPDATE)
UNREAD = [stacks(f"worker {number}", why="no") for number in range(16)]
API, IDLE = stacks("API server", *LOOP), stacks("EngineCore", *QUEUE, BUSY)


@pytest.mark.parametrize(
    ("taken", "sentence"),
    [
        (
            [API, stacks("EngineCore", UPDATE, BUSY)],
            f"API server waits on EngineCore, which is in {UPDATE}",
        ),
        (
            [API, stacks("EngineCore", RING, BUSY), stacks("worker 0", MATRIX, BUSY)],
            f"2 processes wait on worker 0, which is in {MATRIX}, called by {BUSY}",
        ),
        (
            [
                API,
                stacks("EngineCore", RING),
                stacks("worker 0", REDUCE),
                stacks("worker 1", MATRIX),
            ],
            f"2 processes wait on worker 1, which is in {MATRIX}",
        ),
        (
            [API, stacks("EngineCore", RING), stacks("worker 0", REDUCE)],
            f"2 processes wait on worker 0, which is in {REDUCE}",
        ),
        (
            [stacks("API server", UPDATE), IDLE],
            f"API server is in {UPDATE}",
        ),
        (
            [stacks("API server", UPDATE), stacks("EngineCore", why="it is gone")],
            f"API server is in {UPDATE}; could not read EngineCore",
        ),
        (
            [stacks("API server", MATRIX), stacks("EngineCore", UPDATE)],
            f"EngineCore is in {UPDATE}",
        ),
        (
            [API, *(stacks(f"EngineCore {n}", UPDATE, stopped=True) for n in (0, 1))],
            f"API server waits on EngineCore 0, which {HALTED}, in {UPDATE}",
        ),
        (
            [stacks("API server", *LOOP, stopped=True), replace(CORE, stopped=True)],
            f"EngineCore {HALTED}, in {UPDATE}",
        ),
        (
            [stacks("EngineCore", RING), *UNREAD],
            (
                f"all that were read wait, and nothing is executed: EngineCore in "
                f"{RING}; could not read worker 0, worker 1, worker 2, and 13 more"
            ),
        ),
        (
            [stacks(f"worker {number}", RING) for number in range(16)],
            "all wait, and nothing is executed: "
            + "".join(f"worker {number} in {RING}; " for number in range(3))
            + "and 13 more",
        ),
        (
            [API, stacks("EngineCore", UPDATE, stopped=True)],
            f"API server waits on EngineCore, which {HALTED}, in {UPDATE}",
        ),
        (
            [API, stacks("EngineCore", stopped=True, why="no tool")],
            f"API server waits on EngineCore, which {HALTED}",
        ),
        (
            [API, IDLE],
            (
                f"all wait, and nothing is executed: EngineCore in {QUEUE[0]}, "
                f"called by {BUSY}; API server in {LOOP[0]}"
            ),
        ),
        ([stacks("EngineCore", UPDATE)], f"EngineCore is in {UPDATE}"),
        (
            [stacks("EngineCore", why="it is gone")],
            f"no stacks: EngineCore ({IDLE.pid}): it is gone",
        ),
    ],
    ids=[
        "a scheduler",
        "a worker",
        "a worker that others wait for",
        "a collective",
        "an API server",
        "an API server, the core unread",
        "two",
        "two cores stopped",
        "all stopped",
        "workers unread",
        "16 wait",
        "stopped",
        "stopped and unread",
        "all wait",
        "one process",
        "none",
    ],
)
def test_the_process_furthest_down_that_executes_something_holds_all(
    taken: list[Stacks], sentence: str
) -> None:
    assert stalled_stacks(taken).sentence == sentence


def stalled(make_life: Make, *taken: Stacks, ticks: int = 5) -> Model:
    """An engine whose last step ended at 130 ms, with work left."""
    _, engine = make_life(100, ordinal=0, tokens=3)
    model = Model()
    model.fold(INFO)
    for each in engine[:-1]:
        model.fold(each)
    for second in range(1, ticks + 1):
        model.fold(Tick(t_ns=second * S))
        for each in taken if second == ticks - 1 else ():
            model.fold(each)
    return model


def shown(model: Model, t_ns: int) -> StalledStacks | None:
    return model.snapshot(t_ns, SnapshotQuery(Window.MINUTE)).stacks


def test_a_stall_is_told_once_it_is_one_and_until_it_ends(
    make_life: Make, make_step: Make
) -> None:
    model = stalled(make_life)

    assert model.stalls_now(5 * S) == {"engine-1": 130_000_000}
    assert model.stalls_now(9 * S) == {}  # nothing was judged lately
    model.fold(make_step(5_500, {0: 1}, index=9))
    model.fold(Tick(t_ns=6 * S))
    assert model.stalls_now(6 * S) == {}


def test_stacks_are_evidence_of_the_finding_and_of_the_stall(make_life: Make) -> None:
    core = stacks("EngineCore", UPDATE, stalled_ns=130_000_000)
    model = stalled(make_life, core)

    (finding,) = (each for each in model.findings if each.name == "stopped")

    assert finding.evidence[0].text == f"EngineCore is in {UPDATE}"
    assert finding.evidence[0].page == "stacks"
    found = shown(model, 5 * S)
    assert found is not None
    assert (found.holder, found.processes) == (core.pid, (core,))


def test_stacks_of_another_stall_are_no_evidence(make_life: Make) -> None:
    model = stalled(make_life, stacks("EngineCore", UPDATE, stalled_ns=7))

    (finding,) = (each for each in model.findings if each.name == "stopped")

    assert all(each.page != "stacks" for each in finding.evidence)


def test_a_process_that_the_watchdog_read_later_counts_once() -> None:
    log = StackLog()
    for each in (API, stacks("EngineCore", why="refused"), CORE):
        log.take(each)

    assert log.latest is not None
    assert log.latest.processes == (CORE, API)


def test_of_stalls_before_only_the_sentence_is_kept() -> None:
    log, again = StackLog(), StackLog()
    for stalled_ns in range(100):
        log.take(replace(CORE, stalled_ns=stalled_ns))
    log.take(replace(API, stalled_ns=98))  # a watchdog's, late

    taken, over = log.saved()
    again.restore(taken, over)

    assert taken == [replace(CORE, stalled_ns=99)]
    assert len(over) == 64
    for each in (log, again):
        assert each.latest == stalled_stacks(taken)
        assert each.sentence("engine-1", 99) == f"EngineCore is in {UPDATE}"
        assert each.sentence("engine-1", 97) == f"EngineCore is in {UPDATE}"
        assert "API server" in (each.sentence("engine-1", 98) or "")
        assert each.sentence("engine-2", 97) is None


def test_without_its_main_thread_a_process_is_not_judged() -> None:
    other = ThreadStack(name="thread 0x7", frames=[UPDATE])

    told = stalled_stacks([API, stacks("EngineCore", threads=[other])]).sentence

    assert told.endswith("; could not read EngineCore")


def test_names_of_threads_are_made_safe() -> None:
    odd = stacks("EngineCore", threads=[ThreadStack(name="a\x1b[31m", frames=[UPDATE])])

    row = stacks_row(stalled_stacks([odd]))

    assert row is not None
    assert row["processes"][0]["threads"][0]["name"] == "a␛[31m"


@pytest.mark.parametrize("deferral", ["grammar", None])
def test_a_wait_for_a_grammar_is_no_stall(
    make_event: Make, make_step: Make, deferral: str | None
) -> None:
    model = Model()
    model.fold(INFO)
    model.fold(make_event(1_000, EventKind.ADDED, ordinal=0))
    for second in range(1, 5):
        model.fold(Tick(t_ns=second * S))
    model.fold(make_step(4_500, {0: 1}, deferred_before=deferral))
    model.fold(Tick(t_ns=5 * S))

    verdict = model.snapshot(5 * S, SnapshotQuery(Window.MINUTE)).verdict

    assert (verdict.health is Health.STALLED) is (deferral is None)


def test_of_several_engines_the_one_that_stalls_is_told(make_life: Make) -> None:
    _, engine = make_life(100, ordinal=0, tokens=3)
    model = Model()
    for each in (INFO, replace(INFO, source="engine-2"), *engine[:-1]):
        model.fold(each)
    for second in range(1, 5):
        model.fold(Tick(t_ns=second * S))

    assert model.stalls_now(4 * S) == {"engine-1": 130_000_000}


@pytest.mark.parametrize("made", [0, 10], ids=["no token", "tokens"])
def test_a_server_without_a_probe_stalls_too(made: int) -> None:
    model = Model()
    for second in range(10):
        sample = EngineSample(source="here", t_ns=second * S, running=5, waiting=0)
        model.fold(replace(sample, output_tokens=100 + made * second))

    assert set(model.stalls_now(9 * S)) == (set() if made else {"here"})


def test_no_stacks_are_wanted_of_an_engine_asleep(make_life: Make) -> None:
    model = stalled(make_life)
    slept = Note(t_ns=5 * S, kind=NoteKind.ASLEEP, text="asleep", source="engine-1")
    woke = Note(t_ns=9 * S, kind=NoteKind.AWAKE, text="awake", source="engine-1")

    model.fold(slept)
    asleep = []
    for second in range(6, 9):
        model.fold(Tick(t_ns=second * S))
        asleep.append(model.stalls_now(second * S))
    for reading in (woke, Tick(t_ns=10 * S)):
        model.fold(reading)

    assert asleep == [{}] * 3
    assert model.stalls_now(10 * S) == {"engine-1": 130_000_000}


@pytest.mark.parametrize("awake", [0.0, 1.0], ids=["asleep", "awake"])
def test_a_server_that_says_it_is_asleep_does_not_stall(awake: float) -> None:
    model = Model()
    for second in range(10):
        sample = EngineSample(source="here", t_ns=second * S, running=5, waiting=2)
        others = {"engine_sleep_state{awake}": awake}
        model.fold(replace(sample, output_tokens=100, others=others))

    verdict = model.snapshot(9 * S, SnapshotQuery(Window.MINUTE)).verdict

    assert (set(model.stalls_now(9 * S)) == {"here"}) is bool(awake)
    assert (verdict.health is Health.STALLED) is bool(awake)
    assert awake or verdict.sentence == "asleep; 2 waiting"
