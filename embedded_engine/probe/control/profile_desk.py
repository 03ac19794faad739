"""Decides on requests to profile an engine; knows no socket and no thread."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from collectors.contract.clock import NS_PER_S, monotonic_ns
from collectors.probe.profiling import (
    LONGEST_S,
    MOST_STEPS,
    ProfileAction,
    ProfileAnswer,
    ProfileRequest,
)
from embedded_engine.probe.control.control_desk import label
from embedded_engine.probe.control.profiler import EngineProfiler, WantedProfile

LOOK_S = 0.02
"""How often the steps of a profile are counted."""
FIRST_BYTES = 4_000_000
"""What a step's traces are taken to need before any were written."""
SPARE = 2
"""How often the traces must fit on the disk."""
Caller = Any


def free_bytes_at(directory: str) -> int:
    """Room where a directory is, or would be made.

    Raises:
        OSError: it cannot be reached.
    """
    place = Path(directory)
    while not place.exists() and place != place.parent:
        place = place.parent
    return shutil.disk_usage(place).free


class EngineProfileDesk:
    """Begins one profile at a time, and ends it by itself."""

    request = ProfileRequest

    def __init__(
        self,
        profiler: EngineProfiler,
        *,
        now_ns: Callable[[], int] = monotonic_ns,
        free_bytes: Callable[[str], int] = free_bytes_at,
    ) -> None:
        self.watcher: Caller | None = None
        """Who asked for the profile that is on; it ends when they disconnect."""
        self._profiler = profiler
        self._now_ns, self._free_bytes = now_ns, free_bytes
        self._ended: str | None = None
        self._steps = 0
        self._most_ns = 0
        self._asked_ns = 0
        self._news: str | None = None

    def answer(self, request: ProfileRequest, caller: Caller) -> ProfileAnswer:
        """Carry out a request, or refuse it with a reason."""
        refused = None
        if request.action is ProfileAction.START:
            refused = self._refusal(request)
            if refused is None:
                self._begin(request, caller)
        elif request.action is ProfileAction.STOP and self._profiler.is_on:
            self._end("it was stopped")
        profiler = self._profiler
        return ProfileAnswer(
            rank=profiler.rank,
            latest=profiler.latest,
            is_on=profiler.is_on,
            steps=profiler.steps,
            bytes_per_step=profiler.bytes_per_step,
            refused=refused,
        )

    def left(self, caller: Caller) -> None:
        """End the profile of a client that disconnected."""
        if caller is self.watcher:
            self._end("who asked for it is gone")

    @property
    def due_in_s(self) -> float | None:
        """Seconds until ``look`` has to be called; None while no profile is on."""
        return LOOK_S if self._profiler.is_on else None

    def look(self) -> None:
        """End a profile that has its steps, or whose time is up."""
        if not self._profiler.is_on:
            self.watcher = None
        elif (self._profiler.steps or 0) >= self._steps:
            self._end(None)
        elif self._now_ns() - self._asked_ns >= self._most_ns:
            self._end(f"its {self._most_ns / NS_PER_S:g} s were over")
        self._profiler.try_again(self._now_ns())

    def news(self) -> str | None:
        """What the server's log should say since the last call."""
        news, self._news = self._news, None
        return news

    def end(self, why: str) -> None:
        """End a profile that is on, and begin none any more."""
        self._ended = why
        self._end(why)

    def _begin(self, request: ProfileRequest, caller: Caller) -> None:
        self._steps = self._bounded(request)
        self._most_ns = round(request.most_s * NS_PER_S)
        self._asked_ns, self.watcher = self._now_ns(), caller
        by = label(request.by)
        self._news = f"{self._steps} steps are profiled, as {by or 'a client'} asked"
        self._profiler.want(WantedProfile(steps=self._steps, by=by))

    def _end(self, why: str | None) -> None:
        self.watcher = None
        self._profiler.end(why)

    def _bounded(self, request: ProfileRequest) -> int:
        """The steps whose traces are not too large, as far as is known."""
        each = self._profiler.bytes_per_step or FIRST_BYTES
        return min(request.steps, max(int(request.most_bytes / each), 1))

    def _refusal(self, request: ProfileRequest) -> str | None:
        """Why no profile is begun; None if one is."""
        if self._ended is not None:
            return self._ended
        if self._profiler.is_on:
            who = self._profiler.latest.by if self._profiler.latest else None
            return f"a profile is on already, for {who or 'another client'}"
        if not 1 <= request.steps <= MOST_STEPS:
            return f"from 1 to {MOST_STEPS:,} steps can be profiled"
        if not 0 < request.most_s <= LONGEST_S:
            return f"a profile may take up to {LONGEST_S:g} s"
        if request.most_bytes < 1:
            return "its traces need room: a limit above 0 bytes"
        return self._profiler.unavailable or self._no_room(request)

    def _no_room(self, request: ProfileRequest) -> str | None:
        directory = self._profiler.directory
        each = self._profiler.bytes_per_step or FIRST_BYTES
        needed = SPARE * each * self._bounded(request)
        try:
            free = self._free_bytes(directory)
        except OSError as error:
            return f"traces cannot be written to {directory}: {error.strerror}"
        if free >= needed:
            return None
        return (
            f"traces of some {needed / 1e6:,.0f} MB may not fit on the disk of "
            f"{directory}: ask for fewer steps"
        )
