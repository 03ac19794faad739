"""The least time that a replica takes to load its weights, stage by stage."""

from collections.abc import Sequence
from dataclasses import dataclass

from inferwatch.limits.plan import CapacityPlan

HOST_COPY_BYTES_PER_S = 10e9
"""Estimate: a thread that copies weights within the host's memory (STREAM copy of one
core: McCalpin, *Memory bandwidth and machine balance*, 1995)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadStage:
    """A stage that all weights pass; stages may overlap entirely."""

    name: str
    seconds: float | None
    is_estimate: bool = False


def load_stages(plan: CapacityPlan) -> Sequence[LoadStage]:
    """The stages of loading, each as if it were the only one.

    Storage: all weights, once for all GPUs of a host. Deserialisation: each GPU's
    process copies its share from the page cache. PCIe: each GPU its share. As in Fu et
    al., *ServerlessLLM*, arXiv 2401.14351, sections 4 and 7.2.
    """
    return (
        LoadStage(name="storage", seconds=plan.load_storage_s),
        LoadStage(
            name="deserialisation",
            seconds=plan.weight_bytes / HOST_COPY_BYTES_PER_S,
            is_estimate=True,
        ),
        LoadStage(name="PCIe", seconds=plan.load_pcie_s),
    )


def cold_start_floor_s(plan: CapacityPlan) -> float | None:
    """The slowest stage whose rate is known; engines compile and capture after it."""
    known = [
        each.seconds
        for each in load_stages(plan)
        if each.seconds is not None and not each.is_estimate
    ]
    return max(known, default=None)
