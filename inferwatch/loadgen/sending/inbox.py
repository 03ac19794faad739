"""Lines that come on a descriptor: waited for at first, heard beside the work later."""

import asyncio
import os
from collections.abc import Callable

CHUNK = 1 << 16
MOST_BYTES = 1 << 16
"""Of a line that is heard; more is no command, and is not kept."""


class Inbox:
    """Standard input of a process that has better to do than to read."""

    def __init__(self, fileno: int) -> None:
        self._fileno = fileno
        self._rest = b""
        self._hear: Callable[[bytes], None] = lambda _: None

    def line(self) -> bytes:
        """Wait for a whole line, however long; the last may lack its end."""
        parts = [self._rest]
        while b"\n" not in parts[-1] and (more := os.read(self._fileno, CHUNK)):
            parts.append(more)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return line

    def listen(self, hear: Callable[[bytes], None]) -> None:
        """Give each further line to ``hear``; costs nothing while none comes."""
        self._hear = hear
        try:
            asyncio.get_running_loop().add_reader(self._fileno, self._read)
        except OSError:
            return  # a file or nothing at all: nobody will say more
        self._take(b"")

    def _read(self) -> None:
        data = os.read(self._fileno, CHUNK)
        if not data:
            asyncio.get_running_loop().remove_reader(self._fileno)
        self._take(data)

    def _take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in filter(None, lines):
            self._hear(line)
        if len(self._rest) > MOST_BYTES:
            self._rest = b""
