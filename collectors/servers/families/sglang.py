"""SGLang, 0.4 and later.

It counts tokens when a request ends, not as they are generated. Gauges are per
data-parallel rank; counters and histograms cover the whole server. ``token_usage`` is
the usage of the fullest pool, which for hybrid models may be the sliding window or
Mamba states: KV usage is then unknown, and each pool is kept under its own name. Before
0.4.4, ``time_per_output_token_seconds`` held running averages, which are neither ITL
nor TPOT and are ignored.
"""

from collections.abc import Mapping
from typing import Annotated

import msgspec

from collectors.servers.families.family import (
    MOST_RANKS,
    Answers,
    FindPublishers,
    Labels,
    Publisher,
    Publishers,
    ServerFacts,
    ServerFamily,
    count_of,
    model_names,
    models_of,
    refused_by,
    setting_of,
    text_of,
)

SETTINGS = (
    "model_path",
    "tp_size",
    "dp_size",
    "pp_size",
    "ep_size",
    "attention_backend",
    "schedule_policy",
    "schedule_conservativeness",
    "chunked_prefill_size",
    "max_prefill_tokens",
    "max_running_requests",
    "max_total_num_tokens",
    "mem_fraction_static",
    "page_size",
    "disable_radix_cache",
    "kv_cache_dtype",
    "quantization",
    "dtype",
    "speculative_algorithm",
    "disaggregation_mode",
)
"""Server arguments that are kept; others may hold keys."""

METRICS = "Its metrics are off: start it with --enable-metrics."


WITHOUT_NAME = (
    "it publishes its steps at an endpoint it does not report: start it with "
    "--forward-pass-metrics-ipc-name ipc:///tmp/NAME too, or give that with --steps"
)


class PublishedEvents(msgspec.Struct):
    """What ``/server_info`` says of the publisher of KV events."""

    endpoint_host: str
    endpoint_port_base: int
    publisher: str = "zmq"
    dp_size: Annotated[int, msgspec.Meta(ge=1)] = 1
    replay_endpoint_port_base: int | None = None

    def of_ranks(self) -> Publishers:
        """Each rank has ports of its own, counting up."""
        host = "*" if self.endpoint_host == "0.0.0.0" else self.endpoint_host  # noqa: S104 - compared
        replays = self.replay_endpoint_port_base
        return {
            rank: Publisher(
                endpoint=f"tcp://{host}:{self.endpoint_port_base + rank}",
                publisher=self.publisher,
                replay_endpoint=f"tcp://{host}:{replays + rank}" if replays else None,
            )
            for rank in range(min(self.dp_size, MOST_RANKS))
        }


class PublisherInfo(msgspec.Struct):
    """The part of ``/server_info`` on what the server publishes."""

    kv_events: PublishedEvents | None = None
    enable_forward_pass_metrics: bool = False
    forward_pass_metrics_ipc_name: str | None = None
    dp_size: Annotated[int, msgspec.Meta(ge=1)] = 1


def _kv_publishers(answer: object) -> Publishers:
    info = msgspec.convert(answer, PublisherInfo)
    return info.kv_events.of_ranks() if info.kv_events else {}


def _step_publishers(answer: object) -> Publishers:
    """Endpoints of forward pass metrics: the name given, with the rank behind it."""
    info = msgspec.convert(answer, PublisherInfo)
    if not info.enable_forward_pass_metrics:
        return {}
    name = info.forward_pass_metrics_ipc_name
    if name is None:
        return {0: Publisher(endpoint="", unheard=WITHOUT_NAME)}
    ranks = range(min(info.dp_size, MOST_RANKS))
    return {rank: Publisher(endpoint=f"{name}.{rank}") for rank in ranks}


def _describe(answers: Answers, labels: Labels | None) -> ServerFacts:
    response = answers.get("/server_info")
    info = response if isinstance(response, Mapping) else {}
    page = count_of(info.get("page_size"))
    tokens = count_of(info.get("max_total_num_tokens"))
    lengths = [count_of(each.get("max_model_len")) for each in models_of(answers)]
    return ServerFacts(
        version=text_of(info.get("version")),
        models=model_names(answers),
        max_model_len=max((each for each in lengths if each), default=None),
        num_kv_blocks=tokens // page if tokens and page else None,
        kv_block_tokens=page,
        settings={
            name: value for name in SETTINGS if (value := setting_of(info.get(name)))
        },
        advice=[METRICS] if labels is None else [],
    )


SGLANG = ServerFamily(
    name="sglang",
    title="SGLang",
    prefixes=("sglang:",),
    rank_label="dp_rank",
    kv_usage=("sglang:token_usage",),
    other_pools=("sglang:swa_token_usage", "sglang:mamba_usage"),
    gauges={
        "running": ("sglang:num_running_reqs",),
        "waiting": ("sglang:num_queue_reqs",),
    },
    counters={
        "prompt_tokens": ("sglang:prompt_tokens",),
        "output_tokens": ("sglang:generation_tokens",),
        "prefix_queries": ("sglang:prompt_tokens",),
        "prefix_hits": ("sglang:cached_tokens",),
        "preemptions": ("sglang:num_retracted_requests",),
    },
    # it does not report the finish reason
    finished={
        "sglang:num_requests": "finished",
        "sglang:num_aborted_requests": "abort",
    },
    histograms={
        "ttft_s": ("sglang:time_to_first_token_seconds",),
        "itl_s": ("sglang:inter_token_latency_seconds",),
        "tpot_s": ("sglang:request_time_per_output_token_seconds",),
        "e2el_s": ("sglang:e2e_request_latency_seconds",),
        "queue_s": ("sglang:queue_time_seconds",),
        "prompt_tokens": ("sglang:prompt_tokens_histogram",),
        "output_tokens": ("sglang:generation_tokens_histogram",),
    },
    others={
        "sglang:gen_throughput": None,
        "sglang:cache_hit_rate": None,
        "sglang:num_used_tokens": None,
        "sglang:num_grammar_queue_reqs": None,
        "sglang:num_grammar": None,
        "sglang:num_grammar_cache_hit": None,
        "sglang:num_grammar_aborted": None,
        "sglang:num_grammar_timeout": None,
        "sglang:num_retracted_input_tokens": None,
        "sglang:num_retracted_output_tokens": None,
        "sglang:evicted_tokens": None,
        "sglang:load_back_tokens": None,
        "sglang:hicache_host_used_tokens": None,
        "sglang:hicache_host_total_tokens": None,
        "sglang:hicache_backup_tokens": None,
        "sglang:hicache_dropped_tokens": "reason",
        "sglang:hicache_prefetch_outcomes": "outcome",
        "sglang:prefill_effective_tokens": "mode",
        "sglang:scheduler_idle_seconds": None,
        "sglang:scheduler_process_cpu_seconds": None,
        "sglang:scheduler_stage_seconds": "category",
        "sglang:dp_attention_tokens": "kind",
        "sglang:dp_attention_steps": "rank_state",
        "sglang:dp_attention_pairs": "kind",
        "sglang:startup_time_seconds": "phase",
        "sglang:startup_cuda_graph_time_seconds": "phase",
        "sglang:num_retracted_reqs": None,
        "sglang:num_aborted_requests": None,
        "sglang:num_paused_reqs": None,
        "sglang:realtime_tokens": "mode",
        "sglang:spec_accept_length": None,
        "sglang:spec_accept_rate": None,
        "sglang:token_usage": None,
        "sglang:full_token_usage": None,
        "sglang:swa_token_usage": None,
        "sglang:mamba_usage": None,
        "sglang:utilization": None,
        "sglang:avg_request_queue_latency": None,
        "sglang:num_prefill_bootstrap_queue_reqs": None,
        "sglang:num_prefill_inflight_queue_reqs": None,
        "sglang:num_decode_prealloc_queue_reqs": None,
        "sglang:num_decode_transfer_queue_reqs": None,
        # a gauge in older versions, a histogram in newer ones
        "sglang:kv_transfer_speed_gb_s": None,
        "sglang:kv_transfer_latency_ms": None,
        "sglang:num_transfer_failed_reqs": None,
        "sglang:num_bootstrap_failed_reqs": None,
        "sglang:estimated_flops_per_gpu": None,
        "sglang:estimated_read_bytes_per_gpu": None,
        "sglang:estimated_write_bytes_per_gpu": None,
    },
    speculation={
        "acceptance": "sglang:spec_accept_rate",
        "acceptance_length": "sglang:spec_accept_length",
    },
    sums={
        "sglang:kv_transfer_speed_gb_s": None,
        "sglang:kv_transfer_latency_ms": None,
        "sglang:kv_transfer_total_mb": None,
        "sglang:kv_transfer_bootstrap_ms": None,
        "sglang:kv_transfer_alloc_ms": None,
        "sglang:per_stage_req_latency_seconds": "stage",
        "sglang:grammar_compilation_time_seconds": None,
        "sglang:num_retractions": None,
        "sglang:uncached_prompt_tokens_histogram": None,
        "sglang:eviction_duration_seconds": None,
        "sglang:load_back_duration_seconds": None,
        "sglang:hicache_backup_duration_seconds": None,
        "sglang:dp_attention_token_imbalance_ratio": None,
        "sglang:dp_attention_sync_wait_seconds": None,
        "sglang:eplb_balancedness": None,
    },
    means={
        "prompt tokens computed": "sglang:uncached_prompt_tokens_histogram",
        "retractions": "sglang:num_retractions",
        "KV transfer GB/s": "sglang:kv_transfer_speed_gb_s",
        "KV transfer ms": "sglang:kv_transfer_latency_ms",
        "expert balancedness": "sglang:eplb_balancedness",
        "token imbalance of ranks": "sglang:dp_attention_token_imbalance_ratio",
    },
    times={
        "stage": "sglang:per_stage_req_latency_seconds",
        "grammar compilation": "sglang:grammar_compilation_time_seconds",
        "sync wait of ranks": "sglang:dp_attention_sync_wait_seconds",
        "eviction": "sglang:eviction_duration_seconds",
        "load back": "sglang:load_back_duration_seconds",
    },
    prefill=("sglang:per_stage_req_latency_seconds", "prefill_forward"),
    scheduler="sglang:scheduler_stage_seconds",
    pools={
        "KV full": "sglang:full_token_usage",
        "KV window": "sglang:swa_token_usage",
        "Mamba": "sglang:mamba_usage",
    },
    refused={"sglang:http_responses": refused_by("endpoint", "status_code")},
    asks=(("/v1/models",), ("/server_info", "/get_server_info")),
    kv_events=FindPublishers("/server_info", _kv_publishers),
    steps=FindPublishers("/server_info", _step_publishers),
    describe=_describe,
)
