"""Steps of a watched engine are profiled, and the traces read, from the desk."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from collectors.contract.clock import SessionClock
from collectors.contract.readings import Profile, ProfileState
from collectors.http.server import Server
from inferwatch.errors import SourceError, StorageError, UsageError
from inferwatch.feed import ProfileStage
from inferwatch.live import profile_desk
from inferwatch.live.attached.attached_session import AttachedSession
from inferwatch.live.pipeline import Pipeline
from inferwatch.live.profile_desk import ON, OTHERWISE
from inferwatch.metrics.model.model import Model
from inferwatch.profiles.report import ProfileReport, ReportJob
from tests.inferwatch.live.fake_profiler import FakeProfiledRank, profiled

Watching = Callable[..., Any]
Until = Callable[..., Awaitable[None]]
URL = "http://127.0.0.1:9"


class ScriptedReader:
    """Reads nothing, and keeps what it was asked for."""

    def __init__(self, fails: str | None = None) -> None:
        self.jobs: list[ReportJob] = []
        self.fails = fails

    async def __call__(
        self, job: ReportJob, on_progress: Callable[[float], None] | None = None
    ) -> ProfileReport:
        self.jobs.append(job)
        if on_progress is not None:
            on_progress(0.5)
        if self.fails:
            raise StorageError(self.fails)
        return ProfileReport(ranks=[], problems=[f"{len(self.jobs)}"])


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_desk, "ASK_S", 0.005)


def teller(run: Any) -> Callable[[Profile], None]:
    def tell(profile: Profile) -> None:
        run.watch._session.take(profile, source="engine-1")

    return tell


def scripted(run: Any, fails: str | None = None) -> ScriptedReader:
    reader = ScriptedReader(fails)
    run.watch.profile_desk.shelf._read = reader
    return reader


async def test_steps_are_profiled_and_their_traces_read_and_kept(
    watching: Watching, until: Until, tmp_path: Path
) -> None:
    async with watching(URL) as run:
        rank = FakeProfiledRank(teller(run), tmp_path / "traces")
        desk, reader = run.watch.profile_desk, scripted(run)
        async with profiled(rank):
            await until(run.watch.live.is_set)
            assert desk.unavailable is None
            assert desk.progress.stage is ProfileStage.NONE

            await desk.begin(4)
            assert desk.progress.steps_asked == 4
            assert desk.unavailable == ON
            with pytest.raises(UsageError, match="on already"):
                await desk.begin()
            done = await desk.ended()

            assert (done.stage, done.steps, done.text) == (ProfileStage.DONE, 4, "")
            assert desk.unavailable is None
            (taken,) = desk.taken
            assert (taken.key, taken.steps, taken.lost) == (done.key, 4, None)
            folder = tmp_path / "sessions.db-profiles" / "s1"
            (trace,) = folder.glob("*.pt.trace.json")
            assert not [*(tmp_path / "traces").iterdir()]
            (job,) = reader.jobs
            assert job.files == [str(trace)]
            assert job.realtime_offset_ns is not None
            assert (await desk.report(taken.key)).problems == ["1"]
            assert (folder / f"{taken.key}.report.json").is_file()


async def test_files_that_another_source_speaks_of_are_not_moved(
    watching: Watching, until: Until, tmp_path: Path
) -> None:
    async with watching(URL) as run:
        rank = FakeProfiledRank(teller(run), tmp_path / "traces")
        scripted(run)
        secrets = tmp_path / "theirs"
        secrets.mkdir()
        prefix = "inferwatch-eng-0-1"
        (secrets / f"{prefix}_rank0.1.pt.trace.json").write_text("{}")
        async with profiled(rank):
            await until(run.watch.live.is_set)
            await run.watch.profile_desk.begin(2)
            told = rank.latest
            assert told is not None
            for state in (ProfileState.STARTED, ProfileState.ENDED):
                said = replace(told, state=state, directory=str(secrets))
                run.watch._session.take(said, source="engine-9")
            done = await run.watch.profile_desk.ended()

        assert done.stage is ProfileStage.DONE
        assert len([*secrets.iterdir()]) == 1
        assert not [*(tmp_path / "traces").iterdir()]


async def test_a_rank_that_dies_leaves_the_others_profile(
    watching: Watching, until: Until, tmp_path: Path
) -> None:
    async with watching(URL) as run:
        ranks = [
            FakeProfiledRank(teller(run), tmp_path / "traces", rank=number)
            for number in range(2)
        ]
        ranks[1].dies_at = 2
        scripted(run)
        async with profiled(*ranks):
            await until(run.watch.live.is_set)
            await run.watch.profile_desk.begin(5)
            done = await run.watch.profile_desk.ended()

        assert (done.stage, done.steps) == (ProfileStage.DONE, 5)


async def test_without_a_record_traces_stay_where_they_are(
    watching: Watching, until: Until, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching(URL) as run:
        monkeypatch.setattr(Pipeline, "database", None)
        rank = FakeProfiledRank(teller(run), tmp_path / "traces")
        reader = scripted(run)
        async with profiled(rank):
            await until(run.watch.live.is_set)
            await run.watch.profile_desk.begin(2)
            done = await run.watch.profile_desk.ended()

        assert done.stage is ProfileStage.DONE
        (trace,) = (tmp_path / "traces").iterdir()
        assert reader.jobs[0].files == [str(trace)]


async def test_all_ranks_are_one_profile(
    watching: Watching, until: Until, tmp_path: Path
) -> None:
    async with watching(URL) as run:
        ranks = [
            FakeProfiledRank(teller(run), tmp_path / "traces", rank=number)
            for number in range(2)
        ]
        reader = scripted(run)
        async with profiled(*ranks):
            await until(run.watch.live.is_set)
            await run.watch.profile_desk.begin(3)
            await run.watch.profile_desk.ended()

        assert len(run.watch.profile_desk.taken) == 1
        assert len(reader.jobs[0].files) == 2


async def test_a_profile_is_ended_and_what_came_is_read(
    watching: Watching, until: Until, tmp_path: Path
) -> None:
    async with watching(URL) as run:
        rank = FakeProfiledRank(teller(run), tmp_path / "traces", is_stuck=True)
        scripted(run)
        async with profiled(rank):
            await until(run.watch.live.is_set)
            await run.watch.profile_desk.begin()
            await run.watch.profile_desk.stop()
            done = await run.watch.profile_desk.ended()

        assert done.stage is ProfileStage.DONE
        assert done.text == "it was stopped"


async def test_a_watch_that_ends_leaves_the_profiler_off(
    watching: Watching, until: Until, tmp_path: Path
) -> None:
    rank = FakeProfiledRank(lambda _: None, tmp_path / "traces", is_stuck=True)
    async with profiled(rank):
        async with watching(URL) as run:
            await until(run.watch.live.is_set)
            await run.watch.profile_desk.begin()
            assert rank.is_on
        await until(lambda: not rank.is_on)
    assert run.watch.profile_desk.progress.stage is ProfileStage.FAILED


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ({"fails": "vLLM: no room"}, "vLLM: no room"),
        ({"is_silent": True}, profile_desk.UNTOLD),
        ({"writes": False}, "neither beside the record nor"),
    ],
    ids=["not begun", "not told", "not written"],
)
async def test_what_goes_wrong_is_said(
    watching: Watching,
    until: Until,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: dict[str, Any],
    why: str,
) -> None:
    monkeypatch.setattr(profile_desk, "TELL_S", 0.05)
    async with watching(URL) as run:
        rank = FakeProfiledRank(teller(run), tmp_path / "traces", **fault)
        scripted(run)
        async with profiled(rank):
            await until(run.watch.live.is_set)
            await run.watch.profile_desk.begin(2)
            done = await run.watch.profile_desk.ended()

    assert done.stage is ProfileStage.FAILED
    assert why in done.text


async def test_a_trace_that_cannot_be_read_is_said(
    watching: Watching, until: Until, tmp_path: Path
) -> None:
    async with watching(URL) as run:
        rank = FakeProfiledRank(teller(run), tmp_path / "traces")
        scripted(run, fails="rank0.json is cut short")
        async with profiled(rank):
            await until(run.watch.live.is_set)
            await run.watch.profile_desk.begin(2)
            done = await run.watch.profile_desk.ended()

        assert (done.stage, done.text) == (
            ProfileStage.FAILED,
            "rank0.json is cut short",
        )
        assert len(run.watch.profile_desk.taken) == 1


async def test_an_engine_that_does_not_answer_as_it_writes_is_waited_for(
    watching: Watching, until: Until, tmp_path: Path
) -> None:
    async with watching(URL) as run:
        rank = FakeProfiledRank(teller(run), tmp_path / "traces", is_hung=True)
        scripted(run)
        async with profiled(rank):
            await until(run.watch.live.is_set)
            await run.watch.profile_desk.begin(3)
            done = await run.watch.profile_desk.ended()

    assert done.stage is ProfileStage.DONE


async def test_what_the_engine_refuses_is_said(
    watching: Watching, until: Until, tmp_path: Path
) -> None:
    async with watching(URL) as run:
        rank = FakeProfiledRank(teller(run), tmp_path / "t", refuses="no room on disk")
        async with profiled(rank):
            await until(run.watch.live.is_set)
            with pytest.raises(UsageError, match="no room on disk"):
                await run.watch.profile_desk.begin()
        assert run.watch.profile_desk.progress.stage is ProfileStage.FAILED


async def test_an_engine_without_profiler_says_how_it_would_have_one(
    watching: Watching, until: Until
) -> None:
    async with watching(URL) as run:
        desk = run.watch.profile_desk
        assert desk.unavailable == "no engine is up whose steps could be profiled"
        with pytest.raises(SourceError, match="no engine"):
            await desk.begin()
        await until(run.watch.live.is_set)

        assert "serve --profiler" in desk.unavailable
        with pytest.raises(SourceError, match="serve --profiler"):
            await desk.begin()


async def test_a_profile_of_somebody_else_is_waited_out(
    watching: Watching, until: Until, tmp_path: Path
) -> None:
    async with watching(URL) as run:
        rank = FakeProfiledRank(teller(run), tmp_path / "traces")
        theirs = Profile(
            t_ns=run.watch.clock.start_ns + run.watch.clock.now_ns(),
            number=1,
            state=ProfileState.STARTED,
            steps_asked=9,
            prefix="inferwatch-eng-0-1",
            directory=str(tmp_path),
            by="bob (pid 8)",
            realtime_ns=0,
        )
        async with profiled(rank):
            await until(run.watch.live.is_set)
            teller(run)(theirs)

            assert run.watch.profile_desk.unavailable == f"{ON}, for bob (pid 8)"
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("server", "why"),
    [
        pytest.param(Server(url=URL), "probe in the engine", id="no probe"),
        pytest.param(
            Server(url=URL, probe="tcp://10.0.0.1:9000"), "the network", id="far"
        ),
    ],
)
async def test_who_is_not_beside_the_engine_is_told_why(
    server: Server, why: str
) -> None:
    session = AttachedSession(SessionClock(), Pipeline(Model()), [server])
    told = session.profile_desk.unavailable

    assert told is not None
    assert told in OTHERWISE.values()
    assert why in told
