"""The hardware in one row."""

import pytest

from collectors.readings import GpuInfo
from inferwatch.metrics.snapshot import Health, Snapshot, Verdict, Window
from inferwatch.ui.shared.status_lines import HostLine


def written(*gpus: GpuInfo) -> str:
    line = HostLine()
    line.show(
        Snapshot(
            now_ns=1,
            window=Window.MINUTE,
            covered_ns=1,
            verdict=Verdict(health=Health.IDLE, sentence=""),
            gpus=gpus,
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
    assert "GPU no driver " in written(GpuInfo(t_ns=1, absent_because="no driver"))
    assert "GPU not checked yet" in written()
