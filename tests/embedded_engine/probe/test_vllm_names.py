"""The names the probe stands on, in releases of vLLM from the oldest we claim on.

What those releases have was read off their source, see ``vllm_facts``; a change of the
table is checked against all of them without any vLLM.
"""

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from collectors.contract.readings import BoundBy
from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.tap.engine_tap import QueueHeadRule, keeps_cadence
from embedded_engine.probe.vllm_names import AttributeReader
from tests.embedded_engine.vllm_facts import known_facts

FACTS = known_facts()
FIELDS = {
    "SchedulerOutput": ["STEP"],
    "NewRequestData": ["FIRST"],
    "Scheduler": [
        *("QUEUES", "FREE_QUEUE", "REQUESTS", "BLOCK_TOTAL", "LIMITS", "BLOCKS"),
        *("GATES", "CACHE_KIND", "RANK", "INFO", "BLOCK_MAP", "POLICY"),
        *("SETTINGS", "MODEL_CONFIG", "RUNNING", "CAPACITY_BOUND", "PROFILER"),
    ],
    "Executor": ["WORKERS"],
    "KVCacheConfig": ["KV_GROUPS"],
    "KVCacheGroupSpec": ["KV_GROUP"],
    "KVCacheSpec": ["KV_PAGE"],
    "BlockPool": ["POOL_QUEUE", "ALL_BLOCKS", "CACHING"],
    "SingleTypeKVCacheManager": ["HELD"],
    "KVCacheBlock": ["BLOCK_CONTENT"],
    "FreeKVCacheBlockQueue": ["QUEUE_SIZE"],
    "Request": [
        *("QUEUED", "PROGRESS", "COMPUTED", "SIZE", "STATUS", "ENDED", "CONTENT"),
        *("PREFILL", "DEFERRAL"),
    ],
    "EngineCoreRequest": ["ARRIVED"],
    "EngineCoreOutputs": ["OUTPUTS"],
    "EngineCoreOutput": ["OUTPUT_ID", "OUTPUT_TOKENS", "OUTPUT_REASON"],
    "SchedulerStats": ["STATS"],
    "CUDAGraphStat": ["GRAPH"],
    "SpecDecodingStats": ["DRAFTS"],
    "OutputProcessor": ["STATES"],
    "RequestState": ["ASKED", "SENT"],
    "OutputProcessorOutput": ["STOPPED"],
}
"""Of each class, the groups of fields that are read off it."""
SINGLE = [
    ("WorkerBase", names.WORKER_MODEL),
    ("WorkerBase", names.WORKER_DEVICE),
    ("UniformTypeKVCacheSpecs", names.LAYER_PAGES),
    ("MambaSpec", names.STATE_PAGES),
    ("SamplingParams", names.TEMPERATURE),
    ("SpeculativeConfig", names.DRAFT_SLOTS),
    ("KVCacheBlock", names.BLOCK_ID),
    ("LoRARequest", names.LORA_NAME),
    ("LoRARequest", names.LORA_ID),
    ("Scheduler", names.CONNECTOR),
    ("Scheduler", names.ENCODER_CONNECTOR),
    ("PrefillStats", names.EXTERNAL_TOKENS),
    ("RequestStateStats", names.SENT_TOKENS),
    ("IterationStats", names.ITERATION_STAMP),
    ("EngineCoreProc", names.CORE_QUEUE),
]
LEADS_TO = {
    "block_pool": "BlockPool",
    "cache_config": "CacheConfig",
    "coordinator": "KVCacheCoordinator",
    "device_config": "DeviceConfig",
    "free_block_queue": "FreeKVCacheBlockQueue",
    "kv_cache_config": "KVCacheConfig",
    "kv_cache_manager": "KVCacheManager",
    "model_config": "ModelConfig",
    "parallel_config": "ParallelConfig",
    "prefix_cache_stats": "BaseCacheStats",
    "profiler_config": "ProfilerConfig",
    "scheduled_cached_reqs": "CachedRequestData",
    "scheduler_config": "SchedulerConfig",
    "vllm_config": "VllmConfig",
}
"""What an attribute in the middle of a path is."""
PROFILED = {"EngineCore", "EngineCoreProc", "ProfilerConfig"}
EARLIER = {
    *("KVCacheCoordinator", "SingleTypeKVCacheManager", "KVCacheBlock"),
    *("LoRARequest", "PrefillStats"),
}
NOT_READ = {"0.26.0": EARLIER | PROFILED, "0.29.0": EARLIER | PROFILED} | {
    "0.33.0": PROFILED
}
"""Classes that came to the table after the source of these was read. Where one of them
has other names, there is a note, and no block map, adapter, count or profile."""

releases = pytest.mark.parametrize("release", sorted(FACTS))


def has(release: str, kind: str, path: str) -> bool:
    """Follow a dotted path from a class of a release."""
    first, _, rest = path.partition(".")
    if kind in NOT_READ.get(release, ()):
        return True
    facts = FACTS[release][kind]
    if first not in facts["methods"].split() + facts["attributes"].split():
        return False
    return not rest or has(release, LEADS_TO[first], rest)


def test_a_scheduler_that_holds_prefills_itself_counts_steps_for_it() -> None:
    for release, knows in (("0.32.0", False), ("0.33.0", True)):
        known = [has(release, "Scheduler", name) for name in names.CADENCE]
        assert known == [knows] * 3


@pytest.mark.parametrize(
    ("interval", "executed", "last", "holds"),
    [(4, 10, 10, True), (4, 13, 10, True), (4, 14, 10, False)],
)
def test_prefills_are_held_until_enough_steps_ran(
    interval: int, executed: int, last: int, *, holds: bool
) -> None:
    scheduler = SimpleNamespace(
        local_prefill_interval=interval,
        num_executed_steps=executed,
        last_prefill_step=last,
    )
    assert keeps_cadence(scheduler) is holds


def test_the_oldest_release_claimed_is_among_them() -> None:
    assert {"0.26.0", "0.32.0"} < set(FACTS)


def test_every_group_of_fields_is_checked() -> None:
    groups = {
        name
        for name, value in vars(names).items()
        if name.isupper() and isinstance(value, tuple) and isinstance(value[0], tuple)
    }

    assert groups == {name for group in FIELDS.values() for name in group}


@releases
def test_every_method_the_probe_wraps_is_its_classes_own(release: str) -> None:
    methods = [
        *names.ENGINE_METHODS.values(),
        *names.FRONT_METHODS.values(),
        *names.PROFILE_METHODS.values(),
    ]

    missing = [
        method
        for method in methods
        if not has(release, method.owner.partition(":")[2], method.name)
    ]

    assert missing == []


@releases
def test_every_field_the_probe_reads_is_there_by_one_of_its_names(release: str) -> None:
    missing = [
        (kind, path)
        for kind, groups in FIELDS.items()
        for group in groups
        for path, _ in getattr(names, group)
        if not any(has(release, kind, each) for each in path.split("|"))
    ]
    missing += [each for each in SINGLE if not has(release, *each)]

    assert missing == []


@releases
def test_what_live_limits_stand_on_is_there_in_every_release(release: str) -> None:
    paths = [rule.path for rule in names.BUDGET_RULES if not rule.is_newer]
    paths += [*names.LIVE_LIMITS.values(), names.CHUNKED, names.SPECULATED]

    assert [
        path
        for path in paths
        if not any(has(release, "Scheduler", each) for each in path.split("|"))
    ] == []


def test_managers_that_only_append_are_there_by_their_names() -> None:
    assert set(names.APPENDING) < set(FACTS["0.32.0"])


class Queue(deque[Any]):
    """As vLLM's first-come-first-served one."""

    def peek_request(self) -> object:
        return self[0]


def scheduler(release: str, **given: Any) -> SimpleNamespace:
    """With as many of these attributes as the class of that release has."""
    known = {
        "max_num_scheduled_tokens": 512,
        "max_num_running_reqs": 4,
        "max_num_active_reqs": 4,
        "scheduler_config": SimpleNamespace(
            max_num_batched_tokens=512, enable_chunked_prefill=True
        ),
        "vllm_config": SimpleNamespace(speculative_config=None),
        "kv_cache_manager": SimpleNamespace(watermark_blocks=0),
        "kv_cache_config": SimpleNamespace(kv_cache_groups=[object()]),
        "block_size": 16,
        "running": [object()] * 4,
        "waiting": Queue(),
        "skipped_waiting": Queue(),
        "kv_holding_waiting": Queue(),
        "deferred_waiting": set(),
        "_is_blocked_waiting_status": lambda status: status == "blocked",
        "_pause_state": 0,
        "num_waiting_for_streaming_input": 0,
        **given,
    }
    its_own = [name for name in known if has(release, "Scheduler", name)]
    return SimpleNamespace(**{name: known[name] for name in its_own})


class Waiting:
    """A request in a queue."""

    def __init__(self, status: str = "waiting", num_tokens: int = 100) -> None:
        self.status = status
        self.num_tokens = num_tokens
        self.has_encoder_inputs = False
        self.lora_request = None


def binds(of: SimpleNamespace, *, free: int = 100) -> tuple[BoundBy, list[str]]:
    """What binds when the queues are as they are, and what was missing."""
    missing: list[str] = []
    rule = QueueHeadRule(of, missing.append)
    queues = AttributeReader("Scheduler", names.QUEUES, missing.append)
    running, waiting, first = queues.read(of)
    state = len(running), waiting, first, free
    step = len(running), len(running), False, False
    return rule.by(of, state, step)[0], missing


@releases
def test_taken_seats_mean_seqs_in_every_release(release: str) -> None:
    of = scheduler(release, waiting=Queue([Waiting()]))

    assert binds(of) == (BoundBy.SEQS, [])


@releases
def test_a_limit_that_is_moved_binds_from_the_next_step_on(release: str) -> None:
    missing: list[str] = []
    of = scheduler(release)
    rule = QueueHeadRule(of, missing.append)
    state = 2, Queue([Waiting()]), Queue(), 100
    before = rule.by(of, state, (2, 2, False, False))[0]

    of.max_num_running_reqs = of.max_num_active_reqs = 2
    seqs = rule.by(of, state, (2, 2, False, False))[0]
    of.max_num_scheduled_tokens = 2
    tokens = rule.by(of, state, (2, 2, False, False))[0]

    assert [before, seqs, tokens] == ["other", "seqs", "tokens"]
    assert missing == []


@releases
def test_what_was_passed_over_waits_and_is_not_the_head(release: str) -> None:
    blocked, head = Waiting("blocked", 10), Waiting(num_tokens=100)
    of = scheduler(
        release,
        running=[object()],
        waiting=Queue([head]),
        skipped_waiting=Queue([blocked]),
        kv_holding_waiting=Queue([blocked]),
        deferred_waiting={blocked},
    )

    assert binds(of, free=6) == (BoundBy.KV, [])
    missing: list[str] = []
    _, waiting, first = AttributeReader("Scheduler", names.QUEUES, missing.append).read(
        of
    )
    assert len(waiting) + len(first) == 2
    of.waiting.clear()
    assert binds(of, free=0) == (BoundBy.DEFERRED, [])
