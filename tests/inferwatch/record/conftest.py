"""Reads back what was recorded."""

from collections.abc import Callable
from pathlib import Path

import pytest

from collectors.contract.readings import AnyReading
from inferwatch.record.connections import open_for_reading
from inferwatch.record.sessions.sessions import find
from inferwatch.record.tables.codec import recorded


@pytest.fixture
def read_back() -> Callable[[Path, str], list[tuple[int, AnyReading]]]:
    """Reads a session without asyncio: numbered readings in order."""

    def read(path: Path, wanted: str = "last") -> list[tuple[int, AnyReading]]:
        session = find(path, wanted).session
        connection = open_for_reading(path)
        try:
            connection.execute("BEGIN")
            return list(recorded(connection, session))
        finally:
            connection.close()

    return read
