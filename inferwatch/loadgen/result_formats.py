"""Results in the formats of other tools, and single requests as JSON lines."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import RequestRecord
from inferwatch.loadgen.plan.plan import Api, Arrivals, LoadPlan
from inferwatch.metrics.load.book import BY_US, LoadBook, per_second, told_sum
from inferwatch.metrics.load.result import LoadResult
from inferwatch.metrics.series.quantiles import PERCENTS
from inferwatch.visible import strict_json

FORMATS = ("inferwatch", "vllm-bench")
VLLM_NAMES = {
    "ttft_from_send_s": "ttft",
    "tpot_s": "tpot",
    "itl_s": "itl",
    "e2el_from_send_s": "e2el",
}


def request_lines(book: LoadBook) -> Iterator[str]:
    """Each request as a line of JSON; times in seconds from the start of the run."""
    records = [*book.warmup, *book.records]
    start_ns = min((each.intended_ns for each in records), default=0)

    def at(t_ns: int | None) -> float | None:
        return None if t_ns is None else (t_ns - start_ns) / NS_PER_S

    for record in sorted(records, key=lambda each: each.index):
        yield strict_json(
            {
                "index": record.index,
                "request_id": record.external_id,
                "phase": record.phase,
                "class": record.class_name,
                "turn": record.turn,
                "intended_s": at(record.intended_ns),
                "sent_s": at(record.sent_ns),
                "first_token_s": at(record.first_token_ns),
                "first_content_s": at(record.first_content_ns),
                "last_token_s": at(record.last_token_ns),
                "end_s": at(record.end_ns),
                "chunk_gaps_s": [gap / NS_PER_S for gap in book.gaps_of(record)],
                "first_chunk_tokens": record.first_chunk_tokens,
                "prompt_tokens": record.prompt_tokens,
                "output_tokens": record.output_tokens,
                "failure": record.failure,
                "detail": record.detail,
            }
        )


def vllm_bench(plan: LoadPlan, book: LoadBook, result: LoadResult) -> dict[str, Any]:
    """The result as written by ``vllm bench serve --save-result --save-detailed``.

    Latencies are from the send, in ms, as there. TTFT is to the first token, not to a
    first event with only a role. Tokens the server did not count are null.
    """
    span_s, records = result.span_s or 0.0, book.records
    return {
        "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": "openai-chat" if plan.endpoint is Api.CHAT else "openai",
        "backend": "inferwatch",
        "label": plan.run_id,
        "model_id": plan.model,
        "tokenizer_id": plan.model,
        "num_prompts": len(records),
        "request_rate": plan.rate_per_s or result.rate.asked or "inf",
        "burstiness": "inf" if _even(plan) else plan.burstiness,
        "max_concurrency": _most(plan),
        "duration": span_s,
        "completed": result.succeeded,
        "failed": len(records) - result.succeeded,
        "total_input_tokens": told_sum(e.prompt_tokens for e in book.succeeded),
        "total_output_tokens": result.output_tokens,
        "request_throughput": per_second(result.succeeded, span_s) or 0.0,
        "request_goodput": result.goodput.good_per_s if result.goodput else None,
        "output_throughput": result.tokens_per_s,
        "total_token_throughput": per_second(
            told_sum((result.output_tokens, result.prompt_tokens)), span_s
        ),
        "max_concurrent_requests": _overlap(records),
        **_milliseconds(result),
        **_arrays(book, records),
    }


def _milliseconds(result: LoadResult) -> dict[str, float | None]:
    latencies: dict[str, float | None] = {}
    for metric, name in VLLM_NAMES.items():
        quantiles = result.latencies[metric].quantiles
        columns = {"mean": quantiles.mean, "median": quantiles.p50}
        columns |= {p: getattr(quantiles, p) for p in PERCENTS}
        for column, value in columns.items():
            ms = None if value is None else value * 1000
            latencies[f"{column}_{name}_ms"] = ms
    return latencies


def _arrays(book: LoadBook, records: Sequence[RequestRecord]) -> dict[str, Any]:
    """One entry per request, failed ones included, in order of the schedule."""
    return {
        "input_lens": [each.prompt_tokens for each in records],
        "output_lens": [_output_length(each) for each in records],
        "ttfts": [_seconds(each.sent_ns, each.first_token_ns) for each in records],
        "itls": [[g / NS_PER_S for g in book.gaps_of(each)] for each in records],
        "latencies": [_seconds(each.sent_ns, each.last_token_ns) for each in records],
        "start_times": [
            (each.sent_ns or each.intended_ns) / NS_PER_S for each in records
        ],
        "queue_times": [_seconds(each.intended_ns, each.sent_ns) for each in records],
        "errors": [_error(each) for each in records],
    }


def _seconds(start_ns: int | None, end_ns: int | None) -> float:
    """A duration in vLLM's form: 0 if unknown."""
    if start_ns is None or end_ns is None:
        return 0.0
    return (end_ns - start_ns) / NS_PER_S


def _error(record: RequestRecord) -> str:
    if record.failure is None:
        return ""
    if record.failure in BY_US:
        return record.failure
    return f"{record.failure} {record.detail}"


def _even(plan: LoadPlan) -> bool:
    return plan.arrivals is Arrivals.CONSTANT


def _most(plan: LoadPlan) -> int:
    return plan.concurrency if plan.arrivals is Arrivals.CLOSED else plan.max_in_flight


def _output_length(record: RequestRecord) -> int | None:
    """The output length in vLLM's form: 0 for failed requests; None if not counted."""
    failed = record.failure is not None
    return record.output_tokens or 0 if failed else record.output_tokens


def _overlap(records: Sequence[RequestRecord]) -> int:
    """The most requests in flight at the same time."""
    changes = [(each.sent_ns, 1) for each in records if each.sent_ns is not None]
    changes += [(each.end_ns, -1) for each in records if each.end_ns is not None]
    return max(accumulate(change for _, change in sorted(changes)), default=0)
