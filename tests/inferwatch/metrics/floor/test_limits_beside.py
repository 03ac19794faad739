"""What GPUs and workers themselves tell of limits; and that looking changes nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from collectors.contract.readings import AnyReading, GpuSample, Reading, WorkerMemory
from inferwatch.limits.devices import device_named
from inferwatch.metrics.floor.view import Limits, MemoryPart
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from tests.inferwatch.metrics.floor.scripted_limits import (
    ENGINE,
    GPU,
    MS,
    Script,
    config,
    gpu,
    info,
    started,
)

See = Callable[..., Snapshot]
GB = 1_000_000_000


def sample(**fields: Any) -> GpuSample:
    known: dict[str, Any] = {
        "source": GPU,
        "t_ns": 5_000 * MS,
        "span_ns": 1_000 * MS,
        "via": "gpm",
    }
    return GpuSample(**{**known, **fields})


def memory(worker: int = 0, uuid: str = GPU) -> WorkerMemory:
    return WorkerMemory(
        source=ENGINE,
        t_ns=0,
        worker=worker,
        gpu=uuid,
        total_bytes=79 * GB,
        allowed_bytes=70 * GB,
        weight_bytes=16 * GB,
        kv_bytes=40 * GB,
        activation_bytes=5 * GB,
        graph_bytes=1 * GB,
        read_from={"weight_bytes": "its parameters"},
        load_s=4.0,
    )


def limits_of(see: See, readings: list[AnyReading]) -> Limits:
    limits = see(readings).limits
    assert limits is not None
    return limits


def test_the_driver_tells_what_is_used_besides_and_what_is_free(see: See) -> None:
    used = sample(memory_used_bytes=65 * GB, memory_reserved_bytes=GB)

    (device,) = limits_of(see, [*started(), memory(), used]).memory

    assert device.total_bytes == 80 * GB
    assert device.allowed_bytes == 70 * GB
    assert device.parts == (
        MemoryPart(name="weights", n_bytes=16 * GB, read_from="its parameters"),
        MemoryPart(name="KV cache", n_bytes=40 * GB, read_from="engine"),
        MemoryPart(name="activations", n_bytes=5 * GB, read_from="engine"),
        MemoryPart(name="graphs", n_bytes=1 * GB, read_from="engine"),
        MemoryPart(name="other", n_bytes=4 * GB, read_from="driver"),
        MemoryPart(name="free", n_bytes=14 * GB, read_from="driver"),
    )


def test_loading_stands_beside_what_pcie_allows(see: See) -> None:
    (device,) = limits_of(see, [*started(), memory(), sample()]).memory

    gen5 = device_named("H100")
    assert gen5 is not None
    assert gen5.pcie_bytes_per_s is not None
    assert device.load_s == 4.0
    assert device.load_floor_s == pytest.approx(16 * GB / gen5.pcie_bytes_per_s)
    assert device.load_floor_s == pytest.approx(0.254, rel=0.05)


def test_each_worker_has_a_budget_of_its_own(see: See) -> None:
    two = [memory(1, "GPU-2"), memory(0)]

    devices = limits_of(see, [*started(tensor_parallel=2), *two]).memory

    assert [(each.worker, each.gpu) for each in devices] == [(0, GPU), (1, "GPU-2")]
    assert "free" not in {part.name for part in devices[1].parts}  # nobody read it


def test_what_gpus_measure_stands_beside_what_steps_imply(see: See) -> None:
    told = sample(dram_active=0.4, peak_bytes_per_s=3.35e12, tensor_active=0.2)

    limits = limits_of(see, [*started(), Script().step({0: 1}), told])

    assert limits.measured_mbu == pytest.approx(0.4)
    assert limits.measured_mfu == pytest.approx(0.2)


def test_what_nobody_measures_is_unknown(see: See) -> None:
    limits = limits_of(see, [*started(), Script().step({0: 1})])

    assert limits.measured_mbu is None
    assert limits.measured_mfu is None
    assert limits.memory == ()


def lively() -> list[Reading]:
    """Two servers; the GPU, the model and its endpoint are learned on the way."""
    readings: list[Reading] = []
    windowed = {"model_type": "mistral", "sliding_window": 64}
    for source in (ENGINE, "engine-2"):
        script = Script(source)
        readings += [info(source=source), *script.prompt(0, 50)]
        readings += [script.step({0: 1}) for _ in range(5)]
        readings += [config(windowed, source=source)]
        readings += [script.step({0: 1}) for _ in range(5)]
        readings += [*script.prompt(1, 100), gpu(), script.step({0: 1, 1: 1})]
        readings += [script.step({0: 1, 1: 1}, took_ms=0.01) for _ in range(20)]
        readings += [gpu(peak_bytes_per_s=1e12), script.step({0: 1, 1: 1})]
    return readings


@pytest.mark.parametrize(
    "source", [None, ENGINE, pytest.param("engine-2", marks=pytest.mark.soak)]
)
def test_looking_on_the_way_changes_nothing(source: str | None) -> None:
    looked, plain = Model(), Model()
    for reading in lively():
        looked.fold(reading)  # type: ignore[arg-type]
        plain.fold(reading)  # type: ignore[arg-type]
        for window in Window:
            looked.snapshot(100 * MS, SnapshotQuery(window))

    for window in Window:
        seen = looked.snapshot(100 * MS, SnapshotQuery(window, source=source))
        assert seen == plain.snapshot(100 * MS, SnapshotQuery(window, source=source))
        assert seen.limits is not None
        assert seen.limits.impossible is not None


def test_a_gpu_is_learned_of_by_the_model_of_each_server() -> None:
    model = Model()
    for reading in lively():
        model.fold(reading)  # type: ignore[arg-type]

    for source in (ENGINE, "engine-2"):
        limits = model.snapshot(
            100 * MS, SnapshotQuery(Window.SESSION, source=source)
        ).limits
        assert limits is not None
        assert limits.peak.bytes_per_s == 1e12
