"""Times the stages of an engine's start, in the processes that go through them.

A worker is hooked once it is created, on the classes it uses, whatever its platform;
each hook costs two looks at the clock, and none is called while the engine serves.
EngineCore asks its workers for their stages when they are ready.
"""

import functools
import importlib
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import psutil

from collectors.contract.clock import NS_PER_S, monotonic_ns, wall_offset_ns
from collectors.contract.readings import OF_WEIGHTS, Stage, StartupStage
from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.hooks import Fuse, Given, Hook
from embedded_engine.probe.vllm_names import Vllm

IO = Path("/proc/self/io")
STORAGE = "read_bytes:"
UNSEEN = "stages of the start cannot be seen"


class TimedStage(msgspec.Struct, kw_only=True):
    """A stage, as a worker tells EngineCore of it: in wall time, as of any host."""

    stage: Stage
    begin_wall_ns: int
    duration_ns: int
    n_bytes: int | None = None
    storage_bytes: int | None = None
    waited_ns: int | None = None
    cached: bool | None = None


STAGES: list[TimedStage] = []
"""Stages of the worker in this process, in order of their ends."""
MISSING: dict[str, None] = {}
"""What the worker's vLLM has not, of what its stages are read off."""


def of_stages() -> Callable[[Vllm], dict[str, Any]]:
    """A question to a worker about its stages; see ``engine_size``."""
    module = __name__

    def ask(_: Vllm) -> dict[str, Any]:
        import sys  # noqa: PLC0415

        there = sys.modules.get(module)
        if there is None:
            return {"stages": [], "missing": []}
        return {"stages": there.told(), "missing": [*there.MISSING]}

    return ask


def miss(name: str) -> None:
    """Remember a name that this vLLM lacks, until EngineCore asks."""
    MISSING[name] = None


def missing_in(answers: Sequence[Any]) -> list[str]:
    """What workers answered that their vLLM has not, each once."""
    return [*dict.fromkeys(name for each in answers for name in each["missing"])]


def told() -> list[dict[str, Any]]:
    """Return this process's stages as plain objects; those of a drafter count too."""
    found: dict[Stage, TimedStage] = {}
    for each in STAGES:
        found[each.stage] = (
            _joined(found[each.stage], each) if each.stage in found else each
        )
    plain: list[dict[str, Any]] = msgspec.to_builtins([*found.values()])
    return plain


def _joined(a: TimedStage, b: TimedStage) -> TimedStage:
    """Two parts of one stage as one, which begins with the first."""
    sums = {
        name: None if None in values else sum(values)
        for name in ("duration_ns", "n_bytes", "storage_bytes", "waited_ns")
        for values in ((getattr(a, name), getattr(b, name)),)
    }
    cached = None if None in {a.cached, b.cached} else a.cached and b.cached
    return msgspec.structs.replace(a, **sums, cached=cached)


def stages_of(answers: Sequence[Any], rank: int) -> list[StartupStage]:
    """The stages that workers answered with, and what preceded them."""
    offset_ns = wall_offset_ns()
    stages = [
        StartupStage(
            t_ns=timed.begin_wall_ns - offset_ns,
            rank=rank,
            worker=worker,
            stage=timed.stage,
            duration_ns=timed.duration_ns,
            n_bytes=timed.n_bytes,
            storage_bytes=timed.storage_bytes,
            waited_ns=timed.waited_ns,
            cached=timed.cached,
        )
        for worker, answer in enumerate(answers)
        for timed in msgspec.convert(answer["stages"], list[TimedStage])
    ]
    if stages and (began_s := _began_s()) is not None:
        began_ns = int(began_s * NS_PER_S) - offset_ns
        until_ns = min(each.t_ns for each in stages)
        imports = StartupStage(
            t_ns=began_ns,
            rank=rank,
            stage=Stage.IMPORTS,
            duration_ns=max(0, until_ns - began_ns),
        )
        stages.insert(0, imports)
    return stages


def _began_s() -> float | None:
    """Unix time at which the first process that is there to serve was created.

    An application may have run for long before it creates an engine: there it is
    EngineCore's process, and None where that is the application's own.
    """
    with suppress(psutil.Error, ValueError, KeyError):
        first = psutil.Process(int(os.environ["INFERWATCH_FIRST_PID"]))
        if names.SERVES.search(" ".join(first.cmdline())):
            return first.create_time()
    name = multiprocessing.current_process().name
    is_core = name.startswith(names.CORE_PROCESS)
    return psutil.Process().create_time() if is_core else None


class WeightsHook(Hook):
    """Counts the weights that a loader reads, and the time it takes to get them."""

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    def reset(self) -> None:
        """Begin to count anew."""
        self.n_bytes = self.read_ns = self.waited_ns = self.tensors = 0

    def around(self, original: Callable[..., Any], fuse: Fuse) -> Callable[..., Any]:
        @functools.wraps(original)
        def weights(loader: Vllm, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            found = original(loader, *args, **kwargs)
            return found if fuse.blown else self._counted(iter(found))

        return weights

    def _counted(self, found: Iterator[Any]) -> Iterator[Any]:
        while True:
            asked_ns, cpu_ns = monotonic_ns(), time.thread_time_ns()
            try:
                each = next(found)
            except StopIteration:
                return
            finally:
                took_ns = monotonic_ns() - asked_ns
                self.read_ns += took_ns
                self.waited_ns += max(0, took_ns - (time.thread_time_ns() - cpu_ns))
            with suppress(Exception):
                self.n_bytes += each[1].nbytes
                self.tensors += 1
            yield each


class StageTimer:
    """Hooks on a worker, its model runner and its loader."""

    def __init__(self, fuse: Fuse) -> None:
        self._fuse = fuse
        self._hooked: set[tuple[type, str]] = set()
        self._weights = WeightsHook()
        self._started: list[tuple[int, int | None]] = []
        """CPU time and bytes from storage when weights began to load."""
        self._vllm_s = 0.0
        """What vLLM has counted of compilations."""
        self._compiling_ns = 0
        """What was spent compiling since the last look."""
        self._captured_ns = 0
        self._is_warming_up = False

    def hooks(self) -> dict[str, Hook]:
        """Hooks by the key of the vLLM method they are for."""
        return {"device": Hook(before=self._worker_born)}

    def _worker_born(self, wrapper: Vllm, _: Given, __: int) -> None:
        """Before ``init_device()``: hook the worker's class, whichever it is."""
        STAGES.clear()
        self._vllm_s = 0.0
        self._time_compilations(*names.COMPILE_MONITOR)
        worker = getattr(wrapper, names.WRAPPED_WORKER, None)
        if worker is None:
            miss(f"WorkerWrapperBase.{names.WRAPPED_WORKER}: {UNSEEN}")
            return
        for name, hook in (
            (names.INIT_DEVICE, Hook(self._device)),
            (names.LOAD_MODEL, Hook(self._loaded)),
            (names.PROFILE, Hook(self._profiled)),
            (names.ALLOCATE_KV, Hook(self._allocated)),
            (names.WARM_UP_MODEL, Hook(self._warmed_up, self._warms_up)),
        ):
            self._hook(type(worker), name, hook, of="Worker")
        module, kind = names.LOADER.split(":")
        loader = None
        with suppress(ImportError):
            loader = getattr(importlib.import_module(module), kind, None)
        if loader is None:
            miss(f"{kind}: {UNSEEN}")
        else:
            self._hook(loader, "__init__", Hook(self._loader_born))

    def _loader_born(self, loader: Vllm, *_: Vllm) -> None:
        kind = type(loader)
        self._hook(kind, names.CREATE_MODEL, Hook(self._built))
        loading = Hook(self._loaded_weights, self._loads_weights)
        self._hook(kind, names.LOAD_WEIGHTS, loading)
        self._hook(kind, names.ALL_WEIGHTS, self._weights)

    def _hook(self, kind: type, name: str, hook: Hook, of: str = "") -> None:
        """Wrap a method where it is defined, once; without it a stage is unknown.

        ``of`` names what every vLLM should have it in; loaders differ.
        """
        owner = next((each for each in kind.__mro__ if name in vars(each)), None)
        if owner is None and of:
            miss(f"{of}.{name}: {UNSEEN}")
        if owner is None or (owner, name) in self._hooked:
            return
        self._hooked.add((owner, name))
        setattr(owner, name, hook.around(vars(owner)[name], self._fuse))

    def _device(
        self, worker: Vllm, _: Given, __: Vllm, entered: int, returned: int
    ) -> None:
        """After ``init_device()``, which creates the model runner."""
        keep(Stage.DEVICE, entered, returned - entered)
        runner = getattr(worker, names.MODEL_RUNNER, None)
        if runner is not None:
            capture = Hook(self._captured)
            self._hook(type(runner), names.CAPTURE, capture, of="ModelRunner")

    def _built(
        self, _: Vllm, __: Given, ___: Vllm, entered: int, returned: int
    ) -> None:
        keep(Stage.BUILD, entered, returned - entered)

    def _loads_weights(self, *_: Vllm) -> None:
        self._weights.reset()
        self._started.append((time.thread_time_ns(), _from_storage()))

    def _loaded_weights(
        self, loader: Vllm, _: Given, __: Vllm, entered: int, returned: int
    ) -> None:
        cpu_ns, before = self._started.pop()
        now, took_ns = _from_storage(), returned - entered
        weights = self._weights
        details = TimedStage(
            stage=Stage.LOAD_WEIGHTS,
            begin_wall_ns=entered + wall_offset_ns(),
            duration_ns=took_ns,
            n_bytes=weights.n_bytes or None,
            storage_bytes=None if None in (now, before) else now - before,  # type: ignore[operator]
            waited_ns=max(0, took_ns - (time.thread_time_ns() - cpu_ns)),
        )
        if not weights.tensors or _is_mapped(loader):
            STAGES.append(details)
            return
        STAGES.append(
            msgspec.structs.replace(
                details,
                stage=Stage.READ,
                duration_ns=weights.read_ns,
                waited_ns=weights.waited_ns,
            )
        )
        transfer_ns = took_ns - weights.read_ns
        keep(Stage.TRANSFER, returned - transfer_ns, transfer_ns, weights.n_bytes)

    def _loaded(
        self, _: Vllm, __: Given, ___: Vllm, entered: int, returned: int
    ) -> None:
        """After ``load_model()``: what followed the weights is their processing."""
        ends = [each.begin_wall_ns + each.duration_ns for each in STAGES]
        if any(each.stage in OF_WEIGHTS for each in STAGES):
            begin_ns = max(max(ends) - wall_offset_ns(), entered)
            keep(Stage.PROCESS, begin_ns, returned - begin_ns)

    def _profiled(
        self, worker: Vllm, _: Given, __: Vllm, entered: int, returned: int
    ) -> None:
        compiled_ns = self._compiled(worker, entered)
        keep(Stage.PROFILE, entered, returned - entered - compiled_ns)

    def _allocated(
        self, _: Vllm, given: Given, __: Vllm, entered: int, returned: int
    ) -> None:
        tensors = getattr(given[0], names.KV_TENSORS, ())
        n_bytes = sum(getattr(each, names.KV_TENSOR_BYTES, 0) for each in tensors)
        keep(Stage.KV, entered, returned - entered, n_bytes or None)

    def _warms_up(self, *_: Vllm) -> None:
        self._is_warming_up, self._captured_ns = True, 0

    def _warmed_up(
        self, worker: Vllm, _: Given, __: Vllm, entered: int, returned: int
    ) -> None:
        self._is_warming_up = False
        spent_ns = self._compiled(worker, entered) + self._captured_ns
        keep(Stage.WARM_UP, entered, returned - entered - spent_ns)

    def _captured(
        self, _: Vllm, __: Given, result: Vllm, entered: int, returned: int
    ) -> None:
        """After ``capture_model()``, which a profile may call too."""
        if self._is_warming_up:
            self._captured_ns += returned - entered
            n_bytes = result if isinstance(result, int) and result > 0 else None
            keep(Stage.CAPTURE, entered, returned - entered, n_bytes)

    def _time_compilations(self, module: str, name: str) -> None:
        """Time the context that vLLM compiles in, whatever it compiles with."""
        there = sys.modules.get(module)
        original = getattr(there, name, None)
        if original is None or self._hooked:
            return

        @contextmanager
        @functools.wraps(original)
        def monitor(*args: Any, **kwargs: Any) -> Iterator[Any]:  # noqa: ANN401
            entered = monotonic_ns()
            with original(*args, **kwargs) as monitored:
                yield monitored
            self._compiling_ns += monotonic_ns() - entered

        setattr(there, name, monitor)

    def _compiled(self, worker: Vllm, entered: int) -> int:
        """Take note of compilations since the last look; return their time in ns.

        vLLM's own count is kept for one of the modes alone.
        """
        vllm_s = sum(_attribute(worker, path) or 0.0 for path in names.COMPILE_TIMES)
        counted_ns = round((vllm_s - self._vllm_s) * NS_PER_S)
        took_ns = max(counted_ns, self._compiling_ns)
        self._vllm_s, self._compiling_ns = vllm_s, 0
        if took_ns > 0:
            keep(Stage.COMPILE, entered, took_ns, cached=_was_cached())
        return max(took_ns, 0)


def keep(
    stage: Stage,
    begin_ns: int,
    duration_ns: int,
    n_bytes: int | None = None,
    *,
    cached: bool | None = None,
) -> None:
    """Remember a stage of this process; what others took of it may overlap."""
    STAGES.append(
        TimedStage(
            stage=stage,
            begin_wall_ns=begin_ns + wall_offset_ns(),
            duration_ns=max(0, duration_ns),
            n_bytes=n_bytes,
            cached=cached,
        )
    )


def _attribute(of: Vllm, path: str) -> float | None:
    with suppress(AttributeError, TypeError):
        return float(attrgetter(path)(of))
    return None


def _is_mapped(loader: Vllm) -> bool:
    """Whether files are mapped, and so read only while their content is copied."""
    strategy = getattr(
        getattr(loader, names.LOAD_CONFIG, None), names.LOAD_STRATEGY, None
    )
    return strategy in names.MAPPED


def _was_cached() -> bool | None:
    """Whether all that was compiled so far came from a cache; None if it is not told.

    Where vLLM keeps a cache, it counts; where it leaves that to PyTorch, PyTorch does.
    """
    with suppress(ImportError, AttributeError, KeyError, TypeError):
        module, name = names.COMPILE_COUNTER
        counter = getattr(importlib.import_module(module), name)
        anew, loaded = (
            sum(getattr(counter, each, 0) for each in which)
            for which in (names.COMPILED_ANEW, names.LOADED_COMPILED)
        )
        if not anew and not loaded:
            module, name, part, missed, hit = names.TORCH_COUNTER
            found = getattr(importlib.import_module(module), name)[part]
            anew, loaded = found[missed], found[hit]
        return not anew if anew or loaded else None
    return None


def _from_storage() -> int | None:
    """Bytes this process had storage fetch, mapped files included; None if unknown."""
    with suppress(OSError, ValueError):
        for line in IO.read_text("ascii").splitlines():
            if line.startswith(STORAGE):
                return int(line.removeprefix(STORAGE))
    return None
