"""The GPUs, each as it was last, and over time."""

import msgspec

from collectors.readings import GpuInfo
from inferwatch.metrics.snapshot import GpuState

MOST_GPUS = 100


class SavedGpus(msgspec.Struct, array_like=True):
    """All that a GpuTracker keeps."""

    infos: list[GpuInfo]


class GpuTracker:
    """Folds what GPUs say of themselves."""

    def __init__(self) -> None:
        self._infos: dict[str, GpuInfo] = {}
        self.absent_because: str | None = None
        """Why there is none to measure."""

    def info(self, info: GpuInfo) -> None:
        """What a GPU is, or why there is none."""
        if info.uuid is None:
            if not self._infos:
                self.absent_because = info.absent_because
            return
        self.absent_because = None
        if info.uuid in self._infos or len(self._infos) < MOST_GPUS:
            self._infos[info.uuid] = info

    def states(self) -> tuple[GpuState, ...]:
        """Each GPU, in the order of first sight."""
        return tuple(
            GpuState(source=uuid, info=info) for uuid, info in self._infos.items()
        )

    def saved(self) -> SavedGpus:
        """All that is kept."""
        absent = [GpuInfo(t_ns=0, absent_because=self.absent_because)]
        return SavedGpus(
            [*(absent if self.absent_because else []), *self._infos.values()]
        )

    def restore(self, saved: SavedGpus) -> None:
        """Take over what was saved."""
        for info in saved.infos:
            self.info(info)
