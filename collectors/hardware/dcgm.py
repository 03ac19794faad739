"""GPUs as reported by dcgm-exporter: for what NVML lacks before Hopper, and remotely.

The exporter samples DCGM every 30 s by default and repeats its values until then. A
sample is emitted when values change and covers the time between two changes, so screens
can show its age.
"""

import asyncio
import os
import re
import socket
from collections import deque
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import median
from urllib.parse import urlsplit

import httpx
import msgspec

from collectors.contract.clock import NS_PER_S, SessionClock
from collectors.contract.collector import CollectorError
from collectors.contract.readings import AnyReading, GpuInfo, GpuSample, Note, NoteKind
from collectors.hardware.dcgm_page import (
    AVERAGES,
    BOARD,
    MEMORY,
    MOST_GPUS,
    THROTTLED,
    DcgmGpu,
    DcgmPage,
    why_missing,
)
from collectors.hardware.gpu_selection import NONE, GpuSelection
from collectors.hardware.gpu_source import GpuOptions
from collectors.hardware.peaks import BandwidthPeak, peak_of
from collectors.http.bounded_get import NoAnswerError, TimedResponse, get
from collectors.http.http_client import ProxyError, goes_direct
from collectors.http.server import Server, ServerError
from collectors.servers.discover import SWITCH
from collectors.servers.exposition import ExpositionError

PORTS = (9400, 9401)
"""Ports dcgm-exporter usually listens on."""
GIVE_UP_S = 5.0
LONGEST_PAUSE_S = 10.0
"""Longest pause between two attempts to reach an exporter."""
LOOK_EVERY_S = 60.0
"""Seconds between looks for an exporter nobody configured."""
NVML_TELLS_S = 5.0
"""Seconds to wait for NVML to report what it measures."""
LARGE = 250_000
"""Pages longer than this are parsed in a thread."""
GAPS = 5
"""Changes whose median distance is taken as the exporter's interval."""
SLOW_NS = 5 * NS_PER_S
"""An exporter interval from here on is reported to the user."""
IN_MIG_MODE = "the GPU is in MIG mode: each of its slices is measured alone"
NO_LONGER_LISTED = "dcgm-exporter no longer lists it"
_CONTAINER = re.compile(r"[0-9a-f]{12}|[0-9a-f]{64}")
"""Host name of a container without a name: its id."""


def dcgm_server(url: str, every_s: float = 1.0) -> Server:
    """The server at an exporter's URL; the port defaults to 9400.

    Raises:
        ServerError: the URL is invalid.
    """
    server = Server(url=url, every_s=every_s)
    parts = urlsplit(server.url)
    if parts.port is not None or parts.scheme != "http" or parts.path:
        return server
    return Server(
        url=f"{server.url}:{PORTS[0]}", headers=server.headers, every_s=every_s
    )


class DcgmScope(Enum):
    """Which values of a GPU an exporter reports."""

    ALL = "all"
    AVERAGES = "averages"
    """Profiling metrics only: NVML reports the rest."""
    NOTHING = "nothing"


class GpuSourceArbiter:
    """Decides which source reports which GPU, so nothing is reported twice.

    For each GPU the richest source wins: NVML with GPM, local or from an agent; else
    NVML with only the profiling metrics from DCGM; else DCGM alone. Of several
    exporters that report a GPU, the first keeps it until it is lost. NVML's GpuInfo
    says which GPUs it has and which values it misses.
    """

    def __init__(self, *, nvml: bool = False) -> None:
        """``nvml``: NVML will report its GPUs, and other sources wait for that."""
        self._nvml: dict[str, GpuInfo] = {}
        """NVML's GpuInfo by UUID, those from agents included."""
        self._slices_of: set[str] = set()
        """UUIDs of GPUs whose MIG slices NVML reports."""
        self._exporters: dict[str, object] = {}
        self.told = asyncio.Event()
        """Set once NVML has reported its GPUs."""
        if not nvml:
            self.told.set()

    def hear(self, reading: AnyReading) -> None:
        """Take a GpuInfo from NVML, local or from an agent."""
        if not isinstance(reading, GpuInfo):
            return
        if reading.uuid:
            self._nvml[reading.uuid] = reading
            if reading.parent_uuid:
                self._slices_of.add(reading.parent_uuid)
        if reading.host is not None:
            return
        if reading.absent_because:
            self._nvml = {uuid: each for uuid, each in self._nvml.items() if each.host}
        self.told.set()

    @property
    def lacks_averages(self) -> bool:
        """Whether NVML lacks the averages of a GPU of this host that DCGM has."""
        here = [each for each in self._nvml.values() if each.host is None]
        return not here or any(map(_lacks_averages, here))

    def part(self, gpu: DcgmGpu, exporter: object) -> DcgmScope:
        """Which values of a GPU this exporter is to report."""
        if self._exporters.setdefault(gpu.source, exporter) is not exporter:
            return DcgmScope.NOTHING
        info = self._nvml.get(gpu.uuid)
        if info is None or (info.host and info.lost_because):
            return DcgmScope.ALL  # a lost agent reports nothing
        if gpu.instance:
            return DcgmScope.NOTHING if gpu.uuid in self._slices_of else DcgmScope.ALL
        return DcgmScope.AVERAGES if _lacks_averages(info) else DcgmScope.NOTHING

    def known(self, source: str) -> GpuInfo | None:
        """NVML's GpuInfo of a GPU; None if NVML has not reported one."""
        return self._nvml.get(source)

    def release(self, sources: Collection[str], exporter: object) -> None:
        """Let other exporters report these GPUs."""
        for source in sources:
            if self._exporters.get(source) is exporter:
                del self._exporters[source]


def _lacks_averages(info: GpuInfo) -> bool:
    return "dram_active" in info.missing


@dataclass(slots=True)
class _Followed:
    """State of one GPU between two pages."""

    values: dict[str, float] = field(default_factory=dict)
    changed_ns: int | None = None
    """When its values last changed; None after a gap."""
    gaps: deque[int] = field(default_factory=lambda: deque(maxlen=GAPS))
    memory_bytes: int | None = None
    info: GpuInfo | None = None
    xid: int | None = None

    @property
    def interval_ns(self) -> int | None:
        """Median time between changes of the GPU's values; None before the second."""
        return round(median(self.gaps)) if self.gaps else None

    def news(self, info: GpuInfo) -> list[GpuInfo]:
        """Return the GPU's GpuInfo, if that has changed."""
        before = self.info
        if before and msgspec.structs.replace(before, t_ns=info.t_ns) == info:
            return []
        self.info = info
        return [info]

    def take(self, values: dict[str, float], now_ns: int) -> bool:
        """Store the latest values; true if they are new."""
        if values == self.values and self.changed_ns is not None:
            return False
        if self.changed_ns is not None:
            self.gaps.append(now_ns - self.changed_ns)
        self.values, self.changed_ns = values, now_ns
        return True


class DcgmScraper:
    """A collector of one dcgm-exporter that retries for ever."""

    def __init__(
        self,
        clock: SessionClock,
        server: Server,
        measured: GpuSourceArbiter | None = None,
        *,
        options: GpuOptions | None = None,
        asked: bool = True,
    ) -> None:
        """Unless the user ``asked`` for it, look for the exporter silently."""
        self._clock = clock
        self.server = server
        self._measured = measured or GpuSourceArbiter()
        self._options = options or GpuOptions()
        self._asked = asked
        self._page = DcgmPage()
        self._followed: dict[str, _Followed] = {}
        """By source: present and lost GPUs."""
        self._closed = asyncio.Event()
        self._failures = 0
        self._answered = False
        """It has answered at least once."""
        self._told_interval = False
        self._told_lost = False
        """Its silence has been reported."""

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        """Changes of each GPU's info and values, until closed.

        Raises:
            CollectorError: no client can be created for the exporter.
        """
        try:
            client = self.server.client(timeout_s=None)
        except (ServerError, ProxyError) as error:
            raise CollectorError(f"{self._named}: {error}") from error
        async with client:
            await self._first_of(NVML_TELLS_S, self._closed, self._measured.told)
            while not self._closed.is_set():
                if self._wanted and (readings := await self._turn(client)):
                    yield readings
                await self._first_of(self._pause_s, self._closed)

    async def _first_of(self, seconds: float, *events: asyncio.Event) -> None:
        """Wait for one of the events, at most ``seconds``."""
        waiting = [asyncio.create_task(each.wait()) for each in events]
        try:
            await asyncio.wait(
                waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for each in waiting:
                each.cancel()

    async def close(self) -> None:
        self._closed.set()

    @property
    def _named(self) -> str:
        return f"dcgm-exporter at {self.server.source}"

    @property
    def _wanted(self) -> bool:
        return self._asked or self._answered or self._measured.lacks_averages

    @property
    def _pause_s(self) -> float:
        if not self._answered and not self._asked:
            return LOOK_EVERY_S
        every_s = self.server.every_s
        if not self._failures:
            return every_s
        longest_s = max(LONGEST_PAUSE_S, every_s)
        return min(every_s * 2.0 ** min(self._failures - 1, 10), longest_s)

    async def _turn(self, client: httpx.AsyncClient) -> list[AnyReading]:
        try:
            answer = await get(client, "/metrics", timeout_s=GIVE_UP_S)
            gpus = await self._read(answer)
        except (NoAnswerError, ExpositionError) as error:
            self._failures += 1
            return self._lost(str(error))
        self._failures = 0
        half_ns = (answer.began_ns - answer.sent_ns) // 2
        t_ns = answer.sent_ns + half_ns - self._clock.start_ns
        return [*self._note_answer(gpus, t_ns), *self._news(gpus, t_ns)]

    async def _read(self, answer: TimedResponse) -> list[DcgmGpu]:
        text = answer.text
        if text.lstrip()[:1] == "<":
            raise NoAnswerError(
                "a web page, not metrics: is a path missing in the address?"
            )
        if len(text) > LARGE:
            return await asyncio.to_thread(self._page.read, text)
        return self._page.read(text)

    def _lost(self, why: str) -> list[AnyReading]:
        """The exporter did not answer, or not with metrics: report its GPUs as lost."""
        if self._told_lost or not (self._asked or self._answered):
            return []
        self._told_lost = True
        now_ns = self._clock.now_ns()
        readings = self._gone(self._followed, f"{self._named} does not answer: {why}")
        return [_note(now_ns, f"{self._named}: {why}"), *readings]

    def _gone(self, sources: Collection[str], why: str) -> list[AnyReading]:
        """Report these GPUs as lost."""
        readings: list[AnyReading] = []
        now_ns = self._clock.now_ns()
        for source in list(sources):
            followed = self._followed[source]
            followed.changed_ns = None
            if info := self._measured.known(source):
                # NVML still has it, and misses again what the exporter told.
                readings += followed.news(msgspec.structs.replace(info, t_ns=now_ns))
            elif followed.info is not None and followed.info.lost_because is None:
                followed.info = msgspec.structs.replace(
                    followed.info, t_ns=now_ns, lost_because=why
                )
                readings.append(followed.info)
        self._measured.release(sources, self)
        return readings

    def _note_answer(self, gpus: Sequence[DcgmGpu], t_ns: int) -> list[AnyReading]:
        """Note once that the exporter answers, and once that its interval is long."""
        notes: list[AnyReading] = []
        if not self._answered or self._told_lost:
            whole = len({gpu.uuid for gpu in gpus})
            number = "1 GPU" if whole == 1 else f"{whole} GPUs"
            again = " again" if self._answered else ""
            notes.append(_note(t_ns, f"{self._named} answers{again}: {number}"))
        self._answered, self._told_lost = True, False
        intervals = [
            interval
            for each in self._followed.values()
            if len(each.gaps) > 1 and (interval := each.interval_ns)
        ]
        if intervals and not self._told_interval:
            self._told_interval = True
            if (slowest := max(intervals)) >= SLOW_NS:
                text = (
                    f"{self._named} has new values every {slowest / NS_PER_S:.0f} s: "
                    "start it with -c 1000 (DCGM_EXPORTER_INTERVAL=1000) for one a "
                    "second"
                )
                notes.append(_note(t_ns, text))
        return notes

    def _news(self, gpus: Sequence[DcgmGpu], t_ns: int) -> list[AnyReading]:
        """New infos, errors and samples of each GPU."""
        readings: list[AnyReading] = []
        listed = {gpu.source for gpu in gpus}
        sliced = {gpu.uuid for gpu in gpus if gpu.instance}
        for gpu in self._selection(gpus):
            if gpu.source not in self._followed and len(self._followed) >= MOST_GPUS:
                continue  # the page keeps inventing GPUs
            part = self._measured.part(gpu, self)
            board_of_slices = part is DcgmScope.AVERAGES and gpu.source in sliced
            if part is DcgmScope.NOTHING or board_of_slices:
                self._followed.pop(gpu.source, None)
                continue
            followed = self._followed.setdefault(gpu.source, _Followed())
            if part is DcgmScope.ALL:
                info = self._info(gpu, followed, t_ns, sliced=gpu.source in sliced)
                readings += followed.news(info)
                readings += self._xid(gpu, followed, t_ns)
            elif base := self._measured.known(gpu.source):
                readings += followed.news(_completed(base, gpu, t_ns))
            tells = part is DcgmScope.ALL or gpu.values.keys() & AVERAGES.keys()
            if followed.take(gpu.values, t_ns) and tells:
                readings.append(_sample(gpu, followed, part, t_ns))
        absent = [source for source in self._followed if source not in listed]
        return [*readings, *self._gone(absent, NO_LONGER_LISTED)]

    def _info(
        self, gpu: DcgmGpu, followed: _Followed, t_ns: int, *, sliced: bool
    ) -> GpuInfo:
        """A GPU's GpuInfo, with the memory size that was computed first.

        Later sums can differ a little, because the parts are rounded.
        """
        if followed.memory_bytes is None:
            followed.memory_bytes = _memory_bytes(gpu)
        labels = gpu.labels
        name = labels.get("modelName") or None
        whole = not gpu.instance and not sliced
        peak = (
            peak_of(name, given_gbps=self._options.peak_gbps)
            if whole
            else BandwidthPeak(*[None] * 3)
        )
        return msgspec.structs.replace(
            _identity(gpu),
            t_ns=t_ns,
            name=name,
            host=self._host(labels.get("hostname") or labels.get("Hostname")),
            pci_bus_id=labels.get("pci_bus_id") or None,
            driver=labels.get("DCGM_FI_DRIVER_VERSION") or None,
            memory_bytes=followed.memory_bytes,
            max_sm_clock_mhz=_whole(gpu.values.get("max_sm_clock_mhz")),
            max_memory_clock_mhz=_whole(gpu.values.get("max_memory_clock_mhz")),
            peak_bytes_per_s=peak.bytes_per_s,
            peak_from=peak.peak_from,
            sheet_bytes_per_s=peak.sheet_bytes_per_s,
            peak_flops=self._options.peak_flops if whole else None,
            profile=(labels.get("GPU_I_PROFILE") or None) if gpu.instance else None,
            missing=_missing(gpu, sliced=sliced),
        )

    def _host(self, name: str | None) -> str | None:
        """Host name of its GPUs; None if they are in this host.

        A port forwarded to this host looks local, and is taken as local.
        """
        if self._here:
            return None
        host = urlsplit(self.server.ssh or self.server.url).hostname
        if not name or _CONTAINER.fullmatch(name):
            return host
        here = socket.gethostname()
        return None if name.split(".")[0] == here.split(".")[0] else name

    @property
    def _here(self) -> bool:
        server = self.server
        return goes_direct(server.url, server.uds) and not server.ssh

    def _selection(self, gpus: Sequence[DcgmGpu]) -> Sequence[DcgmGpu]:
        """The GPUs to report: on this host the selected ones, on another all."""
        if not self._here:
            return gpus
        names = [gpu.labels.get("modelName", "") for gpu in gpus]
        selection = GpuSelection(self._options.gpus, os.environ, names)
        uuids = {gpu.uuid for gpu in gpus if selection.takes(_identity(gpu))}
        return [gpu for gpu in gpus if gpu.uuid in uuids]

    def _xid(self, gpu: DcgmGpu, followed: _Followed, t_ns: int) -> list[AnyReading]:
        """A note about a new Xid error; DCGM keeps only the last one."""
        xid = _whole(gpu.values.get("xid"))
        before, followed.xid = followed.xid, xid
        if not xid or xid == before:
            return []
        when = "has met" if before is None else "reports"
        about = f": {gpu.xid_text}" if gpu.xid_text else ""
        text = f"GPU {gpu.labels.get('gpu', '')} ({gpu.uuid}) {when} Xid {xid}{about}"
        return [_note(t_ns, text, gpu.source)]


def dcgm_scrapers(
    clock: SessionClock, options: GpuOptions, measured: GpuSourceArbiter
) -> list[DcgmScraper]:
    """Scrapers of the configured exporters, else of those that may run here."""
    named = [
        DcgmScraper(clock, dcgm_server(url), measured, options=options)
        for url in options.dcgm
    ]
    chosen = os.environ.get(SWITCH)
    ports = [port for port in PORTS if chosen is None or str(port) in chosen]
    if options.gpus == (NONE,):
        ports = []
    return named or [
        DcgmScraper(
            clock,
            dcgm_server(f"http://localhost:{port}"),
            measured,
            options=options,
            asked=False,
        )
        for port in ports
    ]


def _identity(gpu: DcgmGpu) -> GpuInfo:
    """A GpuInfo with nothing but identifiers."""
    index = gpu.labels.get("gpu", "")
    return GpuInfo(
        t_ns=0,
        source=gpu.source,
        uuid=gpu.source,
        index=int(index) if index.isdecimal() and len(index) < 5 else None,
        parent_uuid=gpu.uuid if gpu.instance else None,
    )


def _sample(gpu: DcgmGpu, followed: _Followed, part: DcgmScope, t_ns: int) -> GpuSample:
    names = [*AVERAGES]
    if part is DcgmScope.ALL:
        names += [*MEMORY, *BOARD]
    fields: dict[str, object] = dict(gpu.readings(iter(names)))
    if part is DcgmScope.ALL:
        fields["throttled_ns"] = {
            name: round(gpu.values[name]) for name in THROTTLED if name in gpu.values
        }
        info = followed.info
        fields["peak_bytes_per_s"] = info.peak_bytes_per_s if info else None
    sample: GpuSample = msgspec.convert(
        {
            "t_ns": t_ns,
            "span_ns": followed.interval_ns,
            "via": "dcgm",
            **fields,
        },
        GpuSample,
    )
    return msgspec.structs.replace(sample, source=gpu.source)


def _completed(info: GpuInfo, gpu: DcgmGpu, t_ns: int) -> GpuInfo:
    """NVML's GpuInfo, with fewer values missing where DCGM provides them."""
    missing = {
        name: why_missing(gpu, name, AVERAGES[name]) if name in AVERAGES else why
        for name, why in info.missing.items()
        if name not in AVERAGES or name not in gpu.values
    }
    return msgspec.structs.replace(info, source=gpu.source, t_ns=t_ns, missing=missing)


def _missing(gpu: DcgmGpu, *, sliced: bool) -> dict[str, str]:
    """Why values are missing on the page, by field."""
    specs = {**AVERAGES, **MEMORY} | ({} if gpu.instance else BOARD)
    apart = AVERAGES.keys() | MEMORY.keys() if sliced else set[str]()
    return {
        name: IN_MIG_MODE if name in apart else why_missing(gpu, name, spec)
        for name, spec in specs.items()
        if name not in gpu.values
    }


def _memory_bytes(gpu: DcgmGpu) -> int | None:
    """Total memory: as reported, or used + reserved + free."""
    values = gpu.values
    if total := values.get("memory_total"):
        return round(total)
    used, free = values.get("memory_used_bytes"), values.get("memory_free")
    if used is None or free is None:
        return None
    return round(used + free + values.get("memory_reserved_bytes", 0))


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _note(t_ns: int, text: str, source: str = "") -> Note:
    return Note(source=source, t_ns=t_ns, kind=NoteKind.GPU, text=text)
