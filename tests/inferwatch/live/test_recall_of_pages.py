"""Pages of metrics are told alike from memory, from the record and from both."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from collectors.contract.readings import MetricsPage
from collectors.servers.metrics_page import PageKeeper
from inferwatch.live.past.live_recall import LiveRecall
from inferwatch.live.pipeline import Pipeline
from inferwatch.live.recent_readings import RecentPages, RecentReadings
from inferwatch.metrics.model.model import Model
from inferwatch.record.lookup.record_lookup import MOST_PAGES
from inferwatch.record.replay.recorded_recall import RecordedRecall
from inferwatch.record.writing.recorder import Recorder

S = 1_000_000_000
END_S = 1_500
PATIENCE_S = 60.0
SOURCES = ("one:8000", "two:8000")


def text_at(t_s: int, source: str) -> str:
    return f'# TYPE t counter\nt_total{{of="{source}"}} {t_s}\nsame 1\n'


def readings() -> list[MetricsPage]:
    """Twenty-five minutes of two servers."""
    keepers = {source: PageKeeper(source) for source in SOURCES}
    taken = [
        keeper.take(text_at(t_s, source), t_s * S)
        for t_s in range(10, END_S + 1, 10)
        for source, keeper in keepers.items()
    ]
    return [each for each in taken if each is not None]


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorder]:
    """All of it is in its file, and it still goes on."""
    path = tmp_path_factory.mktemp("pages") / "s.db"
    clock: Any = type("Clock", (), {"start_ns": 0, "now_ns": lambda _: END_S * S})()
    recorder = Recorder.open(path, clock=clock, floor_bytes=0)
    every = readings()
    for numbered in enumerate(every, 1):
        recorder.put(*numbered)
    deadline_s = monotonic() + PATIENCE_S
    while recorder.health.written < len(every):
        assert monotonic() < deadline_s, f"written: {recorder.health.written}"
        sleep(0.01)
    yield recorder
    recorder.close()


def live(recorder: Recorder | None, kept_s: int) -> LiveRecall:
    """Who remembers so much of it."""
    pipeline = Pipeline(Model(), recorder)
    recent = pipeline.recent = RecentReadings(kept_ns=kept_s * S)
    for each in readings():
        recent.take(each)
    return LiveRecall(pipeline, lambda: END_S * S)


def whole(pages: Any) -> list[tuple[int, list[str]]]:
    return [(each.t_ns // S, each.lines) for each in pages]


def expected(*times_s: int) -> list[tuple[int, list[str]]]:
    return [(t_s, text_at(t_s, SOURCES[1]).splitlines()) for t_s in times_s]


@pytest.mark.parametrize("kept_s", [9_999, 60, 0], ids=["memory", "both", "record"])
async def test_pages_of_a_span_are_whole_whoever_remembers(
    recorder: Recorder, kept_s: int
) -> None:
    found = await live(recorder, kept_s).metrics_pages(
        (END_S - 100) * S, END_S * S, SOURCES[1]
    )

    assert whole(found) == expected(*range(END_S - 90, END_S + 1, 10))


async def test_a_replay_tells_what_was_told_up_to_its_position(
    recorder: Recorder,
) -> None:
    recall = RecordedRecall(Path(recorder.path), recorder.session_id, lambda: 650 * S)

    found = await recall.metrics_pages(590 * S, END_S * S, SOURCES[1])

    assert whole(found) == expected(600, 610, 620, 630, 640, 650)


async def test_of_a_long_span_pages_are_evenly_spread(recorder: Recorder) -> None:
    found = await live(recorder, 60).metrics_pages(-1, END_S * S, SOURCES[1])

    times_s = [t_s for t_s, _ in whole(found)]
    assert len(times_s) == MOST_PAGES
    assert (times_s[0], times_s[-1]) == (10, END_S)
    assert max(after - before for before, after in pairwise(times_s)) <= 60


async def test_without_a_record_there_is_what_memory_holds() -> None:
    found = await live(None, 30).metrics_pages(-1, END_S * S, SOURCES[1])

    assert whole(found) == expected(*range(END_S - 30, END_S + 1, 10))


async def test_of_a_server_nobody_knows_there_is_none(recorder: Recorder) -> None:
    assert not await live(recorder, 0).metrics_pages(-1, END_S * S, "three:8000")


def without_second_whole() -> list[MetricsPage]:
    """Whose labels are others from 30 s on; that page is missing."""
    keeper = PageKeeper("one:8000")
    texts = ["a 1\nb 2\n"] * 2 + ["b 3\na 4\n"] + ["b 5\na 4\n"] * 2
    taken = [keeper.take(text, (1 + at) * 10 * S) for at, text in enumerate(texts)]
    return [each for at, each in enumerate(taken) if each is not None and at != 2]


def test_values_never_land_in_lines_of_another_page() -> None:
    recent = RecentPages(kept_ns=10**18)

    for each in without_second_whole():
        recent.add(each)

    assert [each.t_ns // S for each in recent.between(-1, 10**18, "one:8000")] == [
        10,
        20,
    ]


async def test_nor_do_they_in_the_record(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    clock: Any = type("Clock", (), {"start_ns": 0, "now_ns": lambda _: 60 * S})()
    recorder = Recorder.open(path, clock=clock, floor_bytes=0)
    for numbered in enumerate(without_second_whole(), 1):
        recorder.put(*numbered)
    recorder.close()
    recall = RecordedRecall(path, recorder.session_id, lambda: 60 * S)

    found = await recall.metrics_pages(-1, 60 * S, "one:8000")

    assert [each.t_ns // S for each in found] == [10, 20]


def test_a_whole_page_counts_as_long_as_another_builds_on_it() -> None:
    recent = RecentPages(kept_ns=10**18, most_bytes=100_000)
    keepers = [PageKeeper(f"{at}:8000") for at in range(20)]
    lines = "".join(f"name_of_a_metric_{at} 1\n" for at in range(100))

    for t_s in range(0, 100, 10):
        for keeper in keepers:
            page = keeper.take(lines, t_s * S)
            assert page is not None
            recent.add(page)

    pages = [
        each for at in range(20) for each in recent.between(-1, 10**18, f"{at}:8000")
    ]
    assert 5 < len({each.source for each in pages}) < 20
    assert recent.since_ns("0:8000") == 90 * S + 1


def test_memory_stays_bounded_whatever_comes() -> None:
    recent = RecentPages(kept_ns=10**18, most_bytes=100_000)

    for t_s in range(500):
        lines = [f"name_of_a_metric_{at} {t_s}" for at in range(100)]
        recent.add(
            MetricsPage(source="one:8000", t_ns=t_s * S, whole=True, lines=lines)
        )

    assert 5 < len(recent.between(-1, 10**18, "one:8000")) < 20
