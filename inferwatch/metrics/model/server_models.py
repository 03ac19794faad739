"""Keeps a Model for each server beside the pooled one, once there are two.

Pooled numbers cannot be separated again. So from the second server on each reading is
folded twice: into the pooled Model and into that server's own. The first server's Model
is a copy of the pooled one, which until then was of that server alone. With one server
there is no cost.
"""

from collections.abc import Callable, Iterable
from typing import Generic, Protocol, Self, TypeVar

import msgspec

from collectors.contract.readings import (
    AnyReading,
    BlockMap,
    Endpoint,
    EngineInfo,
    EngineSettings,
    KvCacheEvents,
    LiveLimits,
    ModelConfig,
    Note,
    NoteKind,
    PromptBlocks,
    RequestEvent,
    RequestSpan,
    Step,
    Totals,
    WatchedSlo,
    WorkerMemory,
)
from inferwatch.metrics.floor.peaks import Devices

MOST_MODELS = 32
"""Largest number of servers with a Model; more have only pooled numbers."""
TOLD_APART = frozenset(
    {
        Step,
        RequestEvent,
        EngineInfo,
        Endpoint,
        Totals,
        RequestSpan,
        KvCacheEvents,
        BlockMap,
        PromptBlocks,
        ModelConfig,
        EngineSettings,
        LiveLimits,
        WorkerMemory,
    }
)
"""Readings that a Model pools; scraped samples are kept apart anyway."""


class PooledModel(Protocol):
    """The methods of a Model that ServerModels needs."""

    def fold(self, reading: AnyReading) -> None:
        """Fold a reading."""

    def copied(self) -> Self: ...

    @property
    def devices(self) -> Devices:
        """The peaks of GPUs and hosts."""
        ...

    def share_devices(self, devices: Devices) -> None:
        """Use the devices of another Model."""

    @property
    def objectives(self) -> tuple[WatchedSlo, ...]: ...


AnyModel = TypeVar("AnyModel", bound=PooledModel)


class SavedServers(msgspec.Struct, array_like=True):
    """ServerModels as checkpoints keep them, without the Models."""

    only: str | None
    gone: list[str]


class ServerModels(Generic[AnyModel]):
    """Detects a second server, and from then on keeps a Model for each."""

    def __init__(self) -> None:
        self.only: str | None = None
        """The only server; None before the first, and once there are several."""
        self.by_source: dict[str, AnyModel] = {}
        """Their Models; empty while there is one server."""
        self._gone: set[str] = set()
        """Servers that were lost; one that takes their place is not a second server."""

    def take(self, reading: AnyReading, pooled: AnyModel) -> None:
        """Fold a reading into its server's Model, before the pooled Model takes it."""
        source = reading.source
        if self.by_source:
            model = self.by_source.get(source) or self._begin(source, pooled)
            if model is not None:
                model.fold(reading)
            return
        if type(reading) is EngineInfo:
            self._gone.discard(source)
        if self.only is None or (self.only in self._gone and source not in self._gone):
            self.only = source
        elif source not in self._gone:
            self.by_source[self.only] = pooled.copied()
            self.only = None
            self.take(reading, pooled)

    def note(self, note: Note) -> None:
        """Fold a note into the Model of its server, or into all."""
        if note.kind is NoteKind.LOST and not self.by_source:
            self._gone.update({note.source} if note.source else {self.only or ""})
        for source, model in self.by_source.items():
            if note.source in {"", source}:
                model.fold(note)

    def saved(self) -> SavedServers:
        """Return the state for a checkpoint, without the Models."""
        return SavedServers(only=self.only, gone=sorted(self._gone))

    def restore(
        self, saved: SavedServers, models: Iterable[tuple[str, AnyModel]]
    ) -> None:
        self.only, self._gone = saved.only, set(saved.gone)
        self.by_source = dict(models)

    def _begin(self, source: str, pooled: AnyModel) -> AnyModel | None:
        if len(self.by_source) >= MOST_MODELS:
            return None
        make: Callable[[], AnyModel] = type(pooled)
        self.by_source[source] = model = make()
        model.share_devices(pooled.devices)
        for each in pooled.objectives:
            model.fold(each)
        return model
