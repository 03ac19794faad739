"""The last minutes of all readings, packed: as they came, in bounded memory."""

import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import AnyReading, Tick
from inferwatch.record.flight.standing import Standing

MOST_UNPACKED = 2_000
"""Readings; mostly it is a second's."""
QUICKLY = 1
"""How hard to pack: a busy engine's second takes some milliseconds."""
UNPACKABLE = (msgspec.MsgspecError, TypeError, ValueError, OverflowError)
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[AnyReading])


class Pack(NamedTuple):
    """Readings that came one after the other."""

    end_ns: int
    """When the last of them had come."""
    readings_count: int
    packed: bytes

    def readings(self) -> list[AnyReading]:
        """As they came."""
        return _decoder.decode(zlib.decompress(self.packed))


class KeptReadings:
    """What came in the last minutes, and what stands from before.

    It is let go of second by second: by the ticks, which say what time it is.
    """

    def __init__(self, keep_ns: int, most_bytes: int) -> None:
        self._keep_ns, self.most_bytes = keep_ns, most_bytes
        self.bytes = 0
        """That the packs take."""
        self.since_ns = 0
        """All that came since then is here."""
        self.cut_short = False
        """Memory was short: less is here than was asked for."""
        self.unpackable = 0
        """Readings that hold what cannot be packed."""
        self.latest_ns = 0
        """Of the last tick."""
        self._standing = Standing()
        self._packs: deque[Pack] = deque()
        self._unpacked: list[AnyReading] = []

    def add(self, reading: AnyReading) -> None:
        """Take what comes next."""
        self._unpacked.append(reading)
        if type(reading) is Tick:
            self.latest_ns = reading.t_ns
            self._pack()
        elif len(self._unpacked) >= MOST_UNPACKED:
            self._pack()

    @property
    def keep_s(self) -> float:
        """How long it is to go back."""
        return self._keep_ns / NS_PER_S

    @property
    def covered_s(self) -> float:
        """How long it goes back."""
        return (self.latest_ns - self.since_ns) / NS_PER_S

    def contents(self, as_of_ns: int) -> tuple[int, Iterator[AnyReading]]:
        """How many there are, and what stands first; for any thread, as of now."""
        standing, packs = self._standing.as_of(as_of_ns), list(self._packs)
        rest = list(self._unpacked)
        count = len(standing) + sum(each.readings_count for each in packs) + len(rest)
        return count, _one_by_one(standing, packs, rest)

    def _pack(self) -> None:
        readings, self._unpacked = self._unpacked, []
        readings, packed = self._packed(readings)
        self._packs.append(Pack(self.latest_ns, len(readings), packed))
        self.bytes += len(packed)
        before_ns = self.latest_ns - self._keep_ns
        while self._packs and self._packs[0].end_ns < before_ns:
            self._let_go()
        if self._packs and self._packs[0].end_ns <= before_ns + 2 * NS_PER_S:
            self.cut_short = False
        while len(self._packs) > 1 and self.bytes > self.most_bytes:
            self.cut_short = True
            self._let_go()

    def _packed(self, readings: list[AnyReading]) -> tuple[list[AnyReading], bytes]:
        try:
            encoded = _encoder.encode(readings)
        except UNPACKABLE:
            whole = [each for each in readings if _is_packable(each)]
            self.unpackable += len(readings) - len(whole)
            readings, encoded = whole, _encoder.encode(whole)
        return readings, zlib.compress(encoded, QUICKLY)

    def _let_go(self) -> None:
        oldest = self._packs.popleft()
        self.bytes -= len(oldest.packed)
        self.since_ns = oldest.end_ns
        for reading in oldest.readings():
            self._standing.take(reading)


def _one_by_one(
    standing: Iterable[AnyReading], packs: Iterable[Pack], rest: Iterable[AnyReading]
) -> Iterator[AnyReading]:
    yield from standing
    for pack in packs:
        yield from pack.readings()
    yield from rest


def _is_packable(reading: AnyReading) -> bool:
    try:
        _encoder.encode(reading)
    except UNPACKABLE:
        return False
    return True
