"""vLLM, 0.8 and later, with all names its metrics have had.

0.8 counts prefix cache lookups in blocks, later versions in tokens; the hit rate is the
same.
"""

import json
import re
from collections.abc import Sequence
from functools import partial

import msgspec

from collectors.servers.families.family import (
    Answers,
    FindPublishers,
    Flag,
    Labels,
    Publishers,
    ServerFacts,
    ServerFamily,
    count_of,
    flag_of,
    model_names,
    models_of,
    refused_by,
    text_of,
)

SETTINGS = (
    "block_size",
    "cache_dtype",
    "enable_prefix_caching",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "kv_cache_size_tokens",
    "kv_cache_max_concurrency",
    "prefix_caching_hash_algo",
    "sliding_window",
    "swap_space",
    "cpu_offload_gb",
)
"""Labels of ``cache_config_info`` that are kept as settings."""
FLAGS = {
    "block_size": "block_size",
    "cache_dtype": "kv_cache_dtype",
    "enable_prefix_caching": "enable_prefix_caching",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "num_gpu_blocks_override": "num_gpu_blocks_override",
    "kv_cache_memory_bytes": "kv_cache_memory_bytes",
    "kv_offloading_size": "kv_offloading_size",
    "swap_space": "swap_space",
    "cpu_offload_gb": "cpu_offload_gb",
}
"""Labels of ``cache_config_info`` that correspond to command-line flags."""


NO_STATS = (
    "It reports no metrics: start it without --disable-log-stats to see its queue, "
    "KV cache and latencies."
)
BUCKETS = "Narrower brackets: start it with --custom-histogram-buckets"
PROBE = (
    "Exact percentiles, every request and step: install inferwatch beside the server "
    "and start it with INFERWATCH_PROBE=1."
)
TRACES = (
    "Exact latencies of every request: start it with "
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf and --otlp-traces-endpoint "
    "http://127.0.0.1:4318/v1/traces, where inferwatch listens (--otlp-listen for "
    "servers of other hosts)."
)
KV_EVENTS = (
    "What its prefix cache holds, block by block: start it with --kv-events-config "
    """'{"enable_kv_cache_events":true,"publisher":"zmq","""
    """"endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"}'."""
)


FINER_FROM = (0, 32)
"""First version with --custom-histogram-buckets."""
FINER = {
    "inter_token_latency": (1, 1_000),
    "time_to_first_token": (10, 100_000),
    "request_latency": (10, 300_000),
}
"""Range in milliseconds that buckets should cover, by histogram name in
``--custom-histogram-buckets``."""
STEPS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.5)
"""Bucket bounds within a decade; neighbours differ by less than a factor of two."""


def finer_buckets() -> str:
    """A --custom-histogram-buckets with bounds less than a factor of two apart."""
    buckets = {
        name: [
            round(step * 10**decade / 1000, 6)
            for decade in range(6)
            for step in STEPS
            if first <= step * 10**decade <= last
        ]
        for name, (first, last) in FINER.items()
    }
    return json.dumps(buckets, separators=(",", ":"))


def _describe(answers: Answers, labels: Labels | None) -> ServerFacts:
    version = answers.get("/version")
    labels, measured = labels or {}, labels is not None
    lengths = [count_of(each.get("max_model_len")) for each in models_of(answers)]
    blocks = count_of(labels.get("num_gpu_blocks"))
    info = {
        name: labels[name] for name in SETTINGS if labels.get(name, "None") != "None"
    }
    roots = {text_of(each.get("root")) for each in models_of(answers)} - {None}
    return ServerFacts(
        version=text_of(version.get("version")) if isinstance(version, dict) else None,
        models=model_names(answers),
        max_model_len=max((each for each in lengths if each), default=None),
        num_kv_blocks=blocks - 1 if blocks else None,  # block 0 is the null block
        kv_block_tokens=count_of(labels.get("block_size")),
        settings=info | ({"root": ", ".join(sorted(map(str, roots)))} if roots else {}),
        advice=_advice(answers) if measured else [NO_STATS],
        flags=_flags(labels, lengths),
        root=next(iter(roots), None) if len(roots) == 1 else None,
    )


def _flags(labels: Labels, lengths: Sequence[int | None]) -> dict[str, Flag]:
    """Flag values found in the labels and the model list."""
    flags = {
        flag: flag_of(labels[label]) for label, flag in FLAGS.items() if label in labels
    }
    if flags and (longest := max((each for each in lengths if each), default=None)):
        flags["max_model_len"] = longest
    return flags


def _advice(answers: Answers) -> list[str]:
    """How to make the server report more; whether it sends traces is not visible."""
    silent = answers.get("/kv_event_sources") == {}
    advice = [PROBE, TRACES, *([KV_EVENTS] if silent else [])]
    if _version(answers) >= FINER_FROM:
        advice.append(f"{BUCKETS} '{finer_buckets()}'")
    return advice


def _version(answers: Answers) -> tuple[int, ...]:
    """The version as (major, minor); empty if it is unknown."""
    response = answers.get("/version")
    text = text_of(response.get("version")) if isinstance(response, dict) else None
    numbers = re.match(r"(\d{1,4})\.(\d{1,4})", text or "")
    return tuple(map(int, numbers.groups())) if numbers else ()


QUEUE_FULL = "queue full"


VLLM = ServerFamily(
    name="vllm",
    title="vLLM",
    prefixes=("vllm:",),
    kv_usage=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    gauges={
        "running": ("vllm:num_requests_running",),
        "waiting": ("vllm:num_requests_waiting",),
    },
    counters={
        "prompt_tokens": ("vllm:prompt_tokens",),
        "output_tokens": ("vllm:generation_tokens",),
        "prefix_queries": (
            "vllm:prefix_cache_queries",
            "vllm:gpu_prefix_cache_queries",
        ),
        "prefix_hits": ("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits"),
        "preemptions": ("vllm:num_preemptions",),
    },
    finished={"vllm:request_success": "{finished_reason}"},
    histograms={
        "ttft_s": ("vllm:time_to_first_token_seconds",),
        "itl_s": (
            "vllm:inter_token_latency_seconds",
            # held inter-token gaps, in spite of its name
            "vllm:time_per_output_token_seconds",
        ),
        "tpot_s": ("vllm:request_time_per_output_token_seconds",),
        "e2el_s": ("vllm:e2e_request_latency_seconds",),
        "queue_s": ("vllm:request_queue_time_seconds",),
        "prefill_s": ("vllm:request_prefill_time_seconds",),
        "decode_s": ("vllm:request_decode_time_seconds",),
        "inference_s": ("vllm:request_inference_time_seconds",),
        "prompt_tokens": ("vllm:request_prompt_tokens",),
        "output_tokens": ("vllm:request_generation_tokens",),
        "step_tokens": ("vllm:iteration_tokens_total", "vllm:iteration_tokens"),
        # with --kv-cache-metrics, of a sample of the blocks
        "block_lifetime_s": ("vllm:kv_block_lifetime_seconds",),
        "block_idle_s": ("vllm:kv_block_idle_before_evict_seconds",),
        "block_reuse_gap_s": ("vllm:kv_block_reuse_gap_seconds",),
    },
    others={
        "vllm:num_requests_waiting_by_reason": "reason",
        "vllm:num_requests_swapped": None,
        "vllm:cpu_cache_usage_perc": None,
        "vllm:engine_sleep_state": "sleep_state",
        "vllm:prompt_tokens_by_source": "source",
        "vllm:prompt_tokens_cached": None,
        "vllm:prompt_tokens_cached_by_source": "source",
        "vllm:num_requests_kv_fetch_by_stage": "stage",
        "vllm:external_prefix_cache_queries": None,
        "vllm:external_prefix_cache_hits": None,
        "vllm:mm_cache_queries": None,
        "vllm:mm_cache_hits": None,
        "vllm:admission_rejections": "reason",
        "vllm:corrupted_requests": None,
        "vllm:spec_decode_num_drafts": None,
        "vllm:spec_decode_num_draft_tokens": None,
        "vllm:spec_decode_num_accepted_tokens": None,
        "vllm:spec_decode_num_accepted_tokens_per_pos": "position",
        "vllm:estimated_flops_per_gpu": None,
        "vllm:estimated_read_bytes_per_gpu": None,
        "vllm:estimated_write_bytes_per_gpu": None,
    },
    speculation={
        "drafts": "vllm:spec_decode_num_drafts",
        "drafted_tokens": "vllm:spec_decode_num_draft_tokens",
        "accepted_tokens": "vllm:spec_decode_num_accepted_tokens",
        "accepted_by_position": "vllm:spec_decode_num_accepted_tokens_per_pos",
    },
    adapters={
        "vllm:lora_requests_info": ("running_lora_adapters", "waiting_lora_adapters"),
    },
    sums={
        "vllm:request_num_preemptions": None,
        "vllm:request_prefill_kv_computed_tokens": None,
        "vllm:request_params_n": None,
        "vllm:request_params_max_tokens": None,
    },
    caches={
        "external prefix cache": (
            "vllm:external_prefix_cache_queries",
            "vllm:external_prefix_cache_hits",
        ),
        "multimodal cache": ("vllm:mm_cache_queries", "vllm:mm_cache_hits"),
    },
    means={
        "prompt tokens computed": "vllm:request_prefill_kv_computed_tokens",
        "preemptions": "vllm:request_num_preemptions",
    },
    refused={
        "http_requests": refused_by("handler", "status"),
        "vllm:admission_rejections": lambda _: QUEUE_FULL,
    },
    info=("vllm:cache_config_info",),
    asks=(("/version",), ("/v1/models",), ("/kv_event_sources",)),
    kv_events=FindPublishers(
        "/kv_event_sources",
        partial(msgspec.convert, type=Publishers, strict=False),
        every_s=10.0,
    ),
    describe=_describe,
)
