"""What ``python -m sglang.bench_serving --output-details`` appends, a line each run.

It keeps how long each request took and not when it was sent. In a closed loop that
follows from the durations; at a rate, requests are placed at its mean.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
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

ARRAYS = ("ttfts", "itls", "output_lens", "input_lens", "errors")
TTFT = "TTFT: from before the POST to the first event with text"
ITL = "ITL: between events, each divided evenly over its tokens"
CLOSED = (
    "when requests were sent is not in the file: each is placed where the first of "
    "those before it ended"
)
AT_RATE = (
    "when requests were sent is not in the file: they are placed at the mean rate, so "
    "how many ran at once is not what it was"
)


def is_sglang_bench(document: object) -> bool:
    """Whether a document is a result of SGLang's benchmark, detailed or not."""
    keys = {"backend", "request_rate", "total_output_tokens_retokenized"}
    return isinstance(document, dict) and keys <= document.keys()


def read_sglang_bench(lines: Iterable[str]) -> list[ImportedRun]:
    """The runs of a file.

    Raises:
        UnreadableResultError: one has sums only, or arrays of unequal length.
    """
    return [_run(json.loads(line)) for line in lines if line.strip()]


def _run(document: Mapping[str, Any]) -> ImportedRun:
    missing = [name for name in ARRAYS if not isinstance(document.get(name), list)]
    if missing:
        raise UnreadableResultError(
            f"this result of sglang.bench_serving has no {', '.join(missing)}: it "
            "holds sums without their requests. Save it with --output-details"
        )
    if len({len(document[name]) for name in ARRAYS}) > 1 or not document["ttfts"]:
        raise UnreadableResultError(
            "its lists of requests differ in length, or are empty"
        )
    shape = _shape(document)
    closed = shape is not None and shape.arrivals is Arrivals.CLOSED
    info = document.get("server_info")
    model = info.get("model_path") if isinstance(info, Mapping) else None
    return ImportedRun(
        tool="sglang.bench_serving",
        model=None if model is None else str(model),
        requests=list(_requests(document, shape)),
        began_unix_ns=None,
        uncertainty_ns=0,
        ttft=TTFT,
        remarks=[ITL, CLOSED if closed else AT_RATE],
        shape=shape,
    )


def _requests(
    document: Mapping[str, Any], shape: LoadShape | None
) -> Iterator[ImportedRequest]:
    took_ns = [
        round((ttft_s + sum(itls)) * NS_PER_S)
        for ttft_s, itls in zip(document["ttfts"], document["itls"], strict=True)
    ]
    for i, sent_ns in enumerate(_sends(document, shape, took_ns)):
        failed, ttft_s = str(document["errors"][i]).strip(), document["ttfts"][i]
        came = bool(ttft_s)
        yield ImportedRequest(
            name=str(i),
            sent_ns=sent_ns,
            first_ns=sent_ns + round(ttft_s * NS_PER_S) if came else None,
            last_ns=sent_ns + took_ns[i] if came else None,
            end_ns=sent_ns + took_ns[i] if came else None,
            gaps_ns=[round(gap_s * NS_PER_S) for gap_s in document["itls"][i]]
            if came
            else None,
            prompt_tokens=document["input_lens"][i] or None,
            output_tokens=None if failed else document["output_lens"][i],
            failure="error" if failed else None,
            detail=failed.splitlines()[-1][:300] if failed else None,
        )


def _sends(
    document: Mapping[str, Any], shape: LoadShape | None, took_ns: Sequence[int]
) -> Iterator[int]:
    """When requests were sent, from the start of the run."""
    if shape is None or shape.arrivals is not Arrivals.CLOSED:
        rate_per_s = shape.rate_per_s if shape is not None else None
        a_request_s = float(document.get("duration") or 0.0) / len(took_ns)
        a_request_s = 1 / rate_per_s if rate_per_s else a_request_s
        yield from (round(i * a_request_s * NS_PER_S) for i in range(len(took_ns)))
        return
    ends: list[int] = []
    for each_ns in took_ns:
        sent_ns = heappop(ends) if len(ends) >= shape.concurrency else 0
        heappush(ends, sent_ns + each_ns)
        yield sent_ns


def _shape(document: Mapping[str, Any]) -> LoadShape | None:
    """The load; None where the times of a trace were replayed."""
    most = document.get("max_concurrency")
    try:
        rate_per_s = float(document["request_rate"])
    except (TypeError, ValueError):
        return None
    if math.isinf(rate_per_s):
        users = int(most or len(document["ttfts"]))
        return LoadShape(arrivals=Arrivals.CLOSED, concurrency=users)
    return shape_of_rate(rate_per_s, 1.0, most)
