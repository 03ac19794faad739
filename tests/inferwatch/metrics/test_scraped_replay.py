"""Scrapes live, recorded and replayed, saved and restored: the same in all."""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from operator import itemgetter
from pathlib import Path

import msgspec
import pytest
from hypothesis import strategies as st

from collectors.contract.readings import (
    AnyReading,
    Contact,
    EngineSample,
    ServerInfo,
    WatchedSlo,
)
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.printing.summary.session import summarise, summary_text
from inferwatch.record.file.sqlite import Cursor, transaction
from inferwatch.record.tables.codec import ReadingEncoder, recorded
from inferwatch.record.tables.migrations import migrate
from tests.inferwatch.metrics.drawn import drawn
from tests.inferwatch.metrics.scraped_servers import ITL, S, Served, contact
from tests.inferwatch.metrics.test_saved import Keeps
from tests.inferwatch.record.test_round_trip import readings_of

SOURCES = ("a:1", "b:1")


def eventful(seed: int, length: int) -> Iterator[AnyReading]:
    """Servers at an uneven pace: busy, idle, lost, restarted, out of order."""
    chance = random.Random(seed)
    ranks = [
        Served("a:1", "0"),
        Served("a:1", "1"),
        Served("b:1", bounds={"ttft_s": ITL}),
    ]
    t_s = 0.0
    yield WatchedSlo(t_ns=0, slo="ttft_s<0.3")
    for source in SOURCES:
        yield ServerInfo(
            source=source, t_ns=0, name=source, family="vllm", num_kv_blocks=1_000
        )
    for _ in range(length):
        t_s += chance.choice([0.3, 1.0, 1.0, 1.0, 5.0, 15.0])
        server = chance.choice(ranks)
        what = chance.random()
        if what < 0.04:
            server.restart()
            yield contact(t_s, server.source, restarted=chance.random() < 0.5)
        elif what < 0.08:
            answers = chance.random() < 0.5
            yield contact(t_s, server.source, answers=answers, why="no" * (not answers))
        for _ in range(chance.choice([0, 0, 1, 5])):
            server.request(ttft_s=chance.expovariate(3), tokens=chance.randint(1, 9))
        late_s = 4 if chance.random() < 0.05 else 0
        running, waiting = chance.randint(0, 3), chance.randint(0, 2)
        gauges = {"running": running, "waiting": waiting, "kv_usage": chance.random()}
        yield server.at(t_s - late_s, **gauges)


def in_a_record(readings: list[AnyReading]) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection, Path(":memory:"))
    encoder = ReadingEncoder(session=1)
    for at in range(0, len(readings), 7):
        batch = [(at + n, each) for n, each in enumerate(readings[at : at + 7], 1)]
        with transaction(connection):
            encoder.batch(batch).insert(connection)
    return connection


def pictures(model: Model, now_ns: int) -> list[object]:
    return [
        model.snapshot(now_ns, SnapshotQuery(window, source=source))
        for window in Window
        for source in (None, *SOURCES)
    ]


@drawn(6, 25, seed=st.integers(0, 10_000), length=st.sampled_from([5, 40, 120]))
def test_live_replayed_and_restored_are_equal(seed: int, length: int) -> None:
    readings = list(eventful(seed, length))
    now_ns = 1 + max(getattr(each, "t_ns", 0) for each in readings)
    cut = random.Random(seed).randrange(len(readings))
    live, replayed, restored, keeps = Model(), Model(), Model(), Keeps()
    for number, reading in enumerate(readings):
        live.fold(reading)
        if number % 11 == 0:
            live.snapshot(reading.t_ns, SnapshotQuery(Window.MINUTE))  # type: ignore[union-attr]
        if number == cut:
            saved = live.saved()
            keeps.keep(saved)
            restored = keeps.restored(saved)
    with closing(in_a_record(readings)) as connection:
        for _, reading in recorded(connection, 1):
            replayed.fold(reading)
        for _, reading in recorded(connection, 1, Cursor(cut + 1, ())):
            restored.fold(reading)

    expected = pictures(live, now_ns)
    assert pictures(replayed, now_ns) == expected
    assert pictures(restored, now_ns) == expected


@pytest.mark.parametrize("seed", range(3))
def test_what_is_saved_again_and_again_goes_on_as_if_nothing_had_been(
    seed: int,
) -> None:
    plain, model, keeps = Model(), Model(), Keeps()
    readings = list(eventful(seed, 500))
    for number, reading in enumerate(readings):
        plain.fold(reading)
        model.fold(reading)
        if number % 37 == 0:
            saved = model.saved()
            keeps.keep(saved)
            model = keeps.restored(saved)
            assert model.saved() == saved

    now_ns = readings[-1].t_ns + S  # type: ignore[union-attr]
    assert pictures(model, now_ns) == pictures(plain, now_ns)


ANYTHING = st.one_of(
    [readings_of(kind) for kind in (EngineSample, Contact, ServerInfo, WatchedSlo)]
)
MOMENTS = st.integers(0, 1_000 * S)


@drawn(15, 60, told=st.lists(st.tuples(MOMENTS, ANYTHING), max_size=10))
def test_nothing_that_a_server_may_say_breaks_a_picture(
    told: list[tuple[int, EngineSample]],
) -> None:
    model = Model()
    for t_ns, reading in sorted(told, key=itemgetter(0)):
        model.fold(msgspec.structs.replace(reading, t_ns=t_ns))

    for window in Window:
        seen = model.snapshot(1_000 * S, SnapshotQuery(window))
        assert summary_text(summarise(seen, None))
        assert (seen.flow.output_tokens_per_s or 0) >= 0
    assert model.saved()
