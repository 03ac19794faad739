"""A collector that follows the agent of another host.

The agent reports its host and GPUs, including what it remembers from before we
connected. When it is lost, its GPUs are reported lost and we keep reconnecting. Its
messages are not trusted: it may name no other kind of source, and values and times out
of bounds are discarded.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from collectors.contract.clock import NS_PER_S, SessionClock
from collectors.contract.collector import CollectorError
from collectors.contract.readings import (
    AnyReading,
    ClockAnchor,
    GpuInfo,
    GpuProcesses,
    GpuSample,
    HostInfo,
    HostSample,
    Note,
    NoteKind,
    OtherProcesses,
)
from collectors.contract.runtime_dir import AGENT_SOCKET, SOCKETS_IN
from collectors.contract.wire import TCP, has_host_and_port
from collectors.http.server import Server
from collectors.probe.hello import AGENT
from collectors.probe.reception import ProbeMessage, Reception
from collectors.probe.relayed import ProbeEndpoint, RelayedStream
from collectors.probe.stream import ProbeMemory

UNIX = "unix:"
LOOK_AGAIN_S, LOOK_AT_LEAST_S = 1.0, 5.0
"""Pause before the next connection attempt: short at first, then growing to the second.
"""
MOST_GPUS = 256
"""GPUs accepted of one host, MIG slices included."""
LONGEST_NAME = 64
LONGEST_TEXT = 1_000
MOST_ITEMS = 4_096
OLDEST_NS = 3_600 * NS_PER_S
"""Readings older than this are discarded: an agent keeps less."""
AHEAD_NS = 10 * NS_PER_S
TOLD = (
    ClockAnchor,
    HostInfo,
    HostSample,
    OtherProcesses,
    GpuInfo,
    GpuSample,
    GpuProcesses,
    Note,
)
"""Kinds of readings an agent may send."""
OF_A_GPU = (GpuInfo, GpuSample, GpuProcesses)


class AgentError(ValueError):
    """The address cannot be an agent's; the message can be shown to users."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteAgent:
    """Address of an agent, and the key to connect with."""

    address: str
    """``tcp://host:port`` or ``unix:/a/path``."""
    key: Path | None = None
    """The viewer's private key file, where the relay requires one."""
    name: str = ""
    """Name the user gave the host; empty: the agent's own name is used."""
    sought: bool = False
    """True if we only look for an agent: its absence is then not reported."""

    def __post_init__(self) -> None:
        """Validate the address.

        Raises:
            AgentError: it is neither tcp://host:port nor unix:/path.
        """
        is_path = self.address.startswith(UNIX) and len(self.address) > len(UNIX)
        is_port = self.address.startswith(TCP) and has_host_and_port(self.address)
        if not (is_path or is_port):
            raise AgentError(
                f"{self.address!r} is not an address of an agent: write it as "
                "tcp://host:port or unix:/path"
            )

    @classmethod
    def beside(cls, server: Server) -> "RemoteAgent | None":
        """The agent on a server's host, behind its SSH tunnel; None without one."""
        if not server.probe.startswith(SOCKETS_IN):
            return None
        place = Path(server.probe.removeprefix(SOCKETS_IN)) / AGENT_SOCKET
        return cls(address=f"{UNIX}{place}", sought=True)

    @property
    def path(self) -> Path | None:
        """Path of the agent's Unix socket; None when it is reached over the network."""
        if self.address.startswith(TCP):
            return None
        return Path(self.address.removeprefix(UNIX).removeprefix("//"))

    @property
    def place(self) -> ProbeEndpoint:
        """The endpoint to connect the stream to."""
        at = self.address if self.path is None else f"ipc://{self.path}"
        return ProbeEndpoint(address=at, key=self.key, who="agent", prefix=AGENT)

    @property
    def may_be_there(self) -> bool:
        """False only if the agent's Unix socket is known to be missing."""
        return not self.sought or self.path is None or self.path.is_socket()

    @property
    def host(self) -> str:
        """Host name in a network address; empty for a Unix socket."""
        return "" if self.path else urlsplit(self.address).hostname or ""

    @property
    def shown(self) -> str:
        """The name to display until the agent has sent its own."""
        return self.name or self.host or self.address


class AgentStream:
    """Every reading an agent sends, across restarts of the agent.

    All streams of a session share ``claimed``, which maps host names and agent stream
    ids to the stream that owns them. So no two hosts get the same name, and an agent
    reachable by two addresses is read once.
    """

    def __init__(
        self,
        clock: SessionClock,
        agent: RemoteAgent,
        claimed: dict[str, "AgentStream"] | None = None,
        ours: Collection[str] = (),
    ) -> None:
        """``ours`` are UUIDs of GPUs read locally, whose readings are dropped here."""
        self.agent = agent
        self.why = f"no answer came from {agent.address}"
        """Why the agent does not answer; empty while it does."""
        self.host = ""
        """Display name of its host, once it has answered."""
        self._clock = clock
        self._claimed = {} if claimed is None else claimed
        self._ours = ours
        self._memory = ProbeMemory()
        self._gpus: dict[str, GpuInfo] = {}
        """Latest GpuInfo by UUID."""
        self._stream: _AgentMessages | None = None
        self._last_why = ""
        self._refused, self._say_refused_at = 0, 1
        self._ended = asyncio.Event()

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        """Readings in session time, each with its source, until closed."""
        pause_s = LOOK_AGAIN_S
        while not self._ended.is_set():
            try:
                if self.agent.may_be_there:
                    async for batch in self._life():
                        pause_s = LOOK_AGAIN_S
                        yield batch
            except (CollectorError, OSError) as error:
                yield self._lost(str(error))
            finally:
                await self._let_go()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._ended.wait()
            pause_s = min(1.2 * pause_s, LOOK_AT_LEAST_S)

    async def close(self) -> None:
        self._ended.set()
        if self._stream is not None:
            await self._stream.close()

    async def _let_go(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()
        for name in [each for each, who in self._claimed.items() if who is self]:
            del self._claimed[name]

    async def _life(self) -> AsyncIterator[Sequence[AnyReading]]:
        """Batches of one connection, until it is lost."""
        stream = self._stream = _AgentMessages(self._clock, self.agent, self._memory)
        async for batch in stream.batches():
            is_ours = self._claim(stream.name)
            first = self._answered(stream.host) if is_ours else []
            readings = [*first, *self._valid(batch)]
            if is_ours:
                yield readings

    def _claim(self, name: str) -> bool:
        return self._claimed.setdefault(name, self) is self

    def _answered(self, host: str) -> list[AnyReading]:
        """Report that the agent answers, and its GPUs as present again."""
        if not self.why:
            return []
        self.why = ""
        name = self.agent.name or host[:LONGEST_NAME] or self.agent.shown
        self.host = name if self._claim(name) else f"{name} at {self.agent.address}"
        now_ns = self._clock.now_ns()
        again = [
            replace(each, t_ns=now_ns, host=self.host) for each in self._gpus.values()
        ]
        return [self._note(f"the agent of {self.host} answers"), *again]

    def _lost(self, why: str) -> list[AnyReading]:
        is_new, self.why = not self.why, why
        if not is_new and (why == self._last_why or self.agent.sought):
            return []
        self._last_why = why
        reason = f"the agent of {self.host} does not answer"
        lost = [
            replace(each, t_ns=self._clock.now_ns(), lost_because=reason)
            for each in self._gpus.values()
            if is_new and each.lost_because is None
        ]
        return [self._note(why), *lost]

    def _valid(self, batch: Iterable[AnyReading]) -> Iterator[AnyReading]:
        """The valid readings of a batch, with the agent's host or a GPU as source."""
        for reading in batch:
            if reading.source and reading.source in self._ours:
                continue
            placed = self._placed(reading) if self._makes_sense(reading) else None
            if placed is not None:
                yield placed
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
        """The reading with its source set; None if the host reports too many GPUs."""
        if not isinstance(reading, OF_A_GPU) or not reading.source:
            placed = replace(reading, source=self.host)
            # a GpuInfo without a source says why there is no GPU
            if isinstance(placed, GpuInfo):
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
    """One connection to an agent, in session time."""

    def __init__(
        self, clock: SessionClock, agent: RemoteAgent, memory: ProbeMemory
    ) -> None:
        super().__init__(clock, agent.place, memory=memory)
        self._source = ""  # each reading names its own
        self.host = self.name = ""
        """Names the agent gives its host and its current stream."""

    def _met(self, topic: bytes) -> Reception:
        """Forget the agent's previous stream: an endpoint has one agent at a time."""
        for state in (self._receptions, self._heard_ns, self.hellos):
            state.clear()
        return super()._met(topic)

    def _of_our_time(self, readings: list[AnyReading]) -> list[AnyReading]:
        """Return all readings: the caller checks their times."""
        return readings

    def _batch(self, messages: Sequence[ProbeMessage]) -> list[AnyReading]:
        for hello in self.hellos.values():
            self.host, self.name = hello.source, hello.stream
        return super()._batch(messages)


def _is_bounded(value: Any) -> bool:  # noqa: ANN401 - whatever a reading holds
    """Whether every text, list and number in a value is within bounds."""
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
