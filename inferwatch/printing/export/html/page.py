"""A session as one page: the summary, charts, notes; every text escaped.

Charts are the engine's where there was one, else the client's.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import NoteKind
from inferwatch.formatting import (
    UNKNOWN,
    about,
    counted,
    format_bracket,
    format_count,
    format_duration,
    format_durations,
    format_rate,
    format_share,
)
from inferwatch.metrics.load.client_verdict import client_words
from inferwatch.metrics.number import label_of
from inferwatch.metrics.requests.latencies import LATENCIES
from inferwatch.metrics.series.quantiles import PERCENTS
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.printing.destination import Destination
from inferwatch.printing.export.html.causes import cause_tables
from inferwatch.printing.export.html.hardware import (
    hardware_cards,
    hardware_charts,
    hardware_tables,
)
from inferwatch.printing.export.html.page_data import (
    ClientColumns,
    Distribution,
    PageData,
    gather,
)
from inferwatch.printing.export.html.slo import slo_cards
from inferwatch.printing.export.note_text import note_text
from inferwatch.printing.export.recording import Recording
from inferwatch.printing.html.document import head, stylesheet
from inferwatch.printing.html.svg_charts import (
    Say,
    SvgCurve,
    SvgSeries,
    SvgTimeChart,
    Value,
    cdf,
    clock,
)
from inferwatch.printing.summary.latencies import SHOWN
from inferwatch.printing.summary.session import Summary, run_line, summarise
from inferwatch.visible import as_html, strict_json

COLUMNS = ("mean", *PERCENTS, "max")
Row = tuple[str, str, Say, list[SvgSeries]]
"""Of a chart: title, unit, how a value is formatted, and its series."""
OUT, PREFILL, WAITING = (
    label_of(each)
    for each in (Timeline.output_tokens, Timeline.prefill_tokens, Timeline.waiting_max)
)
INKS = {"ttft_s": "prefill", "itl_s": "mean", "tpot_s": "decode", "e2el_s": "e2el"}


def write_html(recording: Recording, destination: Destination) -> None:
    """Write the page; it needs no network."""
    with destination.file() as out:
        for part in page(recording, gather(recording)):
            out.write(part.encode())
            out.write(b"\n")


def page(recording: Recording, data: PageData) -> Iterable[str]:
    """The parts of the page, in order."""
    row = recording.session
    summary = summarise(data.snapshot, row.id, row)
    title = f"{row.name or row.id} · {row.model or 'no engine'}"
    yield from head(title, stylesheet())
    yield f"<h1>{as_html(title)}</h1>"
    yield from _about(recording)
    cards = [*slo_cards(data.snapshot), *hardware_cards(data.snapshot)]
    yield _cards(summary, cards)
    yield from _latencies(summary)
    yield from _servers(summary["servers"])
    yield from _charts("Over the session", time_charts(data))
    yield from _charts("Distributions", cdfs(data))
    yield from cause_tables(data.snapshot)
    yield from hardware_tables(data.snapshot)
    yield from _findings(summary["findings"])
    yield from _facts("Engine", summary["engine"])
    yield from _notes(data)
    yield (
        "<h2>All numbers</h2><details><summary>The summary as JSON, as --json prints "
        f"it</summary><pre>{as_html(strict_json(summary, indent=1))}</pre></details>"
    )
    yield "</body></html>\n"


def _about(recording: Recording) -> Iterable[str]:
    row = recording.session
    began = datetime.fromtimestamp(row.started_ns / NS_PER_S, UTC)
    words = [
        f"session {row.id}",
        f"{began:%Y-%m-%d %H:%M:%S} UTC",
        f"{clock(row.duration_s)} watched",
        row.command,
        f"inferwatch {row.inferwatch_version}",
    ]
    if row.state != "complete":
        words.append(row.state)
    if row.unrecorded:
        words.append(f"{counted(row.unrecorded, 'reading')} missing")
    yield f"<p>{as_html(' · '.join(words))}</p>"
    if recording.imported_from:
        yield f"<p>imported from {as_html(recording.imported_from)}</p>"


def _cards(summary: Summary, more: Sequence[tuple[str, str]]) -> str:
    """What people look for first; the client's own counts where only it was there."""
    requests, runs = summary["requests"], summary["load_runs"]
    if summary["engine"] is None and runs:
        told = [
            (name, format_count(sum(run[name] for run in runs)))
            for name in ("sent", "succeeded", "failed")
        ]
        told.append(("client", ", ".join({run["verdict"]: "" for run in runs})))
    else:
        told = [
            ("output tokens/s", format_rate(summary["output_tokens_per_s"])),
            ("prompt tokens/s", format_rate(summary["prompt_tokens_per_s"])),
            ("requests finished", format_count(requests["finished"])),
            ("failed", format_count(requests["failed"])),
            ("steps", format_count(summary["steps"]["count"])),
            ("batch, mean", format_rate(summary["steps"]["batch_mean"])),
            ("KV peak", format_share(summary["kv_peak_usage"])),
            ("preemptions", format_count(summary["preemptions"])),
        ]
    told += more
    cells = (f"<div><b>{as_html(v.strip())}</b><span>{n}</span></div>" for n, v in told)
    return f'<div class="cards">{"".join(cells)}</div>'


def _latencies(summary: Summary) -> Iterable[str]:
    """The server's, then those of each load run; grey values rest on few samples."""
    yield from _table("server", summary)
    runs = summary["load_runs"]
    for run in runs:
        named = f", {run_line(run)}" if len(runs) > 1 else ""
        yield from _table(f"client{named}", run)
        yield _verdict(run)
    yield "<p>~ rests on fewer than 10/(1-p) samples.</p>"


def _table(heading: str, rows: Summary) -> Iterable[str]:
    held = [name for name in SHOWN if rows.get(name, {}).get("n")]
    if held:
        heads = "".join(f"<th>{name}</th>" for name in ("n", *COLUMNS))
        yield f'<h2>Latencies, {as_html(heading)}</h2><div class="wide"><table>'
        yield f"<tr><th></th>{heads}</tr>"
        for name in held:
            yield _latency(name, rows[name])
        yield "</table></div>"


def _servers(servers: Sequence[Summary]) -> Iterable[str]:
    """Those attached to, one a row."""
    if not servers:
        return
    heads = ("server", "via", "running", "waiting", "KV", "out tok/s", "TTFT, mean")
    cells = "".join(f"<th>{name}</th>" for name in heads)
    yield f'<h2>Servers, at the end</h2><div class="wide"><table><tr>{cells}</tr>'
    for server in servers:
        rank = f" rank {server['rank']}" if server["rank"] != "0" else ""
        lost = "" if server["answers"] else f" (no answer: {server['why']})"
        told = (
            f"{server['name']}{rank}{lost}",
            server["via"],
            format_count(server["running"]),
            format_count(server["waiting"]),
            format_share(server["kv_usage"]),
            format_rate(server["output_tokens_per_s"]),
            format_duration(server.get("ttft_s", {}).get("mean")),
        )
        held = "".join(f"<td>{as_html(each.strip())}</td>" for each in told)
        yield f"<tr>{held}</tr>"
    yield "</table></div>"


def _verdict(client: Summary) -> str:
    """Whether the client was fast enough for the latencies above, and why not."""
    words = client_words(client["verdict"])
    said = f"{words[0].upper()}{words[1:]}"
    if not client["reasons"]:
        return f"<p>{said}.</p>"
    why = [*client["reasons"], *([client["cause"]] if client["cause"] else [])]
    told = (
        f"{said}: {'; '.join(why)}. These numbers are the client's, not the server's."
    )
    return f'<p class="doubt">▲ {as_html(told)}</p>'


def _latency(metric: str, row: dict[str, Any]) -> str:
    abbr = LATENCIES[metric].label
    cells = [f"<td>{abbr} <span class=unit>{as_html(row['vantage'])}</span></td>"]
    cells.append(f"<td>{format_count(row['n']).strip()}</td>")
    texts = format_durations(row[column] for column in COLUMNS)
    ends = row.get("brackets") or {}
    for column, exact in zip(COLUMNS, map(str.strip, texts), strict=True):
        end = ends.get(column)
        text = format_bracket(*end) if end else exact
        weak = column in row["weak"]
        cells.append(
            f'<td class="weak">{about(text)}</td>' if weak else f"<td>{text}</td>"
        )
    return f"<tr>{''.join(cells)}</tr>"


def _charts(heading: str, figures: Sequence[str]) -> Iterable[str]:
    if figures:
        yield f'<h2>{heading}</h2><div class="charts">'
        yield from figures
        yield "</div>"


def _facts(heading: str, facts: dict[str, Any] | None) -> Iterable[str]:
    if facts is not None:
        yield f'<h2>{heading}</h2><table class="facts">'
        for name, value in facts.items():
            told = UNKNOWN if value is None else str(value)
            yield f"<tr><td>{as_html(name)}</td><td>{as_html(told)}</td></tr>"
        yield "</table>"


def _findings(found: list[dict[str, Any]]) -> Iterable[str]:
    """What was wrong, and for how long."""
    if not found:
        return
    yield '<h2>Findings</h2><table class="facts">'
    for each in found:
        begun, until_s = clock(each["since_s"]), each["until_s"]
        span = f"{begun} to {'the end' if until_s is None else clock(until_s)}"
        words = as_html(f"{each['title']}: {each['sentence']}")
        yield f"<tr><td>{span}</td><td>{words}</td></tr>"
    yield "</table>"


def _notes(data: PageData) -> Iterable[str]:
    """Notes and bookmarks in order of time; a load plan is long and folds."""
    notes, plans = data.snapshot.notes, data.plans
    told = [(note.t_ns, str(note.kind), as_html(note_text(note))) for note in notes]
    told += [(each.t_ns, str(NoteKind.STARTED), _folded(each.plan)) for each in plans]
    told += [(t_ns, "bookmark", as_html(text)) for t_ns, text in data.bookmarks]
    told += [(t_ns, "limits", as_html(text)) for t_ns, text in data.limits]
    if not told:
        return
    yield '<h2>Notes</h2><table class="facts">'
    for t_ns, kind, words in sorted(told, key=lambda each: each[0]):
        at = clock(t_ns / NS_PER_S)
        yield f"<tr><td>{at} {as_html(kind)}</td><td>{words}</td></tr>"
    yield "</table>"


def _folded(plan: str) -> str:
    words = as_html(f"load plan {plan}")
    return f"<details><summary>load plan</summary>{words}</details>"


def time_charts(data: PageData) -> list[str]:
    """Charts over the whole session: the engine's, else the client's."""
    timeline = data.snapshot.timeline
    if any(each is not None for each in timeline.running_max):
        told = _scraped(timeline)
    elif any(timeline.steps):
        told = _engine(timeline)
    else:
        told = _client(data.client)
    hardware = _over(timeline, list(hardware_charts(timeline)))
    return [chart.html() for chart in (*told, *hardware)]


def cdfs(data: PageData) -> list[str]:
    """Cumulative distributions: one figure for each vantage that saw latencies."""
    view = data.snapshot.client
    many = view is not None and len(view.runs) > 1
    client = "client, all loads together" if many else "client"
    views = (("server", data.server), (client, data.client.of))
    return [
        cdf(f"Latencies, {who}: cumulative distribution", curves, format_duration)
        for who, of in views
        if (curves := _curves(of))
    ]


def _curves(of: Mapping[str, Distribution]) -> list[SvgCurve]:
    return [
        SvgCurve(name=LATENCIES[metric].label, ink=ink, points=of[metric].points())
        for metric, ink in INKS.items()
        if metric in of and of[metric].n
    ]


def _engine(line: Timeline) -> list[SvgTimeChart]:
    return _over(line, _engine_rows(line))


def _scraped(line: Timeline) -> list[SvgTimeChart]:
    return _over(line, _scraped_rows(line))


def _over(line: Timeline, rows: Sequence[Row]) -> list[SvgTimeChart]:
    start_s, column_s = line.start_ns / NS_PER_S, line.bin_ns / NS_PER_S
    return [
        SvgTimeChart(
            title=title,
            unit=unit,
            series=series,
            say=say,
            start_s=start_s,
            column_s=column_s,
        )
        for title, unit, say, series in rows
    ]


def _scraped_rows(line: Timeline) -> list[Row]:
    """What servers count, for each chart as below."""
    tokens = [
        _line(PREFILL, "prefill", _rate(line, line.prefill_tokens)),
        _line(OUT, "output", _rate(line, line.output_tokens)),
    ]
    requests = [
        _area(label_of(Timeline.running_max), "decode", line.running_max),
        _line(WAITING, "waiting", line.waiting_max, dashed=True),
    ]
    ttft = [_line("mean", "mean", line.ttft_mean_s)]
    itl = [_line("mean", "mean", line.itl_mean_s)]
    usage = [_area(label_of(Timeline.kv_usage), "kv", line.kv_usage)]
    return [
        ("Throughput", "tokens/s, scrape", _rates, tokens),
        ("TTFT, mean", "s", format_durations, ttft),
        ("ITL, mean", "s", format_durations, itl),
        ("Running and waiting", "requests, scrape", _rates, requests),
        ("KV cache", "share in use, scrape", _shares, usage),
    ]


def _engine_rows(line: Timeline) -> list[Row]:
    """For each chart: title, unit, how a value is formatted, and its series."""
    tokens = [
        _line(PREFILL, "prefill", _rate(line, line.prefill_tokens)),
        _line(OUT, "output", _rate(line, line.output_tokens)),
    ]
    ttft = _mean_and_worst(line.ttft_mean_s, line.ttft_max_s)
    itl = _mean_and_worst(line.itl_mean_s, line.itl_max_s)
    step = _mean_and_worst(line.step_mean_s, line.step_max_s)
    batch = [
        _area(label_of(Timeline.batch_decode), "decode", line.batch_decode),
        _area(label_of(Timeline.batch_prefill), "prefill", line.batch_prefill),
        _line(WAITING, "waiting", line.waiting_max, dashed=True),
    ]
    blocks = [
        _area(label_of(Timeline.kv_used_blocks), "kv", line.kv_used_blocks),
        _area(label_of(Timeline.kv_cached_blocks), "cached", line.kv_cached_blocks),
    ]
    at_the_end = "blocks, at the last step of each column"
    return [
        ("Throughput", "tokens/s, engine", _rates, tokens),
        ("TTFT", "s, frontend", format_durations, ttft),
        ("ITL", "s, engine", format_durations, itl),
        ("Batch and queue", "requests per step", _rates, batch),
        ("KV cache", at_the_end, _counts, blocks),
        ("Step time", "s, engine", format_durations, step),
    ]


def _client(client: ClientColumns) -> list[SvgTimeChart]:
    bin_ns, columns = client.columns()
    if not columns["tokens"]:
        return []
    axis = {"start_s": 0.0, "column_s": bin_ns / NS_PER_S}
    charts = [
        SvgTimeChart(
            title="Throughput",
            unit="tokens/s of finished answers, client",
            series=[_line(OUT, "output", columns["tokens"])],
            say=_rates,
            **axis,
        )
    ]
    for name, title in (("ttft", "TTFT"), ("itl", "ITL")):
        mean, worst = columns[f"{name}_mean"], columns[f"{name}_max"]
        if any(value is not None for value in mean):
            charts.append(
                SvgTimeChart(
                    title=title,
                    unit="s, client",
                    series=_mean_and_worst(mean, worst),
                    say=format_durations,
                    **axis,
                )
            )
    return charts


def _rates(values: Sequence[Value]) -> list[str]:
    return [format_rate(value) for value in values]


def _counts(values: Sequence[Value]) -> list[str]:
    return [format_count(value) for value in values]


def _shares(values: Sequence[Value]) -> list[str]:
    return [format_share(value) for value in values]


def _rate(line: Timeline, counts: Sequence[int | None]) -> list[Value]:
    per_s = NS_PER_S / line.bin_ns
    return [None if count is None else count * per_s for count in counts]


def _mean_and_worst(mean: Sequence[Value], worst: Sequence[Value]) -> list[SvgSeries]:
    return [_line("worst", "worst", worst), _line("mean", "mean", mean)]


def _line(
    name: str, ink: str, values: Sequence[Value], *, dashed: bool = False
) -> SvgSeries:
    return SvgSeries(name=name, ink=ink, values=values, dashed=dashed)


def _area(name: str, ink: str, values: Sequence[Value]) -> SvgSeries:
    return SvgSeries(name=name, ink=ink, values=values, area=True)
