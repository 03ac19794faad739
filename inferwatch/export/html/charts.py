"""Which charts a session gets: the engine's where there was one, else the client's."""

from collections.abc import Mapping, Sequence

from collectors.clock import NS_PER_S
from inferwatch.export.html.chart import Curve, Say, Series, TimeChart, Value, cdf
from inferwatch.export.html.client import Client
from inferwatch.export.html.curves import Distribution
from inferwatch.export.html.gather import Gathered
from inferwatch.formatting import format_count, format_duration, format_rate
from inferwatch.metrics.snapshot import Timeline

INKS = {
    "ttft_s": ("TTFT", "prefill"),
    "itl_s": ("ITL", "mean"),
    "tpot_s": ("TPOT", "decode"),
    "e2el_s": ("E2EL", "e2el"),
}


def time_charts(gathered: Gathered) -> list[str]:
    """Over the whole session."""
    timeline = gathered.snapshot.timeline
    if any(timeline.steps):
        return [chart.html() for chart in _engine(timeline)]
    return [chart.html() for chart in _client(gathered.client)]


def cdfs(gathered: Gathered) -> list[str]:
    """One figure a vantage that saw something."""
    views = (("server", gathered.server), ("client", gathered.client.of))
    return [
        cdf(f"Latencies, {who}: cumulative distribution", curves, format_duration)
        for who, of in views
        if (curves := _curves(of))
    ]


def _curves(of: Mapping[str, Distribution]) -> list[Curve]:
    return [
        Curve(name=name, ink=ink, points=of[metric].points())
        for metric, (name, ink) in INKS.items()
        if metric in of and of[metric].n
    ]


def _engine(line: Timeline) -> list[TimeChart]:
    start_s, column_s = line.start_ns / NS_PER_S, line.bin_ns / NS_PER_S
    return [
        TimeChart(
            title=title,
            unit=unit,
            series=series,
            say=say,
            start_s=start_s,
            column_s=column_s,
        )
        for title, unit, say, series in _engine_rows(line)
    ]


def _engine_rows(line: Timeline) -> list[tuple[str, str, Say, list[Series]]]:
    """Title, unit, how a value is said, and what is drawn."""
    tokens = [
        _line("prefill", "prefill", _rate(line, line.prefill_tokens)),
        _line("output", "output", _rate(line, line.output_tokens)),
    ]
    ttft = _mean_and_worst(line.ttft_mean_s, line.ttft_max_s)
    itl = _mean_and_worst(line.itl_mean_s, line.itl_max_s)
    step = _mean_and_worst(line.step_mean_s, line.step_max_s)
    batch = [
        _area("decode", "decode", line.batch_decode),
        _area("prefill", "prefill", line.batch_prefill),
        _line("waiting", "waiting", line.waiting_max, dashed=True),
    ]
    blocks = [
        _area("used", "kv", line.kv_used_blocks),
        _area("idle, cached", "cached", line.kv_cached_blocks),
    ]
    at_the_end = "blocks, at the last step of a column"
    return [
        ("Throughput", "tokens/s, engine", format_rate, tokens),
        ("TTFT", "s, API server", format_duration, ttft),
        ("ITL", "s, engine", format_duration, itl),
        ("Batch and queue", "requests per step", format_rate, batch),
        ("KV cache", at_the_end, format_count, blocks),
        ("Step time", "s, engine", format_duration, step),
    ]


def _client(client: Client) -> list[TimeChart]:
    bin_ns, columns = client.columns()
    if not columns["tokens"]:
        return []
    axis = {"start_s": 0.0, "column_s": bin_ns / NS_PER_S}
    charts = [
        TimeChart(
            title="Throughput",
            unit="tokens/s of answers that ended, client",
            series=[_line("output", "output", columns["tokens"])],
            say=format_rate,
            **axis,
        )
    ]
    for name, title in (("ttft", "TTFT"), ("itl", "ITL")):
        mean, worst = columns[f"{name}_mean"], columns[f"{name}_max"]
        if any(value is not None for value in mean):
            charts.append(
                TimeChart(
                    title=title,
                    unit="s, client",
                    series=_mean_and_worst(mean, worst),
                    say=format_duration,
                    **axis,
                )
            )
    return charts


def _rate(line: Timeline, counts: Sequence[int | None]) -> list[Value]:
    per_s = NS_PER_S / line.bin_ns
    return [None if count is None else count * per_s for count in counts]


def _mean_and_worst(mean: Sequence[Value], worst: Sequence[Value]) -> list[Series]:
    return [_line("worst", "worst", worst), _line("mean", "mean", mean)]


def _line(
    name: str, ink: str, values: Sequence[Value], *, dashed: bool = False
) -> Series:
    return Series(name=name, ink=ink, values=values, dashed=dashed)


def _area(name: str, ink: str, values: Sequence[Value]) -> Series:
    return Series(name=name, ink=ink, values=values, area=True)
