"""Reads aiperf's ``profile_export.jsonl``, a request per line, and its summary."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from inferwatch.loadgen.plan.plan import Arrivals
from inferwatch.record.imported.imported_run import (
    MALFORMED,
    ImportedRequest,
    ImportedRun,
    LoadShape,
    UnreadableResultError,
    shape_of_rate,
)

TTFT = (
    "TTFT: aiperf's own counts from before the request (its session made, connect "
    "included) to the first event with content or reasoning; here from when its "
    "schedule let the request go (credit)"
)
REMARKS = ("ITL: between chunks, which may hold several tokens",)
NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "sec": 1_000_000_000, "s": 1_000_000_000}
SUMMARY = "profile_export_aiperf.json"
RECORDS = "profile_export.jsonl"


def is_aiperf_record(document: object) -> bool:
    """Whether a document is a request in aiperf's list of requests."""
    return isinstance(document, dict) and {"metadata", "metrics"} <= document.keys()


def is_aiperf_summary(document: object) -> bool:
    """Whether a document is aiperf's summary, whose folder also holds the requests."""
    return isinstance(document, dict) and "aiperf_version" in document


def records_beside(summary: Path) -> Path:
    """The file with a summary's requests, ``profile_export[...].jsonl``.

    Raises:
        UnreadableResultError: they are not there.
    """
    own = summary.with_name(summary.name.replace("_aiperf.json", ".jsonl"))
    if own == summary or not own.exists():
        raise UnreadableResultError(
            f"this is aiperf's summary; its requests, {RECORDS}, are not beside it: "
            "run aiperf with --export-level records"
        )
    return own


def read_aiperf(records: Path, lines: Sequence[str]) -> list[ImportedRun]:
    """Read the file's only run; its model and load are known if there is a summary.

    Raises:
        UnreadableResultError: a line is not a request.
    """
    summary = _summary(records)
    requests = list(_requests(lines))
    if not requests:
        raise UnreadableResultError("it holds no requests")
    config = summary.get("input_config") or {}
    version = summary.get("aiperf_version")
    remarks = list(REMARKS)
    if not summary:
        remarks.append(f"model and load unknown: {SUMMARY} is not beside it")
    return [
        ImportedRun(
            tool=f"aiperf {version}" if version else "aiperf",
            model=_model(config),
            requests=requests,
            began_unix_ns=min(request.due_ns for request in requests),
            uncertainty_ns=1_000,
            ttft=TTFT,
            remarks=remarks,
            shape=_shape(config),
        )
    ]


def _summary(records: Path) -> dict[str, Any]:
    path = records.with_name(records.name.replace(".jsonl", "_aiperf.json"))
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if is_aiperf_summary(document) else {}


def _requests(lines: Sequence[str]) -> Iterator[ImportedRequest]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield _request(json.loads(line))
            except MALFORMED as error:
                raise UnreadableResultError(
                    f"line {number} is not a request of aiperf: {error!r}"
                ) from error


def _request(record: Mapping[str, Any]) -> ImportedRequest:
    about, metrics = record["metadata"], record["metrics"]
    sent_ns, ttft_ns = about["request_start_ns"], _ns(metrics, "time_to_first_token")
    latency_ns = _ns(metrics, "request_latency")
    gaps = metrics.get("inter_chunk_latency")
    return ImportedRequest(
        name=about["x_request_id"],
        intended_ns=about.get("credit_issued_ns"),
        sent_ns=sent_ns,
        first_ns=None if ttft_ns is None else sent_ns + ttft_ns,
        last_ns=None if latency_ns is None else sent_ns + latency_ns,
        end_ns=about.get("request_end_ns"),
        gaps_ns=None if gaps is None else _each_ns(gaps),
        prompt_tokens=_count(metrics, "input_sequence_length", "error_isl"),
        output_tokens=_count(metrics, "output_sequence_length"),
        failure=_failure(record),
        detail=_detail(record),
        warmup=about.get("benchmark_phase") == "warmup",
    )


def _ns(metrics: Mapping[str, Any], name: str) -> int | None:
    metric = metrics.get(name)
    return None if metric is None else round(metric["value"] * NS[metric["unit"]])


def _each_ns(metric: Mapping[str, Any]) -> list[int]:
    return [round(value * NS[metric["unit"]]) for value in metric["value"]]


def _count(metrics: Mapping[str, Any], *names: str) -> int | None:
    values = (metrics[name]["value"] for name in names if name in metrics)
    return next((int(value) for value in values), None)


def _failure(record: Mapping[str, Any]) -> str | None:
    if record["metadata"].get("was_cancelled"):
        return "aborted"
    return "error" if record.get("error") else None


def _detail(record: Mapping[str, Any]) -> str | None:
    error = record.get("error")
    return None if not error else f"{error.get('type')}: {error.get('message')}"[:300]


def _model(config: Mapping[str, Any]) -> str | None:
    items = (config.get("models") or {}).get("items") or []
    names = [str(item.get("name")) for item in items]
    return ", ".join(names) or None


def _shape(config: Mapping[str, Any]) -> LoadShape | None:
    """The load of aiperf's profiling phase; None if a LoadPlan has no such load."""
    phases = [p for p in config.get("phases") or [] if p.get("kind") == "profiling"]
    if len(phases) != 1:
        return None
    (phase,) = phases
    rate, users = phase.get("rate"), phase.get("concurrency")
    kind = phase.get("type")
    if isinstance(rate, int | float) and kind in {"poisson", "constant", "gamma"}:
        smoothness = {"constant": float("inf"), "poisson": 1.0}
        burstiness = smoothness.get(str(kind)) or float(phase.get("smoothness") or 1.0)
        return shape_of_rate(float(rate), burstiness, None)
    if isinstance(users, int) and kind == "concurrency":
        return LoadShape(arrivals=Arrivals.CLOSED, concurrency=users)
    return None
