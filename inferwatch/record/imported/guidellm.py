"""guidellm's report as JSON: one run a benchmark."""

from collections.abc import Iterator, Mapping
from typing import Any

from collectors.contract.clock import NS_PER_S
from inferwatch.loadgen.plan.plan import Arrivals
from inferwatch.record.imported.imported_run import (
    ImportedRequest,
    ImportedRun,
    LoadShape,
    UnreadableResultError,
    shape_of_rate,
)

TTFT = (
    "TTFT: guidellm's own counts from the first header written (connect left out) to "
    "the first event with text, reasoning or a tool call; here from the targeted start"
)
REMARKS = (
    "ITL: unknown, guidellm keeps no gaps between tokens",
    "its time_per_output_token includes the TTFT, TPOT here does not",
)
KINDS = {"successful": None, "errored": "error", "incomplete": "aborted"}


def is_guidellm(document: object) -> bool:
    """Whether a document is a report of guidellm, of whatever version."""
    if not isinstance(document, dict) or "benchmarks" not in document:
        return False
    return "guidellm_version" in (document.get("metadata") or {})


def read_guidellm(document: Mapping[str, Any]) -> list[ImportedRun]:
    """The runs of the report, in the same order.

    Raises:
        UnreadableResultError: no benchmark kept its requests.
    """
    tool = f"guidellm {document['metadata']['guidellm_version']}"
    runs = [
        ImportedRun(
            tool=tool,
            model=_model(benchmark),
            requests=requests,
            began_unix_ns=min(request.due_ns for request in requests),
            uncertainty_ns=1_000,
            ttft=TTFT,
            remarks=REMARKS,
            shape=_shape(benchmark),
        )
        for benchmark in document["benchmarks"]
        if (requests := list(_requests(benchmark)))
    ]
    if not runs:
        raise UnreadableResultError(
            "this report of guidellm holds no requests with timings: expected "
            "benchmarks[].requests.successful"
        )
    return runs


def _requests(benchmark: Mapping[str, Any]) -> Iterator[ImportedRequest]:
    listed = benchmark.get("requests") or {}
    for kind, failure in KINDS.items():
        for record in listed.get(kind) or []:
            request = _request(record, failure)
            if request is not None:
                yield request


def _request(record: Mapping[str, Any], failure: str | None) -> ImportedRequest | None:
    """A request of the report; None for one that was never sent."""
    info = record.get("info") or {}
    timings = info.get("timings") or {}
    sent_ns = _at(timings.get("request_start"))
    if sent_ns is None:
        return None
    return ImportedRequest(
        name=str(record.get("request_id")),
        intended_ns=_at(timings.get("targeted_start")),
        sent_ns=sent_ns,
        first_ns=_at(timings.get("first_token_iteration")),
        last_ns=_at(timings.get("last_token_iteration")),
        end_ns=_at(timings.get("request_end") or timings.get("resolve_end")),
        prompt_tokens=record.get("prompt_tokens"),
        output_tokens=record.get("output_tokens"),
        failure=failure,
        detail=str(info["error"])[:300] if info.get("error") else None,
    )


def _at(moment_s: float | None) -> int | None:
    """Unix time in ns, exact to a quarter of a microsecond; None if unknown."""
    return None if moment_s is None else round(moment_s * NS_PER_S)


def _model(benchmark: Mapping[str, Any]) -> str | None:
    backend = (benchmark.get("config") or {}).get("backend") or {}
    model = backend.get("model")
    return None if model is None else str(model)


def _shape(benchmark: Mapping[str, Any]) -> LoadShape | None:
    """The load of a benchmark; None if a LoadPlan has no such load."""
    strategy = (benchmark.get("config") or {}).get("strategy") or {}
    kind, rate = strategy.get("type_"), strategy.get("rate")
    if kind in {"constant", "poisson"} and rate:
        burstiness = float("inf") if kind == "constant" else 1.0
        return shape_of_rate(float(rate), burstiness, strategy.get("max_concurrency"))
    if kind == "synchronous":
        return LoadShape(arrivals=Arrivals.CLOSED)
    streams = strategy.get("streams") or strategy.get("max_concurrency")
    if kind in {"concurrent", "throughput"} and streams:
        return LoadShape(arrivals=Arrivals.CLOSED, concurrency=int(streams))
    return None
