"""Checkpoints of a Model: how it is saved, to be restored without its readings.

The saved form of each class is next to that class: MessagePack with a type for
everything in it, so that reading unknown bytes may fail but does nothing else. Content
that has mostly not changed since the last checkpoint is in *parts* of its own, equal
bytes for equal content; the rest is in the Model's state. Sealed blocks of rows never
change and are in neither: they are saved by whoever saves the Model.
"""

from collections.abc import Sequence
from itertools import pairwise
from threading import Lock
from typing import Any, TypeVar

import msgspec

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import AnyReading, Step

Kind = TypeVar("Kind")
CHUNK = 32
"""Items of some hundred bytes per part."""
MOST_EFFORT = 10_000
"""Readings between two checkpoints: about 40 ms of reading and folding."""
STEP_EFFORT = 4
"""Cost of a step in other readings; more with its number of members."""
MEMBERS_AN_EFFORT = 6
LONGEST_NS = 60 * NS_PER_S
"""Longest time between checkpoints, so that no block of rows is dropped before."""


class Parts:
    """The parts of a Model that is being saved; lasting ones are numbered from 0 up."""

    def __init__(self) -> None:
        self.lasting: list[bytes] = []
        """Parts that are likely to be equal the next time, and saved once."""
        self.passing: list[bytes] = []
        """Parts that change, numbered from -1 down."""

    def add(self, content: object, *, lasts: bool) -> int:
        parts = self.lasting if lasts else self.passing
        parts.append(msgspec.msgpack.encode(content))
        return len(parts) - 1 if lasts else -len(parts)

    def add_queue(self, content: Sequence[object], gone: int, chunk: int) -> list[int]:
        """Add a queue as parts of ``chunk`` items; full ones do not change any more.

        ``gone`` is the number of items that left the queue before, so that chunks
        always begin at the same items.
        """
        cuts = [0, *range(chunk - gone % chunk, len(content), chunk), len(content)]
        return [
            self.add(content[begin:end], lasts=end - begin == chunk)
            for begin, end in pairwise(cuts)
        ]


class WrittenParts:
    """The parts of a Model that is being restored."""

    def __init__(self, lasting: Sequence[bytes], passing: Sequence[bytes]) -> None:
        self._lasting = lasting
        self._passing = passing

    def get(self, number: int, kind: type[Kind]) -> Kind:
        """Return the content of a part.

        Raises:
            msgspec.MsgspecError: it holds something else.
        """
        parts, place = self._lasting, number
        if number < 0:
            parts, place = self._passing, -1 - number
        if place >= len(parts):
            raise msgspec.ValidationError("a part is missing")
        return _decoder(kind).decode(parts[place])


_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}
_learning = Lock()


def _decoder(kind: type[Kind]) -> "msgspec.msgpack.Decoder[Kind]":
    """Return the decoder of a type, created once.

    msgspec inspects a type when it is first needed, and crashes the process if two
    threads do that at the same time, as when several restore Models.
    """
    with _learning:
        if kind not in _decoders:
            _decoders[kind] = msgspec.msgpack.Decoder(kind)
        return _decoders[kind]


class CheckpointPace:
    """Decides when a checkpoint is due, so that resuming from one is quick."""

    def __init__(self, since_ns: int | None = None) -> None:
        """Begin at the last checkpoint, so that resuming keeps its pace."""
        self._effort = 0
        self._since_ns = since_ns

    def due(self, reading: AnyReading, t_ns: int) -> bool:
        """Return whether a checkpoint should follow a reading received at ``t_ns``."""
        if self._since_ns is None:
            self._since_ns = t_ns
        self._effort += 1
        if type(reading) is Step:
            self._effort += STEP_EFFORT - 1 + len(reading.members) // MEMBERS_AN_EFFORT
        if self._effort < MOST_EFFORT and t_ns - self._since_ns < LONGEST_NS:
            return False
        self._effort, self._since_ns = 0, t_ns
        return True
