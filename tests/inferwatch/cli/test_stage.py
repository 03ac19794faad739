"""From one app to the next and back, without a terminal."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.app import App

from inferwatch.cli.replaying import Opening
from inferwatch.cli.stage import Stage
from inferwatch.errors import NoSuchSessionError, StorageError, UsageError
from inferwatch.export.results.imported_sessions import store_runs
from inferwatch.export.results.result_file import read_results
from inferwatch.metrics.snapshot import Window
from inferwatch.replay.playback import RecordedPlayback
from inferwatch.replay.player import Player
from inferwatch.sample import sample_file
from inferwatch.ui.compare_app import CompareApp
from inferwatch.ui.onward import CompareSessions, Onward, OpenSample, OpenSession

VLLM_RESULT = Path(__file__).parent.parent / "export" / "samples" / "vllm_bench.json"
Ends = Onward | None | Callable[[], None]


class ScriptedStage(Stage):
    """Its apps do not run: each ends as the script says."""

    def __init__(self, *ends: Ends) -> None:
        super().__init__()
        self.ends = list(ends)
        self.apps: list[Any] = []

    async def _run(self, app: App[Onward | None]) -> Onward | None:
        self.apps.append(app)
        end = self.ends.pop(0)
        await asyncio.sleep(0)
        if callable(end):
            end()
            return None
        return end

    def told(self) -> list[tuple[str, bool]]:
        """What was shown, and whether it leads back."""
        return [_told(app) for app in self.apps]


def _told(app: Any) -> tuple[str, bool]:
    if isinstance(app, CompareApp):
        return CompareApp.__name__, True
    return app.feed.record.session_id, app._leads_back


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Holds the sample as s1."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Path(shutil.copy(sample_file(), tmp_path / "s.db"))


async def test_what_is_opened_leads_back_to_where_it_was_opened(
    database: Path,
) -> None:
    opened = OpenSession(database=database, session="sample")
    stage = ScriptedStage(opened, opened, None, None, None)

    await stage.replay(database, "s1", Opening())

    assert stage.told() == [
        ("s1", False),
        ("s1", True),  # opened from the first
        ("s1", True),  # and from that
        ("s1", True),
        ("s1", False),
    ]
    first, second, _, again, last = stage.apps
    assert (again.feed, again.view) == (second.feed, second.view)
    assert (last.feed, last.view) == (first.feed, first.view)
    assert last._news is None


async def test_a_moment_that_cannot_be_gone_to_ends_the_replay_and_is_told(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_: RecordedPlayback) -> None:
        raise StorageError("it cannot be shown")

    async def until_it_ends(app: App[Onward | None]) -> None:
        ended = asyncio.Event()
        monkeypatch.setattr(app, "exit", ended.set)
        await ended.wait()

    monkeypatch.setattr(RecordedPlayback, "go_live", refuse)
    stage = ScriptedStage()
    monkeypatch.setattr(stage, "_run", until_it_ends)

    with pytest.raises(StorageError, match="it cannot be shown"):
        await asyncio.wait_for(stage.replay(database, "s1", Opening()), 60)


async def test_what_cannot_be_opened_is_said_where_one_comes_back(
    database: Path,
) -> None:
    gone = OpenSession(database=database, session="s77")
    stage = ScriptedStage(gone, None)

    await stage.replay(database, "s1", Opening())

    assert "No session 's77'" in stage.apps[-1]._news


async def test_the_sample_and_a_comparison_lead_back(database: Path) -> None:
    compared = CompareSessions(database=database, sessions=("s1", "s1"))
    stage = ScriptedStage(OpenSample(), None, compared, None, None)

    await stage.replay(database, "s1", Opening())

    assert stage.told() == [
        ("s1", False),
        ("s1", True),
        ("s1", False),
        (CompareApp.__name__, True),
        ("s1", False),
    ]


async def test_to_leave_is_to_leave_everything(database: Path) -> None:
    opened = OpenSession(database=database, session="s1")
    stage = ScriptedStage(opened)
    stage.ends += [stage.leave]

    await stage.replay(database, "s1", Opening())

    assert len(stage.apps) == 2


async def test_what_ended_unseen_is_not_shown_again(database: Path) -> None:
    player = await asyncio.to_thread(Player.open, database, "s1")
    over = asyncio.create_task(asyncio.sleep(0))
    stage = ScriptedStage(OpenSession(database=database, session="s1"), None)

    await stage.show(player, database, until=over)
    player.close()

    assert len(stage.apps) == 2


async def test_a_session_or_a_moment_that_is_not_there_is_never_shown(
    database: Path,
) -> None:
    stage = ScriptedStage()

    with pytest.raises(NoSuchSessionError):
        await stage.replay(database, "s77", Opening())
    with pytest.raises(UsageError):
        await stage.replay(database, "s1", Opening(at="noon"))


async def test_a_load_on_a_server_that_was_not_watched_opens_on_its_screen(
    tmp_path: Path,
) -> None:
    path = tmp_path / "imported.db"
    store_runs(path, [read_results(VLLM_RESULT)])
    stage = ScriptedStage(None)

    await stage.replay(path, "last", Opening())

    (app,) = stage.apps
    assert (app.view.screen, app.view.database) == ("load", path)


@pytest.mark.parametrize(
    ("opening", "begins_s", "window", "plays"),
    [
        pytest.param(Opening(), None, Window.SESSION, False, id="the whole"),
        pytest.param(Opening(at="10s"), 10, Window.MINUTE, False, id="a moment"),
        pytest.param(Opening(speed=0.5), 0, Window.MINUTE, True, id="from the start"),
        pytest.param(Opening(at="10s", speed=2), 10, Window.MINUTE, True, id="both"),
    ],
)
async def test_a_replay_begins_where_it_was_asked_to(
    database: Path,
    opening: Opening,
    begins_s: float | None,
    window: Window,
    plays: bool,
) -> None:
    seen: list[tuple[int, bool, Window]] = []

    class LookingStage(ScriptedStage):
        async def _run(self, app: Any) -> Onward | None:
            playback = app.feed.playback
            async with asyncio.timeout(20):
                while not seen:
                    await asyncio.sleep(0.02)
                    there = playback.position_ns, playback.playing, app.view.window
                    if playback.position_ns and playback.playing == plays:
                        seen.append(there)
            return None

    await LookingStage().replay(database, "s1", opening)

    with_player = await asyncio.to_thread(Player.open, database, "s1")
    end_ns = with_player.playback.span_ns[1]
    with_player.close()
    wanted_ns = end_ns if begins_s is None else begins_s * 1e9
    assert seen[0][0] == pytest.approx(wanted_ns, abs=3e9)
    assert seen[0][1:] == (plays, window)
