"""A recorded session of a small engine, and what was put into it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collectors.contract.clock import NS_PER_S, SessionClock, monotonic_ns
from collectors.contract.readings import AnyReading
from inferwatch.printing.destination import Destination
from inferwatch.printing.export.recording import Recording, opened
from inferwatch.record.writing.recorder import Recorder

SAMPLES = Path(__file__).parent / "samples"
Recorded = tuple[Path, list[AnyReading]]
Exported = Callable[[Callable[[Recording, Destination], None]], bytes]


def keep_readings(path: Path, readings: list[AnyReading], **options: Any) -> Recorded:
    """Record them, as of half a minute ago; where, and what."""
    clock = SessionClock(monotonic_ns() - 30 * NS_PER_S)
    recorder = Recorder.open(
        path, floor_bytes=0, capacity=1 << 20, clock=clock, **options
    )
    for ordinal, reading in enumerate(readings, 1):
        recorder.put(ordinal, reading)
    recorder.close()
    return path, readings


@pytest.fixture
def keep_session(path: Path) -> Callable[..., Recorded]:
    """``keep_session(readings, name=...)`` records a session in the test's file."""

    def keep(readings: list[AnyReading], **options: Any) -> Recorded:
        return keep_readings(path, readings, **options)

    return keep


@pytest.fixture
def recorded(keep_session: Callable[..., Recorded], traffic: Any) -> Recorded:
    """Eight seconds of a small engine under load."""
    return keep_session([*traffic.start(), *traffic.run(8)], name="before")


@pytest.fixture
def exported(recorded: Recorded, tmp_path: Path) -> Exported:
    """``exported(write)``: what an exporter writes of the recorded session."""

    def run(write: Callable[[Recording, Destination], None]) -> bytes:
        out = tmp_path / "exported"
        with opened(recorded[0], "last") as recording:
            write(recording, Destination(path=out, force=True))
        return out.read_bytes()

    return run


@pytest.fixture
def rows() -> Callable[[bytes], dict[str, list[dict[str, Any]]]]:
    """JSON lines as rows by table."""

    def read(lines: bytes) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = {}
        for line in lines.splitlines():
            row = json.loads(line)
            found.setdefault(row.pop("table"), []).append(row)
        return found

    return read
