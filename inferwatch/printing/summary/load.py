"""A load run as one JSON object, and as text."""

from collections.abc import Mapping
from textwrap import wrap
from typing import Any

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import ClientSample
from inferwatch.formatting import (
    about,
    counted,
    duration_text,
    format_count,
    format_durations,
    format_in,
    format_rate,
    shared_unit,
)
from inferwatch.metrics.load.book import error_text
from inferwatch.metrics.load.client_run import ClientView
from inferwatch.metrics.load.client_verdict import client_words, cpu_share
from inferwatch.metrics.load.goodput import Goodput
from inferwatch.metrics.load.request_latencies import (
    CLIENT_E2EL,
    CLIENT_ITL,
    CLIENT_TPOT,
    CLIENT_TTFT,
)
from inferwatch.metrics.load.result import LoadGroup, LoadResult
from inferwatch.metrics.load.view import LoadRun
from inferwatch.metrics.number import label_of
from inferwatch.metrics.series.intervals import Estimate
from inferwatch.printing.summary.latencies import Summary, quantile_cell

COUNTS = ("sent", "succeeded", "failed", "aborted", "in_flight_at_end", "warmup")


def summarise_load(result: LoadResult) -> Summary:
    """What ``inferwatch load --json`` prints for a run.

    ``ttft_s`` counts from the intended send, as everywhere; ``ttft_from_intended_s`` is
    the same.
    """
    latencies = _latencies(result.latencies)
    return {
        "run_id": result.run_id,
        "span_s": result.span_s,
        "streams_mean": result.streams,
        "requests": {name: getattr(result, name) for name in COUNTS}
        | {"hung_up": result.hung_up, "unaccounted": result.unaccounted},
        "failures": {
            kind: {"n": each.count, "first": each.first}
            for kind, each in result.failures.items()
        },
        "rate": {
            "asked": result.rate.asked,
            "asked_range": _pair(result.rate.asked_range),
            "users": _pair(result.rate.users),
            "changed": result.rate.changed,
            "scheduled": result.rate.scheduled,
            "achieved": result.rate.achieved,
            "held_back": result.rate.held_back,
            "of": "conversations" if result.turns else "requests",
        },
        "tokens": _tokens(result),
        **latencies,
        "ttft_from_intended_s": latencies["ttft_s"],
        "weak": {
            name: list(estimate.quantiles.weak)
            for name, estimate in result.latencies.items()
            if estimate.quantiles.weak
        },
        "slo": _slo(result, result.goodput) if result.goodput else None,
        "classes": {name: _part(each) for name, each in result.classes.items()},
        "turns": {turn: _part(each) for turn, each in result.turns.items()},
        "client": _client(result),
    }


def _latencies(estimates: Mapping[str, Estimate]) -> Summary:
    return {
        name: {**estimate.as_json(), "vantage": "client"}
        for name, estimate in estimates.items()
    }


def _pair(pair: tuple[float, float] | tuple[int, int] | None) -> list[float] | None:
    return None if pair is None else list(pair)


def _part(part: LoadGroup) -> Summary:
    judged = {"asked": str(part.slo), **_judged(part.goodput)} if part.goodput else None
    return {
        "requests": {name: getattr(part, name) for name in COUNTS[:3]},
        "tokens": {"prompt": part.prompt_tokens, "output": part.output_tokens},
        **_latencies(part.latencies),
        "slo": judged,
    }


def _tokens(result: LoadResult) -> Summary:
    return {
        "prompt": result.prompt_tokens,
        "output": result.output_tokens,
        "output_per_s": result.tokens_per_s,
        "chunks": result.chunks,
    }


def _slo(result: LoadResult, goodput: Goodput) -> Summary:
    return {
        "asked": str(result.slo) if result.slo else None,
        "classes": {name: str(slo) for name, slo in result.class_slos.items()},
        **_judged(goodput),
    }


def _judged(goodput: Goodput) -> Summary:
    return {
        "judged_from": "intended",
        "n": goodput.n,
        "good": goodput.good,
        "undetermined": goodput.undetermined,
        "untold": goodput.untold,
        "share": goodput.share,
        "share_ci95": list(goodput.ci95),
        "goodput_per_s": goodput.good_per_s,
        "missed": dict(goodput.missed),
    }


def _client(result: LoadResult) -> Summary:
    """The client's verdict and lags, which show how far its numbers can be trusted."""
    sample, lag = result.sample, result.send_lag.quantiles
    return {
        "verdict": result.verdict.state,
        "reasons": list(result.verdict.reasons),
        "cause": result.verdict.cause,
        "send_lag_s": {"p50": lag.p50, "p99": lag.p99, "max": lag.max},
        **(_of_sample(sample) if sample else _NO_SAMPLE),
    }


def _of_sample(sample: ClientSample) -> Summary:
    lags = {q: getattr(sample, f"recv_lag_{q}_ns") for q in ("p50", "p99", "max")}
    known = sample.recv_lag_p50_ns is not None
    return {
        "recv_lag_s": {q: ns / NS_PER_S for q, ns in lags.items()} if known else None,
        "late_sends": sample.late_sends,
        "merged_reads": sample.merged_reads,
        "reads": sample.reads,
        "cpu": cpu_share(sample),
        "cpu_s": sample.cpu_s,
        "transport": sample.transport,
        "stamps": _stamps(sample),
    }


_NO_SAMPLE: Summary = dict.fromkeys(
    (
        "recv_lag_s",
        "late_sends",
        "merged_reads",
        "reads",
        "cpu",
        "cpu_s",
        "transport",
        "stamps",
    )
)


def _stamps(sample: ClientSample) -> str:
    if not sample.kernel_stamps:
        return "user"
    return "kernel" if sample.kernel_stamps == sample.tokens else "mixed"


# Text in 80 columns, with doubtful values marked.

TTFT, TPOT, ITL, E2EL = (
    each.label for each in (CLIENT_TTFT, CLIENT_TPOT, CLIENT_ITL, CLIENT_E2EL)
)
SENT, DONE, FAILED = (
    label_of(each) for each in (LoadRun.sent, LoadRun.succeeded, LoadRun.failed)
)
ROWS = {
    "ttft_s": TTFT,
    "ttft_from_send_s": " from the send",
    "first_content_s": " first content",
    "tpot_s": TPOT,
    "itl_s": ITL,
    "e2el_s": E2EL,
    "e2el_from_send_s": " from the send",
}
COLUMNS = ("p50", "p90", "p99", "max")
MUCH_MORE = 1.5
"""With more than this many times the calibrated load, the calibration does not apply.
"""
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
            *_client_lines(summary["client"]),
            *_calibration(summary.get("calibration")),
            *_check(summary.get("cross_check")),
        ],
        _slo_lines(summary["slo"]),
        _scenario(summary.get("scenario")),
        ["± 95% interval of the mean   ~ fewer samples than the percentile needs"],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _counts(summary: Summary) -> str:
    requests, tokens = summary["requests"], summary["tokens"]
    parts = [f"{requests['sent']:,} {SENT}", f"{requests['succeeded']:,} {DONE}"]
    parts += [
        f"{requests[name]:,} {text}"
        for name, text in (
            ("failed", FAILED),
            ("aborted", "aborted"),
            ("hung_up", "of them hung up, as planned"),
            ("in_flight_at_end", "in flight when the last was sent"),
            ("warmup", "in warm-up"),
        )
        if requests[name]
    ]
    parts.append(f"{_rate(tokens['output_per_s'])} tokens/s out")
    return ", ".join(parts)


def _accounts(requests: Mapping[str, Any]) -> list[str]:
    """A warning if some sent requests have no known outcome."""
    if not (lost := requests["unaccounted"]):
        return []
    return [
        (
            f"  the outcome of {counted(lost, 'request')} is unknown: no number here "
            "counts them"
        )
    ]


def _rates(summary: Summary) -> str:
    rate = summary["rate"]
    remarks = f", {rate['held_back']:,} held back" if rate["held_back"] else ""
    remarks += ", counted in conversations" if rate["of"] == "conversations" else ""
    scheduled, sent = _rate(rate["scheduled"]), _rate(rate["achieved"])
    as_asked = rate["asked"] is None or _rate(rate["asked"]) == scheduled
    draws = "" if as_asked else f", {scheduled}/s with this seed"
    return f"{_target_text(rate)}{draws}, sent {sent}/s{remarks}"


def _target_text(rate: Mapping[str, Any]) -> str:
    why = ", changed during the run" if rate["changed"] else " over time"
    if rate["asked"] is None:
        low, high = rate["users"] or (None, None)
        return "closed loop" if low == high else f"{low} to {high} users{why}"
    text = f"asked {_rate(rate['asked'])}/s"
    if rate["asked_range"]:
        low, high = map(_rate, rate["asked_range"])
        text += f" ({low} to {high}{why})"
    return text


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
    lines = [f"{'client clock':<18}{'mean':>8}{'±':>8}{heads}{'n':>9}"]
    chunks = summary["tokens"]["chunks"] != summary["tokens"]["output"]
    for metric, name in ROWS.items():
        if metric not in summary:
            continue
        label = f"{name} (chunks)" if metric == "itl_s" and chunks else name
        lines.append(_row(label, summary[metric]))
    return lines


def _row(name: str, row: Mapping[str, Any]) -> str:
    unit = shared_unit(row[column] for column in ("mean", *COLUMNS))
    cells = "".join(quantile_cell(row, column, unit) for column in COLUMNS)
    mean, half = (format_in(unit, each).rjust(8) for each in (row["mean"], _half(row)))
    named = unit.name if row["n"] else ""
    return f"{name:<15}{named:<3}{mean}{half}{cells}{format_count(row['n']):>9}"


def _half(row: Mapping[str, Any]) -> float | None:
    lower, upper = row["ci95"].get("mean", (None, None))
    return None if lower is None else float(upper - lower) / 2


def _client_lines(client: Mapping[str, Any]) -> list[str]:
    first, lags = client_words(client["verdict"]), []
    if client["transport"] is not None:
        first += f" · {client['transport']}, {client['stamps']} stamps"
        first += f" · {client['cpu']:.0%} of a core" if client["cpu"] else ""
        lag = client["recv_lag_s"]
        lags_s = [client["send_lag_s"]["p99"], *([lag["p99"]] if lag else [])]
        lags = [
            f"{name} lag p99 {text.strip()}"
            for name, text in zip(
                ("send", "receive"), format_durations(lags_s), strict=False
            )
        ]
    lines = [first, *([f"  {', '.join(lags)}"] if lags else ())]
    return [*lines, *doubts(client)]


def doubts(client: Mapping[str, Any]) -> list[str]:
    """Why the client was too slow, what caused that, and what it means."""
    if not client["reasons"]:
        return []
    sentences = [*client["reasons"], *([client["cause"]] if client["cause"] else [])]
    sentences.append("so these numbers describe the client, not the server")
    return [
        line
        for each in sentences
        for line in wrap(each, 80, initial_indent="  ", subsequent_indent="    ")
    ]


def _calibration(calibration: Mapping[str, Any] | None) -> list[str]:
    if calibration is None:
        return []
    ttft, itl = calibration["ttft_s"], calibration["itl_s"]
    errors = (ttft["error_mean"], ttft["error_p99"], itl["error_p99"])
    mean, p99, gap = (_signed(error) for error in errors)
    text = f"calibrated {calibration['date'][:10]} at {calibration['load']}"
    lines = [f"{text}: TTFT {mean} mean, {p99} p99; ITL {gap} p99"]
    lines.append(
        f"  calibrated: {_work(calibration)}; this run: {_work(calibration['run'])}"
    )
    if (times := calibration["run"]["times_calibrated"] or 0.0) > MUCH_MORE:
        lines.append(
            f"  {times:.1f} times as much: run `inferwatch calibrate` again at a "
            "load like this"
        )
    return lines


def _work(of: Mapping[str, Any]) -> str:
    streams, tokens = _rate(of["streams_mean"]), _rate(of["tokens_per_s"])
    return f"{streams} in flight, {tokens} tokens/s"


def _signed(seconds: float | None) -> str:
    if seconds is None:
        return duration_text(None)
    return f"{'-' if seconds < 0 else '+'}{duration_text(abs(seconds))}"


def _check(check: Mapping[str, Any] | None) -> list[str]:
    if check is None:
        return []
    parts = " + ".join(
        f"{PART_NAMES[name]} {duration_text(value)}"
        for name, value in check["parts"].items()
        if value is not None
    )
    by = SOURCES[check["source"]]
    lines = [f"server, according to {by}: mean TTFT {duration_text(check['ttft_s'])} ="]
    lines += [f"  {parts}", *(f"  {text}" for text in check["disagreements"])]
    return [*lines, f"  {check['hint']}"] if check["hint"] else lines


def _scenario(finding: Mapping[str, Any] | None) -> list[str]:
    if finding is None:
        return []
    return wrap(f"{finding['name']}: {finding['sentence']}", 80, subsequent_indent="  ")


def _slo_lines(slo: Mapping[str, Any] | None) -> list[str]:
    if slo is None:
        return []
    lower, upper = slo["share_ci95"]
    share = "–" if slo["share"] is None else f"{slo['share']:.1%}"
    good = f"{slo['good']:,} of {slo['n']:,} good, {share} ({lower:.1%} to {upper:.1%})"
    per_s = _rate(slo["goodput_per_s"])
    lines = [f"SLO {slo['asked'] or 'per class'}: {good}, goodput {per_s}/s"]
    missed = ", ".join(f"{n:,} on {metric}" for metric, n in slo["missed"].items())
    if missed:
        lines.append(f"  missed: {missed}")
    if slo["untold"]:
        text = untold_text(slo["untold"])
        lines += wrap(text, 80, initial_indent="  ", subsequent_indent="    ")
    return lines


def untold_text(count: int) -> str:
    return (
        f"{counted(count, 'request')} cannot be judged: how many tokens they had, or "
        "when those came, is unknown"
    )


def _rate(value: float | None) -> str:
    return format_rate(value).strip()


# Classes and turns, one line each.

Parts = Mapping[str, Mapping[str, Any]]
HEADS = (
    *(SENT, FAILED, "prompt"),
    *(f"{TTFT} p50", "p99", f"{TPOT} p50", f"{E2EL} p50"),
    label_of(ClientView.good),
)
WIDTHS = (3, 7, 7, 8, 9, 8, 9, 9, 7)
NAME_CELLS = 13


def parts_table(head: str, parts: Parts) -> list[str]:
    """A heading and one line for each part of a run; empty if there are none."""
    if not parts:
        return []
    heads = _line(head, ("", *HEADS))
    return [heads, *(_line(name, _cells(part)) for name, part in parts.items())]


def _cells(part: Mapping[str, Any]) -> tuple[str, ...]:
    requests, tokens, slo = part["requests"], part["tokens"], part["slo"]
    known = requests["sent"] and tokens["prompt"] is not None
    each = tokens["prompt"] / requests["sent"] if known else None
    ttft = part["ttft_s"]
    times = (ttft["p50"], ttft["p99"], part["tpot_s"]["p50"], part["e2el_s"]["p50"])
    unit = shared_unit(times)
    ttft_p50, ttft_p99, tpot, e2el = (format_in(unit, each) for each in times)
    return (
        unit.name,
        format_count(requests["sent"]),
        format_count(requests["failed"]),
        format_count(None if each is None else round(each)),
        ttft_p50,
        about(ttft_p99) if "p99" in ttft["weak"] else ttft_p99,
        tpot,
        e2el,
        "–" if slo is None or slo["share"] is None else f"{slo['share']:.1%}",
    )


def _line(name: str, cells: tuple[str, ...]) -> str:
    if len(name) > NAME_CELLS:
        name = f"{name[: NAME_CELLS - 1]}…"
    padded = (cell.strip(" ").rjust(w) for cell, w in zip(cells, WIDTHS, strict=True))
    return name.ljust(NAME_CELLS) + "".join(padded)
