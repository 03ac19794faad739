"""Traces of a session's profiles are found, read once, and joined to its steps."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from collectors.contract.readings import MetricsPage, ProfileState, Step
from inferwatch.errors import StorageError, UsageError
from inferwatch.metrics.floor.rank import StepNeeds
from inferwatch.metrics.steps.engines import Key
from inferwatch.metrics.steps.profiles import SessionProfile
from inferwatch.metrics.story.story import RequestStory
from inferwatch.profiles.report import ProfileReport, ReportJob
from inferwatch.record.profiles import shelf as shelves
from inferwatch.record.profiles.shelf import ProfileShelf
from tests.inferwatch.metrics.scripted_profiles import WALL_NS, S, ended, profile

KEY = "inferwatch-one-0-1"


class ScriptedSteps:
    """A step each second."""

    async def steps(
        self, start_ns: int, end_ns: int, source: str | None = None
    ) -> Sequence[Step]:
        assert source == "engine-1"
        return [
            Step(
                index=at,
                start_ns=at * S,
                end_ns=at * S + 5,
                duration_ns=5,
                decode_requests=2,
                decode_tokens=3,
                prefill_tokens=at % 2,
                prefill_requests=at % 2,
            )
            for at in range(100)
            if start_ns < at * S + 5 <= end_ns
        ]

    async def request(self, key: str) -> RequestStory | None:
        raise NotImplementedError(key)

    async def metrics_pages(
        self, start_ns: int, end_ns: int, source: str
    ) -> Sequence[MetricsPage]:
        raise NotImplementedError(source)


class ScriptedSession:
    """One whose profiles are given."""

    def __init__(self, folder: Path | None, *profiles: SessionProfile) -> None:
        self.traces_folder = folder
        self.profiles_shown: Sequence[SessionProfile] = profiles
        self.profiles_known: Sequence[SessionProfile] = profiles
        self.step_needs: dict[Key, StepNeeds] = {}
        self.steps_recall = ScriptedSteps()


class Reading:
    """Counts what is read."""

    def __init__(self) -> None:
        self.jobs: list[ReportJob] = []

    async def __call__(
        self, job: ReportJob, on_progress: Callable[[float], None] | None = None
    ) -> ProfileReport:
        del on_progress
        self.jobs.append(job)
        return ProfileReport(ranks=[], problems=[str(len(self.jobs))])


def taken(directory: Path, number: int = 1, **fields: Any) -> SessionProfile:
    begun = profile(5 * S, number=number, directory=str(directory))
    over = ended(7 * S, number=number, directory=str(directory))
    return SessionProfile(
        number=number,
        began=(begun,),
        ended=(msgspec.structs.replace(over, **fields),),
    )


def write(folder: Path, key: str = KEY) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    trace = folder / f"{key}_rank0.json"
    trace.write_text("{}")
    return trace


async def test_a_trace_is_read_with_the_steps_around_it(tmp_path: Path) -> None:
    trace, read = write(tmp_path / "kept"), Reading()
    session = ScriptedSession(tmp_path / "kept", taken(tmp_path / "elsewhere"))
    await ProfileShelf(session, read).report(KEY)

    (job,) = read.jobs
    assert job.files == [str(trace)]
    assert job.engine_ranks == {}
    assert job.realtime_offset_ns == WALL_NS
    assert [each.index for each in job.steps] == [4, 5, 6, 7]
    assert [each.decode_only for each in job.steps] == [True, False, True, False]
    assert [each.requests for each in job.steps] == [2, 3, 2, 3]
    assert job.costs is None


async def test_what_was_read_is_there_at_once(tmp_path: Path) -> None:
    write(tmp_path / "kept")
    session, read = ScriptedSession(tmp_path / "kept", taken(tmp_path)), Reading()
    shelf = ProfileShelf(session, read)
    first = await shelf.report(KEY)
    assert await shelf.report(KEY) is first

    again = ProfileShelf(session, read)
    assert await again.report(KEY) == first
    assert len(read.jobs) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"\xff",
        msgspec.json.encode(ProfileReport(version=0, ranks=[])),
    ],
    ids=["cut short", "no text", "another version"],
)
async def test_what_another_version_read_is_read_again(
    tmp_path: Path, content: bytes
) -> None:
    folder = tmp_path / "kept"
    write(folder)
    (folder / f"{KEY}.report.json").write_bytes(content)
    read = Reading()
    report = await ProfileShelf(ScriptedSession(folder, taken(tmp_path)), read).report(
        KEY
    )

    assert report.problems == ["1"]


async def test_traces_where_the_engine_wrote_them_are_read_there(
    tmp_path: Path,
) -> None:
    trace, read = write(tmp_path / "traces"), Reading()
    kept = tmp_path / "kept"
    session = ScriptedSession(kept, taken(tmp_path / "traces"))
    await ProfileShelf(session, read).report(KEY)

    assert read.jobs[0].files == [str(trace)]
    assert not kept.exists()
    assert [*(tmp_path / "traces").iterdir()] == [trace]


async def test_traces_that_are_gone_are_said_to_be(tmp_path: Path) -> None:
    shelf = ProfileShelf(ScriptedSession(tmp_path, taken(tmp_path / "gone")), Reading())

    (lost,) = shelf.taken
    assert lost.lost is not None
    assert str(tmp_path / "gone") in lost.lost
    with pytest.raises(StorageError, match="neither beside the record"):
        await shelf.report(KEY)
    with pytest.raises(UsageError, match="profile other is not among"):
        await shelf.report("other")


async def test_a_report_outlives_its_traces(tmp_path: Path) -> None:
    trace, read = write(tmp_path / "kept"), Reading()
    session = ScriptedSession(tmp_path / "kept", taken(tmp_path))
    await ProfileShelf(session, read).report(KEY)
    trace.unlink()

    shelf = ProfileShelf(session, read)
    assert [each.lost for each in shelf.taken] == [None]
    assert (await shelf.report(KEY)).problems == ["1"]


def test_what_is_on_or_failed_is_not_among_those_taken(tmp_path: Path) -> None:
    failed = taken(tmp_path, 2, state=ProfileState.FAILED)
    on = SessionProfile(number=3, began=(profile(9 * S, number=3),))
    session = ScriptedSession(None, taken(tmp_path), failed, on)

    assert [each.key for each in ProfileShelf(session, Reading()).taken] == [KEY]


async def test_few_reports_are_kept_in_memory(tmp_path: Path) -> None:
    many = [taken(tmp_path / "traces", number) for number in range(1, 8)]
    for each in many:
        write(tmp_path / "traces", each.key)
    shelf = ProfileShelf(ScriptedSession(None, *many), Reading())
    for each in many:
        await shelf.report(each.key)

    assert [*shelf._reports] == [e.key for e in many[-shelves.MOST_REPORTS :]]


async def test_the_step_in_which_traces_were_written_is_what_it_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = write(tmp_path / "kept")
    session = ScriptedSession(tmp_path / "kept", taken(tmp_path))
    steps = await session.steps_recall.steps(0, 9 * S, "engine-1")
    long = [
        msgspec.structs.replace(each, duration_ns=2 * S if each.index == 6 else 10)
        for each in steps
    ]

    async def told(*_: object) -> Sequence[Step]:
        return long

    monkeypatch.setattr(session.steps_recall, "steps", told)
    shelf = ProfileShelf(session, Reading())
    assert shelf.taken[0].held_up_ns is None
    await shelf.report(KEY)

    assert shelf.taken[0].held_up_ns == 2 * S - 10
    trace.unlink()


async def test_what_neither_steps_nor_the_switch_tell_is_not_known(
    tmp_path: Path,
) -> None:
    write(tmp_path / "kept")
    one = taken(tmp_path)
    later = msgspec.structs.replace(
        one,
        began=(msgspec.structs.replace(one.began[0], t_ns=500 * S),),
        ended=(msgspec.structs.replace(one.ended[0], t_ns=502 * S, switch_ns=None),),
    )
    shelf = ProfileShelf(ScriptedSession(tmp_path / "kept", later), Reading())

    await shelf.report(KEY)

    assert shelf.held_up_ns(later) is None


def test_of_one_that_was_ended_the_probe_tells_what_it_cost(tmp_path: Path) -> None:
    session = ScriptedSession(None, taken(tmp_path, why="it was stopped"))

    assert ProfileShelf(session, Reading()).taken[0].held_up_ns == 300_000_000


async def test_a_trace_that_came_later_is_read_too(tmp_path: Path) -> None:
    write(tmp_path / "kept")
    session, read = ScriptedSession(tmp_path / "kept", taken(tmp_path)), Reading()
    shelf = ProfileShelf(session, read)
    await shelf.report(KEY)
    (tmp_path / "kept" / f"{KEY}_rank1.json").write_text("{}")

    assert (await shelf.report(KEY)).problems == ["2"]
    assert len(read.jobs[-1].files) == 2
    again = ProfileShelf(session, read)
    assert (await again.report(KEY)).problems == ["2"]


async def test_traces_of_which_some_were_moved_are_read_in_both_places(
    tmp_path: Path,
) -> None:
    write(tmp_path / "kept")
    left = tmp_path / "traces"
    left.mkdir()
    (left / f"{KEY}_rank1.json").write_text("{}")
    read = Reading()
    session = ScriptedSession(tmp_path / "kept", taken(left))
    await ProfileShelf(session, read).report(KEY)

    names = [Path(each).name for each in read.jobs[0].files]
    assert names == [f"{KEY}_rank0.json", f"{KEY}_rank1.json"]
    assert not [*(tmp_path / "kept").glob("*.report.json")]  # until all are there


async def test_nothing_is_moved_while_traces_are_read(tmp_path: Path) -> None:
    write(tmp_path / "traces")
    session = ScriptedSession(tmp_path / "kept", taken(tmp_path / "traces"))
    seen: list[list[str]] = []

    async def read(job: ReportJob, _: object = None) -> ProfileReport:
        moving = asyncio.create_task(shelf.keep_traces(tmp_path / "traces", [KEY]))
        tasks.append(moving)
        await asyncio.sleep(0.05)
        seen.append([each for each in job.files if Path(each).exists()])
        return ProfileReport(ranks=[])

    tasks: list[asyncio.Task[None]] = []
    shelf = ProfileShelf(session, read)
    await shelf.report(KEY)
    await tasks[0]

    assert seen == [[str(tmp_path / "traces" / f"{KEY}_rank0.json")]]
    assert [each.parent for each in shelf.traces(taken(tmp_path))] == [
        tmp_path / "kept"
    ]


@pytest.mark.parametrize("key", ["../../escaped", "a\0b", "x" * 300, ".hidden"])
async def test_a_key_that_is_no_name_of_a_file_keeps_nothing(
    tmp_path: Path, key: str
) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    hostile = SessionProfile(
        number=1,
        began=(profile(5 * S, prefix=key, directory="/a\0b"),),
        ended=(ended(7 * S, prefix=key, directory="/a\0b"),),
    )
    shelf = ProfileShelf(ScriptedSession(folder, hostile), Reading())

    assert shelf.taken[0].lost is not None
    with pytest.raises(StorageError, match="neither beside the record"):
        await shelf.report(key)
    assert [*tmp_path.rglob("*")] == [folder]


async def test_what_is_on_is_not_read(tmp_path: Path) -> None:
    write(tmp_path / "kept")
    on = SessionProfile(number=1, began=(profile(5 * S),))
    shelf = ProfileShelf(ScriptedSession(tmp_path / "kept", on), Reading())

    with pytest.raises(UsageError, match="is on still"):
        await shelf.report(KEY)


async def test_what_it_cost_is_unknown_where_neither_steps_nor_the_probe_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "kept")
    session = ScriptedSession(tmp_path / "kept", taken(tmp_path, switch_ns=None))

    async def none(*_: object) -> Sequence[Step]:
        return []

    monkeypatch.setattr(session.steps_recall, "steps", none)
    shelf = ProfileShelf(session, Reading())
    await shelf.report(KEY)

    assert shelf.held_up_ns(taken(tmp_path, switch_ns=None)) is None
