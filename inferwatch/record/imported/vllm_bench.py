"""What ``vllm bench serve --save-result --save-detailed`` saves.

``inferwatch load --format vllm-bench`` writes the same.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
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

ARRAYS = ("ttfts", "itls", "start_times", "output_lens", "input_lens", "errors")
TTFT = (
    "TTFT: from before the POST (JSON, pool and connect included, the wait for "
    "--max-concurrency not) to the first event with choices, though it may hold no "
    "text: with chat, that of the role; here from when the request was due"
)
OURS = "TTFT: from the due time, as inferwatch counts it, to the first token"


def is_vllm_bench(document: object) -> bool:
    """Whether a document is a result of vllm bench, detailed or not."""
    return isinstance(document, dict) and {"completed", "model_id"} <= document.keys()


def read_vllm_bench(document: Mapping[str, Any]) -> list[ImportedRun]:
    """The file's only run.

    Raises:
        UnreadableResultError: it has sums only, or arrays of unequal length.
    """
    missing = [name for name in ARRAYS if not isinstance(document.get(name), list)]
    if missing:
        raise UnreadableResultError(
            f"this result of vllm bench has no {', '.join(missing)}: it holds sums "
            "without their requests, of which no interval can be made. Save it with "
            "--save-result --save-detailed"
        )
    if len({len(document[name]) for name in ARRAYS}) > 1 or not document["ttfts"]:
        raise UnreadableResultError(
            "its lists of requests differ in length, or are empty"
        )
    ours = document.get("backend") == "inferwatch"
    began_ns, uncertainty_ns = _began(document, ours=ours)
    return [
        ImportedRun(
            tool="inferwatch load" if ours else "vllm bench serve",
            model=None if document["model_id"] is None else str(document["model_id"]),
            requests=list(_requests(document)),
            began_unix_ns=began_ns,
            uncertainty_ns=uncertainty_ns,
            ttft=OURS if ours else TTFT,
            remarks=_remarks(document, ours=ours),
            shape=_shape(document),
        )
    ]


def _requests(document: Mapping[str, Any]) -> Iterator[ImportedRequest]:
    queued = _queued(document)
    latencies = document.get("latencies") or [None] * len(document["ttfts"])
    for i, (start_s, ttft_s) in enumerate(
        zip(document["start_times"], document["ttfts"], strict=True)
    ):
        failed = document["errors"][i]
        first_ns = _at(start_s, ttft_s) if ttft_s else None
        gaps_ns = [round(gap_s * NS_PER_S) for gap_s in document["itls"][i]]
        last_ns = _at(start_s, latencies[i]) if latencies[i] else None
        if last_ns is None and first_ns is not None:
            last_ns = first_ns + sum(gaps_ns)
        sent_ns = _at(start_s)
        yield ImportedRequest(
            name=str(i),
            intended_ns=sent_ns - round(queued[i] * NS_PER_S),
            sent_ns=sent_ns,
            first_ns=first_ns,
            last_ns=last_ns if first_ns is not None else None,
            end_ns=last_ns,
            gaps_ns=gaps_ns if first_ns is not None else None,
            prompt_tokens=document["input_lens"][i] or None,
            output_tokens=None if failed else document["output_lens"][i],
            failure=_failure(failed),
            detail=failed.strip().splitlines()[-1][:300] if failed.strip() else None,
        )


def _queued(document: Mapping[str, Any]) -> list[float]:
    """How long each request waited to be sent; 0 in a closed loop or if unknown."""
    shape = _shape(document)
    closed = shape is not None and shape.arrivals is Arrivals.CLOSED
    unknown = [0.0] * len(document["ttfts"])
    return unknown if closed else document.get("queue_times") or unknown


def _failure(text: str) -> str | None:
    """The kind of failure a text begins with, else ``error``; None without a text."""
    if not text:
        return None
    word = text.split(maxsplit=1)[0]
    return word if word.isidentifier() and word.islower() else "error"


def _at(*parts_s: float) -> int:
    return sum(round(part_s * NS_PER_S) for part_s in parts_s)


def _began(document: Mapping[str, Any], *, ours: bool) -> tuple[int | None, int]:
    """When the run began in Unix ns, or None, and the uncertainty of that in ns."""
    try:
        ended = datetime.strptime(str(document["date"]), "%Y%m%d-%H%M%S")  # noqa: DTZ007  its zone is given below
    except (KeyError, ValueError):
        return None, 0
    ended = ended.replace(tzinfo=UTC) if ours else ended.astimezone()
    duration_s = float(document.get("duration") or 0.0)
    began_s = ended.timestamp() - duration_s
    return round(began_s * NS_PER_S), 2 * NS_PER_S


def _shape(document: Mapping[str, Any]) -> LoadShape | None:
    most = document.get("max_concurrency")
    try:
        rate_per_s = float(document["request_rate"])
        burstiness = float(document.get("burstiness") or 1.0)
    except (KeyError, TypeError, ValueError):
        return None
    if rate_per_s == float("inf"):
        users = int(most or len(document["ttfts"]))
        return LoadShape(arrivals=Arrivals.CLOSED, concurrency=users)
    return shape_of_rate(rate_per_s, burstiness, most)


def _remarks(document: Mapping[str, Any], *, ours: bool) -> list[str]:
    remarks = ["ITL: between events, which may hold several tokens"]
    if "queue_times" not in document:
        remarks.append("when requests were due is unknown: counted from the send")
    if not ours:
        remarks.append("began: the file's date less the duration, to two seconds")
    return remarks
