"""How a Model is kept, so that it can be made again without its readings; how often.

What is saved of a part stands beside that part: MessagePack with a type for everything
in it, so that reading a strange one can fail, but do nothing else. Much of it has not
changed since it was last saved: that stands in *parts* of its own, equal bytes for
equal content; what will be another the next time stands in the Model's state. Sealed
blocks of rows never change and are in neither: whoever keeps a Model keeps them, too.
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
"""Items of some hundred bytes that share a part."""
MOST_EFFORT = 10_000
"""Between two checkpoints: about 40 ms of reading and folding."""
STEP_EFFORT = 4
"""In readings of other kinds; and one more for so many members:"""
MEMBERS_AN_EFFORT = 6
LONGEST_NS = 60 * NS_PER_S
"""No block of rows is forgotten in that time, however slow the engine."""


class Parts:
    """The parts of a Model that is being saved; the lasting are numbered from 0 up."""

    def __init__(self) -> None:
        self.lasting: list[bytes] = []
        """Likely equal the next time: to be kept once."""
        self.passing: list[bytes] = []
        """Numbered from -1 down."""

    def add(self, content: object, *, lasts: bool) -> int:
        """Add a part; return its number."""
        parts = self.lasting if lasts else self.passing
        parts.append(msgspec.msgpack.encode(content))
        return len(parts) - 1 if lasts else -len(parts)

    def add_queue(self, content: Sequence[object], gone: int, chunk: int) -> list[int]:
        """Add the parts of a queue; only those that hold a whole chunk last.

        ``gone`` is how many left before these, so that chunks begin at equal places.
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
        """The content of one.

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
    """The one for a kind.

    msgspec learns a type when it is first needed, and crashes the process where two
    threads need it first at the same time: several restore Models.
    """
    with _learning:
        if kind not in _decoders:
            _decoders[kind] = msgspec.msgpack.Decoder(kind)
        return _decoders[kind]


class CheckpointPace:
    """Says when a checkpoint is due: so often that going on from one is quick."""

    def __init__(self, since_ns: int | None = None) -> None:
        """Begin at the last checkpoint: whoever goes on from it keeps its pace."""
        self._effort = 0
        self._since_ns = since_ns

    def due(self, reading: AnyReading, t_ns: int) -> bool:
        """A checkpoint should follow this reading, which was there at that moment."""
        if self._since_ns is None:
            self._since_ns = t_ns
        self._effort += 1
        if type(reading) is Step:
            self._effort += STEP_EFFORT - 1 + len(reading.members) // MEMBERS_AN_EFFORT
        if self._effort < MOST_EFFORT and t_ns - self._since_ns < LONGEST_NS:
            return False
        self._effort, self._since_ns = 0, t_ns
        return True
