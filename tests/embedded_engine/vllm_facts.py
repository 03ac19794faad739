"""What the classes of some releases of vLLM are made of, read off their source.

The facts stand in ``vllm_facts.json``. Another release comes from its unpacked wheel:

    python -m tests.embedded_engine.vllm_facts 0.26.0 unpacked/vllm
"""

import ast
import json
import sys
from pathlib import Path

FACTS = Path(__file__).with_suffix(".json")
CLASSES = {
    "v1/core/sched/scheduler.py": ("Scheduler",),
    "v1/core/sched/output.py": (
        *("SchedulerOutput", "NewRequestData", "CachedRequestData"),
    ),
    "v1/core/block_pool.py": ("BlockPool",),
    "v1/core/kv_cache_utils.py": ("FreeKVCacheBlockQueue", "KVCacheBlock"),
    "v1/core/kv_cache_coordinator.py": ("KVCacheCoordinator",),
    "v1/core/single_type_kv_cache_manager.py": (
        *("SingleTypeKVCacheManager", "FullAttentionManager"),
        "SinkFullAttentionManager",
    ),
    "v1/core/kv_cache_manager.py": ("KVCacheManager",),
    "v1/kv_cache_interface.py": (
        *("KVCacheConfig", "KVCacheGroupSpec", "KVCacheSpec", "MambaSpec"),
        "UniformTypeKVCacheSpecs",
    ),
    "v1/executor/abstract.py": ("Executor",),
    "v1/worker/worker_base.py": ("WorkerBase",),
    "v1/request.py": ("Request",),
    "v1/engine/__init__.py": (
        *("EngineCoreRequest", "EngineCoreOutput", "EngineCoreOutputs"),
    ),
    "v1/engine/core.py": ("EngineCore", "EngineCoreProc"),
    "v1/engine/output_processor.py": (
        *("OutputProcessor", "OutputProcessorOutput", "RequestState"),
    ),
    "v1/metrics/stats.py": (
        *("SchedulerStats", "BaseCacheStats", "IterationStats", "RequestStateStats"),
        "PrefillStats",
    ),
    "v1/spec_decode/metrics.py": ("SpecDecodingStats",),
    "compilation/cuda_graph.py": ("CUDAGraphStat",),
    "config/vllm.py": ("VllmConfig",),
    "config/scheduler.py": ("SchedulerConfig",),
    "config/model.py": ("ModelConfig",),
    "config/device.py": ("DeviceConfig",),
    "config/cache.py": ("CacheConfig",),
    "config/parallel.py": ("ParallelConfig",),
    "config/profiler.py": ("ProfilerConfig",),
    "config/speculative.py": ("SpeculativeConfig",),
    "lora/request.py": ("LoRARequest",),
    "sampling_params.py": ("SamplingParams",),
}
Facts = dict[str, dict[str, dict[str, str]]]
"""By release and class its ``methods`` and ``attributes``; of the former configurations
have only their properties here."""


def known_facts() -> Facts:
    """All there are."""
    facts: Facts = json.loads(FACTS.read_text("utf-8"))
    return facts


def read(package: Path) -> dict[str, dict[str, str]]:
    """Of the classes in an unpacked ``vllm``."""
    found = {}
    for path, names in CLASSES.items():
        module = ast.parse((package / path).read_text("utf-8"))
        for node in module.body:
            if isinstance(node, ast.ClassDef) and node.name in names:
                found[node.name] = _class(node, bare=path.startswith("config/"))
    return found


def _class(node: ast.ClassDef, *, bare: bool) -> dict[str, str]:
    functions = [each for each in node.body if isinstance(each, ast.FunctionDef)]
    attributes = {
        target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign | ast.Assign)
        for target in _targets(each)
        if isinstance(target, ast.Name)
    }
    attributes |= {
        target.attr
        for function in functions
        for each in ast.walk(function)
        if isinstance(each, ast.AnnAssign | ast.Assign)
        for target in _targets(each)
        if isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    }
    methods = {
        function.name
        for function in functions
        if not bare
        or any(ast.unparse(d) == "property" for d in function.decorator_list)
    }
    kinds = {"methods": methods, "attributes": attributes}
    return {kind: " ".join(sorted(names)) for kind, names in kinds.items()}


def _targets(statement: ast.AnnAssign | ast.Assign) -> list[ast.expr]:
    if isinstance(statement, ast.AnnAssign):
        return [statement.target]
    return statement.targets


def main(release: str, package: Path) -> None:
    facts = known_facts() if FACTS.exists() else {}
    facts[release] = read(package)
    FACTS.write_text(json.dumps(dict(sorted(facts.items())), indent=0) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
