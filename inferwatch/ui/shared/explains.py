"""Which catalog entries explain which screen."""

from collections.abc import Sequence

_FLOW = (
    "arrivals_per_s finished_per_s prompt_tokens_p50 finished waiting oldest_wait_s "
    "kv_usage preemptions prefill_tokens_per_s budget_usage prefix_hit_rate running "
    "batch_mean step_s output_tokens_per_s tokens_per_s_per_user failed aborted"
)
_STEPS = (
    "count batch_mean batch_max duration_s share_by_bound output_tokens "
    "prefill_tokens recomputed_tokens"
)
_KV = (
    "total_blocks block_tokens used_blocks cached_blocks free_blocks peak_used_blocks "
    "prefix_queries prefix_hits preemptions recomputed_tokens"
)
_REQUEST = (
    "state prompt_tokens cached_tokens output_tokens max_tokens queue_s prefill_s "
    "ttft_s tpot_s itl_last_s itl_max_s decode_s e2el_s preemptions reason"
)
_COST = (
    "dropped_readings unrecorded_readings self_cpu_share process_cpu_share "
    "probe_us_per_step"
)


def _keys(part: str, names: str) -> tuple[str, ...]:
    return tuple(f"{part}.{name}" for name in names.split())


LATENCIES = ("ttft_s", "queue_s", "prefill_s", "tpot_s", "itl_s", "e2el_s")
COST: Sequence[str] = _keys("cost", _COST)
OVERVIEW: Sequence[str] = (
    *LATENCIES,
    *_keys("flow", _FLOW),
    *_keys("timeline", "batch_decode batch_prefill waiting_max kv_cached_blocks"),
    *COST,
)
REQUESTS: Sequence[str] = (*_keys("request", _REQUEST), *COST)
STEPS: Sequence[str] = (
    *_keys("steps", _STEPS),
    *_keys("timeline", "batch_decode batch_prefill step_mean_s step_max_s"),
    *_keys("timeline", "bound_kv bound_seqs bound_tokens bound_other slowest_step"),
    *COST,
)
KV: Sequence[str] = (*_keys("kv", _KV), *_keys("timeline", "waiting_max"), *COST)
LOAD: Sequence[str] = (
    *_keys("run", "state share elapsed_s sent in_flight succeeded failed aborted"),
    *_keys("run", "warmup rate_per_s users before failures transport"),
    *_keys("client", "asked_mean_per_s achieved_per_s verdict send_lag_p99_s"),
    *_keys("client", "recv_lag_p99_s cpu_share merged_share slo good judged"),
    *_keys("client", "ttft_s tpot_s itl_s e2el_s"),
    *_keys("client_timeline", "sent_per_s asked_per_s ttft_mean_s ttft_max_s"),
    *_keys("client_timeline", "itl_mean_s itl_max_s"),
    *COST,
)
