"""Size of the model and KV cache, summed over all workers of an engine.

Learned once, after the workers loaded the model and before there are requests: from the
KV cache configurations EngineCore passes to them, and by calling functions in each
worker through vLLM's own RPC. Values that not all workers report are unknown.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from collectors.contract.clock import monotonic_ns
from collectors.contract.readings import WorkerMemory
from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.hooks import Given
from embedded_engine.probe.vllm_names import AttributeReader, Vllm

SECONDS: dict[str, float] = {}
"""Seconds by message; EngineCore asks each worker's process for them."""


class _Listener(logging.Handler):
    """Picks two messages out of the log: one lookup each, without formatting."""

    def emit(self, record: logging.LogRecord) -> None:
        place = names.LOADED.get(str(record.msg))
        if place is None or not isinstance(record.args, tuple):
            return
        seconds = record.args[place] if place < len(record.args) else None
        if isinstance(seconds, float):
            SECONDS[str(record.msg)] = seconds


def listen() -> None:
    """Start listening to vLLM's logger in this process."""
    logging.getLogger(names.LOGGER).addHandler(_Listener(logging.INFO))


def load_s() -> float | None:
    """Seconds that loading the model took in this process; None if not logged."""
    return next((SECONDS[each] for each in names.LOADED if each in SECONDS), None)


# Functions run once in each worker to learn the memory use of its device.
#
# A worker may be on a host without inferwatch. A nested function is pickled by value,
# not by name, so each question is one. vLLM stops waiting for other workers when one
# raises, so no question may. Results are plain numbers and strings.

Answers = dict[str, Any]
Question = Callable[[Vllm], Answers]

LOAD_TIME = "embedded_engine.probe.about.engine_size"
"""Module in which a worker with the probe remembers its load time."""
PARAMETERS = "its parameters"
TENSORS = "its tensors"
PROFILE = "vLLM's profile at the start"
ESTIMATE = "vLLM's estimate before capture"


def all_questions() -> Question:
    return together(
        of_weights(names.WORKER_MODEL, names.PACKED),
        of_gpu(names.WORKER_DEVICE),
        of_numbers(names.WORKER_MEMORY),
        of_caches(names.WORKER_CACHES),
        of_graphs(*names.GRAPHS_IN_PEAK),
        of_loading(LOAD_TIME),
        of_attention(names.WORKER_ATTENTION),
    )


def memory_of(place: int, answers: Answers) -> WorkerMemory:
    """Memory use of a worker's device, as far as known."""
    origins: dict[str, tuple[float | None, str]] = {
        "weight_bytes": (answers.get("weight_bytes"), PARAMETERS),
        "kv_bytes": (answers.get("kv_bytes"), TENSORS),
        # vLLM's second model runner estimates 0 whatever it captures
        "graph_bytes": (answers.get("graph_bytes") or None, ESTIMATE),
        "total_bytes": (answers.get("total_bytes"), "its driver"),
    }
    allowed, share = answers.get("allowed_bytes"), answers.get("utilization")
    if allowed is not None and not answers.get("given_kv_bytes"):
        origins["allowed_bytes"] = (allowed, "gpu_memory_utilization")
    if allowed is not None and share and origins["total_bytes"][0] is None:
        origins["total_bytes"] = (round(allowed / share), "its NUMA node")  # on the CPU
    peak = answers.get("activations")
    if peak is not None:
        graphs = answers.get("graph_bytes", 0) if answers.get("graphs_in_peak") else 0
        origins["activation_bytes"] = (max(0, peak - graphs), PROFILE)
    consumed, model = answers.get("consumed"), answers.get("model")
    if consumed is not None and model is not None:
        origins["workspace_bytes"] = (max(0, consumed - model), PROFILE)
    sizes = {
        name: int(value) for name, (value, _) in origins.items() if value is not None
    }
    read_from = {name: origins[name][1] for name in sizes}
    load_s: float | None = answers.get("load_s")
    if load_s is not None:
        read_from["load_s"] = "vLLM's log"
    return WorkerMemory(
        t_ns=monotonic_ns(),
        worker=place,
        gpu=answers.get("gpu"),
        total_bytes=sizes.get("total_bytes"),
        allowed_bytes=sizes.get("allowed_bytes"),
        weight_bytes=sizes.get("weight_bytes"),
        kv_bytes=sizes.get("kv_bytes"),
        activation_bytes=sizes.get("activation_bytes"),
        graph_bytes=sizes.get("graph_bytes"),
        workspace_bytes=sizes.get("workspace_bytes"),
        read_from=read_from,
        load_s=load_s,
    )


def together(*questions: Question) -> Question:
    """Combine several questions into one; a failing one does not affect the others."""

    def ask(worker: Vllm) -> Answers:
        from contextlib import suppress  # noqa: PLC0415

        answers: Answers = {}
        for question in questions:
            with suppress(Exception):
                answers.update(question(worker))
        return answers

    return ask


def of_weights(model: str, packed: tuple[str, str, str]) -> Question:
    """A question about the bytes of the worker's part of the model.

    On the CPU, vLLM packs the weight of a linear layer into a hidden format and leaves
    an empty one, so the layer's sizes are used.
    """
    weight_name, *size_names = packed

    def ask(worker: Vllm) -> Answers:
        module = getattr(worker, model)()
        n_bytes = sum(p.numel() * p.element_size() for p in module.parameters())
        for layer in getattr(module, "modules", tuple)():
            left = getattr(layer, weight_name, None)
            sizes = [getattr(layer, name, 0) for name in size_names]
            if left is not None and left.numel() == 0:
                n_bytes += sizes[0] * sizes[1] * left.element_size()
        return {"weight_bytes": n_bytes}

    return ask


def of_gpu(device: str) -> Question:
    """A question about the UUID of the worker's GPU or MIG slice."""

    def ask(worker: Vllm) -> Answers:
        import os  # noqa: PLC0415

        import torch  # noqa: PLC0415

        place = getattr(worker, device)
        if place.type != "cuda" or not torch.version.cuda:
            return {}
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        index = place.index or 0
        if index < len(visible) and visible[index].startswith("MIG-"):
            # device properties are those of the whole GPU
            return {"gpu": visible[index]}
        return {"gpu": f"GPU-{torch.cuda.get_device_properties(place).uuid}"}

    return ask


def of_numbers(paths: Mapping[str, str]) -> Question:
    """A question about numeric attributes of the worker, found at alternative paths."""
    named = {name: either.split("|") for name, either in paths.items()}

    def ask(worker: Vllm) -> Answers:
        from operator import attrgetter  # noqa: PLC0415

        answers: Answers = {}
        for name, either in named.items():
            for path in either:
                try:
                    answers.setdefault(name, attrgetter(path)(worker) + 0)
                except (AttributeError, TypeError):
                    continue
        return answers

    return ask


def of_caches(path: str) -> Question:
    """A question about the bytes of the worker's KV caches; shared ones count once."""

    def ask(worker: Vllm) -> Answers:
        from operator import attrgetter  # noqa: PLC0415

        sizes = {}
        for cache in attrgetter(path)(worker):
            for part in cache if isinstance(cache, list | tuple) else [cache]:
                storage = part.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
        return {"kv_bytes": sum(sizes.values())}

    return ask


def of_graphs(module: str, name: str) -> Question:
    """A question about whether the worker's activation peak includes CUDA graphs."""

    def ask(_: Vllm) -> Answers:
        import importlib  # noqa: PLC0415

        return {"graphs_in_peak": bool(getattr(importlib.import_module(module), name))}

    return ask


def of_loading(module: str) -> Question:
    """A question about the time the worker took to load its weights."""

    def ask(_: Vllm) -> Answers:
        import sys  # noqa: PLC0415

        return {"load_s": sys.modules[module].load_s()}

    return ask


def of_attention(path: str) -> Question:
    """A question about the names of the attention backends that the worker chose."""

    def ask(worker: Vllm) -> Answers:
        from operator import attrgetter  # noqa: PLC0415

        groups = [each for some in attrgetter(path)(worker) for each in some]
        chosen = dict.fromkeys(each.backend.get_name() for each in groups)
        return {"attention_backend": ", ".join(chosen) or None}

    return ask


class EngineSize:
    """Weights and KV cache held by the workers of an engine together."""

    def __init__(self, missing: Callable[[str], None]) -> None:
        self.weight_bytes: int | None = None
        self.kv_bytes_per_token: int | None = None
        self.gpus: list[str] = []
        self.attention_backend: str | None = None
        """The one in use, which vLLM chooses unless it is told."""
        self.workers: list[WorkerMemory] = []
        """Memory use of each worker, in order of rank."""
        self._ask: Callable[[Question], list[Answers]] | None = None
        self._missing = missing
        self._workers = AttributeReader("Executor", names.WORKERS, missing)
        self._groups = AttributeReader("KVCacheConfig", names.KV_GROUPS, missing)
        self._group = AttributeReader("KVCacheGroupSpec", names.KV_GROUP, missing)
        self._page = AttributeReader("KVCacheSpec", names.KV_PAGE, missing)

    def learn(self, executor: Vllm, given: Given, *_: Vllm) -> None:
        """After ``initialize_from_config()``: ask the workers for their memory use."""
        workers, shards, ask = self._workers.read(executor)
        if len(given[0]) == workers:
            in_caches = sum(self._bytes_per_token(config) for config in given[0])
            self.kv_bytes_per_token = round(in_caches / (shards or 1)) or None
        self._ask = ask
        parts = self.answers(all_questions())
        if not parts:
            return
        self.workers = [memory_of(place, part) for place, part in enumerate(parts)]
        weights = [each["weight_bytes"] for each in parts if "weight_bytes" in each]
        if len(weights) == workers:
            self.weight_bytes = sum(weights)
        else:
            self._missing(f"Worker.{names.WORKER_MODEL} in all of {workers} workers")
        told = dict.fromkeys(each.get("attention_backend") for each in parts)
        self.attention_backend = next(filter(None, told), None)
        self.gpus = list(dict.fromkeys(each["gpu"] for each in parts if "gpu" in each))

    def answers(self, question: Question) -> list[Answers]:
        """What each worker answers, in order of rank; empty if they cannot be asked."""
        if self._ask is None:
            return []
        try:
            return self._ask(question)
        except Exception as error:
            self._missing(f"workers that tell of their models: {error!r}")
            return []

    def _bytes_per_token(self, config: Vllm) -> float:
        """KV cache bytes per token in one worker."""
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
