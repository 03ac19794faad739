"""The recorded sessions that are printed: always the same, to the nanosecond."""

import gzip
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from collectors.contract.readings import (
    AnyReading,
    ClientSample,
    EngineInfo,
    GpuInfo,
    HostSample,
    LoadEvent,
    LoadKind,
    LoadPlanned,
    Note,
    NoteKind,
    Phase,
    RequestEvent,
    RequestRecord,
    ServerInfo,
    Step,
    Tick,
    Totals,
    WatchedSlo,
)
from inferwatch.live.load.running_load import public_plan
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.record.writing.recorder import Recorder
from inferwatch.sample import sample_file
from inferwatch.studies.tune.plan import TunePlan
from inferwatch.studies.tune.running.journal import TuneJournal
from inferwatch.studies.tune.space import Point
from inferwatch.studies.tune.trial import TrialOutcome, TrialRecord
from tests.inferwatch.conftest import Traffic
from tests.inferwatch.metrics.findings.simulated_engine import Engine
from tests.inferwatch.metrics.scraped_servers import Served, contact
from tests.inferwatch.metrics.scripted_hardware import plausible, uuid
from tests.inferwatch.metrics.test_load_result import RUN, request, sample, tokens
from tests.inferwatch.printing.export.conftest import SAMPLES
from tests.inferwatch.record.replay.conftest import StoppedClock
from tests.inferwatch.record.test_older_files import RECORDED
from tests.inferwatch.studies.compare.conftest import TinyEngine

MS, S = 1_000_000, 1_000_000_000
WARMUP, GIVEN_UP = 10, 97
"""Requests of the load: before the one, and from the other on."""
ODD = "<b>a|b</b> *c* `d` \x1b[31m \u202e [e](f) $g 長"
"""What a session may be called, and no form is to obey; it is the last one."""
RESULTS = ("vllm_bench.json", "vllm_bench_failed.json", "guidellm.json")
SLO = "ttft_s<60ms tpot_s<21ms"
PLAN = LoadPlan(
    run_id=RUN,
    url="http://gpu-1:8000",
    model="tiny",
    rate_per_s=10.0,
    duration_s=10.0,
    warmup_s=1.0,
    slo=SLO,
)
PINNED = """
UPDATE sessions SET started_ns = 1000000000000000000 + session * 3600000000000,
  ended_ns = 1000000000000000000 + session * 3600000000000 + duration_ns,
  start_monotonic_ns = session * 1000000000000, inferwatch_version = '0.1.0',
  boot_id = 'b', pid = 1, birth = 1
"""
ANCHORED = """
UPDATE clock_anchors SET wall_ns = t_ns + (
  SELECT started_ns FROM sessions WHERE sessions.session = clock_anchors.session
)
"""
INTERRUPTED = "UPDATE sessions SET state = 'interrupted' WHERE name = 'interrupted'"
TAGGED = "UPDATE sessions SET tags = 'fast' WHERE name IN ('before', 'after')"
TUNE_PINNED = """
UPDATE tunes SET began_wall_ns = 1000000000000000000,
  ended_wall_ns = 1000000600000000000
"""


def record_all(folder: Path) -> None:
    """Every file that is printed from."""
    shutil.copy(sample_file(), folder / "sample.db")
    for packed in RECORDED:
        unpacked = gzip.decompress(packed.read_bytes())
        (folder / packed.name.removesuffix(".gz")).write_bytes(unpacked)
    for result in RESULTS:
        shutil.copy(SAMPLES / result, folder / result)
    everything = folder / "sessions.db"
    for name, readings in SESSIONS.items():
        keep(everything, name, readings())
    execute(everything, PINNED, ANCHORED, INTERRUPTED, TAGGED)
    keep_tune(folder / "tunes.db")
    keep(folder / "tenants.db", "shared", tenants())
    execute(folder / "tenants.db", PINNED, ANCHORED)


def keep(
    path: Path, name: str, readings: Iterable[AnyReading], command: str = "attach"
) -> str:
    """A session in that file; its id."""
    told = list(readings)
    ends_ns = [each.t_ns for each in told if isinstance(each, Tick | LoadEvent)]
    clock: Any = StoppedClock(max(ends_ns, default=0) + S)
    recorder = Recorder.open(
        path, clock=clock, name=name, command=command, floor_bytes=0, capacity=1 << 20
    )
    for ordinal, each in enumerate(told, 1):
        recorder.put(ordinal, each)
    recorder.close()
    return recorder.session_id


def execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for each in statements:
            connection.execute(each)


# The sessions.


def small() -> Iterator[AnyReading]:
    """Three seconds of an engine: every form of it can be read whole."""
    traffic = Traffic(step_ms=20.0)
    yield from traffic.start()
    yield from traffic.run(3)


def with_gpus() -> Iterator[AnyReading]:
    """An engine on two GPUs; the objectives of whoever watched were missed."""
    traffic = Traffic(seed=2, step_ms=20.0)
    hardware = plausible(30, gpus=2)
    yield WatchedSlo(t_ns=0, slo="ttft_s<30ms itl_s<15ms")
    for each in (*traffic.start(), *traffic.run(30)):
        if isinstance(each, EngineInfo):
            yield msgspec.structs.replace(
                each,
                gpus=[uuid(0), uuid(1)],
                weight_bytes=16 * 10**9,
                kv_bytes_per_token=131_072,
            )
        elif not isinstance(each, HostSample | GpuInfo):
            yield each
        while isinstance(each, Tick) and hardware and hardware[0].t_ns <= each.t_ns:  # type: ignore[union-attr]
            yield hardware.pop(0)


def failing(*, turns: bool = True) -> Iterator[AnyReading]:
    """A load: some refused, some hung, some we gave up; two classes."""
    yield LoadPlanned(t_ns=0, plan=public_plan(PLAN))
    yield LoadEvent(t_ns=0, kind=LoadKind.STARTED, source=RUN, text="poisson 10/s")
    yield LoadEvent(t_ns=1, kind=LoadKind.RATE, source=RUN, rate_per_s=10.0)
    for index in range(GIVEN_UP):
        if index == WARMUP:
            yield LoadEvent(t_ns=S, kind=LoadKind.WARMUP_ENDED, source=RUN)
        told = failing_request(index, turns=turns)
        yield told
        if told.first_token_ns is not None:
            yield tokens(index, (20 + index % 3,) * 10)
    yield LoadEvent(t_ns=10 * S, kind=LoadKind.DRAINING, source=RUN)
    for index in range(GIVEN_UP, 100):
        yield failing_request(index, turns=turns)
    yield client_sample(t_ns=12 * S, sends=100 - WARMUP, late_sends=2)
    yield LoadEvent(t_ns=12 * S, kind=LoadKind.STOPPED, source=RUN)


def client_sample(**fields: Any) -> ClientSample:
    return sample(**{"merged_reads": 30, **fields})


def failing_request(index: int, *, turns: bool) -> RequestRecord:
    """The index-th of that load."""
    about: dict[str, Any] = {
        "class_name": "batch" if index % 4 == 0 else "chat",
        "turn": index % 3 + 1 if turns else None,
        "phase": Phase.WARMUP if index < WARMUP else Phase.STEADY,
        "first_token_ns": index * 100 * MS + (41 + index % 37) * MS,
    }
    nothing: dict[str, Any] = {"first_token_ns": None, "last_token_ns": None}
    failure = {
        3: {"failure": "http_5xx", "detail": '503 {"error":"overloaded"}', **nothing},
        7: {"failure": "timeout", "detail": "no token for 5 s", **nothing},
    }.get(index % 20, {})
    if index >= GIVEN_UP:
        failure = {"failure": "aborted", "end_ns": 11 * S, **nothing}
    return request(index, **about | failure)


def with_ranks() -> Iterator[AnyReading]:
    """Two data-parallel ranks with a probe each, the second busier."""
    engines = (Traffic(seed=3, step_ms=20.0), Traffic(seed=4, slots=4, step_ms=20.0))
    for engine, first in zip(engines, (True, False), strict=True):
        told = engine.start()
        ranked = (of_rank(each, engines.index(engine)) for each in told)
        yield from (e for e in ranked if first or isinstance(e, EngineInfo))
    for _ in range(20):
        for rank, engine in enumerate(engines):
            for each in engine.run(1):
                if not isinstance(each, Tick | HostSample) or rank:
                    yield of_rank(each, rank)


def of_rank(reading: AnyReading, rank: int) -> AnyReading:
    """The same, told by that rank; numbers and names of requests are its own."""
    far = rank << 40
    if isinstance(reading, EngineInfo):
        return msgspec.structs.replace(reading, rank=rank, data_parallel=2)
    if isinstance(reading, Totals):
        return msgspec.structs.replace(reading, rank=rank)
    if isinstance(reading, Step):
        return msgspec.structs.replace(
            reading,
            rank=rank,
            members=[far + each for each in reading.members],
            preempted=[far + each for each in reading.preempted],
        )
    if isinstance(reading, RequestEvent):
        ordinal = None if reading.ordinal is None else far + reading.ordinal
        name = f"{reading.request_id}-{rank}"
        return msgspec.structs.replace(reading, ordinal=ordinal, request_id=name)
    if isinstance(reading, RequestRecord) or hasattr(reading, "external_id"):
        name = f"{reading.external_id}-{rank}"
        return msgspec.structs.replace(reading, external_id=name)
    return reading


def scraped() -> Iterator[AnyReading]:
    """A server that tells its metrics alone, of two ranks; it answers no more."""
    ranks = [Served(rank="0"), Served(rank="1")]
    yield ServerInfo(
        t_ns=0,
        source=ranks[0].source,
        name=ranks[0].source,
        family="vllm",
        url="http://chat:8000",
        version="0.32.0",
        models=["tiny"],
        max_model_len=4096,
        num_kv_blocks=1_000,
        kv_block_tokens=16,
        advice=["Exact percentiles: start the server with --otlp-traces-endpoint."],
    )
    for second in range(31):
        yield contact(second)
        for busy, each in enumerate(ranks, 1):
            for number in range(busy * 2 if second else 0):
                each.request(0.03 * busy + 0.002 * number, 0.012, tokens=20)
            yield each.at(second, running=busy * 3, waiting=busy - 1, kv_usage=0.2)
        yield Tick(t_ns=second * S + MS)
    yield contact(31, answers=False, why="connection refused")
    yield Tick(t_ns=32 * S)


def fleet() -> Iterator[AnyReading]:
    """Three servers, one of which is much slower, with advice of its own."""
    servers = [Served(f"chat-{number}:8000") for number in range(3)]
    for each in servers:
        yield ServerInfo(
            t_ns=0,
            source=each.source,
            name=each.source,
            family="vllm",
            url=f"http://{each.source}",
            version="0.32.0",
            models=["tiny"],
        )
    for second in range(61):
        for number, each in enumerate(servers):
            yield contact(second, each.source)
            for _ in range(3 if second else 0):
                slow = number == 2
                each.request(0.9 if slow else 0.03, 0.05 if slow else 0.012)
            yield each.at(second, running=3, waiting=9 * (number == 2), kv_usage=0.4)
        yield Tick(t_ns=second * S + MS)


def tenants() -> Iterator[AnyReading]:
    """Three of them share an engine: one with long prompts, one that hardly asks."""
    names = {80: "chat", 2_000: "bulk", 120: "team-platform-research-evaluation"}
    shared = Engine(
        max_num_batched_tokens=512,
        max_num_seqs=24,
        kv_blocks=20_000,
        rate_per_s=9,
        prompt=lambda r: r.choices((*names,), (75, 18, 7))[0],
        header_of=names.__getitem__,
    )
    yield from shared.run(130)


def interrupted() -> Iterator[AnyReading]:
    """Its recorder died."""
    traffic = Traffic(seed=5, step_ms=20.0)
    yield from traffic.start()
    yield from traffic.run(5)


def empty() -> Iterator[AnyReading]:
    """Nothing came."""
    yield Note(t_ns=1, kind=NoteKind.STARTED, text="hello")


SESSIONS: Mapping[str, Callable[[], Iterator[AnyReading]]] = {
    "small": small,
    "gpus": with_gpus,
    "failing": failing,
    "ranks": with_ranks,
    "scraped": scraped,
    "fleet": fleet,
    "before": lambda: TinyEngine(1).run(40),
    "after": lambda: TinyEngine(2).run(40),
    "slow": lambda: TinyEngine(3, slots=8, step_ms=20).run(40),
    "short": lambda: TinyEngine(4).run(3),
    "interrupted": interrupted,
    "empty": empty,
    ODD: lambda: TinyEngine(6).run(5),
}


# A tune.


def keep_tune(path: Path) -> None:
    """Three settings measured twice, one that did not start; and one cut short."""
    load = LoadPlan(
        run_id="", url="", model="tiny", rate_per_s=8.0, slo="ttft_s<0.5 tpot_s<50ms"
    )
    vary = (("max-num-seqs", ("4", "8", "16", "512")),)
    known: dict[str, Any] = {"model": "tiny/model", "vary": vary, "load": load}
    known |= {"present": (("max-num-seqs", "8"),), "gpu_hour": 2.5, "repeats": 2}
    whole = TunePlan(tune_id="t1", name="nightly", **known)
    journal = TuneJournal(path, "t1")
    journal.begin(whole)
    number = 0
    for repeat in range(2):
        for seqs in (4, 8, 16):
            number += 1
            engine = TinyEngine(10 + repeat, slots=seqs)
            session = keep(path, f"t1 #{number}", engine.run(20), "tune")
            journal.keep(
                trial(number, seqs, repeat, TrialOutcome.MEASURED, session=session)
            )
    refused = TrialOutcome.NOT_STARTED
    journal.keep(trial(7, 512, 0, refused, cause="CUDA out of memory"))
    journal.end("done")
    cut = TuneJournal(path, "t2")
    cut.begin(TunePlan(tune_id="t2", **known))
    execute(path, PINNED, TUNE_PINNED)
    unended = "UPDATE tunes SET ended_wall_ns = NULL WHERE tune_id = 't2'"
    execute(path, unended, "UPDATE tunes SET began_wall_ns = 1 WHERE tune_id = 't2'")


def trial(
    number: int, seqs: int, repeat: int, outcome: TrialOutcome, **more: Any
) -> TrialRecord:
    return TrialRecord(
        number=number,
        point=Point(flags=(("max-num-seqs", str(seqs)),)),
        repeat=repeat,
        outcome=outcome,
        took_s=25.0,
        life=1,
        **more,
    )
