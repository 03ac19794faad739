"""How large a model and its KV cache are, over all workers of an engine.

Learned once, when the workers have loaded their parts and get their caches, before
there are requests: from what EngineCore hands them, and by asking each of them in the
way vLLM asks them itself. What not all of them tell is not known.
"""

from collections.abc import Callable, Iterable, Sequence

from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.attribute_reader import AttributeReader, Vllm
from embedded_engine.probe.hooks import Given

Part = tuple[int | None, str | None]
"""Of a worker: bytes of its weights, and the UUID of its GPU."""


class EngineSize:
    """What the workers of an engine hold together."""

    def __init__(self, missing: Callable[[str], None]) -> None:
        self.weight_bytes: int | None = None
        self.kv_bytes_per_token: int | None = None
        self.gpus: list[str] = []
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
            parts: list[Part] = ask(teller(names.WORKER_MODEL, names.WORKER_DEVICE))
        except Exception as error:
            self._missing(f"workers that tell of their models: {error!r}")
            return
        weights = [each for each, _ in parts if each is not None]
        if len(weights) == workers:
            self.weight_bytes = sum(weights)
        else:
            self._missing(f"Worker.{names.WORKER_MODEL} in all of {workers} workers")
        self.gpus = list(dict.fromkeys(gpu for _, gpu in parts if gpu is not None))

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


def teller(model: str, device: str) -> Callable[[Vllm], Part]:
    """What a worker is to do: it may run on a host that has nothing of ours.

    A function in a function is sent whole and not by name. It must not raise: vLLM
    gives up waiting for the other workers at the first one that does.
    """

    def tell(worker: Vllm) -> Part:
        weight_bytes = gpu = None
        try:
            parameters = getattr(worker, model)().parameters()
            weight_bytes = sum(p.numel() * p.element_size() for p in parameters)
        except Exception:  # noqa: S110 - None says it
            pass
        try:
            import os  # noqa: PLC0415

            import torch  # noqa: PLC0415

            place = getattr(worker, device)
            if place.type == "cuda" and torch.version.cuda:
                visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
                index = place.index or 0
                gpu = f"GPU-{torch.cuda.get_device_properties(place).uuid}"
                if index < len(visible) and visible[index].startswith("MIG-"):
                    gpu = visible[index]  # its properties are those of the whole GPU
        except Exception:  # noqa: S110
            pass
        return weight_bytes, gpu

    return tell
