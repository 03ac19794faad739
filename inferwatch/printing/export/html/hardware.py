"""What GPUs and hosts did, for the page: charts, and a table; nothing where unknown."""

from collections.abc import Callable, Iterator, Sequence

from inferwatch.formatting import (
    UNKNOWN,
    format_bytes,
    format_count,
    format_figure,
    format_rate,
    format_share,
)
from inferwatch.metrics.hardware.hosts import HostState
from inferwatch.metrics.hardware.view import GpuState, Hardware
from inferwatch.metrics.number import label_of
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.printing.html.svg_charts import Say, SvgSeries, Value
from inferwatch.printing.html.table import table
from inferwatch.visible import as_html

ChartRow = tuple[str, str, Say, list[SvgSeries]]
GIGA = 1e9
SIMULATED = "simulated: no GPU stands behind these readings"


def hardware_charts(line: Timeline) -> Iterator[ChartRow]:
    """Title, unit, how a value is formatted, and its series; of what has values."""
    measured = SvgSeries(
        name="measured", ink="mean", values=_giga(line.hbm_bytes_per_s), area=True
    )
    derived = SvgSeries(
        name="derived", ink="e2el", values=_giga(line.derived_bytes_per_s), dashed=True
    )
    if _known(line.hbm_bytes_per_s):
        series = [measured, *([derived] if _known(derived.values) else [])]
        yield "Memory bandwidth", "GB/s, gpu", _each(format_figure), series
    elif _known(line.derived_bytes_per_s):
        unit = "GB/s, derived: weights once a step, and the KV cache read"
        yield "Memory traffic", unit, _each(format_figure), [derived]
    shares = [
        SvgSeries(name=name, ink=ink, values=column, dashed=dashed)
        for name, ink, column, dashed in (
            (label_of(Hardware.sm_active), "output", line.sm_active, False),
            ("of peak HBM", "mean", line.hbm_share, False),
            (label_of(GpuState.throttled), "prefill", line.throttled, True),
        )
        if _known(column)
    ]
    if shares:
        yield "GPUs", "share of cycles and of time, gpu", _each(format_share), shares
    if _known(line.power_w):
        power = SvgSeries(name="power", ink="waiting", values=line.power_w, area=True)
        yield "Power", "W, gpu, of the boards", _each(format_count), [power]
    if _known(line.host_busy):
        busy = SvgSeries(name="busy", ink="cached", values=line.host_busy, area=True)
        yield "Host", "share of its cores", _each(format_share), [busy]


def hardware_cards(shown: Snapshot) -> list[tuple[str, str]]:
    """What people look for first."""
    told = shown.hardware
    mean = told.hbm_bytes_per_s_mean
    of = f" of {told.gpus} GPUs" if told.gpus > 1 else ""
    cards = (
        (f"HBM, mean GB/s{of}", None if mean is None else mean / GIGA, format_rate),
        ("SM active, mean", told.sm_active_mean, format_share),
        (f"power, mean W{of}", told.power_w_mean, format_count),
        ("J per output token", told.joules_per_token, format_figure),
    )
    return [(name, show(value)) for name, value, show in cards if value is not None]


def hardware_tables(shown: Snapshot) -> Iterator[str]:
    """A row for each GPU and each host, over the whole session."""
    gpus = shown.gpus
    if gpus:
        names = ("HBM, mean", "of peak", "SM active", "power, mean", "limit", "energy")
        yield from table(
            "GPUs", (*names, "throttled", "memory", "measured by"), map(_gpu, gpus)
        )
        if any(gpu.is_simulated for gpu in gpus):
            yield f'<p class="doubt">▲ {SIMULATED}</p>'
    told = shown.hardware.no_gpu
    if told and not gpus and shown.hosts:
        yield f"<h2>GPUs</h2><p>{as_html(f'none: {told}')}</p>"
    hosts = [host for host in shown.hosts if host.info is not None]
    if hosts:
        of_host = ("processor", "cores", "memory", "API loop lag, worst")
        yield from table("Hosts", of_host, map(_host, hosts))


def _gpu(gpu: GpuState) -> Iterator[str]:
    info, mean = gpu.info, gpu.hbm_bytes_per_s_mean
    number = "" if info.index is None else f"{info.index} "
    named = f"GPU {number}{info.name or ''} {info.profile or ''}".strip()
    simulated = " (simulated)" if gpu.is_simulated else ""
    lost = f" (lost: {info.lost_because})" if info.lost_because else ""
    others = " (not the engine's)" if gpu.watched is False else ""
    yield f"{named}{simulated}{others}{lost}"
    yield "–" if mean is None else f"{format_rate(mean / GIGA)} GB/s"
    yield format_share(gpu.hbm_share_mean)
    yield format_share(gpu.sm_active_mean)
    yield _with_unit(gpu.power_w_mean, "W")
    yield _with_unit(gpu.power_limit_w, "W")
    yield _with_unit(None if gpu.energy_j is None else gpu.energy_j / 1e3, "kJ")
    held = {why: share for why, share in gpu.throttled.items() if share}
    said = ", ".join(f"{why} {format_share(share)}" for why, share in held.items())
    yield said or ("no" if gpu.throttled else UNKNOWN)
    yield format_bytes(gpu.memory_used_bytes)
    yield gpu.via or UNKNOWN


def _host(host: HostState) -> Iterator[str]:
    info = host.info
    yield (info.name if info else host.source) or "host"
    yield (info.cpu if info else None) or UNKNOWN
    yield format_count(info.cores if info else None)
    yield format_bytes(info.memory_bytes if info else None)
    lag_s = host.api_loop_lag_s
    yield UNKNOWN if lag_s is None else f"{lag_s * 1e3:.1f} ms"


def _with_unit(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None else f"{format_rate(value)} {unit}"


def _known(column: Sequence[Value]) -> bool:
    return any(each is not None for each in column)


def _giga(column: Sequence[Value]) -> list[Value]:
    return [None if each is None else each / GIGA for each in column]


def _each(show: Callable[[Value], str]) -> Say:
    return lambda values: [show(value) for value in values]
