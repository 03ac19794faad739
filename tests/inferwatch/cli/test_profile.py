"""``inferwatch profile`` profiles an engine that runs, and reads profiles again."""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from collectors.contract.clock import SessionClock
from collectors.contract.readings import AnyReading, EngineInfo, Profile, Tick
from inferwatch.cli.main import inferwatch
from inferwatch.cli.running import profile as running
from inferwatch.cli.running.profile import ToldToEndError
from inferwatch.cli.running.profile_output import ProfileOptions
from inferwatch.errors import InferwatchError, SourceError, StorageError, UsageError
from inferwatch.feed import ProfileProgress, ProfileStage
from inferwatch.live import profile_desk
from inferwatch.live.alarms.alarms import WatchedRule
from inferwatch.live.alarms.rules import rules_of
from inferwatch.live.engine import engine_session as lives
from inferwatch.live.engine.engine_session import EngineSession
from inferwatch.live.pipeline import Pipeline
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.profiles.report import ProfileReport, ReportJob
from inferwatch.record.file.trace_folder import traces_folder
from inferwatch.record.profiles.shelf import KeptReport
from inferwatch.record.writing.recorder import Recorder
from tests.inferwatch.live.conftest import ScriptedSource
from tests.inferwatch.live.fake_profiler import FakeProfiledRank, profiled
from tests.inferwatch.metrics.scripted_profiles import S, ended, profile
from tests.inferwatch.printed.recorded import keep
from tests.inferwatch.printing.summary.scripted_report import report
from tests.inferwatch.record.profiles.test_imported_trace import session as traced
from tests.inferwatch.record.profiles.test_imported_trace import write_trace

KEY = "inferwatch-one-0-1"
TRACE = f"{KEY}_rank0.1.pt.trace.json"


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.delenv("INFERWATCH_DB", raising=False)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A session with two profiles, whose first was read, and one without any."""
    path = tmp_path / "sessions.db"
    info = EngineInfo(
        source="engine-1", t_ns=0, pid=1, model="meta/tiny", vllm_version="0.32.0"
    )
    told: list[AnyReading] = [
        info,
        profile(2 * S),
        ended(3 * S, why="its 1 s were over"),
    ]
    second = profile(5 * S, number=2), ended(6 * S, number=2)
    keep(path, "profiled", [*told, *second, Tick(t_ns=7 * S)])
    keep(path, "plain", [info, Tick(t_ns=S)])
    folder = traces_folder(path, "s1")
    folder.mkdir(parents=True)
    (folder / TRACE).write_text("{}")
    (folder / f"{KEY}.report.json").write_bytes(
        msgspec.json.encode(KeptReport({TRACE: 2}, report()))
    )
    return path


def run(path: Path, *words: str) -> Result:
    words = ("profile", *words, "--db", str(path))
    return CliRunner().invoke(inferwatch, words, standalone_mode=False)


def test_a_recorded_profile_is_printed_again(recorded: Path) -> None:
    done = run(recorded, "profiled", "--number", "1")

    assert done.return_value == 0
    assert "attention is farthest" in done.stdout
    assert "engine: meta/tiny, vLLM 0.32.0" in done.stdout
    assert "session: s1, profile 1" in done.stdout
    assert "ended early: its 1 s were over" in done.stdout


def test_a_recorded_profile_is_told_to_programs(recorded: Path) -> None:
    told = json.loads(run(recorded, "s1", "--number", "1", "--json").stdout)

    assert (told["session_id"], told["number"], told["key"]) == ("s1", 1, KEY)
    assert (told["began_ns"], told["ended_ns"]) == (2 * S, 3 * S)
    assert len(told["ranks"]) == 2


def test_a_recorded_profile_becomes_a_page(recorded: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = run(recorded, "s1", "--number", "1", "--html", str(page))
    assert done.return_value == 0
    assert "Profile of s1" in page.read_text("utf-8")
    assert done.stdout == ""

    again = run(recorded, "s1", "--number", "1", "--html", str(page))
    assert isinstance(again.exception, UsageError)


def test_traces_are_copied_for_other_tools(recorded: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    run(recorded, "s1", "--number", "1", "--traces", str(folder))

    assert [each.name for each in folder.iterdir()] == [TRACE]
    assert (traces_folder(recorded, "s1") / TRACE).exists()


def compare(path: Path, *words: str) -> Result:
    """Compare where both profiles of the session were read."""
    folder = traces_folder(path, "s1")
    kept = folder / f"{KEY}.report.json"
    (folder / "inferwatch-one-0-2.report.json").write_bytes(kept.read_bytes())
    return run(path, *words)


def test_two_profiles_are_compared(recorded: Path, tmp_path: Path) -> None:
    done = compare(recorded, "s1", "--against", "profiled", "--against-number", "1")
    assert done.return_value == 0, done.exception
    assert "before: s1, profile 1" in done.stdout
    assert "after: s1, profile 2" in done.stdout

    page = tmp_path / "page.html"
    words = ["s1", "--against", "s1", "--against-number", "1", "--html", str(page)]
    assert compare(recorded, *words).return_value == 0
    assert "Profiles of s1 and s1 compared" in page.read_text("utf-8")


def test_in_one_session_the_profile_before_is_the_other(recorded: Path) -> None:
    told = json.loads(compare(recorded, "s1", "--against", "s1", "--json").stdout)

    assert (told["before"]["number"], told["after"]["number"]) == (1, 2)
    first = compare(recorded, "s1", "--number", "1", "--against", "s1")
    assert isinstance(first.exception, UsageError)
    assert "s1 has no profile before 1" in str(first.exception)


@pytest.mark.parametrize(
    ("words", "kind", "why"),
    [
        (["plain"], UsageError, "s2 has no profile"),
        (["s1"], StorageError, "neither beside the record"),
        (["s1", "--number", "3"], UsageError, "no profile 3: there is 1, 2"),
        (["s1", "--steps", "3"], UsageError, "--steps is for an engine that runs"),
        (["s1", "--no-record"], UsageError, "--no-record is for an engine"),
        (["localhost:9", "--number", "1"], UsageError, "--number is of a recorded"),
        (["localhost:9", "--against", "s1"], UsageError, "--against compares recorded"),
        (["s1", "--against", "plain"], UsageError, "s2 has no profile"),
        (["s1", "--against", "s1", "--traces", "."], UsageError, "leave --against out"),
        (["s1", "--against-number", "1"], UsageError, "--against-number is for"),
        (["localhost:9", "--most", "2min"], UsageError, "at most 60 s"),
        (["localhost:9", "--when", "batch>much"], UsageError, "is not a number"),
        (["localhost:9"], SourceError, "localhost:9"),
    ],
)
def test_what_cannot_be_is_said(
    recorded: Path, words: list[str], kind: type[InferwatchError], why: str
) -> None:
    done = run(recorded, *words)

    assert isinstance(done.exception, kind)
    assert why in str(done.exception)


# An engine that runs.


class Watched:
    """A watch of a scripted engine that can be profiled."""

    def __init__(self, path: Path) -> None:
        clock = SessionClock()
        pipeline = Pipeline(Model(), Recorder.open(path, clock=clock))
        self.watch = EngineSession(
            clock, pipeline, ScriptedSource("http://127.0.0.1:9")
        )
        self.jobs: list[ReportJob] = []
        self.watch.profile_desk.shelf._read = self.read

    async def read(
        self, job: ReportJob, on_progress: Callable[[float], None] | None = None
    ) -> ProfileReport:
        del on_progress
        self.jobs.append(job)
        return report()

    def tell(self, told: Profile) -> None:
        self.watch._session.take(told, source="engine-1")


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.setattr(lives, "PROBE_WAIT_NS", 0)
    monkeypatch.setattr(profile_desk, "ASK_S", 0.005)
    monkeypatch.setattr(running, "LOOK_S", 0.01)
    monkeypatch.setattr(running, "TELL_S", 0.01)
    return Watched(tmp_path / "live.db")


async def test_an_engine_is_profiled_and_its_traces_kept(
    watched: Watched, tmp_path: Path
) -> None:
    async with profiled(FakeProfiledRank(watched.tell, tmp_path / "traces")):
        read = await running._profile(watched.watch, ProfileOptions(steps=3), [])

    assert read is not None
    assert read.report == report()
    assert (read.context.session_id, read.context.number) == ("s1", 1)
    (trace,) = read.traces
    assert trace.parent == traces_folder(tmp_path / "live.db", "s1")
    assert watched.jobs[0].files == [str(trace)]


async def test_ctrl_c_ends_it_and_reads_what_has_come(
    watched: Watched, tmp_path: Path
) -> None:
    rank = FakeProfiledRank(watched.tell, tmp_path / "traces", is_stuck=True)
    async with profiled(rank):
        going = asyncio.create_task(
            running._profile(watched.watch, ProfileOptions(), [])
        )
        async with asyncio.timeout(20):
            while not rank.is_on:  # noqa: ASYNC110 - the other end of a socket
                await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
        read = await going

    assert read is not None
    assert read.context.why == "it was stopped"
    assert not rank.is_on


async def test_an_engine_that_cannot_be_profiled_says_how_it_could(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "PROBE_S", 0.02)
    with pytest.raises(SourceError, match="serve --profiler"):
        await running._profile(watched.watch, ProfileOptions(), [])


async def test_what_the_engine_could_not_do_is_said(
    watched: Watched, tmp_path: Path
) -> None:
    rank = FakeProfiledRank(watched.tell, tmp_path / "t", fails="vLLM: no CUPTI")
    async with profiled(rank):
        with pytest.raises(SourceError, match="no CUPTI"):
            await running._profile(watched.watch, ProfileOptions(), [])


def condition(text: str) -> list[WatchedRule]:
    return [WatchedRule(each, records=False) for each in rules_of(text)]


def steady(traffic: Any) -> Any:
    """A watch whose engine runs two requests at once."""
    model = Model()
    for each in [*traffic.start(), *traffic.run(5)]:
        model.fold(each)
    now = model.snapshot(5 * S, SnapshotQuery(Window.MINUTE, requests=False))
    desk = SimpleNamespace(await_condition=lambda _: None)
    return SimpleNamespace(present=lambda: now, profile_desk=desk, failure=None)


async def test_a_condition_is_waited_for(traffic_of: Any, capsys: Any) -> None:
    watch = steady(traffic_of(slots=3))
    stop = asyncio.Event()

    assert await running._holds(watch, condition("stall|batch>1"), None, stop)
    assert "batch 3.00 > 1.00" in capsys.readouterr().err


async def test_a_condition_that_does_not_hold_is_given_up(
    traffic_of: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "LOOK_S", 0.01)
    watch = steady(traffic_of(slots=3))
    stop = asyncio.Event()
    assert not await running._holds(watch, condition("batch>64"), 0.05, stop)

    said = capsys.readouterr().err
    assert "nothing was profiled: batch>64 did not hold" in said


async def test_who_is_told_to_end_waits_no_longer(traffic_of: Any) -> None:
    watch = steady(traffic_of(slots=3))
    stop = asyncio.Event()
    stop.set()

    with pytest.raises(ToldToEndError, match="told to end"):
        await running._holds(watch, condition("p99(itl_s)>9"), None, stop)
    watch.failure = "localhost:8000: it refuses connections"
    with pytest.raises(SourceError, match="it refuses connections"):
        await running._holds(watch, condition("p99(itl_s)>9"), None, stop)


async def test_an_engine_that_is_lost_is_waited_for_no_longer(
    traffic_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "LOOK_S", 0.01)
    monkeypatch.setattr(running, "LOST_S", 0.05)
    watch = steady(traffic_of(slots=3))
    watch.failure = "localhost:8000: it refuses connections"

    with pytest.raises(SourceError, match="it refuses connections"):
        await running._holds(watch, condition("batch>64"), None, asyncio.Event())


async def test_told_to_end_while_traces_are_read_it_says_who_reads_them(
    watched: Watched, tmp_path: Path
) -> None:
    watched.watch.profile_desk.shelf._read = endless
    options = ProfileOptions(steps=3, database=tmp_path / "live.db")
    async with profiled(FakeProfiledRank(watched.tell, tmp_path / "traces")):
        going = asyncio.create_task(running._profile(watched.watch, options, []))
        await told_to_end(watched, going, ProfileStage.READING)
        with pytest.raises(ToldToEndError) as ended:
            await going

    assert "`inferwatch profile s1 --db" in str(ended.value)
    assert ended.value.exit_status == 130


async def test_told_twice_it_does_not_wait_for_the_engine(
    watched: Watched, tmp_path: Path
) -> None:
    rank = FakeProfiledRank(watched.tell, tmp_path / "traces", is_silent=True)
    async with profiled(rank):
        going = asyncio.create_task(
            running._profile(watched.watch, ProfileOptions(steps=3), [])
        )
        for _ in range(2):
            await told_to_end(watched, going, ProfileStage.WRITING)
        with pytest.raises(ToldToEndError, match="nothing was read"):
            await going


async def endless(
    job: ReportJob, on_progress: Callable[[float], None] | None = None
) -> ProfileReport:
    del job, on_progress
    await asyncio.Event().wait()
    raise AssertionError


async def told_to_end(
    watched: Watched, going: asyncio.Task[Any], stage: ProfileStage
) -> None:
    """Send ourselves Ctrl-C once a profile is at a stage."""
    async with asyncio.timeout(20):
        while watched.watch.profile_desk.progress.stage is not stage:
            assert not going.done()
            await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(0.1)


def test_progress_is_told_in_words() -> None:
    texts = [
        running._progress_text(each)
        for each in (
            ProfileProgress(),
            ProfileProgress(stage=ProfileStage.PROFILING, steps=3, steps_asked=20),
            ProfileProgress(stage=ProfileStage.READING, read_share=0.5),
        )
    ]
    assert texts == ["", "profiling: 3 of 20 steps", "reading the traces: 50%"]


# Traces that others took.


@pytest.mark.process
def test_a_trace_is_imported_into_a_session(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    traced(path, "engine-1")
    trace = write_trace(tmp_path / "rank0.json")
    words = ["import", str(trace), "--session", "traced", "--db", str(path)]
    done = CliRunner().invoke(inferwatch, words, standalone_mode=False)
    assert "s1 has profile 1 now: 19.9 ms of engine-1, 00:00:03 after" in done.stdout

    told = CliRunner().invoke(inferwatch, [*words, "--json"], standalone_mode=False)
    (row,) = json.loads(told.stdout)
    assert (row["session_id"], row["number"], row["began_ns"]) == ("s1", 2, 3 * S)


@pytest.mark.parametrize(
    "words", [["--session", "s1", "--name", "x"], ["--source", "engine-1"]]
)
def test_options_of_traces_are_for_traces(tmp_path: Path, words: list[str]) -> None:
    trace = write_trace(tmp_path / "rank0.json")
    words = ["import", str(trace), *words]
    done = CliRunner().invoke(inferwatch, words)

    assert done.exit_code == 2
