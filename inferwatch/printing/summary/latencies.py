"""Latencies in summaries: as JSON by metric, and as text tables."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from inferwatch.formatting import (
    TimeUnit,
    about,
    format_bracket,
    format_count,
    format_in,
    format_met,
    format_objective,
    shared_unit,
)
from inferwatch.metrics.requests.latencies import LATENCIES
from inferwatch.metrics.series.quantiles import PERCENTS
from inferwatch.metrics.series.window import Bracket, Latency, Quantiles

Summary = dict[str, Any]

SHOWN = ("ttft_s", "tpot_s", "itl_s", "e2el_s", "queue_s")
COLUMNS = ("mean", *PERCENTS, "max")
BRACKETED = ("p50", "p95", "p99")


def latency_rows(latencies: Sequence[Latency]) -> Summary:
    """Latencies by metric; percentiles of scraped ones are ``brackets``."""
    rows = {row.metric: row for row in latencies}
    return {metric: latency_row(rows[metric]) for metric in SHOWN if metric in rows}


def latency_row(row: Latency) -> Summary:
    fields = {**quantiles_row(row.quantiles), "vantage": row.vantage}
    if row.brackets is not None:
        ends = {name: getattr(row.brackets, name) for name in (*PERCENTS, "max")}
        fields["brackets"] = {
            name: [end.low, end.high] if end is not None else None
            for name, end in ends.items()
        }
    if row.objective_s is not None:
        fields["objective_s"] = row.objective_s
        fields["met"] = None if row.met is None else list(row.met)
    return fields


def quantiles_row(quantiles: Quantiles) -> Summary:
    columns = {name: getattr(quantiles, name) for name in COLUMNS}
    return {"n": quantiles.n, **columns, "weak": list(quantiles.weak)}


def latency_tables(clock: str, rows: Summary) -> list[str]:
    """One line per latency; ``~`` marks percentiles from too few samples."""
    metrics = [metric for metric in SHOWN if metric in rows]
    exact = [metric for metric in metrics if "brackets" not in rows[metric]]
    stepped = clock == "server" and (exact or not metrics or rows["steps"]["count"])
    lines = []
    if exact or not metrics:
        heads = "".join(f"{name:>9}" for name in COLUMNS)
        lines.append(f"{clock + ' clock':<13}{heads}{'n':>9}")
        lines += [_row(LATENCIES[metric].label, rows[metric]) for metric in exact]
        if stepped:
            lines.append(_row("step", rows["steps"]["duration_s"]))
    if counted := [metric for metric in metrics if metric not in exact]:
        heads = "".join(f"{name:>11}" for name in BRACKETED)
        promised = any("met" in rows[metric] for metric in counted)
        met = f"{'met':>17}" if promised else ""
        lines.append(f"{'by buckets':<13}{'mean':>9}{heads}{'n':>8}{met}")
        lines += [
            _bracketed(LATENCIES[metric].label, rows[metric]) for metric in counted
        ]
    return lines


def _row(name: str, quantiles: Summary) -> str:
    unit = shared_unit(quantiles[column] for column in COLUMNS)
    cells = "".join(quantile_cell(quantiles, column, unit) for column in COLUMNS)
    named = unit.name if quantiles["n"] else ""
    return f"{name:<10}{named:<3}{cells}{format_count(quantiles['n']).rjust(9)}"


def quantile_cell(row: Mapping[str, Any], column: str, unit: TimeUnit) -> str:
    text = format_in(unit, row[column]).rjust(9)
    return about(text) if column in row["weak"] else text


def _bracketed(name: str, row: Summary) -> str:
    """A row with bounds for each percentile; only its mean is exact."""
    ends = dict(zip(BRACKETED, _ends(row), strict=True))
    known = [end for end in ends.values() if end is not None]
    bounds = [bound for end in known for bound in (end.low, end.high) if bound]
    unit = shared_unit([*bounds, row["mean"]], round_figures=True)
    cells = ""
    for column, end in ends.items():
        text = format_bracket(end.low, end.high, unit) if end else "–"
        cells += f"{'~' if end and column in row['weak'] else ''}{text}".rjust(11)
    named = unit.name if row["n"] else ""
    mean, n = format_in(unit, row["mean"]).rjust(9), format_count(row["n"]).rjust(8)
    return f"{name:<10}{named:<3}{mean}{cells}{n}{_met(row)}"


def _ends(row: Summary) -> Iterator[Bracket | None]:
    for name in BRACKETED:
        end = row["brackets"][name]
        yield None if end is None else Bracket(low=end[0], high=end[1])


def _met(row: Summary) -> str:
    if "objective_s" not in row:
        return ""
    share = "–" if row["met"] is None else format_met(*row["met"]).strip()
    return f"{share} {format_objective(row['objective_s'])}".rjust(17)
