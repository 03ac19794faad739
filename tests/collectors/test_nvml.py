"""Without a driver the reason is said, not a zero."""

from pathlib import Path

import pytest

from collectors.gpu.nvml import describe_gpus

NO_DRIVER = not Path("/proc/driver/nvidia").exists()


@pytest.mark.skipif(not NO_DRIVER, reason="this machine has an NVIDIA driver")
def test_a_machine_without_driver_says_so() -> None:
    (info,) = describe_gpus(5)

    assert (info.t_ns, info.name, info.absent_because) == (5, None, "no NVIDIA driver")


@pytest.mark.gpu
def test_a_gpu_has_a_name_and_an_identity() -> None:
    for info in describe_gpus(5):
        assert info.name
        assert info.uuid
        assert info.uuid.startswith("GPU-")
