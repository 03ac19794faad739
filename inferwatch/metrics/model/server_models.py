"""A Model for each server beside the one of all, once readings come of two.

What is exact of one server cannot be taken out again of what all are pooled into. So
from the second server on, each reading of a server is folded twice: into the Model of
all, and into that server's own. That of the first server is a copy of what there was:
until then everything was of it. A session of one server pays nothing.
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
"""Servers with a Model; of more there is only what all have in common."""
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
"""What a Model pools; samples of scrapes are kept apart there as it is."""


class PooledModel(Protocol):
    """What a Model can do that is told of several servers, or of one of them."""

    def fold(self, reading: AnyReading) -> None:
        """Take in a reading."""

    def copied(self) -> Self: ...

    @property
    def devices(self) -> Devices:
        """What GPUs could move, which is the same for all servers."""
        ...

    def share_devices(self, devices: Devices) -> None:
        """Go by those of another Model."""

    @property
    def objectives(self) -> tuple[WatchedSlo, ...]: ...


AnyModel = TypeVar("AnyModel", bound=PooledModel)


class SavedServers(msgspec.Struct, array_like=True):
    """ServerModels, but for the Models."""

    only: str | None
    gone: list[str]


class ServerModels(Generic[AnyModel]):
    """Finds out when there is a second server; from then on has a Model for each."""

    def __init__(self) -> None:
        self.only: str | None = None
        """The one server there is; None before the first, and when there are more."""
        self.models: dict[str, AnyModel] = {}
        """By source; none while there is one server."""
        self._gone: set[str] = set()
        """Servers that were lost: who comes after one is not beside it."""

    def take(self, reading: AnyReading, pooled: AnyModel) -> None:
        """A reading of another server than the only one, before all are told of it."""
        source = reading.source
        if self.models:
            model = self.models.get(source) or self._begin(source, pooled)
            if model is not None:
                model.fold(reading)
            return
        if type(reading) is EngineInfo:
            self._gone.discard(source)
        if self.only is None or (self.only in self._gone and source not in self._gone):
            self.only = source
        elif source not in self._gone:
            self.models[self.only] = pooled.copied()
            self.only = None
            self.take(reading, pooled)

    def note(self, note: Note) -> None:
        """A note of one server, or of all."""
        if note.kind is NoteKind.LOST and not self.models:
            self._gone.update({note.source} if note.source else {self.only or ""})
        for source, model in self.models.items():
            if note.source in {"", source}:
                model.fold(note)

    def saved(self) -> SavedServers:
        """All but the Models, which are saved as Models are."""
        return SavedServers(only=self.only, gone=sorted(self._gone))

    def restore(
        self, saved: SavedServers, models: Iterable[tuple[str, AnyModel]]
    ) -> None:
        self.only, self._gone = saved.only, set(saved.gone)
        self.models = dict(models)

    def _begin(self, source: str, pooled: AnyModel) -> AnyModel | None:
        if len(self.models) >= MOST_MODELS:
            return None
        make: Callable[[], AnyModel] = type(pooled)
        self.models[source] = model = make()
        model.share_devices(pooled.devices)
        for each in pooled.objectives:
            model.fold(each)
        return model
