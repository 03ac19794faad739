"""The hardware in one row."""

import pytest

from collectors.readings import GpuInfo
from inferwatch.metrics.snapshot import (
    GpuState,
    Hardware,
    Health,
    Snapshot,
    Verdict,
    Window,
)
from inferwatch.ui.shared.status_lines import HostLine


def written(*gpus: GpuInfo, no_gpu: str | None = None) -> str:
    line = HostLine()
    line.show(
        Snapshot(
            now_ns=1,
            window=Window.MINUTE,
            covered_ns=1,
            verdict=Verdict(health=Health.IDLE, sentence=""),
            gpus=tuple(GpuState(source=each.uuid or "", info=each) for each in gpus),
            hardware=Hardware(no_gpu=no_gpu),
        )
    )
    return "".join(run.text for row in line.draw(120, 1) for run in row)


def gpu(number: int, name: str) -> GpuInfo:
    return GpuInfo(t_ns=1, name=name, uuid=f"GPU-{number}")


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["NVIDIA H100"], "GPU NVIDIA H100 "),
        (["NVIDIA H100"] * 2, "GPU 2 × NVIDIA H100 "),
        (["NVIDIA L4", "NVIDIA T4", "NVIDIA L4"], "GPU 2 × NVIDIA L4, NVIDIA T4 "),
    ],
)
def test_all_gpus_are_named(names: list[str], text: str) -> None:
    assert text in written(*(gpu(place, name) for place, name in enumerate(names)))


def test_where_there_is_none_it_says_why() -> None:
    assert "GPU no driver " in written(no_gpu="no driver")
    assert "GPU not checked yet" in written()
