"""Receives all probes of a server through one TCP port, or an agent.

An agent may forward the probes of all servers on its host. The right one is chosen by
its engine id, if given, else because its process listens on the server's port.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from collectors.contract.clock import NS_PER_S, SessionClock, monotonic_ns
from collectors.contract.collector import (
    CollectorError,
    SourceNeverCameError,
    SourceSilentError,
)
from collectors.contract.wire import UNREADABLE
from collectors.http.server import Server
from collectors.probe.discover import AmbiguousProbeError, port_of
from collectors.probe.hello import FRONTED, LIVE, Hello, speaker_of
from collectors.probe.keys import ViewerKeys
from collectors.probe.reception import Reception, answer_topic
from collectors.probe.stream import (
    PULSE_MS,
    RECONNECT_MS,
    SILENT_NS,
    WHAT,
    ProbeMemory,
    ProbeStream,
)

NOBODY = 0
"""A PID no process has."""
TOGETHER_NS = NS_PER_S // 2
"""All processes of a server reply within this time."""
NEVER_NS = 5 * NS_PER_S
REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
LONGEST_MESSAGE = 64_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeEndpoint:
    """The endpoint of a relay or agent, and the key to connect with."""

    address: str
    """A ZeroMQ address: ``tcp://host:port`` or ``ipc:///a/path``."""
    key: Path | None = None
    """A viewer's key file."""
    who: str = "probe"
    """The kind of endpoint, for messages."""
    prefix: bytes = b""
    """Prefix of its topics."""
    port: int | None = None
    """Port and engine id of the server: either distinguishes it from others on the
    host."""
    engine_id: str = ""

    @classmethod
    def of(cls, server: Server) -> "ProbeEndpoint":
        """The endpoint in ``server.probe``: ``tcp://host:port[/engine-id]``."""
        scheme, _, rest = server.probe.partition("://")
        host, _, engine_id = rest.partition("/")
        return cls(
            address=f"{scheme}://{host}",
            key=server.probe_key,
            port=port_of(server.url),
            engine_id=engine_id,
        )

    def means(self, hello: Hello) -> bool:
        """Whether a probe belongs to the server this endpoint is for."""
        if self.engine_id:
            return hello.source == self.engine_id
        ports = {each.rpartition(":")[2] for each in hello.listens}
        return str(self.port) in ports


class RelayedStream(ProbeStream):
    """All processes that publish at one endpoint, distinguished by stream."""

    def __init__(
        self,
        clock: SessionClock,
        place: ProbeEndpoint,
        *,
        source: str = "",
        memory: ProbeMemory | None = None,
    ) -> None:
        """Prepare to connect.

        Raises:
            KeyFileError: the key file is unusable.
        """
        super().__init__(clock, place.address, source=source, memory=memory)
        self._place = place
        self._keys = ViewerKeys.read(place.key) if place.key else None
        self._receptions: dict[str, Reception] = {}
        self._numbers: dict[str, int] = {}
        """Numbers that replace PIDs: in containers, processes of two servers can share
        one."""
        self._fronted = False
        """An agent forwards the probes, perhaps of several servers."""
        self._engine_id = ""
        """Engine id of the chosen server; empty while all are received."""
        self._heard_ns: dict[str, int] = {}
        """When each stream was last received."""
        self._first_ns = 0

    async def _look(self) -> None:
        socket = self._context.socket(zmq.SUB)
        monitor: zmq.asyncio.Socket = socket.get_monitor_socket(REFUSED)
        try:
            self._connect(socket)
            await self._follow_all(socket, monitor)
        except (CollectorError, zmq.ZMQError, *UNREADABLE) as error:
            await self._queue.put(
                error
                if isinstance(error, CollectorError)
                else CollectorError(str(error))
            )
        except Exception as error:  # noqa: BLE001 - raised where readings are taken
            await self._queue.put(error)
        finally:
            socket.disable_monitor()
            monitor.close(linger=0)
            socket.close(linger=0)

    async def _follow_all(
        self, socket: zmq.asyncio.Socket, monitor: zmq.asyncio.Socket
    ) -> None:
        prefix = self._place.prefix
        topics = (prefix + LIVE, answer_topic(backfill=True, prefix=prefix))
        for each in topics:
            socket.subscribe(each)
        if not prefix:
            for each in topics:
                socket.subscribe(FRONTED + each)
        asked_ns = monotonic_ns()
        # release nothing before all processes had time to reply
        self._order.expect((NOBODY,))
        while True:
            if await socket.poll(PULSE_MS):
                await self._hear(await socket.recv_multipart(), asked_ns)
            while await monitor.poll(0):
                event = parse_monitor_message(await monitor.recv_multipart())
                self._is_admitted(event["event"])
            await self._look_after(asked_ns)

    def _connect(self, socket: zmq.asyncio.Socket) -> None:
        socket.reconnect_ivl, socket.reconnect_ivl_max = RECONNECT_MS
        socket.maxmsgsize = LONGEST_MESSAGE
        socket.ipv6 = "[" in self._place.address
        if self._keys is not None:
            socket.curve_serverkey = self._keys.probe.encode()
            socket.curve_publickey = self._keys.public.encode()
            socket.curve_secretkey = self._keys.secret.encode()
        socket.connect(self._place.address.replace("//localhost", "//127.0.0.1"))

    def _is_admitted(self, event: int) -> None:
        if event & REFUSED:
            place = self._place
            how = f"anybody without a key: --{place.who}-key"
            how = "our key" if self._keys else how
            raise CollectorError(f"the {place.who} at {place.address} refuses {how}")

    async def _hear(self, frames: list[bytes], asked_ns: int) -> None:
        if len(frames) < 2:
            return
        speaker = speaker_of(frames[1])
        if frames[0].startswith(FRONTED):
            self._fronted = True
            frames = [frames[0].removeprefix(FRONTED), *frames[1:]]
        if self._engine_id not in {"", speaker.source}:
            return
        reception = self._receptions.get(speaker.stream)
        if reception is not None:
            reception = reception.renewed(frames)
        elif speaker.pid is not None:
            reception = self._met(frames[0])
        else:
            return  # sent before its hello, so it is in the ring
        self._receptions[speaker.stream] = reception
        self._heard_ns[speaker.stream] = monotonic_ns()
        messages = self._greeted(reception, frames, asked_ns)
        if hello := reception.hello:
            self.hellos[hello.pid] = hello
            number = self._numbers.setdefault(hello.stream, len(self._numbers) + 1)
            await self._pass_on(number, messages, caught_up=reception.caught_up)

    def _met(self, topic: bytes) -> Reception:
        """Create the reception of a stream that is new."""
        if not self._receptions:
            self._first_ns = monotonic_ns()
            self._be_patient()
        positions = self._memory.positions
        prefix = self._place.prefix
        return Reception(backfill=True, positions=positions, topic=topic, prefix=prefix)

    async def _look_after(self, asked_ns: int) -> None:
        """Stop waiting for processes that are late, and detect those gone silent."""
        now_ns = monotonic_ns()
        if not self._heard_ns:
            if now_ns > asked_ns + NEVER_NS:
                place = self._place
                raise SourceNeverCameError(f"no {place.who} answers at {place.address}")
            return
        if NOBODY in self._order.awaited and now_ns > self._first_ns + TOGETHER_NS:
            if self._fronted or self._place.engine_id:
                self._choose()
            receptions = self._receptions.items()
            late = [each for each, reception in receptions if not reception.caught_up]
            self._order.expect(self._numbers[each] for each in late)
            self._order.give_up((NOBODY,))
            await self._release()
        await self._lose_patience()
        for stream, heard_ns in self._heard_ns.items():
            hello = self._receptions[stream].hello
            if hello is not None and now_ns > heard_ns + SILENT_NS:
                who = f"{WHAT[hello.role]} (pid {hello.pid}) of {hello.source}"
                raise SourceSilentError(f"{who} cannot be heard")

    def _choose(self) -> None:
        """Choose the wanted server and forget what others sent."""
        met = [each.hello for each in self._receptions.values() if each.hello]
        found = {each.source for each in met if self._place.means(each)}
        only = next(iter(found)) if len(found) == 1 else ""
        for hello in met:
            if hello.source != only:
                self._order.forget(self._numbers[hello.stream])
                del self._receptions[hello.stream], self._heard_ns[hello.stream]
        self.hellos = {each.pid: each for each in met if each.source == only}
        self._engine_id = only
        if not only:
            raise self._no_choice(sorted(found), {each.source for each in met})

    def _no_choice(self, found: list[str], there: Iterable[str]) -> CollectorError:
        place = self._place
        if found:
            choices = " or ".join(f"--probe {place.address}/{each}" for each in found)
            return AmbiguousProbeError(
                f"probes of {len(found)} servers listen at port {place.port} there: "
                f"choose one with {choices}"
            )
        which = f"engine {place.engine_id}" if place.engine_id else "that server"
        return SourceNeverCameError(
            f"no probe of {which} is passed on at {place.address} "
            f"(there is: {', '.join(sorted(there))})"
        )
