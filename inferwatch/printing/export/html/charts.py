"""The charts of a session's page: over time, and distributions of latencies."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import (
    UNKNOWN,
    format_count,
    format_duration,
    format_durations,
    format_figure,
    format_rate,
    format_share,
    shared_unit,
)
from inferwatch.metrics.hardware.view import GpuState, Hardware
from inferwatch.metrics.number import label_of
from inferwatch.metrics.requests.latencies import LATENCIES
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.printing.export.html.page_data import (
    ClientColumns,
    Distribution,
    PageData,
)
from inferwatch.printing.svg import (
    ChartCurve,
    ChartSeries,
    Say,
    SvgTimeChart,
    Value,
    cdf,
    cdf_axis,
)

ChartRow = tuple[str, str, Say, list[ChartSeries]]
"""Title, unit, formatter and series of a chart."""
OUT, PREFILL, WAITING = (
    label_of(each)
    for each in (Timeline.output_tokens, Timeline.prefill_tokens, Timeline.waiting_max)
)
INKS = {"ttft_s": "prefill", "itl_s": "mean", "tpot_s": "decode", "e2el_s": "e2el"}
GIGA = 1e9


def time_charts(data: PageData) -> list[str]:
    """Charts over the whole session, of the engine if known, else of the client."""
    line = data.snapshot.timeline
    bin_ns, rows = line.bin_ns, _hardware(line)
    if any(each is not None for each in line.running_max):
        charts = _drawn(_scraped(line), line.start_ns, bin_ns)
    elif any(line.steps):
        charts = _drawn(_engine(line), line.start_ns, bin_ns)
    else:
        charts = _drawn(_client(data.client), 0, data.client.bin_ns)
    return [*charts, *_drawn(rows, line.start_ns, bin_ns)]


def cdfs(data: PageData) -> list[str]:
    """Cumulative distributions: one figure for the server and one for the client."""
    view = data.snapshot.client
    many = view is not None and len(view.runs) > 1
    client = "client, all loads together" if many else "client"
    figures = {
        who: curves
        for who, of in (("server", data.server), (client, data.client.of))
        if (curves := _curves(of))
    }
    if not figures:
        return []
    axis = cdf_axis(curve for curves in figures.values() for curve in curves)
    return [
        cdf(f"Latencies, {who}: cumulative distribution", curves, format_duration, axis)
        for who, curves in figures.items()
    ]


def _curves(of: Mapping[str, Distribution]) -> list[ChartCurve]:
    return [
        ChartCurve(name=LATENCIES[metric].label, ink=ink, points=of[metric].points())
        for metric, ink in INKS.items()
        if metric in of and of[metric].n
    ]


def _drawn(rows: Iterable[ChartRow], start_ns: int, bin_ns: int) -> list[str]:
    return [
        SvgTimeChart(
            title=title,
            unit=unit,
            series=series,
            say=say if say in NUMBERS else format_durations,
            axis=say,
            ceiling=1.0 if say is SHARES else None,
            start_s=start_ns / NS_PER_S,
            column_s=bin_ns / NS_PER_S,
        ).html()
        for title, unit, say, series in rows
    ]


def _scraped(line: Timeline) -> Iterator[ChartRow]:
    requests = [
        _area(label_of(Timeline.running_max), "decode", line.running_max),
        _line(WAITING, "waiting", line.waiting_max, dashed=True),
    ]
    usage = [_area(label_of(Timeline.kv_usage), "kv", line.kv_usage)]
    ttft, itl = _means(line.ttft_mean_s), _means(line.itl_mean_s)
    say, unit = duration_axis(ttft, itl)
    yield "Throughput", "tokens/s, scrape", RATES, _tokens(line)
    yield "TTFT, mean", f"{unit}, scrape", say, ttft
    yield "ITL, mean", f"{unit}, scrape", say, itl
    yield "Running and waiting", "requests, scrape", RATES, requests
    yield "KV cache", "share in use, scrape", SHARES, usage
    yield from _acceptance(line, "scrape")


def _engine(line: Timeline) -> Iterator[ChartRow]:
    batch = [
        _area(label_of(Timeline.batch_decode), "decode", line.batch_decode),
        _area(label_of(Timeline.batch_prefill), "prefill", line.batch_prefill),
        _line(WAITING, "waiting", line.waiting_max, dashed=True),
    ]
    blocks = [
        _area(label_of(Timeline.kv_used_blocks), "kv", line.kv_used_blocks),
        _area(label_of(Timeline.kv_cached_blocks), "cached", line.kv_cached_blocks),
    ]
    ttft = _means(line.ttft_mean_s, line.ttft_max_s)
    itl = _means(line.itl_mean_s, line.itl_max_s)
    step = _means(line.step_mean_s, line.step_max_s)
    say, unit = duration_axis(ttft, itl, step)
    yield "Throughput", "tokens/s, engine", RATES, _tokens(line)
    yield "TTFT", f"{unit}, frontend", say, ttft
    yield "ITL", f"{unit}, engine", say, itl
    yield "Batch and queue", "requests per step", RATES, batch
    yield "KV cache", "blocks, at the last step of each column", COUNTS, blocks
    yield "Step time", f"{unit}, engine", say, step
    yield from _acceptance(line, "engine")


def _acceptance(line: Timeline, vantage: str) -> Iterator[ChartRow]:
    if _known(line.acceptance):
        series = [_area(label_of(Timeline.acceptance), "decode", line.acceptance)]
        yield "Speculative decoding", f"share of drafts, {vantage}", SHARES, series


def _client(client: ClientColumns) -> Iterator[ChartRow]:
    _, columns = client.columns()
    if not columns["tokens"]:
        return
    tokens = [_line(OUT, "output", columns["tokens"])]
    yield "Throughput", "tokens/s of finished answers, client", RATES, tokens
    names = (("ttft", "TTFT"), ("itl", "ITL"))
    series = {n: _means(columns[f"{n}_mean"], columns[f"{n}_max"]) for n, _ in names}
    say, unit = duration_axis(*series.values())
    for name, title in names:
        if _known(columns[f"{name}_mean"]):
            yield title, f"{unit}, client", say, series[name]


def _hardware(line: Timeline) -> Iterator[ChartRow]:
    measured = _area("measured", "mean", _giga(line.hbm_bytes_per_s))
    derived = _line("derived", "e2el", _giga(line.derived_bytes_per_s), dashed=True)
    if _known(line.hbm_bytes_per_s):
        series = [measured, *([derived] if _known(derived.values) else [])]
        yield "Memory bandwidth", "GB/s, gpu", FIGURES, series
    elif _known(line.derived_bytes_per_s):
        unit = "GB/s, derived: weights once a step, and the KV cache read"
        yield "Memory traffic", unit, FIGURES, [derived]
    shares = [
        _line(name, ink, column, dashed=dashed)
        for name, ink, column, dashed in (
            (label_of(Hardware.sm_active), "output", line.sm_active, False),
            ("of peak HBM", "mean", line.hbm_share, False),
            (label_of(GpuState.throttled), "prefill", line.throttled, True),
        )
        if _known(column)
    ]
    if shares:
        yield "GPUs", "share of cycles and of time, gpu", SHARES, shares
    if _known(line.power_w):
        power = [_area("power", "waiting", line.power_w)]
        yield "Power", "W, gpu, of the boards", COUNTS, power
    if _known(line.host_busy):
        busy = [_area("busy", "cached", line.host_busy)]
        yield "Host", "share of its cores", SHARES, busy


def duration_axis(*charts: Sequence[ChartSeries]) -> tuple[Say, str]:
    """How the axes of several charts of durations are written, and their one unit."""
    every = (each for series in charts for each in series)
    longest = [max((v or 0.0 for v in each.values), default=0.0) for each in every]
    unit = shared_unit([each for each in longest if each], round_figures=True)

    def say(values: Sequence[Value]) -> Sequence[str]:
        return [
            UNKNOWN if v is None else f"{v / unit.seconds:,.4g} {unit.name}"
            for v in values
        ]

    return say, unit.name


def _tokens(line: Timeline) -> list[ChartSeries]:
    per_s = NS_PER_S / line.bin_ns
    return [
        _line(name, ink, [None if n is None else n * per_s for n in counts])
        for name, ink, counts in (
            (PREFILL, "prefill", line.prefill_tokens),
            (OUT, "output", line.output_tokens),
        )
    ]


def _means(
    mean: Sequence[Value], worst: Sequence[Value] | None = None
) -> list[ChartSeries]:
    above = [] if worst is None else [_line("worst", "worst", worst)]
    return [*above, _line("mean", "mean", mean)]


def _line(
    name: str, ink: str, values: Sequence[Value], *, dashed: bool = False
) -> ChartSeries:
    return ChartSeries(name=name, ink=ink, values=values, dashed=dashed)


def _area(name: str, ink: str, values: Sequence[Value]) -> ChartSeries:
    return ChartSeries(name=name, ink=ink, values=values, area=True)


def _known(column: Sequence[Value]) -> bool:
    return any(each is not None for each in column)


def _giga(column: Sequence[Value]) -> list[Value]:
    return [None if each is None else each / GIGA for each in column]


def _each(show: Callable[[Value], str]) -> Say:
    return lambda values: [show(value) for value in values]


NUMBERS = RATES, COUNTS, SHARES, FIGURES = (
    *map(_each, (format_rate, format_count, format_share, format_figure)),
)
