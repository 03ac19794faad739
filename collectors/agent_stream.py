"""Follows the agent of a host for as long as anybody wants: a collector.

It tells of the host and its GPUs, from before we came too, as far as it remembers. One
that is lost is looked for again; its GPUs are lost meanwhile. What it says is believed
within bounds: it can name no other kind of source, and no absurd number or time.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from collectors.clock import NS_PER_S, SessionClock
from collectors.collector import CollectorError
from collectors.probe.hello import AGENT, TCP, has_host_and_port
from collectors.probe.reception import ProbeMessage, Reception
from collectors.probe.relayed import Place, RelayedStream
from collectors.probe.stream import ProbeMemory
from collectors.readings import (
    AnyReading,
    ClockAnchor,
    GpuInfo,
    GpuProcesses,
    GpuSample,
    HostInfo,
    HostSample,
    Note,
    NoteKind,
)

UNIX = "unix:"
LOOK_AGAIN_S, LOOK_AT_LEAST_S = 1.0, 5.0
"""How often to look for one that is not there: soon at first."""
MOST_GPUS = 256
"""Of one host, slices included."""
LONGEST_NAME = 64
LONGEST_TEXT = 1_000
MOST_ITEMS = 4_096
OLDEST_NS = 3_600 * NS_PER_S
"""An agent remembers less."""
AHEAD_NS = 10 * NS_PER_S
TOLD = (ClockAnchor, HostInfo, HostSample, GpuInfo, GpuSample, GpuProcesses, Note)
"""All that an agent can tell; the GPUs' have a source of their own."""
OF_A_GPU = (GpuInfo, GpuSample, GpuProcesses)


class AgentError(ValueError):
    """No agent can be there; the message is fit to show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """Where an agent listens, and what it takes to be let in."""

    address: str
    """``tcp://host:port`` or ``unix:/a/path``."""
    key: Path | None = None
    """A viewer's key file."""
    name: str = ""
    """As people call its host; else the agent says."""

    def __post_init__(self) -> None:
        """Refuse what is no address.

        Raises:
            AgentError: it is none.
        """
        is_path = self.address.startswith(UNIX) and len(self.address) > len(UNIX)
        is_port = self.address.startswith(TCP) and has_host_and_port(self.address)
        if not (is_path or is_port):
            raise AgentError(
                f"{self.address!r} is no address of an agent: write it as "
                "tcp://host:port or unix:/path"
            )

    @property
    def place(self) -> Place:
        """As a stream needs it."""
        path = self.address.removeprefix(UNIX).removeprefix("//")
        at = self.address if self.address.startswith(TCP) else f"ipc://{path}"
        return Place(address=at, key=self.key, who="agent", prefix=AGENT)

    @property
    def shown(self) -> str:
        """What to call it as long as it has not said its name."""
        if self.name or not self.address.startswith(TCP):
            return self.name or self.address
        return urlsplit(self.address).hostname or self.address


class AgentStream:
    """Everything that the agent of a host tells, life after life.

    ``names`` are those of hosts, each with its agent: all agents of a session share it,
    so that no two have the same.
    """

    def __init__(
        self, clock: SessionClock, agent: Agent, names: dict[str, Agent] | None = None
    ) -> None:
        self.agent = agent
        self.why = f"no answer came from {agent.address}"
        """Why it does not answer now; empty while it does."""
        self.host = ""
        """The name of its host, once it has answered."""
        self._clock = clock
        self._names = {} if names is None else names
        self._memory = ProbeMemory()
        self._gpus: dict[str, GpuInfo] = {}
        """As they were told of last."""
        self._stream: _AgentMessages | None = None
        self._told = ""
        self._refused, self._say_refused_at = 0, 1
        self._ended = asyncio.Event()

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        """Readings in session time, each with its source, until closed."""
        pause_s = LOOK_AGAIN_S
        while not self._ended.is_set():
            try:
                self._stream = _AgentMessages(self._clock, self.agent, self._memory)
                async for batch in self._stream.batches():
                    pause_s = LOOK_AGAIN_S
                    yield [*self._answered(self._stream), *self._known(batch)]
            except (CollectorError, OSError) as error:
                yield self._lost(str(error))
            finally:
                await self._let_go()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._ended.wait()
            pause_s = min(1.2 * pause_s, LOOK_AT_LEAST_S)

    async def close(self) -> None:
        """Stop following; safe to call twice."""
        self._ended.set()
        if self._stream is not None:
            await self._stream.close()

    async def _let_go(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()

    def _answered(self, stream: "_AgentMessages") -> list[AnyReading]:
        """Say so once; GPUs that were lost with it are there again."""
        if not self.why:
            return []
        self.why = ""
        now_ns = self._clock.now_ns()
        self.host = self._named(stream.host)
        again = [replace(each, t_ns=now_ns) for each in self._gpus.values()]
        return [self._note(f"the agent of {self.host} answers"), *again]

    def _named(self, told: str) -> str:
        name = self.agent.name or told[:LONGEST_NAME] or self.agent.shown
        if self._names.setdefault(name, self.agent) is self.agent:
            return name
        return f"{name} at {self.agent.address}"

    def _lost(self, why: str) -> list[AnyReading]:
        known, self.why = not self.why, why
        if why == self._told and not known:
            return []
        self._told = why
        gone = f"the agent of {self.host} does not answer"
        lost = [
            replace(each, t_ns=self._clock.now_ns(), lost_because=gone)
            for each in self._gpus.values()
            if known and each.lost_because is None
        ]
        return [self._note(why), *lost]

    def _known(self, batch: Iterable[AnyReading]) -> Iterator[AnyReading]:
        """What of it makes sense, under the name of its host or GPU."""
        for reading in batch:
            told = self._placed(reading) if self._makes_sense(reading) else None
            if told is not None:
                yield told
            else:
                self._refused += 1
        if self._refused >= self._say_refused_at:
            self._say_refused_at = 10 * self._refused
            yield self._note(
                f"readings of {self.host} that make no sense are left out: "
                f"{self._refused:,} so far"
            )

    def _makes_sense(self, reading: AnyReading) -> bool:
        if not isinstance(reading, TOLD):
            return False
        now_ns = self._clock.now_ns()
        then_ns = reading.t_ns
        is_near = now_ns - OLDEST_NS < then_ns < now_ns + AHEAD_NS
        return is_near and _is_bounded(msgspec.to_builtins(reading))

    def _placed(self, reading: AnyReading) -> AnyReading | None:
        """The same with its source; None of more GPUs than there can be."""
        if not isinstance(reading, OF_A_GPU) or not reading.source:
            placed = replace(reading, source=self.host)
            if isinstance(placed, GpuInfo):  # why there is none
                placed = replace(placed, host=self.host)
            return placed
        if isinstance(reading, GpuInfo):
            reading = replace(reading, host=self.host)
            if len(self._gpus) < MOST_GPUS or reading.source in self._gpus:
                self._gpus[reading.source] = reading
        return reading if reading.source in self._gpus else None

    def _note(self, text: str) -> Note:
        return Note(
            t_ns=self._clock.now_ns(),
            kind=NoteKind.HOST,
            text=text,
            source=self.host or self.agent.shown,
        )


class _AgentMessages(RelayedStream):
    """One life of an agent, in session time, each reading with the source it says."""

    def __init__(self, clock: SessionClock, agent: Agent, memory: ProbeMemory) -> None:
        super().__init__(clock, agent.place, memory=memory)
        self._source = ""  # each reading says its own
        self.host = ""

    def _met(self, topic: bytes) -> Reception:
        """One that comes anew stands for the one before: a place has one agent."""
        for known in (self._receptions, self._heard_ns, self.hellos):
            known.clear()
        return super()._met(topic)

    def _batch(self, messages: Sequence[ProbeMessage]) -> list[AnyReading]:
        self.host = next((each.source for each in self.hellos.values()), "")
        return super()._batch(messages)


def _is_bounded(value: Any) -> bool:  # noqa: ANN401 - whatever a reading holds
    """No text is longer, no number bigger than any that is meant."""
    if isinstance(value, str):
        return len(value) <= LONGEST_TEXT
    if isinstance(value, float):
        return isfinite(value)
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 63
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        return len(value) <= 2 * MOST_ITEMS and all(map(_is_bounded, value))
    return True
