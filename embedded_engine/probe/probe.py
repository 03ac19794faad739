"""The probe of one process: its taps, fuse and channel."""

import functools
import importlib
import multiprocessing
import os
import secrets
import sys
import weakref
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from collectors.contract.clock import monotonic_ns
from collectors.contract.readings import AnyReading, EngineInfo, Note, NoteKind, Totals
from collectors.contract.runtime_dir import socket_path
from collectors.contract.wire import TCP
from collectors.probe.control import control_path
from collectors.probe.hello import Role
from collectors.probe.profiling import profiling_path
from embedded_engine.probe import hooks
from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.about import engine_size as load_time
from embedded_engine.probe.about.compilations import CompilationListener
from embedded_engine.probe.about.engine_config import (
    engine_settings,
    model_config,
    text_of,
)
from embedded_engine.probe.about.engine_size import EngineSize
from embedded_engine.probe.about.startup_stages import (
    StageTimer,
    miss,
    missing_in,
    of_stages,
    stages_of,
)
from embedded_engine.probe.blocks.block_maps import BlockMapSender, MapAssembler
from embedded_engine.probe.control.control_desk import ControlDesk
from embedded_engine.probe.control.control_socket import ControlSocket
from embedded_engine.probe.control.live_limits import SchedulerLimits
from embedded_engine.probe.control.profile_desk import EngineProfileDesk
from embedded_engine.probe.control.profiler import EngineProfiler, torch_directory
from embedded_engine.probe.hooks import Fuse, Given, Hook
from embedded_engine.probe.stack_dumps import StackDump
from embedded_engine.probe.tap.block_tap import BlockTap
from embedded_engine.probe.tap.engine_tap import EngineTap, engine_hooks
from embedded_engine.probe.tap.front_tap import (
    FrontEndAssembler,
    FrontTap,
    GroupHeaderHook,
)
from embedded_engine.probe.tap.idle_cache import IdleCache
from embedded_engine.probe.tap.refusal_tap import RefusalTap
from embedded_engine.probe.tap.step_assembler import LIMITS, StepAssembler
from embedded_engine.probe.vllm_names import AttributeReader, Vllm
from embedded_engine.probe.watchdog import watch_parent
from embedded_engine.probe_settings import BLOCK_MAP, CONTROL, GROUP_HEADER, refusal
from embedded_engine.publishing.channel import Channel

RING_MB = 64
MB = 1_000_000


class Probe:
    """The probe of one process, silent until a scheduler or front end is created."""

    def __init__(self, engine_id: str) -> None:
        self.role = Role.API
        self.engine: EngineInfo | None = None
        self.fuse = Fuse(self._blown)
        self._engine_id = engine_id
        self._channel: Channel | None = None
        self._left_to_parent: Channel | None = None
        self._missing: dict[Role, list[str]] = {role: [] for role in Role}
        self._noticed: set[str] = set()
        self._refused: str | None = None
        """Why requests are not grouped by the chosen header."""
        self._early_notes: list[str] = []
        """Notes from before the channel was open."""
        self._front_story = FrontEndAssembler(self._keep, self._let_go)
        self._front = FrontTap(
            self._front_story,
            self._put,
            self._lacks(Role.API),
            lambda: self.fuse.blown,
        )
        self._refusals = RefusalTap()
        self._has_front = False
        self._idle_cache = IdleCache(self._lacks(Role.CORE))
        self.blocks = BlockTap(self.report, self._lacks(Role.CORE))
        self._maps: BlockMapSender | None = None
        self._size = EngineSize(self._lacks(Role.CORE))
        self._engine_hooks = engine_hooks()
        self._tap: EngineTap | None = None
        self._story: StepAssembler | None = None
        self._scheduler: weakref.ref[Vllm] | None = None
        self._control: ControlSocket[ControlDesk] | None = None
        self._profiler: EngineProfiler | None = None
        self._profiling: ControlSocket[EngineProfileDesk] | None = None
        self._core_message = Hook()
        self._profile_fuse = Fuse(
            lambda why: self.report(f"steps cannot be profiled any more: {why}")
        )
        """Of its own: switching a profiler on is no cost of the probe in a step."""
        self._queues = AttributeReader(
            "Scheduler", names.QUEUES, self._lacks(Role.CORE)
        )

    def install(self) -> None:
        """Wrap vLLM's methods, and handle forks."""
        core, api = self._lacks(Role.CORE), self._lacks(Role.API)
        load_time.listen()
        CompilationListener(self._compiled).listen()
        born = {"born": Hook(self._scheduler_born), **self._engine_hooks}
        born["sized"] = Hook(self._size.learn)
        hooks.install(names.ENGINE_METHODS, born, self.fuse, core)
        states = {
            "slept": Hook(self._slept),
            "woke": Hook(self._woke),
            "called": Hook(self._called),
        }
        hooks.install(names.STATE_METHODS, states, self.fuse, core)
        fuse = Fuse(lambda why: self.report(f"stages of the start are lost: {why}"))
        hooks.install(names.WORKER_METHODS, StageTimer(fuse).hooks(), fuse, miss)
        cache = self._idle_cache
        hooks.install(names.ENGINE_METHODS, cache.hooks(), self.fuse, cache.lacks)
        if os.environ.get(BLOCK_MAP) != "0":
            blocks = self.blocks
            hooks.install(names.ENGINE_METHODS, blocks.hooks, self.fuse, blocks.lacks)
        if header := os.environ.get(GROUP_HEADER, "").strip():
            self._refused = refusal(header)
            if self._refused is None:
                hooks.install(
                    names.HEADER_METHODS,
                    GroupHeaderHook(header).hooks(),
                    self.fuse,
                    api,
                )
        front = {"born": Hook(self._front_born), **self._front.hooks()}
        hooks.install(names.FRONT_METHODS, front, self.fuse, api)
        hooks.install(names.MEDIA_METHODS, self._front.media.hooks(), self.fuse, api)
        answers = self._refusals.hooks()
        hooks.install(names.RESPONSE_METHODS, answers, self.fuse, api)
        os.register_at_fork(after_in_child=self._forked)

    def speak(self, role: Role) -> Channel:
        """Open the channel, now that the process's role is known."""
        if role is not Role.API:
            self.role = role
        if self._channel is None:
            path = socket_path(self._engine_id, os.getpid())
            ring_mb = float(os.environ.get("INFERWATCH_RING_MB") or RING_MB)
            self._channel = Channel(path, self._engine_id, self, int(ring_mb * MB))
            self._channel.open()
            while self._early_notes:
                self._note(self._early_notes.pop(0))
        self._tell_missing(role)
        return self._channel

    def totals(self) -> Totals:
        """Counts so far, and the engine's current state."""
        sender_cpu_ns = self._channel.cpu_ns if self._channel else None
        if sender_cpu_ns is not None and self._maps is not None:
            sender_cpu_ns += self._maps.cpu_ns
        if self._tap is None or self._story is None:
            return Totals(
                t_ns=monotonic_ns(),
                output_tokens=self._front_story.output_tokens,
                requests_added=self._front_story.arrived_count,
                requests_finished=self._front_story.finished_count,
                probe_cost_ns=self.fuse.cost_ns,
                sender_cpu_ns=sender_cpu_ns,
            )
        running, waiting, used = self._now()
        return Totals(
            t_ns=monotonic_ns(),
            steps=self._story.steps,
            output_tokens=self._story.output_tokens,
            requests_added=self._story.requests_added,
            requests_finished=self._story.requests_finished,
            probe_cost_ns=self.fuse.cost_ns,
            sender_cpu_ns=sender_cpu_ns,
            rank=self._story.rank,
            running=running,
            waiting=waiting,
            kv_used_blocks=used,
        )

    def beat(self) -> Iterable[AnyReading]:
        """Check what the probe costs; return totals, with an API server's loop lag."""
        story, front, told = self._story, self._front, self._refused_lately()
        if story is not None:
            self.fuse.check(story.steps, story.members, self._refusals.looks)
            return [*told, self.totals()]
        self.fuse.check(front.batches, front.outputs, self._refusals.looks)
        lag_ns = front.lag.take()
        if lag_ns is None:
            return told
        return [*told, replace(self.totals(), loop_lag_max_ns=lag_ns)]

    def _refused_lately(self) -> list[AnyReading]:
        """Return the kinds refused since the last call; keep all, for late joiners.

        Only an API server refuses.
        """
        every = self._refusals.news() if self._has_front else None
        if every is None:
            return []
        self._keep("refused", every)
        new = [each for each in every.refused if each.new]
        return [replace(every, refused=new, whole=len(new) == len(every.refused))]

    def failed(self, error: Exception) -> None:
        self.fuse.blow(repr(error))

    def report(self, text: str) -> None:
        """Report to the server's log and to subscribers."""
        sys.stderr.write(f"inferwatch: {text}\n")
        if self._channel is None:
            self._early_notes.append(text)
        else:
            self._note(text)

    def _scheduler_born(self, scheduler: Vllm, *_: Vllm) -> None:
        channel, lacks = self.speak(Role.CORE), self._lacks(Role.CORE)
        rank = int(AttributeReader("Scheduler", names.RANK, lacks).read(scheduler) or 0)
        blocks = kv_blocks(scheduler, lacks)
        self._story = StepAssembler(rank, blocks, self._keep, self._let_go, lacks)
        cache = self._idle_cache
        cache.born(scheduler)
        self._scheduler = weakref.ref(scheduler)
        blocks_of = self.blocks
        self._tap = EngineTap(scheduler, self._story, cache, blocks_of, channel, lacks)
        self._tap.take(self._engine_hooks)
        if os.environ.get(BLOCK_MAP) != "0" and blocks_of.born(scheduler):
            assembler = MapAssembler(rank, self._story.ordinals)
            self._maps = BlockMapSender(
                blocks_of, assembler, channel, self._rests, lacks
            )
            self._maps.start()
        self.engine = engine_info(scheduler, rank, blocks, self._size, lacks)
        self.fuse.cost_ns = 0  # start-up is not part of the cost per step
        channel.put(self._standing, "engine", self.engine)
        for number, reading in enumerate(self._extra_readings(scheduler, rank, lacks)):
            channel.put(self._standing, f"engine {number}", reading)
        if os.environ.get(CONTROL) == "1":
            self._let_control(scheduler, channel, self._story, lacks)
        self._let_profile(scheduler, channel, self._story, lacks)

    def _compiled(self, began_ns: int, duration_ns: int | None, what: str) -> None:
        """Tell what was compiled while requests were served; workers are heard so."""
        if self.fuse.blown:
            return
        if self._channel is None:
            self.speak(Role.WORKER)
        note = Note(
            t_ns=began_ns,
            kind=NoteKind.COMPILATION,
            text=f"compiled while serving: {what}",
            duration_ns=duration_ns,
        )
        self._put(lambda: [note])

    def _slept(self, _: Vllm, given: Given, *__: Vllm) -> None:
        """After ``EngineCore.sleep()``; at level 0 its scheduler is paused alone."""
        level = given[0] if given else 1
        self._state(NoteKind.ASLEEP, f"asleep, level {level}")

    def _woke(self, _: Vllm, __: Given, fully: bool | None, *___: Vllm) -> None:  # noqa: FBT001 - vLLM's result
        """After ``wake_up()``, which may leave a part of the memory asleep."""
        if fully is not False:
            self._state(NoteKind.AWAKE, "awake again")

    def _called(
        self, _: Vllm, given: Given, __: Vllm, entered: int, returned: int
    ) -> None:
        """After ``collective_rpc()``, by which weights are updated."""
        name = given[0] if given else None
        if isinstance(name, str) and name in names.UPDATES:
            note = Note(
                t_ns=entered,
                kind=NoteKind.WEIGHTS,
                text=f"weights updated ({name})",
                duration_ns=returned - entered,
            )
            self._put(lambda: [note])

    def _state(self, kind: NoteKind, text: str) -> None:
        note = Note(t_ns=monotonic_ns(), kind=kind, text=text)
        self._put(self._standing, "asleep", note)

    def _let_control(
        self,
        scheduler: Vllm,
        channel: Channel,
        story: StepAssembler,
        lacks: Callable[[str], None],
    ) -> None:
        """Open the control socket that was asked for at start-up."""
        if self._control is not None:
            self._control.close()
        limits = SchedulerLimits(
            scheduler,
            story.rank,
            self._engine_hooks["schedule"],
            functools.partial(channel.put, story.limits),
            functools.partial(channel.put_later, story.limits_later),
            lacks,
        )
        path = control_path(self._engine_id, os.getpid())
        control = ControlSocket(path, ControlDesk(limits), self.report)
        try:
            control.open()
        except OSError as error:
            self.report(f"nobody can turn the limits of this engine: {error}")
            return
        self._control = control
        channel.put(self._standing, LIMITS, limits.wanted)

    def _let_profile(
        self,
        scheduler: Vllm,
        channel: Channel,
        story: StepAssembler,
        lacks: Callable[[str], None],
    ) -> None:
        """Open the socket for profiles, if vLLM was started with its torch profiler."""
        directory = torch_directory(scheduler, lacks)
        if directory is None:
            return
        if self._profiling is not None:
            self._profiling.close()
        profiler = EngineProfiler(
            self._engine_id,
            story.rank,
            directory,
            self._core_message,
            lambda: story.steps,
            channel.put,
        )
        if self._profiler is None:
            found = {"asked": Hook(self._profile_asked), "message": self._core_message}
            hooks.install(names.PROFILE_METHODS, found, self._profile_fuse, lacks)
        self._profiler = profiler
        path = profiling_path(self._engine_id, os.getpid())
        self._profiling = ControlSocket(path, EngineProfileDesk(profiler), self.report)
        try:
            self._profiling.open()
        except OSError as error:
            self._profiling = None
            self.report(f"nobody can profile steps of this engine: {error}")

    def _profile_asked(self, _: Vllm, given: Given, *__: Vllm) -> None:
        """After ``EngineCore.profile()``."""
        if self._profiler is not None:
            self._profiler.asked(given)

    def _extra_readings(
        self, scheduler: Vllm, rank: int, lacks: Callable[[str], None]
    ) -> Iterable[AnyReading]:
        """Yield the worker memory, model and settings, as far as they can be read."""
        model = self.engine.model if self.engine is not None else "?"
        yield from (replace(each, rank=rank) for each in self._size.workers)
        try:
            answers = self._size.answers(of_stages())
            for name in missing_in(answers):
                lacks(name)
            yield from stages_of(answers, rank)
        except Exception as error:
            lacks(f"stages of the start: {error!r}")
        try:
            yield model_config(scheduler, rank, model, lacks)
            in_use = {"attention_backend": self._size.attention_backend}
            yield engine_settings(scheduler, rank, lacks, in_use)
        except Exception as error:
            lacks(f"configuration that can be read: {error!r}")

    def _front_born(self, *_: Vllm) -> None:
        self.speak(Role.API)
        self._has_front = True
        if self._refused is not None:
            self.report(f"requests are not grouped by a header: {self._refused}")
            self._refused = None

    def _now(self) -> tuple[int | None, int | None, int | None]:
        """Requests running, requests waiting and KV blocks used, if known."""
        scheduler = self._scheduler and self._scheduler()
        if scheduler is None or self.engine is None or self._tap is None:
            return None, None, None
        running, waiting, holding = self._queues.read(scheduler)
        free, blocks = self._tap.free_blocks, self.engine.num_kv_blocks
        used = None if free is None or blocks is None else blocks - free
        return len(running), len(waiting) + len(holding), used

    def _rests(self) -> bool:
        """Whether nothing is running or waiting, so no step will end."""
        running, waiting, _ = self._now()
        return running == 0 and waiting == 0

    def _lacks(self, role: Role) -> Callable[[str], None]:
        def missing(name: str) -> None:
            if name in self._noticed:
                return
            self._noticed.add(name)
            self._missing[role].append(name)
            if self._channel is not None:
                self._tell_missing(role)

        return missing

    def _tell_missing(self, role: Role) -> None:
        for name in self._missing[role]:
            self._note(f"vLLM {vllm_version()} has no {name}")
        self._missing[role].clear()

    def _blown(self, why: str) -> None:
        if self._control is not None:
            self._control.desk.end(f"the probe switched itself off: {why}")
        if self._profiling is not None:
            self._profiling.desk.end(f"the probe switched itself off: {why}")
        self.blocks.end()
        self._note(f"the probe in {self.role} {os.getpid()} switched itself off: {why}")

    def _note(self, text: str) -> None:
        note = Note(t_ns=monotonic_ns(), kind=NoteKind.PROBE, text=text)
        if self._channel is None:
            sys.stderr.write(f"inferwatch: {text}\n")
        self._put(self._standing, text, note)

    def _standing(self, key: str, reading: AnyReading) -> list[AnyReading]:
        self._keep(key, reading)
        return [reading]

    def _put(self, *call: Vllm) -> None:
        if self._channel is not None:
            self._channel.put(*call)

    def _keep(self, key: str, reading: AnyReading) -> None:
        if self._channel is not None:
            self._channel.keep(key, reading)

    def _let_go(self, key: str) -> None:
        if self._channel is not None:
            self._channel.let_go(key)

    def _forked(self) -> None:
        """Reset a forked child, which has its parent's hooks but no thread."""
        self._left_to_parent, self._channel = self._channel, None
        self._tap, self._story, self._scheduler = None, None, None
        self._maps = None
        self._refusals.forget()
        self._has_front = False
        if self._control is not None:
            self._control.let_go()
            self._control = None
        if self._profiling is not None:
            self._profiling.let_go()
            self._profiling = self._profiler = None
        self.blocks.stop()


def vllm_version() -> str:
    """The version of the running vLLM, whatever its distribution is called."""
    module, attribute = names.VERSION
    return str(getattr(importlib.import_module(module), attribute, "?"))


def kv_blocks(scheduler: Vllm, missing: Callable[[str], None]) -> int | None:
    """KV blocks available to requests: all but the null block."""
    total = AttributeReader("Scheduler", names.BLOCK_TOTAL, missing).read(scheduler)
    return None if total is None else int(total) - 1


def engine_info(
    scheduler: Vllm,
    rank: int,
    blocks: int | None,
    size: EngineSize,
    missing: Callable[[str], None],
) -> EngineInfo:
    read = AttributeReader("Scheduler", names.INFO, missing).read(scheduler)
    model, device, dtype, block, seqs, batched, length, tp, pp, dp, executor, *rest = (
        read
    )
    prefix_caching, async_scheduling = rest
    return EngineInfo(
        t_ns=monotonic_ns(),
        pid=os.getpid(),
        rank=rank,
        model=str(model),
        vllm_version=vllm_version(),
        device=text_of(device),
        dtype=text_of(dtype),
        num_kv_blocks=blocks,
        kv_block_tokens=block,
        max_num_seqs=seqs,
        max_num_batched_tokens=batched,
        max_model_len=length,
        tensor_parallel=tp,
        pipeline_parallel=pp,
        data_parallel=dp,
        executor=text_of(executor),
        prefix_caching=prefix_caching,
        async_scheduling=async_scheduling,
        gpus=size.gpus,
        weight_bytes=size.weight_bytes,
        kv_bytes_per_token=size.kv_bytes_per_token,
    )


@functools.cache
def start() -> Probe:
    """Watch the parent, wrap vLLM, and open the channel at once in EngineCore.

    The first process of a server chooses the engine id for all its children.
    """
    watch_parent()
    os.register_at_fork(after_in_child=watch_parent)
    engine_id = os.environ.setdefault("INFERWATCH_ENGINE_ID", secrets.token_hex(4))
    first_pid = os.environ.setdefault("INFERWATCH_FIRST_PID", str(os.getpid()))
    StackDump(engine_id).register()
    probe = Probe(engine_id)
    probe.install()
    address = os.environ.get("INFERWATCH_PROBE", "")
    if address.startswith(TCP) and first_pid == str(os.getpid()):
        from embedded_engine.publishing.relay import relay_probes  # noqa: PLC0415 - few need it

        relay_probes(address, engine_id, probe.report).start()
    if multiprocessing.current_process().name.startswith(names.CORE_PROCESS):
        probe.speak(Role.CORE)
    return probe
