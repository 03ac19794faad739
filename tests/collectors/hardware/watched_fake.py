"""The fake driver library, and a source that reads it in a time that tests decide."""

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from collectors.contract.readings import (
    AnyReading,
    GpuInfo,
    GpuProcesses,
    GpuSample,
    Note,
)
from collectors.hardware.gpu_source import GpuOptions, ReadInterval
from collectors.hardware.nvml import NvmlSource
from tests.fake_nvml import FakeNvml

NO_EVENTS = "return nvmlEventSetCreate * 3"
FIRST, SECOND = (f"GPU-5e1f0000-0000-4000-8000-{index:012}" for index in (0, 1))
S = 1_000_000_000


class Watching:
    """What a source told, and all that is in it by GPU."""

    def __init__(
        self,
        fake: FakeNvml,
        options: GpuOptions,
        environment: Mapping[str, str],
    ) -> None:
        self.fake = fake
        self.told: list[AnyReading] = []
        self._now_ns = 0
        self.source = NvmlSource(
            lambda: self._now_ns, options, self.told.append, environment
        )
        self.told += self.source.probe()

    def tick(
        self, seconds: float = 1.0, due: Collection[ReadInterval] = tuple(ReadInterval)
    ) -> None:
        """Let time pass, and sweep."""
        self.pass_(seconds)
        self.told += self.source.read(due)

    def ticks(self, count: int, seconds: float = 1.0) -> None:
        """Several."""
        for _ in range(count):
            self.tick(seconds)

    def pass_(self, seconds: float) -> None:
        """Let time pass."""
        self._now_ns += int(seconds * S)
        self.fake.do(f"jump {seconds}")

    def info(self, uuid: str = FIRST) -> GpuInfo:
        """As it was told last."""
        return [
            each
            for each in self.told
            if isinstance(each, GpuInfo) and each.source == uuid
        ][-1]

    @property
    def absent(self) -> list[str]:
        """Each reason why there is none."""
        return [
            each.absent_because
            for each in self.told
            if isinstance(each, GpuInfo) and each.absent_because
        ]

    @property
    def notes(self) -> list[str]:
        """Their texts."""
        return [each.text for each in self.told if isinstance(each, Note)]

    def samples(self, uuid: str = FIRST) -> list[GpuSample]:
        """All of one GPU."""
        return [
            each
            for each in self.told
            if isinstance(each, GpuSample) and each.source == uuid
        ]

    def last(self, field: str, uuid: str = FIRST) -> Any:
        """What was told of it last."""
        told = [getattr(each, field) for each in self.samples(uuid)]
        known = [each for each in told if each is not None and each != {}]
        return known[-1] if known else None

    def processes(self, uuid: str = FIRST) -> list[GpuProcesses]:
        """All of one GPU."""
        return [
            each
            for each in self.told
            if isinstance(each, GpuProcesses) and each.source == uuid
        ]

    def calls(self, function: str) -> int:
        """How often it was called so far."""
        return self.fake.count(function)


@contextmanager
def watched(
    fake: FakeNvml,
    commands: str = "",
    options: GpuOptions | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    events: bool = False,
) -> Iterator[Watching]:
    """A source that has found what there is; at the end nothing of it may be left."""
    fake.do(f"hold; {'' if events else NO_EVENTS}; {commands}")
    watching = Watching(fake, options or GpuOptions(), environment or {})
    yield watching
    watching.source.close()
    left_clean(fake)
    for sample in (each for each in watching.told if isinstance(each, GpuSample)):
        plausible(sample)


def left_clean(fake: FakeNvml) -> None:
    """Everything was given back, once, and nothing done that the header forbids."""
    assert fake.count("samples alive") == 0
    assert fake.count("left at shutdown") == 0
    assert fake.count("double frees") == 0
    assert fake.count("event sets alive") == 0
    assert fake.count("shutdown races") == 0
    assert fake.count("references") <= 0
    assert fake.count("misuses") == 0, fake.last_misuse


def plausible(sample: GpuSample) -> None:
    """No number in it comes from a value that the driver did not vouch for."""
    for name in sample.__struct_fields__:
        value = getattr(sample, name)
        if isinstance(value, float):
            assert math.isfinite(value), name
            assert abs(value) < 1e15, name
