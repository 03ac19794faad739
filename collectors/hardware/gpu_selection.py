"""Selects GPUs by ``--gpus``, else by our own CUDA_VISIBLE_DEVICES."""

from collections.abc import Mapping, Sequence
from itertools import takewhile

from collectors.contract.readings import GpuInfo

VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
ALL, NONE = "all", "none"
SHOWN, BEGINNING = 4, len("GPU-12345678")
UNCLEAR = (
    f"{VISIBLE} counts GPUs as CUDA does, which differs from the driver where models "
    "are mixed: all are shown; name those you mean with --gpus"
)


class GpuSelection:
    """Decides for each GPU and MIG slice whether it is selected."""

    def __init__(
        self,
        wanted: Sequence[str],
        environment: Mapping[str, str],
        names: Sequence[str],
    ) -> None:
        """``names``: models of all GPUs; if mixed, CUDA's numbering is ambiguous."""
        self.unclear: str | None = None
        self._by = "--gpus"
        parts = [part.strip() for each in wanted for part in each.split(",")]
        self._wanted = [part.lower() for part in parts if part]
        visible = environment.get(VISIBLE)
        if not self._wanted and visible is not None:
            self._by = VISIBLE
            listed = [each.strip().lower() for each in visible.split(",")]
            valid = takewhile(lambda each: each[:1] not in {"", "-"}, listed)
            # CUDA ignores everything from there on, too
            self._wanted = [*valid] or [NONE]
            in_order = environment.get(ORDER) == "PCI_BUS_ID" or len(set(names)) == 1
            if not in_order and any(each.isdecimal() for each in self._wanted):
                self._wanted, self.unclear = [ALL], UNCLEAR

    def takes(self, info: GpuInfo) -> bool:
        if not self._wanted or ALL in self._wanted:
            return True
        return any(self._names(each, info) for each in self._wanted)

    def why_none(self, infos: Sequence[GpuInfo]) -> str:
        """Explains that no GPU is selected."""
        if self._wanted == [NONE]:
            return f"{self._by} lets no GPU be seen; --gpus all shows them"
        there = ", ".join(
            f"{each.index} {(each.uuid or '')[:BEGINNING]}" for each in infos[:SHOWN]
        )
        more = ", …" if len(infos) > SHOWN else ""
        return (
            f"{self._by} names none of the GPUs here: {there}{more}; --gpus all shows "
            "them"
        )

    @staticmethod
    def _names(text: str, info: GpuInfo) -> bool:
        if text.isdecimal() and len(text) < 4:
            return info.parent_uuid is None and info.index == int(text)
        uuids = [(each or "").lower() for each in (info.uuid, info.parent_uuid)]
        return any(
            each.startswith(text) or each.partition("-")[2].startswith(text)
            for each in uuids
            if each
        )
