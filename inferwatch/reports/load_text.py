"""A load run for people: 80 columns, the doubtful marked."""

from collections.abc import Mapping
from textwrap import wrap
from typing import Any

from inferwatch.formatting import format_count, format_duration, format_rate
from inferwatch.metrics.load.error_text import error_text
from inferwatch.reports.load_parts_text import parts_table
from inferwatch.reports.load_summary import Summary

ROWS = {
    "ttft_s": "TTFT",
    "ttft_from_send_s": " from the send",
    "first_content_s": " first content",
    "tpot_s": "TPOT",
    "itl_s": "ITL",
    "e2el_s": "E2EL",
    "e2el_from_send_s": " from the send",
}
COLUMNS = ("p50", "p90", "p99", "max")
MUCH_MORE = 1.5
"""Times the calibrated load: beyond, what was calibrated promises nothing."""
SOURCES = {"probe": "probe", "answers": "its answers", "metrics": "its /metrics"}
PART_NAMES = {
    "send_lag_s": "send lag",
    "network_s": "network",
    "api_s": "API",
    "queue_s": "queue",
    "prefill_s": "prefill",
    "return_s": "return",
}


def load_text(summary: Summary) -> str:
    """One run's summary."""
    blocks = [
        [
            _counts(summary),
            *_accounts(summary["requests"]),
            _rates(summary),
            *_failures(summary),
        ],
        _table(summary),
        parts_table("class", summary["classes"]),
        parts_table("turn", summary["turns"]),
        [
            *_client(summary["client"]),
            *_calibration(summary.get("calibration")),
            *_check(summary.get("cross_check")),
        ],
        _slo(summary["slo"]),
        ["± 95% interval of the mean   * fewer samples than the percentile needs"],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _counts(summary: Summary) -> str:
    requests, tokens = summary["requests"], summary["tokens"]
    parts = [f"{requests['sent']:,} sent", f"{requests['succeeded']:,} ok"]
    parts += [
        f"{requests[name]:,} {said}"
        for name, said in (
            ("failed", "failed"),
            ("aborted", "aborted"),
            ("in_flight_at_end", "in flight when the last was sent"),
            ("warmup", "in warm-up"),
        )
        if requests[name]
    ]
    parts.append(f"{_rate(tokens['output_per_s'])} tokens/s out")
    return ", ".join(parts)


def _accounts(requests: Mapping[str, Any]) -> list[str]:
    """Said when it does not hold: each request that was sent ends in one way."""
    if not (lost := requests["unaccounted"]):
        return []
    return [f"  the outcome of {lost:,} requests is lost: no number here counts them"]


def _rates(summary: Summary) -> str:
    rate = summary["rate"]
    held = f", {rate['held_back']:,} held back" if rate["held_back"] else ""
    held += ", of conversations" if rate["of"] == "conversations" else ""
    drawn, sent = _rate(rate["scheduled"]), _rate(rate["achieved"])
    as_asked = rate["asked"] is None or _rate(rate["asked"]) == drawn
    draws = "" if as_asked else f", this seed draws {drawn}/s"
    return f"{_asked(rate)}{draws}, sent {sent}/s{held}"


def _asked(rate: Mapping[str, Any]) -> str:
    why = ", changed on the way" if rate["changed"] else " by time"
    if rate["asked"] is None:
        low, high = rate["users"] or (None, None)
        return "closed loop" if low == high else f"{low} to {high} users{why}"
    asked = f"asked {_rate(rate['asked'])}/s"
    if rate["asked_range"]:
        low, high = map(_rate, rate["asked_range"])
        asked += f" ({low} to {high}{why})"
    return asked


def _failures(summary: Summary) -> list[str]:
    return [
        line
        for kind, each in summary["failures"].items()
        for line in wrap(
            error_text(each["first"]) or "(nothing)",
            80,
            initial_indent=f"  {each['n']:,} × {kind}: ",
            subsequent_indent="    ",
            max_lines=3,
            placeholder=" …",
        )
    ]


def _table(summary: Summary) -> list[str]:
    heads = "".join(f"{name:>9}" for name in COLUMNS)
    lines = [f"{'client clock':<16}{'mean':>8}{'±':>9}{heads}{'n':>9}"]
    chunks = summary["tokens"]["chunks"] != summary["tokens"]["output"]
    for metric, name in ROWS.items():
        if metric not in summary:
            continue
        said = f"{name} (chunks)" if metric == "itl_s" and chunks else name
        lines.append(_row(said, summary[metric]))
    return lines


def _row(name: str, row: Mapping[str, Any]) -> str:
    cells = "".join(
        format_duration(row[column]).rjust(8) + ("*" if column in row["weak"] else " ")
        for column in COLUMNS
    )
    mean = format_duration(row["mean"]).rjust(8)
    count = format_count(row["n"]).rjust(9)
    return f"{name:<16}{mean}{format_duration(_half(row)).rjust(9)} {cells}{count}"


def _half(row: Mapping[str, Any]) -> float | None:
    lower, upper = row["ci95"].get("mean", (None, None))
    return None if lower is None else float(upper - lower) / 2


def _client(client: Mapping[str, Any]) -> list[str]:
    first, lags = f"client {client['verdict']}", []
    if client["transport"] is not None:
        first += f" · {client['transport']}, {client['stamps']} stamps"
        first += f" · {client['cpu']:.0%} of a core" if client["cpu"] else ""
        lags.append(f"send lag p99 {_short(client['send_lag_s']['p99'])}")
        lag = client["recv_lag_s"]
        lags += [f"receive lag p99 {_short(lag['p99'])}"] if lag else []
    lines = [first, *([f"  {', '.join(lags)}"] if lags else ())]
    lines += [f"  {reason}" for reason in client["reasons"]]
    if client["reasons"]:
        lines.append("  so these numbers are the client's, not the server's")
    return lines


def _calibration(found: Mapping[str, Any] | None) -> list[str]:
    if found is None:
        return []
    ttft, itl = found["ttft_s"], found["itl_s"]
    errors = (ttft["error_mean"], ttft["error_p99"], itl["error_p99"])
    mean, p99, gap = (_signed(error) for error in errors)
    said = f"calibrated {found['date'][:10]} at {found['load']}"
    lines = [f"{said}: TTFT {mean} mean, {p99} p99; ITL {gap} p99"]
    lines.append(f"  there {_work(found)}; here {_work(found['run'])}")
    if (times := found["run"]["times_calibrated"] or 0.0) > MUCH_MORE:
        lines.append(
            f"  {times:.1f} times as much: calibrate again, at a load like this one"
        )
    return lines


def _work(of: Mapping[str, Any]) -> str:
    streams, tokens = _rate(of["streams_mean"]), _rate(of["tokens_per_s"])
    return f"{streams} in flight, {tokens} tokens/s"


def _signed(seconds: float | None) -> str:
    if seconds is None:
        return _short(None)
    return f"{'-' if seconds < 0 else '+'}{_short(abs(seconds))}"


def _check(check: Mapping[str, Any] | None) -> list[str]:
    if check is None:
        return []
    parts = " + ".join(
        f"{PART_NAMES[name]} {_short(value)}"
        for name, value in check["parts"].items()
        if value is not None
    )
    by = SOURCES[check["source"]]
    lines = [f"server, by {by}: mean TTFT {_short(check['ttft_s'])} ="]
    lines += [f"  {parts}", *(f"  {said}" for said in check["disagreements"])]
    return [*lines, f"  {check['hint']}"] if check["hint"] else lines


def _slo(slo: Mapping[str, Any] | None) -> list[str]:
    if slo is None:
        return []
    lower, upper = slo["share_ci95"]
    share = "–" if slo["share"] is None else f"{slo['share']:.1%}"
    good = f"{slo['good']:,} of {slo['n']:,} good, {share} ({lower:.1%} to {upper:.1%})"
    per_s = _rate(slo["goodput_per_s"])
    lines = [f"SLO {slo['asked'] or 'by class'}: {good}, goodput {per_s}/s"]
    missed = ", ".join(f"{n:,} by {metric}" for metric, n in slo["missed"].items())
    return [*lines, f"  missed: {missed}"] if missed else lines


def _short(seconds: float | None) -> str:
    return format_duration(seconds).strip()


def _rate(value: float | None) -> str:
    return format_rate(value).strip()
