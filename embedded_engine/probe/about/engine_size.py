"""How large a model and its KV cache are, over all workers of an engine.

Learned once, when the workers have loaded their parts and get their caches, before
there are requests: from what EngineCore hands them, and by asking each of them in the
way vLLM asks them itself. What not all of them tell is not known.
"""

from collections.abc import Callable, Iterable, Sequence

from collectors.contract.readings import WorkerMemory
from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.about.worker_memory import Answers, all_questions, memory_of
from embedded_engine.probe.attribute_reader import AttributeReader, Vllm
from embedded_engine.probe.hooks import Given


class EngineSize:
    """What the workers of an engine hold together."""

    def __init__(self, missing: Callable[[str], None]) -> None:
        self.weight_bytes: int | None = None
        self.kv_bytes_per_token: int | None = None
        self.gpus: list[str] = []
        self.workers: list[WorkerMemory] = []
        """In the order of their ranks."""
        self._missing = missing
        self._workers = AttributeReader("Executor", names.WORKERS, missing)
        self._groups = AttributeReader("KVCacheConfig", names.KV_GROUPS, missing)
        self._group = AttributeReader("KVCacheGroupSpec", names.KV_GROUP, missing)
        self._page = AttributeReader("KVCacheSpec", names.KV_PAGE, missing)

    def learn(self, executor: Vllm, given: Given, *_: Vllm) -> None:
        """After an executor gave its workers their caches."""
        workers, shards, ask = self._workers.read(executor)
        if len(given[0]) == workers:
            in_caches = sum(self._bytes_per_token(config) for config in given[0])
            self.kv_bytes_per_token = round(in_caches / (shards or 1)) or None
        if ask is None:
            return
        try:
            parts: list[Answers] = ask(all_questions())
        except Exception as error:
            self._missing(f"workers that tell of their models: {error!r}")
            return
        self.workers = [memory_of(place, part) for place, part in enumerate(parts)]
        weights = [each["weight_bytes"] for each in parts if "weight_bytes" in each]
        if len(weights) == workers:
            self.weight_bytes = sum(weights)
        else:
            self._missing(f"Worker.{names.WORKER_MODEL} in all of {workers} workers")
        self.gpus = list(dict.fromkeys(each["gpu"] for each in parts if "gpu" in each))

    def _bytes_per_token(self, config: Vllm) -> float:
        """Of one worker's cache."""
        groups: Iterable[Vllm] = self._groups.read(config)
        return sum(self._of_group(*self._group.read(group)) for group in groups)

    def _of_group(self, layers: Sequence[str], spec: Vllm) -> float:
        if not layers or hasattr(spec, names.STATE_PAGES):
            return 0.0
        page, tokens = self._page.read(spec)
        if not page or not tokens:
            return 0.0
        pages = 1 if hasattr(spec, names.LAYER_PAGES) else len(layers)
        return float(pages * page / tokens)
