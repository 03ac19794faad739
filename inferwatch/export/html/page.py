"""The page: what was watched, the summary, charts, notes; every text escaped."""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from collectors.clock import NS_PER_S
from collectors.readings import NoteKind
from inferwatch.export.html.chart import clock
from inferwatch.export.html.charts import cdfs, time_charts
from inferwatch.export.html.gather import Gathered
from inferwatch.export.recording import Recording
from inferwatch.formatting import (
    UNKNOWN,
    format_count,
    format_duration,
    format_rate,
    format_share,
)
from inferwatch.metrics.catalog import CATALOG
from inferwatch.metrics.series.quantiles import PERCENTS
from inferwatch.reports.summary import SHOWN, Summary, summarise
from inferwatch.visible import as_html

COLUMNS = ("mean", *PERCENTS, "max")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""The page asks nobody for anything, and runs nothing."""


def page(recording: Recording, gathered: Gathered) -> Iterable[str]:
    """The page, part by part."""
    row = recording.session
    summary = summarise(gathered.snapshot, row.id, row)
    title = f"{row.name or row.id} · {row.model or 'no engine'}"
    yield from _head(title)
    yield f"<h1>{as_html(title)}</h1>"
    yield from _about(recording)
    yield _cards(summary)
    yield from _latencies(summary)
    yield from _charts("Over the session", time_charts(gathered))
    yield from _charts("Distributions", cdfs(gathered))
    yield from _facts("Engine", summary["engine"])
    yield from _notes(gathered)
    yield (
        "<h2>All numbers</h2><details><summary>The summary as JSON, as --json prints "
        f"it</summary><pre>{as_html(json.dumps(summary, indent=1))}</pre></details>"
    )
    yield "</body></html>\n"


def _head(title: str) -> Iterable[str]:
    style = files("inferwatch.export.html").joinpath("style.css").read_text("utf-8")
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<link rel="icon" href="data:,">'
    yield f"<title>{as_html(title)} · inferwatch</title><style>{style}</style>"
    yield "</head><body>"


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
        words.append(f"{row.unrecorded} readings are missing")
    yield f"<p>{as_html(' · '.join(words))}</p>"
    if recording.imported_from:
        yield f"<p>imported from {as_html(recording.imported_from)}</p>"


def _cards(summary: Summary) -> str:
    """What people look for first; the client's own counts where only it was there."""
    requests, client = summary["requests"], summary["client"]
    if summary["engine"] is None and client is not None:
        told = [
            ("sent", format_count(client["sent"])),
            ("succeeded", format_count(client["succeeded"])),
            ("failed", format_count(client["failed"])),
        ]
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
    cells = (f"<div><b>{as_html(v.strip())}</b><span>{n}</span></div>" for n, v in told)
    return f'<div class="cards">{"".join(cells)}</div>'


def _latencies(summary: Summary) -> Iterable[str]:
    """One table a vantage; grey stands on too few samples."""
    client = summary["client"] or {}
    for heading, rows in (("server", summary), ("client", client)):
        held = [name for name in SHOWN if rows.get(name, {}).get("n")]
        if held:
            heads = "".join(f"<th>{name}</th>" for name in ("n", *COLUMNS))
            yield f'<h2>Latencies, {heading}</h2><div class="wide"><table>'
            yield f"<tr><th></th>{heads}</tr>"
            for name in held:
                yield _latency(name, rows[name])
            yield "</table></div>"
    yield "<p>Grey: fewer than 10/(1-p) samples stand behind it.</p>"


def _latency(metric: str, row: dict[str, Any]) -> str:
    abbr = CATALOG[metric].abbr
    cells = [f"<td>{abbr} <span class=unit>{as_html(row['vantage'])}</span></td>"]
    cells.append(f"<td>{format_count(row['n']).strip()}</td>")
    for column in COLUMNS:
        weak = ' class="weak"' if column in row["weak"] else ""
        cells.append(f"<td{weak}>{format_duration(row[column]).strip()}</td>")
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


def _notes(gathered: Gathered) -> Iterable[str]:
    """Notes and bookmarks in order of time; a load plan is long and folds."""
    notes, plans = gathered.snapshot.notes, gathered.plans
    told = [(note.t_ns, str(note.kind), as_html(note.text)) for note in notes]
    told += [(each.t_ns, str(NoteKind.STARTED), _folded(each.plan)) for each in plans]
    told += [(t_ns, "bookmark", as_html(text)) for t_ns, text in gathered.bookmarks]
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
