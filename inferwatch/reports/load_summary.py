"""A load run as one JSON object."""

from collections.abc import Mapping
from typing import Any

from collectors.clock import NS_PER_S
from collectors.readings import ClientSample
from inferwatch.metrics.load.classes import Part
from inferwatch.metrics.load.client_verdict import cpu_share
from inferwatch.metrics.load.goodput import Goodput
from inferwatch.metrics.load.result import LoadResult
from inferwatch.metrics.series.intervals import Estimate

Summary = dict[str, Any]
COUNTS = ("sent", "succeeded", "failed", "aborted", "in_flight_at_end", "warmup")


def summarise_load(result: LoadResult) -> Summary:
    """What ``inferwatch load --json`` prints of a run.

    ``ttft_s`` counts from the intended send, as everywhere; it also stands under the
    name that says so.
    """
    latencies = _latencies(result.latencies)
    return {
        "run_id": result.run_id,
        "span_s": result.span_s,
        "streams_mean": result.streams,
        "requests": {name: getattr(result, name) for name in COUNTS}
        | {"unaccounted": result.unaccounted},
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


def _latencies(found: Mapping[str, Estimate]) -> Summary:
    return {
        name: {**estimate.as_json(), "vantage": "client"}
        for name, estimate in found.items()
    }


def _pair(pair: tuple[float, float] | tuple[int, int] | None) -> list[float] | None:
    return None if pair is None else list(pair)


def _part(part: Part) -> Summary:
    """Of a class or of a turn."""
    judged = {"asked": str(part.slo), **_judged(part.goodput)} if part.goodput else None
    return {
        "requests": {name: getattr(part, name) for name in COUNTS[:3]},
        "tokens": {"prompt": part.prompt_tokens, "output": part.output_tokens},
        **_latencies(part.latencies),
        "slo": judged,
    }


def _tokens(result: LoadResult) -> Summary:
    span_s = result.span_s
    return {
        "prompt": result.prompt_tokens,
        "output": result.output_tokens,
        "output_per_s": result.output_tokens / span_s if span_s else None,
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
        "share": goodput.share,
        "share_ci95": list(goodput.ci95),
        "goodput_per_s": goodput.good_per_s,
        "missed": dict(goodput.missed),
    }


def _client(result: LoadResult) -> Summary:
    """How far the numbers are the server's."""
    sample, lag = result.sample, result.send_lag.quantiles
    return {
        "verdict": result.verdict.state,
        "reasons": list(result.verdict.reasons),
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
        *("recv_lag_s", "late_sends", "merged_reads", "reads"),
        *("cpu", "cpu_s", "transport", "stamps"),
    )
)


def _stamps(sample: ClientSample) -> str:
    """Who took the time of the tokens."""
    if not sample.kernel_stamps:
        return "user"
    return "kernel" if sample.kernel_stamps == sample.tokens else "mixed"
