"""What of a Model is kept, so that it can be made again without its readings.

A *saved* Model is plain data: MessagePack with a type for everything in it, so that
reading a strange one can fail, but do nothing else. Much of it has not changed since it
was last saved: that stands in *parts* of its own, equal bytes for equal content; what
will be another the next time stands in its state. Sealed blocks of rows never change
and are not in it at all: whoever keeps it keeps them, too.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import msgspec

from collectors.readings import (
    BoundBy,
    Endpoint,
    EngineInfo,
    GpuInfo,
    HostSample,
    Note,
    Step,
    Totals,
)
from inferwatch.metrics.series.recent import Block, SavedRows
from inferwatch.metrics.words import RequestState

Kind = TypeVar("Kind")


class Parts:
    """Parts that are being written: those that last are numbered from 0 up."""

    def __init__(self) -> None:
        self.lasting: list[bytes] = []
        """Likely equal the next time: to be kept once."""
        self.passing: list[bytes] = []
        """Numbered from -1 down."""

    def add(self, content: object, *, lasts: bool) -> int:
        """One more; its number."""
        parts = self.lasting if lasts else self.passing
        parts.append(msgspec.msgpack.encode(content))
        return len(parts) - 1 if lasts else -len(parts)

    def add_queue(self, content: Sequence[object], gone: int, chunk: int) -> list[int]:
        """What grows at its end and shrinks at its front: only whole chunks last.

        ``gone`` is how many left before these, so that chunks begin at equal places.
        """
        cuts = [0, *range(chunk - gone % chunk, len(content), chunk), len(content)]
        return [
            self.add(content[begin:end], lasts=end - begin == chunk)
            for begin, end in pairwise(cuts)
        ]


class WrittenParts:
    """Parts that are being read."""

    def __init__(self, lasting: Sequence[bytes], passing: Sequence[bytes]) -> None:
        self._lasting = lasting
        self._passing = passing

    def get(self, number: int, kind: type[Kind]) -> Kind:
        """Decode one.

        Raises:
            msgspec.MsgspecError: it holds something else.
        """
        parts, place = self._lasting, number
        if number < 0:
            parts, place = self._passing, -1 - number
        if place >= len(parts):
            raise msgspec.ValidationError("a part is missing")
        return msgspec.msgpack.decode(parts[place], type=kind)


class SavedTallies(msgspec.Struct, array_like=True):
    """Counts, with those of open rows that were settled early."""

    count: int
    sums: list[int]
    maxima: list[int]


class SavedFailures(msgspec.Struct, array_like=True):
    """Ids of requests that failed."""

    parts: list[int]
    """Numbers of the parts that hold them."""
    gone: int
    """How many were forgotten before those."""


class SavedHistory(msgspec.Struct, array_like=True):
    """Numbers of parts that hold bins by their index."""

    rolling: list[list[int]]
    whole: list[int]
    whole_bin_ns: int


SavedRequest = msgspec.defstruct(
    "SavedRequest",
    [
        ("source", str),
        ("seen_ns", int),
        ("request_id", str | None),
        ("external_id", str | None),
        ("ordinal", int | None),
        ("rank", int | None),
        ("state", RequestState),
        *[(name, bool) for name in ("ended", "front_ended", "engine_ended")],
        ("reason", str | None),
        *[(f"{name}_ns", int | None) for name in ("arrived", "added", "waiting_since")],
        *[(f"{name}_ns", int | None) for name in ("scheduled", "first", "last")],
        *[(f"{name}_ns", int | None) for name in ("ttft", "e2el", "queue", "prefill")],
        ("itl_last_ns", int | None),
        ("itl_max_ns", int),
        *[(f"{name}_tokens", int | None) for name in ("prompt", "cached", "max")],
        ("temperature", float | None),
        ("prefilled_tokens", int),
        ("output_tokens", int),
        ("reported_tokens", int | None),
        ("preemptions", int),
        *[(name, bool) for name in ("awaits_first", "trusted", "steady")],
        ("tpot_due_ns", int | None),
        *[(f"{name}_counted", bool) for name in ("tpot", "arrival", "prompt")],
        ("counted_as", RequestState | None),
        ("counted_ns", int),
    ],
    array_like=True,
    gc=False,
)
"""All fields of a Request but its row."""


class SavedRequests(msgspec.Struct, array_like=True):
    """Requests are named by their place: the live, the ended, the remembered ones."""

    live: int
    """Number of the part with the live ones."""
    ended: list[int]
    """Likewise, in chunks that begin at multiples of their size."""
    gone: int
    """How many ended before those."""
    remembered: list[int]
    """Likewise, of those without a row."""
    forgotten: int
    """How many were remembered before those."""
    waiting: list[int]
    running: list[int]
    unsure: list[int]
    unmapped: list[int]
    """Have an ordinal that means them no more."""
    sources: list[str]
    busy_since_ns: int | None
    seen: int


class SavedRank(msgspec.Struct, array_like=True):
    """One EngineCore."""

    source: str
    rank: int
    info: EngineInfo | None
    step: Step | None
    totals: Totals | None
    kv: tuple[int | None, int | None, int | None]
    last_end_ns: int | None
    waiting_since_ns: int | None
    calm_since_ns: int | None
    lost: bool


class SavedEngines(msgspec.Struct, array_like=True):
    """All of them."""

    ranks: list[SavedRank]
    endpoints: dict[str, Endpoint]
    peak_used_blocks: int | None


class SavedCost(msgspec.Struct, array_like=True):
    """What watching costs."""

    dropped: int
    hosts: list[HostSample]
    totals: list[Totals]


class SavedObserver(msgspec.Struct, array_like=True):
    """What the verdict needs."""

    stage: Note | None
    lost: Note | None
    up_ns: int | None
    last_work_ns: int | None
    durations_ns: list[int]
    bounds: list[tuple[int, BoundBy]]


class SavedState(msgspec.Struct, array_like=True):
    """Everything but the parts that last, and the blocks."""

    passing: list[bytes]
    """The parts that do not."""
    rows: dict[str, SavedRows]
    tallies: dict[str, SavedTallies]
    history: SavedHistory
    failed: SavedFailures
    requests: SavedRequests
    engines: SavedEngines
    client: bytes
    """Sealed."""
    cost: SavedCost
    observer: SavedObserver
    notes: list[Note]
    gpus: list[GpuInfo]
    last_token_ns: int | None
    began_ns: int | None


class SavedModel(msgspec.Struct, frozen=True):
    """As it is kept."""

    state: bytes
    parts: list[bytes]
    blocks: dict[str, tuple[int, tuple[Any, ...]]]
    """By the name of the rows: how many blocks were sealed so far, and the latest."""


BlocksOf = Callable[[str, SavedRows], Sequence[Block]]
"""The sealed blocks that some rows still hold."""
