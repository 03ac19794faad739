"""Whatever byte of a record has changed: a result or a sentence, never a traceback."""

import asyncio
import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from inferwatch.cli.main import main
from inferwatch.errors import InferwatchError
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.record.repair import recovery
from inferwatch.record.replay.marks import keep_bookmark
from inferwatch.record.replay.player import Player
from inferwatch.record.sessions.sessions import find
from inferwatch.record.writing.recorder import Recorder

FLIPS = 200
AT_ONCE = 32
A_FEW = 4
"""One of each kind, in whatever is there and in what is not an empty space."""
KINDS = ("csv", "jsonl", "perfetto", "html")


@pytest.fixture(scope="module")
def recorded(
    traffic_of: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> bytes:
    """A small file with something in most tables."""
    path = tmp_path_factory.mktemp("recorded") / "whole.db"
    recorder = Recorder.open(path, floor_bytes=0, command="demo")
    traffic = traffic_of(seed=3)
    for numbered in enumerate([*traffic.start(), *traffic.run(0.5)], 1):
        recorder.put(*numbered)
    recorder.close()
    keep_bookmark(path, find(path, "last"), 5, "here")
    return path.read_bytes()


def flipped(data: bytes, seed: int) -> bytes:
    """Another value for one byte; half of the time one that is not in empty space."""
    chance, torn = random.Random(seed), bytearray(data)
    at = chance.randrange(len(data))
    while seed % 2 and not data[at]:
        at = chance.randrange(len(data))
    torn[at] ^= 1 << chance.randrange(8) if seed % 4 < 2 else chance.randrange(1, 256)
    return bytes(torn)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> None:
    """A command that may fail, in a sentence."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    said = capsys.readouterr()
    assert ended.value.code in {0, 2}, said.err
    assert ended.value.code == 0 or said.err.startswith("inferwatch: "), said.err
    assert "Traceback" not in said.err + said.out


async def look(path: Path) -> None:
    """Go to some moments of the last session, as the screens do."""
    try:
        player = Player.open(path, "last")
    except InferwatchError:
        return
    with closing(player):
        player._scan.look()
        player._builder.build()
        await player.playback.go_live()
        player.snapshot(SnapshotQuery(Window.SESSION))
        await player.playback.seek(player.playback.span_ns[1] // 2)
        player.snapshot(SnapshotQuery(Window.MINUTE, client=True))
        await player.playback.step(1)
        assert player.wall_text(player.now_ns())


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(A_FEW), id="a few"),
        *(
            pytest.param(range(first, first + AT_ONCE), marks=pytest.mark.soak)
            for first in range(A_FEW, FLIPS // 2, AT_ONCE)
        ),
    ],
)
@pytest.mark.parametrize("large", [False, True], ids=["checked", "too large to check"])
def test_a_flipped_byte_ends_in_a_result_or_a_sentence(
    recorded: bytes,
    path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    seeds: range,
    *,
    large: bool,
) -> None:
    if large:
        monkeypatch.setattr(recovery, "CHECKED_UP_TO_BYTES", 0)
    for seed in seeds:
        path.unlink(missing_ok=True)
        path.write_bytes(flipped(recorded, seed + large * FLIPS))
        kind = KINDS[seed % len(KINDS)]
        into = path.with_name(f"{seed}.{kind}")

        of = ("last", "--db", str(path))
        run(capsys, "replay", *of, "--json")
        run(capsys, "export", *of, "--format", kind, "-o", str(into))
        asyncio.run(look(path))
