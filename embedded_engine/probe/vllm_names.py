"""Every name of vLLM the probe depends on, in one table, and how attributes are read.

Written for vLLM 0.32.0, with scheduler names back to 0.26 where they differ, and read
against 0.33.0, where all names are there; it has no CPU build. When vLLM renames
something, this file changes. A missing method is not wrapped and a missing attribute
reads as its default; each is reported once by name, and everything else keeps working.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from collectors.contract.model_routes import PLAIN_MODEL_ROUTES
from collectors.contract.readings import Deferral

VERSION = ("vllm", "__version__")
CORE_PROCESS = "EngineCore"
"""Prefix of the name of an EngineCore process."""

SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
BLOCK_POOL = "vllm.v1.core.block_pool:BlockPool"
FREE_BLOCKS = "vllm.v1.core.kv_cache_utils:FreeKVCacheBlockQueue"
OUTPUT_PROCESSOR = "vllm.v1.engine.output_processor:OutputProcessor"
EXECUTOR = "vllm.v1.executor.abstract:Executor"
CORE = "vllm.v1.engine.core:EngineCore"
CORE_PROCESS_LOOP = "vllm.v1.engine.core:EngineCoreProc"
WORKER = "vllm.v1.worker.worker_base:WorkerWrapperBase"
RENDERER = "vllm.renderers.base:BaseRenderer"
MEDIA_CONNECTOR = "vllm.multimodal.media.connector:MediaConnector"
LOADER = "vllm.model_executor.model_loader.base_loader:BaseModelLoader"


Fields = tuple[tuple[str, Any], ...]
"""Dotted paths from an object, each with its default when missing.

``newer|older`` is the first of the two that exists.
"""


@dataclass(frozen=True, slots=True)
class VllmMethod:
    """A method of vLLM that the probe wraps."""

    owner: str
    """``module:class``."""
    name: str
    loses: str
    """What is unknown without the method."""


ENGINE_METHODS = {
    "born": VllmMethod(SCHEDULER, "__init__", "all of EngineCore"),
    "schedule": VllmMethod(SCHEDULER, "schedule", "steps"),
    "update": VllmMethod(SCHEDULER, "update_from_output", "steps"),
    "add": VllmMethod(SCHEDULER, "add_request", "when requests were queued"),
    "preempt": VllmMethod(SCHEDULER, "_preempt_request", "preemptions"),
    "free": VllmMethod(
        SCHEDULER, "_free_request", "when requests finished in the engine"
    ),
    "reset": VllmMethod(SCHEDULER, "reset_prefix_cache", "preemptions by a reset"),
    "touch": VllmMethod(BLOCK_POOL, "touch", "idle cached KV blocks"),
    "clear": VllmMethod(BLOCK_POOL, "reset_prefix_cache", "idle cached KV blocks"),
    "last": VllmMethod(FREE_BLOCKS, "append_n", "idle cached KV blocks"),
    "first": VllmMethod(FREE_BLOCKS, "prepend_n", "idle cached KV blocks"),
    "taken": VllmMethod(BLOCK_POOL, "get_new_blocks", "who holds which KV block"),
    "filled": VllmMethod(BLOCK_POOL, "cache_full_blocks", "who holds which KV block"),
    "forgotten": VllmMethod(
        BLOCK_POOL, "reset_prefix_cache", "who holds which KV block"
    ),
    "sized": VllmMethod(
        EXECUTOR, "initialize_from_config", "how large model and KV cache are"
    ),
}
FRONT_METHODS = {
    "born": VllmMethod(OUTPUT_PROCESSOR, "__init__", "all of the API server"),
    "add": VllmMethod(OUTPUT_PROCESSOR, "add_request", "arrivals"),
    "process": VllmMethod(
        OUTPUT_PROCESSOR, "process_outputs", "first tokens, finishes"
    ),
    "abort": VllmMethod(OUTPUT_PROCESSOR, "abort_requests", "aborts by clients"),
}
MEDIA_METHODS = {
    "renderer": VllmMethod(RENDERER, "__init__", "media and their preprocessing"),
    "chat": VllmMethod(RENDERER, "render_chat_async", "when media were fetched"),
    "fetched": VllmMethod(
        MEDIA_CONNECTOR, "load_from_url_async", "when media were fetched"
    ),
    "preprocessed": VllmMethod(
        RENDERER, "_process_multimodal", "when media were preprocessed"
    ),
}
"""Methods of an API server that text alone does not call, or not hooked."""
MM_PROCESSOR = "mm_processor"
"""Attribute of BaseRenderer, like the next: None where a model takes text alone."""
MM_CACHE_STATS = "_mm_cache_stats"
CACHE_HITS = "hits"
"""Attribute of MultiModalCacheStats: items since the statistics were read."""
PROMPT_IDS = "prompt_token_ids"
"""Key of a MultiModalInput; attribute of the EngineCoreRequest made of it."""
STATE_METHODS = {
    "slept": VllmMethod(CORE, "sleep", "when the engine is asleep"),
    "woke": VllmMethod(CORE, "wake_up", "when the engine is awake again"),
    "called": VllmMethod(CORE, "collective_rpc", "updates of the weights"),
}
"""Methods of EngineCore that few servers ever call."""
PROFILE_METHODS = {
    "asked": VllmMethod(CORE, "profile", "profiles that others begin"),
    "message": VllmMethod(CORE_PROCESS_LOOP, "_handle_client_request", "profiles"),
}
"""Wrapped only where vLLM was started with its own profiler."""
CORE_QUEUE = "input_queue"
"""Attribute of an EngineCore that is a process: messages, read between steps."""
CORE_MESSAGE = "vllm.v1.engine:EngineCoreRequestType"
"""Kinds of messages; before ``WAKEUP`` there was no empty one but to abort none."""
PROFILER: Fields = (
    ("vllm_config.profiler_config.profiler", None),
    ("vllm_config.profiler_config.torch_profiler_dir", None),
)
WORKER_METHODS = {
    "device": VllmMethod(WORKER, "init_device", "stages of the start"),
}

HEADER_METHODS = {
    "asked": VllmMethod(
        "starlette.applications:Starlette", "__call__", "the header to group by"
    ),
}
"""Methods of the web framework behind vLLM's server."""
RESPONSE_METHODS = {
    "answered": VllmMethod(
        "starlette.responses:Response", "__call__", "refused requests"
    ),
}
"""Of a complete response, as every refusal is; streams have a method of their own."""
WITHOUT_TEMPLATE = frozenset(
    {
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/messages",
        "/v1/rerank",
        "/v1/responses",
        "/v1/score",
        "/inference/v1/generate",
        *PLAIN_MODEL_ROUTES,
    }
)
"""Routes known by their path where a request is refused before it is routed."""
NOT_COUNTED = frozenset(
    {"/health", "/load", "/metrics", "/ping", "/server_info", "/version"}
)
NOT_SERVED = NOT_COUNTED | {"/v1/models", "/kv_event_sources"}
"""What inferwatch asks a server for, where there is no such route."""
REFUSED_FOR = {
    "EngineDeadError": "engine dead",
    "QueueOverflowError": "queue full",
    "MaxQueuedTokensError": "queue full",
    "VLLMNotFoundError": "unknown model",
    "RequestValidationError": "invalid parameter",
}
"""Reasons of refusals by the name of an exception's class or base class."""
HAD_BY_ENGINE = frozenset({"GenerationError", "EngineGenerateError"})
"""A request that the engine had: it failed, and is counted as such."""
ENGINE_DEAD = "EngineDeadError"
"""The same, unless AsyncLLM's ``ADD`` raised it: then the engine was dead before."""
ADD = "add_request"
TOO_LONG = (
    re.compile(
        r"maximum context length is (?P<allowed>\d{1,9}) tokens"
        r"(?:\. However, (?:you requested|your prompt contains) "
        r"(?P<asked>\d{1,9}) (?:input )?tokens)?"
    ),
    re.compile(
        r"=(?P<asked>\d{1,9}) cannot be greater than max_model_len="
        r"(?P<allowed>\d{1,9})"
    ),
    re.compile(
        r"prompt \(length (?P<asked>\d{1,9})\) is longer than the maximum model "
        r"length of (?P<allowed>\d{1,9})"
    ),
)
"""What the message of a request that is too long says. vLLM counts a prompt no further
than the first token too many: such a count (*at least*) is not the prompt's."""
CLIENT_LEFT = "Client disconnected"

STEP: Fields = (
    ("num_scheduled_tokens", {}),
    ("total_num_scheduled_tokens", 0),
    ("scheduled_new_reqs", ()),
    ("scheduled_cached_reqs.resumed_req_ids", ()),
)
"""Attributes of SchedulerOutput."""
FIRST: Fields = (("req_id", ""), ("num_computed_tokens", None))
"""Attributes of NewRequestData; tokens computed already were in the prefix cache."""
QUEUES: Fields = (
    ("running", ()),
    ("waiting", ()),
    ("kv_holding_waiting|skipped_waiting", ()),
)
"""Attributes of Scheduler, like the following; the last queue goes first."""
FREE_QUEUE: Fields = (("kv_cache_manager.block_pool.free_block_queue", None),)
REQUESTS: Fields = (("requests", {}),)
BLOCK_TOTAL: Fields = (("kv_cache_manager.block_pool.num_gpu_blocks", None),)
LIMITS: Fields = (
    ("max_num_scheduled_tokens", None),
    ("max_num_active_reqs|max_num_running_reqs", None),
    ("scheduler_config.max_num_batched_tokens", None),
    ("scheduler_config.enable_chunked_prefill", True),
    ("vllm_config.speculative_config", None),
    ("kv_cache_manager.watermark_blocks", 0),
)
"""May change at run time."""
LIVE_LIMITS = {
    "max_num_seqs": "max_num_active_reqs|max_num_running_reqs",
    "max_num_batched_tokens": "max_num_scheduled_tokens",
}
"""Attributes of Scheduler by flag, read anew by each ``schedule()``, which asserts that
no more requests run than ``max_num_running_reqs``, the only one in older releases."""
RUNNING: Fields = (("running", ()), ("num_waiting_for_streaming_input", 0))
"""Running requests, and paused sessions that count as if running."""
SPECULATED = "num_spec_tokens"
"""Speculative tokens each running request may have in a step."""
CHUNKED = "scheduler_config.enable_chunked_prefill"


@dataclass(frozen=True, slots=True)
class BudgetRule:
    """A condition under which a lower token budget would do more than shrink steps."""

    path: str
    """An attribute of Scheduler."""
    why: str
    """Why the budget cannot be changed, as text for users."""
    most: int = 0
    """Values up to this are harmless."""
    is_newer: bool = False
    """A vLLM without this attribute does not have the feature either."""


BUDGET_RULES = (
    BudgetRule("has_mamba_layers", "a hybrid model aligns its chunks to blocks"),
    BudgetRule(
        "need_mamba_block_aligned_split", "a hybrid model aligns its chunks to blocks"
    ),
    BudgetRule(
        "max_num_encoder_input_tokens", "an image's tokens may have to fit one step"
    ),
    BudgetRule("is_encoder_decoder", "what is encoded has to fit one step"),
    BudgetRule(
        "scheduler_config.long_prefill_token_threshold",
        "with long_prefill_token_threshold several prompts are computed at a time, "
        "and those behind them would get nothing",
    ),
    BudgetRule(
        "scheduler_config.prefill_schedule_interval",
        "prompts are held for steps of this budget",
        most=1,
    ),
    BudgetRule(
        "num_prefill_lookahead",
        "the drafter needs the last tokens of a prompt in one step",
        most=1,
        is_newer=True,
    ),
    BudgetRule(
        "prefix_replay_tokens", "a cached prefix is computed again", is_newer=True
    ),
    BudgetRule(
        "vllm_config.model_config.is_diffusion",
        "a diffusion model's canvas has to fit one step",
        is_newer=True,
    ),
)
BLOCKS: Fields = (
    ("kv_cache_config.kv_cache_groups", ()),
    ("block_size", None),
)
DRAFT_SLOTS = "max_num_new_slots_for_drafting"
"""Attribute of SpeculativeConfig."""
GATES: Fields = (
    ("_pause_state", 0),
    ("num_waiting_for_streaming_input", 0),
    ("deferred_waiting|_is_blocked_waiting_status", ()),
)
"""The last is a set of requests, or a function that says whether a status defers
one."""
DEFERRALS = {
    "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR": Deferral.GRAMMAR,
    "WAITING_FOR_FSM": Deferral.GRAMMAR,
    "WAITING_FOR_REMOTE_KVS": Deferral.TRANSFER,
    "WAITING_FOR_STREAMING_REQ": Deferral.STREAMING,
}
"""What a request waits for, by the name of its status; a skipped one with another
status waits for room in its batch (a LoRA adapter) or for a connector."""
CONNECTOR = "connector"
"""Attribute of Scheduler, like the following."""
ENCODER_CONNECTOR = "ec_connector"
CAPACITY_BOUND: Fields = (("prefill_capacity_bound", False),)
"""Whether prefills are computed though the step was asked to hold them."""
CADENCE = ("local_prefill_interval", "num_executed_steps", "last_prefill_step")
"""Since 0.33 a single engine holds prefills itself, and counts steps for that."""
CACHE_KIND: Fields = (
    ("kv_cache_manager.block_pool.free_block_queue", None),
    ("cache_config.enable_prefix_caching", None),
    ("connector", None),
    ("has_mamba_layers", False),
)
POOL_QUEUE: Fields = (
    ("free_block_queue", None),
    ("free_block_queue.num_free_blocks", 0),
)
"""Attributes of BlockPool."""
QUEUE_SIZE: Fields = (("num_free_blocks", None),)
"""Attribute of FreeKVCacheBlockQueue."""
BLOCK_MAP: Fields = (
    ("kv_cache_manager.block_pool", None),
    ("kv_cache_manager.coordinator.single_type_managers", ()),
)
"""Attributes of Scheduler: the pool, and a manager per KV cache group."""
HELD: Fields = (("block_pool", None), ("req_to_blocks", None))
"""Attributes of SingleTypeKVCacheManager."""
APPENDING = ("FullAttentionManager", "SinkFullAttentionManager")
"""Managers that only append to a request's list of blocks."""
ALL_BLOCKS: Fields = (("blocks", ()),)
"""Attributes of BlockPool, like the following."""
CACHING: Fields = (
    ("enable_caching", False),
    ("hash_block_size", None),
    ("blocks", ()),
)
BLOCK_ID = "block_id"
"""Attributes of KVCacheBlock, like the following."""
BLOCK_CONTENT: Fields = (("_block_hash|block_hash", None),)
NULL_BLOCK = 0
POLICY: Fields = (("policy", None), ("connector", None))
BY_PRIORITY = "priority"
"""Value of the policy that uses priorities."""
RANK: Fields = (("parallel_config.data_parallel_index", 0),)
INFO: Fields = (
    ("vllm_config.model_config.model", "?"),
    ("vllm_config.device_config.device_type", None),
    ("vllm_config.model_config.dtype", None),
    ("block_size", None),
    ("scheduler_config.max_num_seqs", None),
    ("scheduler_config.max_num_batched_tokens", None),
    ("max_model_len", None),
    ("parallel_config.tensor_parallel_size", None),
    ("parallel_config.pipeline_parallel_size", None),
    ("parallel_config.data_parallel_size", None),
    ("parallel_config.distributed_executor_backend", None),
    ("cache_config.enable_prefix_caching", None),
    ("scheduler_config.async_scheduling", None),
)
UNTOLD = ...
"""Default that marks a setting this vLLM lacks."""
SETTING_PATHS = {
    "max_num_seqs": "scheduler_config.max_num_seqs",
    "max_num_batched_tokens": "scheduler_config.max_num_batched_tokens",
    "max_model_len": "model_config.max_model_len",
    "enable_chunked_prefill": "scheduler_config.enable_chunked_prefill",
    "long_prefill_token_threshold": "scheduler_config.long_prefill_token_threshold",
    "scheduling_policy": "scheduler_config.policy",
    "async_scheduling": "scheduler_config.async_scheduling",
    "stream_interval": "scheduler_config.stream_interval",
    "gpu_memory_utilization": "cache_config.gpu_memory_utilization",
    "kv_cache_memory_bytes": "cache_config.kv_cache_memory_bytes",
    "kv_cache_dtype": "cache_config.cache_dtype",
    "block_size": "cache_config.block_size",
    "num_gpu_blocks_override": "cache_config.num_gpu_blocks_override",
    "enable_prefix_caching": "cache_config.enable_prefix_caching",
    "kv_offloading_size": "cache_config.kv_offloading_size",
    "dtype": "model_config.dtype",
    "quantization": "model_config.quantization",
    "enforce_eager": "model_config.enforce_eager",
    "tensor_parallel_size": "parallel_config.tensor_parallel_size",
    "pipeline_parallel_size": "parallel_config.pipeline_parallel_size",
    "data_parallel_size": "parallel_config.data_parallel_size",
    "decode_context_parallel_size": "parallel_config.decode_context_parallel_size",
    "enable_expert_parallel": "parallel_config.enable_expert_parallel",
    "enable_eplb": "parallel_config.enable_eplb",
    "api_server_count": "parallel_config._api_process_count",
}
"""Paths in VllmConfig by command-line flag."""
SETTINGS: Fields = tuple(
    (f"vllm_config.{path}", UNTOLD) for path in SETTING_PATHS.values()
)
"""Attributes of Scheduler."""
SOMETIMES_SET = {
    "max_num_partial_prefills": "scheduler_config.max_num_partial_prefills",
    "max_long_partial_prefills": "scheduler_config.max_long_partial_prefills",
    "long_prefill_token_threshold_adaptive": (
        "scheduler_config.long_prefill_token_threshold_adaptive"
    ),
    "max_num_active_seqs": "scheduler_config.max_num_active_seqs",
    "max_num_queued_reqs": "scheduler_config.max_num_queued_reqs",
    "max_num_queued_tokens": "scheduler_config.max_num_queued_tokens",
    "max_num_scheduled_tokens": "scheduler_config.max_num_scheduled_tokens",
    "scheduler_reserve_full_isl": "scheduler_config.scheduler_reserve_full_isl",
    "prefill_schedule_interval": "scheduler_config.prefill_schedule_interval",
    "watermark": "scheduler_config.watermark",
    "cudagraph_mode": "compilation_config.cudagraph_mode",
    "compilation_mode": "compilation_config.mode",
    "optimization_level": "optimization_level",
    "attention_backend": "attention_config.backend",
    "max_cudagraph_capture_size": "compilation_config.max_cudagraph_capture_size",
    "speculative_method": "speculative_config.method",
    "num_speculative_tokens": "speculative_config.num_speculative_tokens",
    "kv_connector": "kv_transfer_config.kv_connector",
    "kv_role": "kv_transfer_config.kv_role",
    "kv_offloading_backend": "cache_config.kv_offloading_backend",
    "mm_processor_cache_gb": "model_config.multimodal_config.mm_processor_cache_gb",
    "cpu_offload_gb": "offload_config.uva.cpu_offload_gb|cache_config.cpu_offload_gb",
    "swap_space": "cache_config.swap_space",
    "load_format": "load_config.load_format",
    "max_loras": "lora_config.max_loras",
    "structured_outputs_config": "structured_outputs_config.backend",
}
"""Likewise, in parts that not every vLLM or engine has."""
MODEL_CONFIG: Fields = (
    ("vllm_config.model_config.hf_text_config", None),
    ("vllm_config.model_config.hf_config", None),
    ("vllm_config.model_config.dtype", None),
    ("vllm_config.cache_config.cache_dtype", None),
    ("vllm_config.model_config.quantization", None),
)
"""Attributes of Scheduler."""
UNTIED = "vllm_config.model_config.word_embeddings_untied_by_checkpoint"
"""Attribute of Scheduler: the checkpoint has an output head, whatever its configuration
says."""
KV_AUTO = "auto"
"""The KV cache has the model's dtype."""
WORKERS: Fields = (
    ("parallel_config.world_size", 0),
    ("parallel_config.decode_context_parallel_size", 1),
    ("collective_rpc", None),
)
"""Attributes of Executor."""
WORKER_MODEL = "get_model"
"""Method of a worker that returns its part of the model."""
PACKED = ("weight", "input_size_per_partition", "output_size_per_partition")
"""Attributes of a linear layer whose packed weight is empty: its sizes."""
WORKER_DEVICE = "device"
WORKER_MEMORY = {
    "total_bytes": "init_snapshot.total_memory",
    "allowed_bytes": "requested_memory|requested_cpu_memory",
    "consumed": "total_consumed",
    "model": "model_runner.model_memory_usage",
    "activations": "peak_activation_memory",
    "graph_bytes": "cudagraph_memory_estimate",
    "utilization": "cache_config.gpu_memory_utilization",
    "given_kv_bytes": "cache_config.kv_cache_memory_bytes",
}
"""Attributes of a worker; on the CPU, where there is no profile, many are missing."""
WORKER_CACHES = "model_runner.kv_caches"
WORKER_ATTENTION = "model_runner.attn_groups"
GRAPHS_IN_PEAK = ("vllm.envs", "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS")
"""Whether the activation peak includes CUDA graphs."""
LOGGER = "vllm"
LOADED = {
    "Model loading took %s GiB memory and %.6f seconds": 1,
    "Loading weights took %.2f seconds": 0,
}
"""Log messages of workers, best first, with the index of the seconds among the
arguments."""
COMPILED = "%s %s during inference: "
"""How the message of vLLM's monitor begins: backend, event, function, details."""
COMPILING, CALLBACKS = "torch._dynamo.callback", "callback_handler"
COMPILE_ID = "compile_id"
"""What PyTorch tells of a compilation: number of the function, and how often before."""
EXECUTE = frozenset({"execute_model", "sample_tokens"})
"""Functions of a worker that run a step."""
WARM_UP = frozenset(
    {"compile_or_warm_up_model", "determine_available_memory", "profile_run"}
)
UPDATES = frozenset(
    {"update_weights", "finish_weight_update", "reload_weights", "load_weights"}
)
"""Functions of a worker, as called by name, that replace its weights."""
SERVES = re.compile(r" serve( |$)|api_server|VLLM::")
"""In the command line of a process that was started to serve."""
WRAPPED_WORKER = "worker"
"""Attribute of WorkerWrapperBase: the worker of the platform in use."""
INIT_DEVICE = "init_device"
"""Method of such a worker, like the following: each is a stage of the start."""
LOAD_MODEL = "load_model"
PROFILE = "determine_available_memory"
ALLOCATE_KV = "initialize_from_config"
WARM_UP_MODEL = "compile_or_warm_up_model"
MODEL_RUNNER = "model_runner"
CAPTURE = "capture_model"
"""Method of a model runner."""
CREATE_MODEL = "create_model"
"""Method of a model loader, like the following."""
LOAD_WEIGHTS = "load_weights"
ALL_WEIGHTS = "get_all_weights"
LOAD_CONFIG = "load_config"
LOAD_STRATEGY = "safetensors_load_strategy"
MAPPED = frozenset({None, "lazy"})
"""Strategies by which a file is mapped into memory."""
KV_TENSORS = "kv_cache_tensors"
"""Attribute of KVCacheConfig."""
KV_TENSOR_BYTES = "size"
COMPILE_TIMES = (
    "vllm_config.compilation_config.compilation_time",
    "vllm_config.compilation_config.encoder_compilation_time",
)
"""Attributes of a worker: seconds so far."""
COMPILE_MONITOR = ("vllm.compilation.decorators", "monitor_torch_compile")
"""Context in which vLLM compiles or loads what it compiled before, where it is used."""
COMPILE_COUNTER = ("vllm.compilation.counter", "compilation_counter")
COMPILED_ANEW = ("num_inductor_compiles", "num_eager_compiles")
LOADED_COMPILED = ("num_compiled_artifacts_loaded", "num_aot_artifacts_loaded")
TORCH_COUNTER = (
    *("torch._dynamo.utils", "counters", "inductor"),
    *("fxgraph_cache_miss", "fxgraph_cache_hit"),
)
"""PyTorch's own: module, name, part, and what was not and what was in its cache."""
KV_GROUPS: Fields = (("kv_cache_groups", ()),)
"""Attributes of KVCacheConfig, of which each worker has its own."""
KV_GROUP: Fields = (("layer_names", ()), ("kv_cache_spec", None))
"""Attributes of KVCacheGroupSpec."""
KV_PAGE: Fields = (("page_size_bytes", None), ("block_size", None))
"""Attributes of KVCacheSpec: a block of one layer."""
LAYER_PAGES = "kv_cache_specs"
"""Attribute of UniformTypeKVCacheSpecs, whose page covers all layers."""
STATE_PAGES = "mamba_type"
"""Attribute of MambaSpec, whose state does not grow with tokens."""
QUEUED: Fields = (
    ("request_id", ""),
    ("num_prompt_tokens", None),
    ("max_tokens", None),
    ("sampling_params", None),
    ("lora_request", None),
    ("priority", None),
)
"""Attributes of Request, like the following."""
LORA_NAME = "lora_name"
"""Attribute of LoRARequest, like the following."""
LORA_ID = "lora_int_id"
PREFILL: Fields = (("prefill_stats", None),)
EXTERNAL_TOKENS = "num_external_cached_tokens"
"""Attribute of PrefillStats."""
TEMPERATURE, TOP_P = "temperature", "top_p"
"""Attributes of SamplingParams."""
PROGRESS: Fields = (("num_computed_tokens", 0), ("is_prefill_chunk", False))
COMPUTED: Fields = (("request_id", ""), ("num_computed_tokens", 0))
SIZE: Fields = (("num_tokens", 0), ("has_encoder_inputs", False))
STATUS: Fields = (("status", None),)
DEFERRAL: Fields = (("status", None), ("lora_request", None))
CONTENT: Fields = (
    ("request_id", ""),
    ("num_prompt_tokens", 0),
    ("block_hashes", ()),
    ("prompt_token_ids", None),
    ("cache_salt", None),
    ("num_computed_tokens", 0),
    ("num_preemptions", 0),
)
"""The last two are 0 for a request that was never scheduled. A prompt given as
embeddings has no token ids."""
ENDED: Fields = (
    ("request_id", ""),
    ("num_output_tokens", None),
    ("num_preemptions", None),
    ("get_finished_reason", lambda: None),
)
OUTPUT_IDS = "_output_token_ids"
"""Attribute of Request."""
THINKING_END = (
    "vllm_config.reasoning_config.natural_reasoning_end_token_ids",
    "vllm_config.reasoning_config.reasoning_end_token_ids",
)
"""Paths from Scheduler, the better first: the tokens that end the thinking."""
OUTPUTS: Fields = (("outputs", ()), ("scheduler_stats", None))
"""Attributes of EngineCoreOutputs."""
OUTPUT_ID: Fields = (("request_id", ""),)
"""Attributes of EngineCoreOutput, like the following."""
OUTPUT_TOKENS: Fields = (("new_token_ids", ()),)
OUTPUT_REASON: Fields = (("finish_reason", None),)
STATS: Fields = (
    ("prefix_cache_stats.queries", None),
    ("prefix_cache_stats.hits", None),
    ("cudagraph_stats", None),
    ("spec_decoding_stats", None),
)
"""Attributes of SchedulerStats."""
GRAPH: Fields = (("num_paddings", None), ("runtime_mode", None))
"""Attributes of CUDAGraphStat."""
DRAFTS: Fields = (
    ("num_draft_tokens", None),
    ("num_accepted_tokens", None),
    ("num_drafts", None),
    ("num_accepted_tokens_per_pos", ()),
)
"""Attributes of SpecDecodingStats."""
ARRIVED: Fields = (
    ("request_id", ""),
    ("external_req_id", None),
    ("arrival_time", None),
    ("mm_features", None),
)
"""Attributes of EngineCoreRequest."""
STATES: Fields = (("request_states", {}),)
"""Attribute of OutputProcessor: RequestState by id."""
ASKED: Fields = (
    ("prompt_len", None),
    ("max_tokens_param", None),
    ("temperature", None),
    ("top_p", None),
)
"""Attributes of RequestState, like the following."""
SENT: Fields = (("stats", None),)
SENT_TOKENS = "num_generation_tokens"
"""Attribute of RequestStateStats."""
STOPPED: Fields = (("reqs_to_abort", ()),)
"""Attribute of OutputProcessorOutput."""
ITERATION_STAMP = "iteration_timestamp"
"""Attribute of IterationStats."""


Vllm = Any
"""An object of vLLM's: the probe must not import its types."""


class AttributeReader:
    """Reads several attributes of an object at once; a single one is not in a tuple.

    The first object it reads decides which attributes exist, and under which name.
    """

    __slots__ = "_fields", "_kind", "_missing", "read"

    def __init__(
        self, kind: str, fields: Fields, missing: Callable[[str], None]
    ) -> None:
        self.read: Callable[[Vllm], Any] = self._first
        """Must be looked up for each call, since it is replaced after the first one."""
        self._kind = kind
        self._fields = fields
        self._missing = missing

    def _first(self, thing: Vllm) -> Any:  # noqa: ANN401 - so are the values
        paths = [_path_in(thing, names) for names, _ in self._fields]
        lacks = [
            names.partition("|")[0]
            for (names, _), path in zip(self._fields, paths, strict=True)
            if path is None
        ]
        for name in sorted(lacks):
            self._missing(f"{self._kind}.{name}")
        self.read = _compiled(paths, [default for _, default in self._fields])
        return self.read(thing)


def _compiled(
    paths: Sequence[str | None], defaults: Sequence[object]
) -> Callable[[Vllm], Any]:
    """A function that reads attributes, in half the time of an ``attrgetter``."""
    values = [
        f"defaults[{place}]" if path is None else f"thing.{path}"
        for place, path in enumerate(paths)
    ]
    text = f"lambda thing: ({', '.join(values)})"
    read: Callable[[Vllm], Any] = eval(text, {"defaults": defaults})  # noqa: S307 - all of it is in this file
    return read


def _path_in(thing: Vllm, names: str) -> str | None:
    """The first of several alternative paths that exists."""
    return next((name for name in names.split("|") if _has(thing, name)), None)


def _has(thing: Vllm, path: str) -> bool:
    try:
        attrgetter(path)(thing)
    except AttributeError:
        return False
    return True
