"""Maps of blocks and what requests consisted of, as the record keeps them."""

import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from collectors.contract.readings import AnyReading, BlockMap, PromptBlocks
from inferwatch.errors import StorageError
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.printing.destination import Destination
from inferwatch.printing.export.recording import opened
from inferwatch.printing.export.table_files import write_jsonl
from inferwatch.printing.export.tables import tables
from inferwatch.record.repair.recovery import damage_of, recover_into
from inferwatch.record.sessions.sessions import find
from inferwatch.record.tables.table import SessionPart
from inferwatch.record.writing.recorder import Recorder
from tests.inferwatch.metrics.scripted_pool import Pool, S, shared_load
from tests.inferwatch.record.test_damaged_files import flip

Numbered = tuple[int, AnyReading]
ReadBack = Callable[..., list[Numbered]]


@pytest.fixture
def pool() -> Pool:
    return Pool(120)


@pytest.fixture
def kept(record: Callable[..., Recorder], pool: Pool) -> list[Numbered]:
    """Twelve seconds of a pool, in the test's file."""
    readings = [*shared_load(pool, 12), pool.map(12 * S)]
    recorder = record(capacity=1 << 20)
    for numbered in enumerate(readings, 1):
        recorder.put(*numbered)
    recorder.close()
    return list(enumerate(readings, 1))


def test_what_was_told_comes_back(
    kept: list[Numbered], path: Path, read_back: ReadBack
) -> None:
    assert read_back(path, "last") == kept
    told = {type(reading) for _, reading in kept}
    assert {BlockMap, PromptBlocks} < told


@pytest.mark.parametrize("place", ["block_maps.changes", "prompt_blocks.hashes"])
def test_a_flipped_bit_costs_one_reading_and_draws_nothing_wrong(
    kept: list[Numbered], path: Path, read_back: ReadBack, place: str
) -> None:
    flip(path, place)

    damage = damage_of(path)
    left = read_back(path, "last")

    assert damage is not None
    assert damage.lost == 1
    assert find(path, "last").unrecorded == 1
    assert [each for each in kept if each in left] == left
    assert len(left) == len(kept) - 1
    whole, torn, unlike = Model(), Model(), 0
    numbers = dict(left)
    for ordinal, reading in kept:
        whole.fold(reading)
        if ordinal in numbers:
            torn.fold(numbers[ordinal])
        if isinstance(reading, BlockMap):
            shown = torn.snapshot(reading.t_ns, SnapshotQuery(Window.MINUTE)).block_maps
            right = whole.snapshot(
                reading.t_ns, SnapshotQuery(Window.MINUTE)
            ).block_maps
            stale = ordinal not in numbers
            assert stale or not shown or shown == right
            unlike += shown != right
    assert (unlike > 0) == place.startswith("block_maps")
    assert unlike < 25  # maps, until the next whole one


def test_what_is_left_of_a_damaged_file_is_saved(
    kept: list[Numbered], path: Path, read_back: ReadBack
) -> None:
    flip(path, "block_maps.changes")
    into = path.with_name("saved.db")

    assert recover_into(path, into).lost == 1
    assert len(read_back(into, "last")) == len(kept) - 1


@pytest.mark.parametrize("held", [b'{"holders":"x"}', b'{"blocks":[[1.5]]}', b"[]"])
def test_lists_of_something_else_are_told_in_a_sentence_and_the_rest_is_saved(
    kept: list[Numbered], path: Path, read_back: ReadBack, held: bytes
) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        change = "UPDATE block_maps SET changes = ? WHERE sequence = 3"
        connection.execute(change, (zlib.compress(held),))

    into = path.with_name("saved.db")
    with pytest.raises(StorageError, match="is unreadable"):
        read_back(path, "last")
    assert recover_into(path, into).lost == 1
    assert len(read_back(into, "last")) == len(kept) - 1


def test_an_export_tells_who_held_what(
    kept: list[Numbered], path: Path, pool: Pool, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    with opened(path, "last") as recording:
        every = tables(recording, SessionPart.ALL, token_times=True)
        write_jsonl(every, Destination(path=out))
    rows = [msgspec.json.decode(line) for line in out.read_bytes().splitlines()]
    maps = [row for row in rows if row["table"] == "block_maps"]
    whole = {row["sequence"] for row in maps if row["whole"]}

    held, cached = replayed([r for r in rows if r["table"] == "block_changes"], whole)

    assert held == pool.held
    assert cached == set(pool.content)
    content = [row for row in rows if row["table"] == "prompt_content"]
    prompts = [reading for _, reading in kept if isinstance(reading, PromptBlocks)]
    told = [(p.ordinal, n, h) for p in prompts for n, h in enumerate(p.hashes)]
    assert [(r["member"], r["place"], r["content"]) for r in content] == told


def replayed(
    rows: list[dict[str, Any]], whole: set[int]
) -> tuple[dict[int, list[int]], set[int]]:
    """As anyone would who reads them one after the other."""
    held: dict[int, list[int]] = {}
    cached: set[int] = set()
    begun = -1
    for row in rows:
        if row["sequence"] in whole and row["sequence"] != begun:
            held, cached, begun = {}, set(), row["sequence"]
        match row["change"]:
            case "uncached":
                cached.discard(row["block"])
            case "gone":
                del held[row["member"]]
            case "kept":
                held[row["member"]] = held.get(row["member"], [])[: row["place"]]
            case "held":
                assert len(held[row["member"]]) == row["place"]
                held[row["member"]].append(row["block"])
            case "cached":
                cached.add(row["block"])
    return held, cached


def test_the_program_of_the_page_tells_who_holds_what(
    kept: list[Numbered], path: Path, pool: Pool
) -> None:
    page = Path(__file__).parents[3] / "docs/record.md"
    program = page.read_text("utf-8").partition("def blocks_held")
    text = "import json, zlib\nfrom itertools import accumulate\n" + "".join(
        program[1:]
    )
    known: dict[str, Any] = {}
    exec(text.partition("print(")[0], known)  # noqa: S102 - ours

    with closing(sqlite3.connect(path)) as connection:
        held = known["blocks_held"](connection, 1, 12 * S)

    assert list(held.values()) == [pool.held]
