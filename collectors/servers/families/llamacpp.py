"""llama.cpp's server, ``llama-server``.

It exports counters and gauges but no histograms, so only clients can measure latencies.
Tokens are counted when a request ends. Counters above a million are written with six
digits, so small differences are lost.
"""

from collections.abc import Mapping
from typing import Any

from collectors.servers.families.family import (
    Answers,
    Labels,
    ServerFacts,
    ServerFamily,
    count_of,
    model_names,
    models_of,
    setting_of,
    text_of,
)

SETTINGS = ("total_slots", "model_path", "model_ftype", "is_sleeping")

METRICS = "Its metrics are off: start it with --metrics."


def _describe(answers: Answers, labels: Labels | None) -> ServerFacts:
    response = answers.get("/props")
    props = response if isinstance(response, Mapping) else {}
    defaults = props.get("default_generation_settings")
    context = defaults.get("n_ctx") if isinstance(defaults, Mapping) else None
    metas = [each.get("meta") for each in models_of(answers)]
    trained = [
        length
        for each in metas
        if isinstance(each, Mapping) and (length := count_of(each.get("n_ctx_train")))
    ]
    settings = {n: v for n in SETTINGS if (v := setting_of(props.get(n)))}
    if trained:
        settings["n_ctx_train"] = str(max(trained))
    return ServerFacts(
        version=text_of(props.get("build_info")),
        models=model_names(answers),
        max_model_len=count_of(context),
        settings=settings,
        advice=[METRICS] if labels is None else [],
    )


def _busy(slots: object) -> dict[str, Any]:
    """The number of busy slots, as ``running``; prompts in the slots are not read."""
    if not isinstance(slots, list) or not slots:
        return {}
    states = [each.get("is_processing") for each in slots if isinstance(each, Mapping)]
    if len(states) < len(slots) or not all(isinstance(each, bool) for each in states):
        return {}
    return {"running": sum(states)}


LLAMACPP = ServerFamily(
    name="llamacpp",
    title="llama.cpp",
    prefixes=("llamacpp:",),
    kv_usage=("llamacpp:kv_cache_usage_ratio",),
    gauges={
        "running": ("llamacpp:requests_processing",),
        "waiting": ("llamacpp:requests_deferred",),
    },
    counters={
        # Tokens found in the cache are not counted as processed.
        "prompt_tokens": ("llamacpp:prompt_tokens + llamacpp:prompt_tokens_cached",),
        "output_tokens": ("llamacpp:tokens_predicted",),
        "prefix_queries": ("llamacpp:prompt_tokens + llamacpp:prompt_tokens_cached",),
        "prefix_hits": ("llamacpp:prompt_tokens_cached",),
    },
    others={
        "llamacpp:prompt_seconds": None,
        "llamacpp:tokens_predicted_seconds": None,
        "llamacpp:prompt_tokens_seconds": None,
        "llamacpp:predicted_tokens_seconds": None,
        "llamacpp:n_decode": None,
        "llamacpp:n_tokens_max": None,
        "llamacpp:n_busy_slots_per_decode": None,
        "llamacpp:kv_cache_tokens": None,
        "llamacpp:spec_decode_num_drafts": None,
        "llamacpp:spec_decode_num_draft_tokens": None,
        "llamacpp:spec_decode_num_accepted_tokens": None,
        "llamacpp:spec_decode_num_accepted_tokens_per_pos": "position",
    },
    speculation={
        "drafts": "llamacpp:spec_decode_num_drafts",
        "drafted_tokens": "llamacpp:spec_decode_num_draft_tokens",
        "accepted_tokens": "llamacpp:spec_decode_num_accepted_tokens",
        "accepted_by_position": "llamacpp:spec_decode_num_accepted_tokens_per_pos",
    },
    started_header="Process-Start-Time-Unix",
    asks=(("/v1/models",), ("/props",)),
    live=("/slots", _busy),
    describe=_describe,
)
