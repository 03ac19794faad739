"""A scheduler such as vLLM's, as far as its limits are concerned."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from collectors.contract.readings import LimitChange, LiveLimits
from embedded_engine.probe.control import live_limits
from embedded_engine.probe.control.live_limits import SchedulerLimits, taken
from embedded_engine.probe.hooks import Fuse, Hook, wrapped


class Scheduler:
    """As much of vLLM's as its limits need."""

    def __init__(self, **changes: Any) -> None:
        self.max_num_active_reqs = 32
        self.max_num_scheduled_tokens = 512
        self.num_spec_tokens = 0
        self.num_waiting_for_streaming_input = 0
        self.running: list[int] = [0]
        self.waiting: list[int] = []
        self.kv_holding_waiting: list[int] = []
        self.has_mamba_layers = False
        self.need_mamba_block_aligned_split = False
        self.max_num_encoder_input_tokens = 0
        self.is_encoder_decoder = False
        self.num_prefill_lookahead = 1
        self.prefix_replay_tokens = 0
        self.scheduler_config = SimpleNamespace(
            enable_chunked_prefill=True,
            long_prefill_token_threshold=0,
            prefill_schedule_interval=1,
        )
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(is_diffusion=False)
        )
        self.seen: list[tuple[int, int]] = []
        for path, value in changes.items():
            *parts, name = path.split("__")
            place: Any = self
            for part in parts:
                place = getattr(place, part)
            setattr(place, name, value)

    def schedule(self) -> None:
        self.seen.append((self.max_num_active_reqs, self.max_num_scheduled_tokens))


@contextmanager
def as_vllms() -> Iterator[None]:
    """Its ``schedule()`` stands for the one that the probe wraps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_limits, "owner_of", lambda _: Scheduler)
        yield


class Bench:
    """A scheduler, its limits, and the one hook that is on it."""

    def __init__(self, scheduler: Scheduler | None = None) -> None:
        self.scheduler = scheduler or Scheduler()
        self.told: list[LiveLimits] = []
        self.later: list[deque[LiveLimits]] = []
        self.reports: list[str] = []
        self.hook = Hook()
        self.fuse = Fuse(self.blown)
        self.limits = SchedulerLimits(
            self.scheduler,
            0,
            self.hook,
            self.told.append,
            self.later.append,
            self.reports.append,
        )

    def soon(self) -> None:
        """What was to be told later is."""
        for untold in self.later:
            self.told += taken(untold)

    def blown(self, why: str) -> None:
        self.reports.append(why)
        self.limits.end(why)

    def step(self, running: int | None = None) -> tuple[int, int]:
        """What a step went by."""
        if running is not None:
            self.scheduler.running = [0] * running
        wrapped(Scheduler.schedule, self.hook, self.fuse)(self.scheduler)
        return self.scheduler.seen[-1]

    def set(self, seqs: int = 32, tokens: int = 512) -> None:
        self.limits.turn(LimitChange.SET, seqs, tokens, by="a test")
