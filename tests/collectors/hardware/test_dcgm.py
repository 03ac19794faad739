"""GPUs as a scraper of a dcgm-exporter tells them: our handling, not NVIDIA's."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from statistics import median
from typing import TypeVar

import pytest

from collectors.contract.clock import SessionClock
from collectors.contract.collector import CollectorError
from collectors.contract.readings import AnyReading, GpuInfo, GpuSample, Note
from collectors.hardware import dcgm
from collectors.hardware.dcgm import (
    DcgmScraper,
    GpuSourceArbiter,
    dcgm_scrapers,
    dcgm_server,
)
from collectors.hardware.dcgm_page import NOT_YET, DcgmPage
from collectors.hardware.gpu_source import GpuOptions
from collectors.http.server import Server
from tests.collectors.hardware.truth_exporter import (
    ALL_OF_PROFILING,
    FP64_BLANK,
    GPU_A,
    GPU_B,
    INT32_BLANK,
    INT64_BLANK,
    TruthExporter,
    TruthGpu,
)
from tests.collectors.http_server import Serving, serving, whole

Kind = TypeVar("Kind", bound=AnyReading)
SLICES = (TruthGpu(instance=1), TruthGpu(instance=2, profile="2g.20gb"))


class Seen:
    """What scrapers have told so far."""

    def __init__(self) -> None:
        self.readings: list[AnyReading] = []
        self._news = asyncio.Condition()

    async def watch(self, scraper: DcgmScraper) -> None:
        async for batch in scraper.batches():
            async with self._news:
                self.readings.extend(batch)
                self._news.notify_all()

    def of(self, kind: type[Kind], source: str | None = None) -> list[Kind]:
        return [
            each
            for each in self.readings
            if isinstance(each, kind) and source in {None, each.source}
        ]

    @property
    def notes(self) -> list[str]:
        return [each.text for each in self.of(Note)]

    async def until(self, true: Callable[[], object]) -> None:
        """Wait until that is so."""
        async with asyncio.timeout(20), self._news:
            await self._news.wait_for(lambda: bool(true()))

    async def samples(self, count: int, source: str | None = None) -> list[GpuSample]:
        await self.until(lambda: len(self.of(GpuSample, source)) >= count)
        return self.of(GpuSample, source)

    async def info(self, source: str = GPU_A) -> GpuInfo:
        """The first of a GPU."""
        await self.until(lambda: self.of(GpuInfo, source))
        return self.of(GpuInfo, source)[0]


@asynccontextmanager
async def scraping(*scrapers: DcgmScraper) -> AsyncIterator[Seen]:
    """Somebody who watches what they tell."""
    seen = Seen()
    tasks = [asyncio.create_task(seen.watch(each)) for each in scrapers]
    try:
        yield seen
    finally:
        await asyncio.gather(*(each.close() for each in scrapers))
        async with asyncio.timeout(20):
            await asyncio.gather(*tasks)


def scraper(
    server: Serving | str,
    measured: GpuSourceArbiter | None = None,
    *,
    options: GpuOptions | None = None,
    asked: bool = True,
) -> DcgmScraper:
    url = server if isinstance(server, str) else server.url
    return DcgmScraper(
        SessionClock(),
        Server(url=url, every_s=0.005),
        measured,
        options=options,
        asked=asked,
    )


@asynccontextmanager
async def watching(exporter: TruthExporter) -> AsyncIterator[tuple[Serving, Seen]]:
    """An exporter, and somebody who watches it."""
    async with serving({"/metrics": exporter.page()}) as server:
        async with scraping(scraper(server)) as seen:
            yield server, seen


async def asked_again(server: Serving, times: int = 3) -> None:
    """Wait until it was asked so often, from now."""
    before = len(server.asked)
    async with asyncio.timeout(20):
        while len(server.asked) < before + times:  # noqa: ASYNC110 - it tells no events
            await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits as long as a person would."""
    monkeypatch.setattr(dcgm, "LONGEST_PAUSE_S", 0.02)
    monkeypatch.setattr(dcgm, "LOOK_EVERY_S", 0.02)


# What a page says.


@pytest.mark.parametrize("new_names", [False, True], ids=["DCGM 4.5", "DCGM 4.6"])
async def test_a_gpu_is_told_by_either_generation_of_names(new_names: bool) -> None:
    exporter = TruthExporter(new_names=new_names)
    exporter.instead = dict(ALL_OF_PROFILING)

    async with watching(exporter) as (_, seen):
        (sample, *_) = await seen.samples(1)
        info = await seen.info()

    assert (sample.source, sample.via, sample.span_ns) == (GPU_A, "dcgm", None)
    assert sample.dram_active == pytest.approx(0.1)
    assert sample.tensor_active == pytest.approx(0.05)
    assert (sample.sm_active, sample.sm_occupancy) == (0.75, 0.25)
    assert (sample.pcie_tx_bytes_per_s, sample.pcie_rx_bytes_per_s) == (1.5e6, 2.5e6)
    assert (sample.nvlink_tx_bytes_per_s, sample.nvlink_rx_bytes_per_s) == (3e6, 4e6)
    assert (sample.gpu_busy, sample.memory_busy) == (0.97, 0.6)
    assert (sample.power_w, sample.energy_mj) == (300.1, 7_000_000)
    assert (sample.sm_clock_mhz, sample.memory_clock_mhz) == (1410, 1593)
    assert (sample.temperature_c, sample.memory_temperature_c) == (52, 61)
    assert sample.memory_used_bytes == 80_000 * 1024 * 1024
    assert sample.memory_reserved_bytes == 920 * 1024 * 1024
    assert sample.peak_bytes_per_s == 2.039e12
    assert (info.name, info.uuid, info.index) == ("NVIDIA A100-SXM4-80GB", GPU_A, 0)
    assert info.pci_bus_id == "00000000:07:00.0"
    assert info.driver == "580.65.06 simulated"
    assert info.memory_bytes == 81_920 * 1024 * 1024
    assert (info.peak_bytes_per_s, info.peak_from) == (2.039e12, "data sheet")


async def test_what_the_default_csv_file_leaves_out_is_missing_with_its_line() -> None:
    async with watching(TruthExporter()) as (_, seen):
        info = await seen.info()
        (sample, *_) = await seen.samples(1)

    assert sample.sm_active is None
    assert info.missing["sm_active"] == (
        "dcgm-exporter was not told to show it: add the line "
        "'DCGM_FI_PROF_SM_ACTIVE, gauge, SM active' to its CSV file (-f FILE)"
    )
    assert "'DCGM_FI_PROF_SM_OCCUPANCY, " in info.missing["sm_occupancy"]
    assert not info.missing.keys() & {"dram_active", "tensor_active", "power_w"}


async def test_without_any_profiling_the_capability_is_named() -> None:
    exporter = TruthExporter()
    exporter.instead = {
        f"DCGM_FI_PROF_{name}": None
        for name in (
            *("PIPE_TENSOR_ACTIVE", "DRAM_ACTIVE", "PCIE_TX_BYTES", "PCIE_RX_BYTES"),
        )
    }

    async with watching(exporter) as (_, seen):
        info = await seen.info()
        (sample, *_) = await seen.samples(1)

    assert sample.dram_active is None
    assert sample.power_w is not None
    assert "--cap-add SYS_ADMIN" in info.missing["dram_active"]


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (0, "no value of it yet"),
        (1, "does not find it"),
        (2, "does not support it"),
        (3, "--cap-add SYS_ADMIN"),
    ],
)
@pytest.mark.parametrize(
    ("metric", "field", "blank"),
    [
        ("DCGM_FI_PROF_DRAM_ACTIVE", "dram_active", float(FP64_BLANK)),
        ("DCGM_FI_DEV_MEMORY_TEMP", "memory_temperature_c", INT64_BLANK),
        ("DCGM_FI_DEV_GPU_UTIL", "gpu_busy", INT32_BLANK),
        ("DCGM_FI_DEV_FB_USED", "memory_used_bytes", INT32_BLANK),
    ],
    ids=["double", "64 bits", "32 bits", "32 bits, unbounded"],
)
async def test_a_blank_is_no_value_and_says_why(
    metric: str, field: str, blank: float, code: int, why: str
) -> None:
    exporter = TruthExporter()
    exporter.instead[metric] = blank + code

    async with watching(exporter) as (_, seen):
        info = await seen.info()
        (sample, *_) = await seen.samples(1)

    assert getattr(sample, field) is None
    assert why in info.missing[field]


def test_a_number_of_any_length_is_read() -> None:
    line = f'DCGM_FI_DEV_GPU_TEMP{{UUID="{GPU_A}"}}'

    (gpu,) = DcgmPage().read(f"{line} {'0' * 4_300}{INT64_BLANK}\n")

    assert gpu.values == {}
    assert gpu.blank == {"temperature_c": NOT_YET}


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1e300", "11", "1_0", "ERROR"])
async def test_a_share_that_cannot_be_is_left_out(value: str) -> None:
    exporter = TruthExporter()
    exporter.instead["DCGM_FI_PROF_DRAM_ACTIVE"] = value

    async with watching(exporter) as (_, seen):
        (sample, *_) = await seen.samples(1)

    assert sample.dram_active is None
    assert sample.tensor_active is not None


async def test_throttle_reasons_times_and_ecc_are_told_where_the_csv_has_them() -> None:
    exporter = TruthExporter()
    exporter.instead = {
        "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": 0x24,
        "DCGM_FI_DEV_POWER_VIOLATION": 5_000_000_000,
        "DCGM_FI_DEV_THERMAL_VIOLATION": 70_000,
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 3,
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 1,
        "DCGM_FI_DEV_POWER_MGMT_LIMIT": 400.0,
    }

    async with watching(exporter) as (_, seen):
        (sample, *_) = await seen.samples(1)

    assert sample.throttle_reasons == 0x24
    assert sample.throttled_ns == {"power_cap": 5_000_000_000, "thermal": 70_000}
    assert (sample.ecc_corrected, sample.ecc_uncorrected) == (3, 1)
    assert sample.power_limit_w == 400


async def test_an_xid_is_noted_once_and_again_when_another_comes() -> None:
    exporter = TruthExporter()

    async with watching(exporter) as (server, seen):
        await seen.samples(1)
        exporter.instead["DCGM_FI_DEV_XID_ERRORS"] = 79
        server.answers["/metrics"] = exporter.collect()
        await seen.until(lambda: any("Xid" in each for each in seen.notes))
        server.answers["/metrics"] = exporter.collect()
        await seen.samples(3)
        exporter.instead["DCGM_FI_DEV_XID_ERRORS"] = 31
        server.answers["/metrics"] = exporter.collect()
        await seen.samples(4)

    told = [each for each in seen.notes if "Xid" in each]
    assert told == [
        f"GPU 0 ({GPU_A}) reports Xid 79: error 79",
        f"GPU 0 ({GPU_A}) reports Xid 31: error 31",
    ]


async def test_a_gpu_that_several_pods_share_is_told_once() -> None:
    one, other = (
        TruthExporter(extra=(("pod", "a"),)),
        TruthExporter(extra=(("pod", "b"),)),
    )

    async with serving({"/metrics": one.page() + other.page()}) as server:
        async with scraping(scraper(server)) as seen:
            await seen.samples(1)
            await asked_again(server)

    assert len(seen.of(GpuInfo)) == len(seen.of(GpuSample)) == 1


async def test_peak_gbps_of_people_is_the_peak() -> None:
    async with serving({"/metrics": TruthExporter().page()}) as server:
        async with scraping(
            scraper(server, options=GpuOptions(peak_gbps=1_800))
        ) as seen:
            info = await seen.info()

    assert (info.peak_bytes_per_s, info.peak_from) == (1.8e12, "you (--peak-gbps)")
    assert info.sheet_bytes_per_s == 2.039e12


# MIG.


async def test_slices_have_their_own_shares_and_the_board_has_the_rest() -> None:
    exporter = TruthExporter(gpus=SLICES)

    async with watching(exporter) as (_, seen):
        (one, *_) = await seen.samples(1, f"{GPU_A}/GI-1")
        (two, *_) = await seen.samples(1, f"{GPU_A}/GI-2")
        (board, *_) = await seen.samples(1, GPU_A)
        info = await seen.info(f"{GPU_A}/GI-2")
        parent = await seen.info(GPU_A)

    assert one.dram_active == pytest.approx(0.101)
    assert two.dram_active == pytest.approx(0.102)
    assert two.memory_used_bytes == 80_000 * 1024 * 1024
    assert (one.power_w, one.energy_mj, one.peak_bytes_per_s) == (None, None, None)
    assert board.power_w == pytest.approx(300.101)
    assert board.dram_active is None
    assert (info.parent_uuid, info.profile) == (GPU_A, "2g.20gb")
    assert info.peak_bytes_per_s is None
    assert "power_w" not in info.missing
    assert (parent.parent_uuid, parent.profile) == (None, None)
    assert "MIG" in parent.missing["dram_active"]


# How old it is.


async def test_a_page_that_stays_as_it_is_brings_no_sample() -> None:
    async with watching(TruthExporter()) as (server, seen):
        await seen.samples(1)
        await asked_again(server, times=10)

    assert len(seen.of(GpuSample)) == 1


async def test_a_sample_covers_the_usual_time_between_two_changes() -> None:
    exporter = TruthExporter()

    async with watching(exporter) as (server, seen):
        samples = await seen.samples(1)
        for count in range(1, 7):
            samples = await seen.samples(count)
            server.answers["/metrics"] = exporter.collect()
            await asked_again(server, times=count)

    gaps = [after.t_ns - before.t_ns for before, after in pairwise(samples)]
    assert [each.dram_active for each in samples] == pytest.approx(
        [0.1, 0.2, 0.3, 0.4, 0.5, 0.1]
    )
    assert samples[0].span_ns is None
    for at in range(1, 6):
        assert samples[at].span_ns == round(median(gaps[:at]))


async def test_who_collects_rarely_is_told_how_to_collect_every_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dcgm, "SLOW_NS", 0)
    exporter = TruthExporter()

    async with watching(exporter) as (server, seen):
        for count in range(1, 6):
            await seen.samples(count)
            server.answers["/metrics"] = exporter.collect()
        await seen.samples(6)

    (said,) = [each for each in seen.notes if "-c 1000" in each]
    assert "has new values every 0 s" in said


# Where it is.


async def test_gpus_of_this_host_have_no_host_whatever_its_container_is_called() -> (
    None
):
    async with watching(TruthExporter(hostname="a7acf29b2c5c")) as (_, seen):
        info = await seen.info()

    assert info.host is None


@pytest.mark.parametrize(
    ("hostname", "host"),
    [
        ("gpu-node-1", "gpu-node-1"),
        ("a7acf29b2c5c", "exporter.test"),
        ("", "exporter.test"),
        (socket.gethostname(), None),
    ],
)
async def test_gpus_of_another_host_say_which(
    hostname: str, host: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = TruthExporter(hostname=hostname).page()
    async with serving({"/metrics": page}) as server:
        there = Server(url="http://exporter.test:9400", every_s=0.005)
        here = Server(url=server.url).client(timeout_s=None)
        monkeypatch.setattr(Server, "client", lambda *_, **__: here)
        async with scraping(DcgmScraper(SessionClock(), there)) as seen:
            info = await seen.info()

    assert info.host == host


async def test_of_this_host_only_the_gpus_that_are_meant_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", GPU_B)
    exporter = TruthExporter(gpus=(*SLICES, TruthGpu(), TruthGpu(GPU_B, 1)))

    async with serving({"/metrics": exporter.page()}) as server:
        chosen = GpuOptions(gpus=("0",))
        async with scraping(scraper(server)) as seen:
            await seen.samples(1, GPU_B)
        async with scraping(scraper(server, options=chosen)) as seen_too:
            await seen_too.samples(1, GPU_A)

    assert {each.source for each in seen.of(GpuInfo)} == {GPU_B}
    assert {each.source[: len(GPU_A)] for each in seen_too.of(GpuInfo)} == {GPU_A}


@pytest.mark.parametrize(
    ("typed", "url"),
    [
        ("gpu1", "http://gpu1:9400"),
        ("http://gpu1", "http://gpu1:9400"),
        ("gpu1:9401/metrics", "http://gpu1:9401"),
        ("https://gpu1/dcgm", "https://gpu1/dcgm"),
        ("http://me:secret@gpu1", "http://gpu1:9400"),
    ],
)
def test_an_address_without_port_has_the_usual_one(typed: str, url: str) -> None:
    assert dcgm_server(typed).url == url
    if "@" in typed:
        assert "Authorization" in dcgm_server(typed).headers


def test_named_exporters_stand_for_those_that_would_be_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("INFERWATCH_PORTS", raising=False)
    clock, measured = SessionClock(), GpuSourceArbiter()

    assert len(dcgm_scrapers(clock, GpuOptions(), measured)) == 2
    assert not dcgm_scrapers(clock, GpuOptions(gpus=("none",)), measured)
    named = GpuOptions(dcgm=("gpu1", "gpu2", "gpu3"))
    assert len(dcgm_scrapers(clock, named, measured)) == 3


def test_ports_that_are_not_to_be_asked_are_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("INFERWATCH_PORTS", "8000,9400")

    assert len(dcgm_scrapers(SessionClock(), GpuOptions(), GpuSourceArbiter())) == 1


# Who measures what.


def nvml_tells(uuid: str, **fields: object) -> GpuInfo:
    return GpuInfo(t_ns=0, source=uuid, uuid=uuid, **fields)  # type: ignore[arg-type]


async def test_a_gpu_that_gpm_measures_here_is_not_told_again() -> None:
    measured = GpuSourceArbiter(nvml=True)
    measured.hear(nvml_tells(GPU_A))
    exporter = TruthExporter(gpus=(TruthGpu(), TruthGpu(GPU_B, 1)))

    async with serving({"/metrics": exporter.page()}) as server:
        async with scraping(scraper(server, measured)) as seen:
            await seen.samples(1, GPU_B)
            await asked_again(server)

    assert not seen.of(GpuSample, GPU_A)
    assert not seen.of(GpuInfo, GPU_A)


async def test_where_nvml_has_no_gpm_dcgm_adds_the_averages_alone() -> None:
    measured = GpuSourceArbiter(nvml=True)
    missing = {"dram_active": "Ampere", "sm_active": "Ampere", "power_w": "old driver"}
    measured.hear(nvml_tells(GPU_A, name="NVIDIA A100", missing=missing))

    async with serving({"/metrics": TruthExporter().page()}) as server:
        async with scraping(scraper(server, measured)) as seen:
            (sample, *_) = await seen.samples(1)
            await asked_again(server)
            await server.stop()
            await seen.until(lambda: len(seen.of(GpuInfo)) > 1)

    assert sample.dram_active == pytest.approx(0.1)
    assert (sample.power_w, sample.energy_mj, sample.memory_used_bytes) == (None,) * 3
    joined, alone = seen.of(GpuInfo)
    assert joined.name == alone.name == "NVIDIA A100"
    assert joined.missing.keys() == {"sm_active", "power_w"}
    assert "DCGM_FI_PROF_SM_ACTIVE" in joined.missing["sm_active"]
    assert joined.missing["power_w"] == "old driver"
    assert (alone.missing, alone.lost_because) == (missing, None)


async def test_slices_that_nvml_tells_here_are_not_told_again() -> None:
    measured = GpuSourceArbiter(nvml=True)
    measured.hear(nvml_tells(GPU_A, missing={"dram_active": "MIG"}))
    measured.hear(nvml_tells("MIG-1", parent_uuid=GPU_A))

    async with serving({"/metrics": TruthExporter(gpus=SLICES).page()}) as server:
        async with scraping(scraper(server, measured)) as seen:
            await seen.until(lambda: seen.notes)
            await asked_again(server)

    assert not seen.of(GpuInfo)
    assert {each.source for each in seen.of(GpuSample)} <= {GPU_A}


async def test_a_gpu_that_an_agent_tells_is_told_while_the_agent_is_silent() -> None:
    exporter = TruthExporter()
    measured = GpuSourceArbiter()
    measured.hear(nvml_tells(GPU_A, host="gpu1"))

    async with serving({"/metrics": exporter.page()}) as server:
        async with scraping(scraper(server, measured)) as seen:
            await asked_again(server)
            assert not seen.of(GpuSample)
            measured.hear(nvml_tells(GPU_A, host="gpu1", lost_because="no answer"))
            await seen.samples(1)
            measured.hear(nvml_tells(GPU_A, host="gpu1"))
            await asked_again(server)
            server.answers["/metrics"] = exporter.collect()
            await asked_again(server)

    assert len(seen.of(GpuSample)) == 1


def test_gpus_of_agents_say_nothing_of_this_host() -> None:
    measured = GpuSourceArbiter(nvml=True)
    measured.hear(nvml_tells(GPU_A, host="gpu1"))
    assert not measured.told.is_set()
    assert measured.lacks_averages

    measured.hear(nvml_tells(GPU_B))
    assert measured.told.is_set()
    assert not measured.lacks_averages


async def test_of_two_exporters_that_tell_a_gpu_one_is_heard_until_it_is_lost() -> None:
    measured = GpuSourceArbiter()
    first, second = TruthExporter(), TruthExporter(collection=3)
    async with (
        serving({"/metrics": first.page()}) as one,
        serving({"/metrics": second.page()}) as other,
    ):
        async with scraping(scraper(one, measured)) as seen:
            await seen.samples(1)
            async with scraping(scraper(other, measured)) as rest:
                await asked_again(other, times=5)
                assert not rest.of(GpuSample)
                await one.stop()
                (sample, *_) = await rest.samples(1)

    assert sample.dram_active == pytest.approx(0.4)


async def test_nothing_is_told_before_nvml_has_said_what_it_measures() -> None:
    measured = GpuSourceArbiter(nvml=True)

    async with serving({"/metrics": TruthExporter().page()}) as server:
        async with scraping(scraper(server, measured)) as seen:
            await asyncio.sleep(0)
            assert not server.asked
            measured.hear(GpuInfo(t_ns=0, absent_because="no NVIDIA driver"))
            await seen.samples(1)


# One that nobody asked for.


async def test_one_that_nobody_named_is_found_when_it_comes_up() -> None:
    async with serving({}) as server:
        async with scraping(scraper(server, asked=False)) as seen:
            await asked_again(server)
            assert not seen.readings
            server.answers["/metrics"] = "some_other_metric 1\n"
            await asked_again(server)
            assert not seen.readings
            server.answers["/metrics"] = TruthExporter().page()
            await seen.samples(1)

    assert seen.notes == [
        f"dcgm-exporter at {server.url.removeprefix('http://')} answers: 1 GPU"
    ]


async def test_one_that_nobody_named_is_left_alone_where_gpm_measures_all() -> None:
    measured = GpuSourceArbiter(nvml=True)
    measured.hear(nvml_tells(GPU_A))

    async with serving({"/metrics": TruthExporter().page()}) as server:
        async with scraping(scraper(server, measured, asked=False)) as seen:
            await asyncio.sleep(0.1)
            assert not server.asked
            # GPM can be taken away, as from a container
            measured.hear(nvml_tells(GPU_A, missing={"dram_active": "no permission"}))
            await seen.samples(1)


# Exporters that fail, and come back.


async def test_one_that_dies_loses_its_gpus_and_finds_them_again() -> None:
    exporter = TruthExporter()

    async with watching(exporter) as (server, seen):
        await seen.samples(1)
        await server.stop()
        await seen.until(lambda: len(seen.of(GpuInfo)) > 1)
        server.answers["/metrics"] = exporter.collect()
        await server.start()
        await seen.samples(2)
        await seen.until(lambda: len(seen.of(GpuInfo)) > 2)

    first, lost, back = seen.of(GpuInfo)
    assert (first.lost_because, back.lost_because) == (None, None)
    assert lost.lost_because is not None
    assert "does not answer" in lost.lost_because
    assert seen.of(GpuSample)[1].span_ns is None  # nothing is learnt from an outage
    assert [each.rpartition(": ")[2] for each in seen.notes][::2] == ["1 GPU", "1 GPU"]


async def test_a_gpu_that_is_no_longer_listed_is_lost_and_others_go_on() -> None:
    exporter = TruthExporter(gpus=(TruthGpu(), TruthGpu(GPU_B, 1)))

    async with watching(exporter) as (server, seen):
        await seen.samples(1, GPU_B)
        exporter.gpus = exporter.gpus[:1]
        server.answers["/metrics"] = exporter.collect()
        await seen.until(lambda: len(seen.of(GpuInfo, GPU_B)) > 1)
        server.answers["/metrics"] = exporter.collect()
        await seen.samples(3, GPU_A)

    assert seen.of(GpuInfo, GPU_B)[1].lost_because == "dcgm-exporter no longer lists it"
    assert len(seen.of(GpuInfo, GPU_A)) == 1


async def test_counters_that_begin_anew_are_told_as_they_are() -> None:
    exporter = TruthExporter(collection=4)

    async with watching(exporter) as (server, seen):
        await seen.samples(1)
        exporter.collection = 0
        server.answers["/metrics"] = exporter.page()
        samples = await seen.samples(2)

    assert [each.energy_mj for each in samples] == [8_200_000, 7_000_000]


async def test_one_that_was_named_and_never_answers_is_told_once() -> None:
    async with serving({}) as server:
        async with scraping(scraper(server)) as seen:
            await asked_again(server, times=5)

    (said,) = seen.notes
    assert "nothing is there (HTTP 404)" in said
    assert not seen.of(GpuInfo)


@contextmanager
def _nobody_at() -> Iterator[str]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


async def test_a_port_where_nobody_listens_is_told_so() -> None:
    with _nobody_at() as url:
        async with scraping(scraper(url)) as seen:
            await seen.until(lambda: seen.notes)

    assert seen.notes[0].endswith("nothing listens there")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (whole("<html><body>GPU Exporter</body></html>", kind="text/html"), "web page"),
        ("", "no DCGM_FI_ fields"),
        ("vllm:num_requests_running 1\n", "no DCGM_FI_ fields"),
        ("DCGM_FI_DEV_GPU_TEMP 40\n", "tells of no GPU"),
        ('DCGM_FI_DEV_GPU_TEMP{UUID="}{"x 40\n', "tells of no GPU"),
        ('DCGM_FI_DEV_GPU_TEMP{UUID="a"} 4', "broke off"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 200000000\r\n\r\n", "larger than 8 MB"),
        (whole("", "503 Service Unavailable"), "503"),
        (b"\x00\x01\x02 what is this\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 302 Found\r\nlocation: http://10.0.0.1/\r\n\r\n", "redirects"),
    ],
    ids=[
        *("a web page", "empty", "of an engine", "no labels", "bad labels", "cut off"),
        *("200 MB", "unavailable", "no HTTP", "elsewhere"),
    ],
)
async def test_what_is_no_exporter_is_said_to_be_none(
    answer: str | bytes, why: str
) -> None:
    async with serving({"/metrics": answer}) as server:
        async with scraping(scraper(server)) as seen:
            await seen.until(lambda: seen.notes)

    assert why in seen.notes[0]
    assert not seen.of(GpuInfo)
    assert not seen.of(GpuSample)


async def test_an_endless_page_is_left_in_the_middle() -> None:
    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n")
        line = b'DCGM_FI_DEV_GPU_TEMP{UUID="a"} 4\n' * 10_000
        while not writer.is_closing():
            writer.write(line)
            await writer.drain()

    async with serving({"/metrics": endless}) as server:
        async with scraping(scraper(server)) as seen:
            await seen.until(lambda: seen.notes)

    assert "larger than 8 MB" in seen.notes[0]


async def test_a_page_of_too_many_gpus_is_cut_and_long_labels_are_shortened() -> None:
    line = 'DCGM_FI_DEV_GPU_TEMP{{gpu="9999999999",UUID="G{0}",modelName="{1}"}} 4\n'
    page = "".join(line.format(each, "x" * 900) for each in range(2_000))

    async with serving({"/metrics": page}) as server:
        async with scraping(scraper(server)) as seen:
            info = await seen.info("G0")

    assert len(seen.of(GpuInfo)) == 256
    assert (len(info.name or ""), info.index) == (256, None)


@pytest.mark.soak
async def test_gpus_that_are_made_up_all_the_time_are_not_followed_for_ever() -> None:
    def made_up(begin: int) -> str:
        many = tuple(TruthGpu(f"GPU-{at}") for at in range(begin, begin + 100))
        return TruthExporter(gpus=many).page()

    async with serving({"/metrics": made_up(0)}) as server:
        async with scraping(scraper(server)) as seen:
            for begin in (100, 200, 300, 400):
                await asked_again(server)
                server.answers["/metrics"] = made_up(begin)
            await asked_again(server)

    assert len({each.source for each in seen.of(GpuInfo)}) == 256


async def test_a_proxy_that_cannot_be_used_is_an_error_fit_to_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "nonsense://proxy")
    scraper = DcgmScraper(SessionClock(), Server(url="http://exporter.test:9400"))

    with pytest.raises(CollectorError, match=r"dcgm-exporter at exporter.test:9400"):
        await anext(aiter(scraper.batches()))
