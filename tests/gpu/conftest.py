"""Facts about real GPUs: ``pytest -m gpu tests/gpu``, on Hopper or newer, with torch.

What is measured is printed and kept in ``build/gpu/figures.json``, with the GPU and the
driver it belongs to, so that runs on other hardware can be put side by side. The raw
readings, ``build/gpu/readings.json``, can serve a fake as its truth.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml as nv
import pytest

FOLDER = Path(__file__).parent.parent.parent / "build" / "gpu"
Figures = dict[str, Any]


@pytest.fixture(scope="session")
def gpu() -> Iterator[Any]:
    """The handle of the first GPU; NVML is up meanwhile."""
    try:
        nv.nvmlInit()
    except nv.NVMLError as error:
        pytest.skip(f"the driver does not answer: {error}")
    try:
        if not nv.nvmlDeviceGetCount():
            pytest.skip("there is a driver, but no GPU")
        yield nv.nvmlDeviceGetHandleByIndex(0)
    finally:
        nv.nvmlShutdown()


@pytest.fixture(scope="session")
def hopper(gpu: Any) -> Any:
    """The same, if it has performance counters by NVML."""
    if nv.nvmlDeviceGetArchitecture(gpu) < nv.NVML_DEVICE_ARCH_HOPPER:
        pytest.skip("performance counters need Hopper or newer")
    return gpu


@pytest.fixture(scope="session")
def cuda() -> Any:
    """Torch, with a GPU to work on."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch has no CUDA here")
    return torch


@pytest.fixture(scope="session")
def figures(gpu: Any) -> Iterator[Figures]:
    """What is measured; written down at the end, whatever fails."""
    found: Figures = {
        "gpu": nv.nvmlDeviceGetName(gpu),
        "driver": nv.nvmlSystemGetDriverVersion(),
        "binding": nv.__dict__.get("__version__"),
    }
    yield found
    FOLDER.mkdir(parents=True, exist_ok=True)
    text = json.dumps(found, indent=2, sort_keys=True)
    (FOLDER / "figures.json").write_text(text + "\n", encoding="utf-8")
    print(text)  # noqa: T201 - what it was run for


def code_of(call: Callable[..., object], *arguments: object) -> int:
    """What a call returns, as C has it."""
    try:
        call(*arguments)
    except nv.NVMLError as error:
        return int(error.value)
    return 0
