"""Following an agent, over real sockets: what it tells, and what harms nobody."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import zmq
from msgspec.msgpack import encode as msgpack
from msgspec.structs import asdict

from collectors.contract.clock import SessionClock, anchor, monotonic_ns
from collectors.contract.readings import (
    AnyReading,
    ClockAnchor,
    EngineInfo,
    GpuInfo,
    GpuProcesses,
    GpuSample,
    HostInfo,
    HostSample,
    Note,
    NoteKind,
    ProcessUsage,
    Reading,
    Step,
    Totals,
)
from collectors.probe import stream as probe_stream
from collectors.probe.hello import AGENT, FRONTED, RING, Hello, Role
from collectors.probe.keys import ViewerKeys, add_viewer
from collectors.remote import agent_stream
from collectors.remote.agent_stream import AgentError, AgentStream, RemoteAgent
from embedded_engine.publishing import channel as channel_module
from embedded_engine.publishing.channel import Channel
from embedded_engine.publishing.relay import Relay
from tests.embedded_engine.channel_owners import SilentOwner

R = TypeVar("R", bound=Reading)
DEADLINE_S = 60.0
GPU = "GPU-6d4b"


class ScriptedAgent(SilentOwner):
    """Tells what it is given."""

    role = Role.AGENT

    def __init__(self, name: str, path: Path) -> None:
        self.channel = Channel(path, name, self, 1 << 22, AGENT)

    def tell(self, *readings: AnyReading) -> None:
        self.channel.put(self._made, readings)

    def _made(self, readings: Sequence[AnyReading]) -> Sequence[AnyReading]:
        for each in readings:
            if isinstance(each, HostInfo | GpuInfo):
                self.channel.keep(f"{type(each)} {each.source}", each)
        return readings


@contextmanager
def speaking(
    path: Path, *readings: AnyReading, name: str = "gpu1"
) -> Iterator[ScriptedAgent]:
    agent = ScriptedAgent(name, path)
    agent.channel.open()
    agent.tell(*readings)
    try:
        yield agent
    finally:
        agent.channel.close()


class Follower:
    """Collects what an agent tells."""

    def __init__(self, stream: AgentStream) -> None:
        self.stream = stream
        self.readings: list[AnyReading] = []

    async def follow(self) -> None:
        async for batch in self.stream.batches():
            self.readings += batch

    def of(self, kind: type[R]) -> list[R]:
        return [each for each in self.readings if isinstance(each, kind)]

    def notes(self, kind: NoteKind = NoteKind.HOST) -> list[str]:
        return [each.text for each in self.of(Note) if each.kind is kind]

    async def until(self, what: Callable[[], object]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not what():  # noqa: ASYNC110 - it comes from outside
                await asyncio.sleep(0.01)


@asynccontextmanager
async def following(
    address: str | Path,
    *,
    claimed: dict[str, AgentStream] | None = None,
    ours: set[str] | None = None,
    **agent: Any,
) -> AsyncIterator[Follower]:
    place = f"unix:{address}" if isinstance(address, Path) else address
    follower = Follower(
        AgentStream(
            SessionClock(), RemoteAgent(address=place, **agent), claimed, ours or ()
        )
    )
    task = asyncio.create_task(follower.follow())
    try:
        yield follower
    finally:
        await follower.stream.close()
        async with asyncio.timeout(DEADLINE_S):
            await task


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_stream, "LOOK_AGAIN_S", 0.05)
    monkeypatch.setattr(probe_stream, "PULSE_MS", 20)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.sock"


def host_info() -> HostInfo:
    return HostInfo(t_ns=monotonic_ns(), name="gpu1.example", cores=64)


def host_sample(busy_s: float = 1.0) -> HostSample:
    core = ProcessUsage(pid=7, role="core", cpu_s=3.0, rss_bytes=1 << 30)
    return HostSample(t_ns=monotonic_ns(), processes=[core], busy_s=busy_s)


def gpu_info(source: str = GPU, **more: Any) -> GpuInfo:
    return GpuInfo(t_ns=monotonic_ns(), source=source, uuid=source, **more)


def gpu_sample(power_w: float = 700.0, **more: Any) -> GpuSample:
    fields = {"t_ns": monotonic_ns(), "source": GPU, "power_w": power_w, **more}
    return GpuSample(**fields)


async def test_readings_stand_under_the_names_of_their_host_and_gpus(
    path: Path,
) -> None:
    users = GpuProcesses(t_ns=monotonic_ns(), source=GPU, memory_bytes={7: 1, 8: None})
    with speaking(path, host_info(), gpu_info(), host_sample(), gpu_sample(), users):
        async with following(path) as told:
            await told.until(lambda: told.of(GpuProcesses))

    assert {each.source for each in told.of(HostInfo)} == {"gpu1"}
    assert {each.source for each in told.of(HostSample)} == {"gpu1"}
    (gpu,), (sample,), (listed,) = (
        told.of(GpuInfo),
        told.of(GpuSample),
        told.of(GpuProcesses),
    )
    assert (gpu.source, gpu.host, sample.source, sample.power_w) == (
        *(GPU, "gpu1"),
        *(GPU, 700.0),
    )
    assert listed.memory_bytes == {7: 1, 8: None}
    assert told.notes() == ["the agent of gpu1 answers"]
    assert -DEADLINE_S * 1e9 < sample.t_ns < told.stream._clock.now_ns()


async def test_why_there_is_no_gpu_is_told_of_that_host(path: Path) -> None:
    none = GpuInfo(t_ns=monotonic_ns(), absent_because="no NVIDIA driver")
    with speaking(path, none):
        async with following(path) as told:
            await told.until(lambda: told.of(GpuInfo))

    (absent,) = told.of(GpuInfo)
    assert (absent.source, absent.host) == ("gpu1", "gpu1")
    assert absent.absent_because == "no NVIDIA driver"


async def test_who_comes_late_is_told_what_was_and_what_holds(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with speaking(path, host_info(), gpu_info()) as agent:
        async with following(path) as early:
            await early.until(lambda: early.of(GpuInfo))
            for watts in range(5):
                agent.tell(gpu_sample(float(watts)))
            await early.until(lambda: len(early.of(GpuSample)) == 5)
        monkeypatch.setattr(agent.channel._ring, "limit_bytes", 500)
        agent.tell(gpu_sample(5.0))  # the ring forgets what came first
        async with following(path) as late:
            await late.until(lambda: len(late.of(GpuSample)) >= 1)
            agent.tell(gpu_sample(6.0))
            await late.until(lambda: late.of(GpuSample)[-1].power_w == 6.0)

    assert late.of(HostInfo) == [each for each in late.of(HostInfo) if each.cores == 64]
    assert [each.source for each in late.of(GpuInfo)] == [GPU]
    watts_told = [each.power_w or 0.0 for each in late.of(GpuSample)]
    assert watts_told == sorted(set(watts_told))
    assert late.notes(NoteKind.DROPPED) == []


async def test_what_was_dropped_is_counted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "MOST_RECORDS", 10)
    with speaking(path, host_info()) as agent:
        async with following(path) as told:
            await told.until(lambda: told.of(HostInfo))
            for _ in range(1_000):
                agent.tell(host_sample())
            await told.until(lambda: told.notes(NoteKind.DROPPED))
            await told.until(lambda: _dropped(told) + len(told.of(HostSample)) == 1_000)

    assert _dropped(told) > 0
    assert {each.source for each in told.of(Note)} == {"gpu1"}


def _dropped(told: Follower) -> int:
    return sum(each.count or 0 for each in told.of(Note))


async def test_two_hosts_of_one_name_are_told_apart(tmp_path: Path) -> None:
    one, two = tmp_path / "1.sock", tmp_path / "2.sock"
    claimed: dict[str, AgentStream] = {}
    with speaking(one, host_info()), speaking(two, host_info()):
        async with following(one, claimed=claimed) as first:
            await first.until(lambda: first.of(HostInfo))
            async with following(two, claimed=claimed) as second:
                await second.until(lambda: second.of(HostInfo))

    assert first.of(HostInfo)[0].source == "gpu1"
    assert second.of(HostInfo)[0].source == f"gpu1 at unix:{two}"


async def test_an_agent_reached_in_two_ways_is_told_of_once(
    path: Path, tmp_path: Path
) -> None:
    claimed: dict[str, AgentStream] = {}
    other = tmp_path / "other.sock"
    other.symlink_to(path)
    with speaking(path, gpu_info()) as agent:
        async with following(path, claimed=claimed) as one:
            await one.until(lambda: one.of(GpuInfo))
            async with following(other, claimed=claimed) as two:
                await two.until(lambda: two.stream._gpus)
                agent.tell(gpu_sample(1.0))
                await one.until(lambda: one.of(GpuSample))
                assert two.readings == []
                await one.stream.close()
                async with asyncio.timeout(30):  # it learns of that a little later
                    while not any(each.power_w == 2.0 for each in two.of(GpuSample)):
                        agent.tell(gpu_sample(2.0))
                        await asyncio.sleep(0.05)

    assert [each.host for each in two.of(GpuInfo)] == ["gpu1"]


async def test_a_gpu_that_we_read_ourselves_is_not_told_twice(path: Path) -> None:
    with speaking(path, gpu_info(), gpu_sample(), gpu_info("GPU-2"), host_info()):
        async with following(path, ours={GPU}) as told:
            await told.until(lambda: told.of(HostInfo))

    assert [each.source for each in told.of(GpuInfo)] == ["GPU-2"]
    assert told.of(GpuSample) == []
    assert told.notes() == ["the agent of gpu1 answers"]


async def test_of_one_that_is_only_sought_nothing_is_said_until_it_comes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collectors.probe.relayed.NEVER_NS", 30_000_000)
    async with following(path, sought=True) as told:
        await asyncio.sleep(0.3)
        assert told.readings == []
        with speaking(path, host_info()):
            await told.until(lambda: told.of(HostInfo))

    assert told.notes() == ["the agent of gpu1 answers"]


async def test_a_name_that_people_gave_counts(path: Path) -> None:
    with speaking(path, host_info()):
        async with following(path, name="left") as told:
            await told.until(lambda: told.of(HostInfo))

    assert told.of(HostInfo)[0].source == "left"


async def test_gpus_are_lost_with_their_agent_and_come_back_with_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_stream, "SILENT_NS", 1_500_000_000)
    async with following(path) as told:
        with speaking(path, gpu_info(name="H100")):
            await told.until(lambda: told.of(GpuInfo))
            assert told.stream.why == ""
        await told.until(lambda: told.stream.why)
        lost = told.of(GpuInfo)[-1]
        assert (lost.lost_because, lost.name) == (
            *("the agent of gpu1 does not answer", "H100"),
        )
        with speaking(path, gpu_info(name="H100"), gpu_sample(1.0)):
            await told.until(lambda: told.of(GpuSample))

    assert told.of(GpuInfo)[-1].lost_because is None
    assert [each for each in told.notes() if "answers" in each] == [
        "the agent of gpu1 answers"
    ] * 2


async def test_an_agent_started_anew_at_once_is_followed_at_once(path: Path) -> None:
    async with following(path) as told:
        with speaking(path, host_info()):
            await told.until(lambda: told.of(HostInfo))
        with speaking(path, host_info(), gpu_info(), gpu_sample(2.0)) as agent:
            await told.until(lambda: told.of(GpuSample))
            agent.tell(host_sample())
            await told.until(lambda: told.of(HostSample))

    assert told.notes() == ["the agent of gpu1 answers"]
    assert [each.power_w for each in told.of(GpuSample)] == [2.0]


async def test_where_none_is_that_is_said_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collectors.probe.relayed.NEVER_NS", 30_000_000)
    async with following(path) as told:
        await told.until(told.notes)
        await asyncio.sleep(0.3)

    assert told.notes() == [f"no agent answers at ipc://{path}"]


async def test_times_of_another_host_are_told_within_bounds(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_stream, "boot_id", lambda: "of another host")
    with speaking(path, gpu_info(), gpu_sample()):
        async with following(path) as told:
            await told.until(lambda: told.of(GpuSample))

    (related,) = told.of(ClockAnchor)
    assert 0 < related.uncertainty_ns < 2_000_000_000
    assert abs(told.of(GpuSample)[0].t_ns) < 5_000_000_000


# Over the network.


@contextmanager
def relayed(path: Path, *more: Path, key_file: Path | None = None) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    said: list[str] = []
    relay = Relay(
        address,
        lambda: [path, *more],
        said.append,
        key_file=key_file,
        who="the agent",
        prefix=FRONTED,
    )
    relay.start()
    yield address
    relay.stop()
    assert said == []


async def test_who_has_no_key_is_not_let_in(path: Path, tmp_path: Path) -> None:
    ours, his = add_viewer(tmp_path / "keys", "alice")
    _, stranger = add_viewer(tmp_path / "other", "mallory")
    trusted, text = ViewerKeys.read(his).probe, stranger.read_text()
    stranger.write_text(text.replace(ViewerKeys.read(stranger).probe, trusted))
    with (
        speaking(path, host_info()) as agent,
        relayed(path, key_file=ours) as address,
    ):
        for key, why in ((None, "without a key: --agent-key"), (stranger, "our key")):
            async with following(address, key=key) as told:
                refusal = f"the agent at {address} refuses"
                await told.until(lambda: refusal in " ".join(told.notes()))  # noqa: B023
            assert why in told.notes()[-1]
            assert told.of(HostInfo) == []
        async with following(address, key=his) as told:
            await told.until(lambda: told.of(HostInfo))
        assert agent.channel._sender.source == "gpu1"
    secret = ViewerKeys.read(his).secret
    assert secret not in repr(told.readings) + repr(told.stream.agent)


async def test_one_port_tells_probes_and_agent_apart(
    path: Path, tmp_path: Path
) -> None:
    probe_path = tmp_path / "chat.1.sock"
    probe = Channel(probe_path, "chat", ScriptedAgent("chat", probe_path), 1 << 20)
    probe.open()
    step = Step(index=0, start_ns=1, end_ns=2, duration_ns=1)
    probe.put(lambda: [step])
    with speaking(path, host_info()), relayed(path, probe_path) as address:
        async with following(address) as told:
            await told.until(lambda: told.of(HostInfo))
            await asyncio.sleep(0.3)
    probe.close()

    assert told.of(Step) == []
    assert told.notes() == ["the agent of gpu1 answers"]


# What harms nobody.


@pytest.mark.parametrize(
    "address", ["gpu1:9600", "http://gpu1:9600", "tcp://gpu1", "tcp://a:b", "unix:", ""]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(AgentError, match="not an address of an agent"):
        RemoteAgent(address=address)


def hello(**other: Any) -> bytes:
    known = Hello(
        source="gpu1",
        stream="s",
        seq=0,
        ring_seq=0,
        ring_bytes=0,
        ring_accounted=0,
        accounted=0,
        role=Role.AGENT,
        pid=1,
        anchor=anchor(),
        totals=Totals(t_ns=0),
        standing=[],
    )
    return msgpack({**asdict(known), **other})


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([b""], "truncated"),
        ([os.urandom(4_000)], ""),
        ([b"\x80"], ""),
        ([msgpack({"stream": "s", "pid": 1})], ""),
        ([hello(v=2)], "wire version 2, this inferwatch 1: install the same"),
    ],
)
async def test_what_is_no_agent_is_told_and_harms_nobody(
    frames: list[bytes], why: str
) -> None:
    with zmq.Context() as context, context.socket(zmq.XPUB) as liar:
        liar.linger = 0
        number = liar.bind_to_random_port("tcp://127.0.0.1")
        async with following(f"tcp://127.0.0.1:{number}") as told:
            await answer(liar, *frames)
            await told.until(told.notes)

    assert why in told.notes()[0]
    assert told.of(HostInfo) == []


async def answer(liar: zmq.Socket[bytes], *frames: bytes) -> None:
    topic = b""
    while not topic.startswith(AGENT + RING):
        while not liar.poll(0):  # noqa: ASYNC110 - it comes from outside
            await asyncio.sleep(0.01)
        topic = liar.recv()[1:]
    liar.send_multipart([topic, *frames])


async def test_a_message_of_a_hundred_megabytes_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("collectors.probe.relayed.NEVER_NS", 500_000_000)
    with zmq.Context() as context, context.socket(zmq.XPUB) as liar:
        liar.linger = 0
        number = liar.bind_to_random_port("tcp://127.0.0.1")
        async with following(f"tcp://127.0.0.1:{number}") as told:
            await answer(liar, bytes(100_000_000))
            await told.until(told.notes)

    assert "no agent answers" in told.notes()[0]


async def test_a_peer_that_is_no_zeromq_is_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("collectors.probe.relayed.NEVER_NS", 300_000_000)

    async def babble(_: object, writer: asyncio.StreamWriter) -> None:
        writer.write(os.urandom(100_000))
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    number = server.sockets[0].getsockname()[1]
    async with server, following(f"tcp://127.0.0.1:{number}") as told:
        await told.until(told.notes)

    assert told.of(HostInfo) == []


LONG_AGO = -(10**17)


@pytest.mark.parametrize(
    "absurd",
    [
        gpu_sample(float("nan")),
        gpu_sample(float("inf")),
        gpu_sample(t_ns=LONG_AGO),
        gpu_sample(source="GPU-nobody-named"),
        gpu_info("x" * 2_000),
        GpuProcesses(
            t_ns=monotonic_ns(), source=GPU, memory_bytes=dict.fromkeys(range(10_000))
        ),
        Step(index=0, start_ns=1, end_ns=2, duration_ns=1),
        EngineInfo(t_ns=1, pid=1, model="m", vllm_version="v"),
    ],
)
async def test_what_makes_no_sense_is_left_out_and_counted(
    path: Path, absurd: AnyReading
) -> None:
    with speaking(path, gpu_info(), absurd) as agent:
        async with following(path) as told:
            await told.until(told.notes)
            agent.tell(gpu_sample(1.0))
            await told.until(lambda: told.of(GpuSample))

    assert "that make no sense are left out: 1 so far" in told.notes()[-1]
    assert [each.power_w for each in told.of(GpuSample)] == [1.0]
    assert [each.source for each in told.of(GpuInfo)] == [GPU]


@pytest.mark.parametrize(
    "absurd", [gpu_sample(energy_mj=1 << 63), gpu_sample(t_ns=1 << 62)]
)
async def test_numbers_that_cannot_be_are_left_out_and_counted(
    path: Path, absurd: GpuSample
) -> None:
    with speaking(path, gpu_info(), absurd) as agent:
        async with following(path) as told:
            agent.tell(gpu_sample(1.0))
            await told.until(lambda: told.of(GpuSample))

    said = ["1 readings of gpu1 hold impossible numbers"]
    assert told.notes(NoteKind.DROPPED) == said
    assert [each.power_w for each in told.of(GpuSample)] == [1.0]


async def test_who_asks_again_and_again_does_not_make_an_agent_grow(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "PIECE_ENVELOPES", 1)
    monkeypatch.setattr(channel_module, "RECORDS_AT_ONCE", 1)  # the past is long
    most = 0
    with speaking(path, gpu_info()) as agent, zmq.Context() as context:
        for _ in range(100):
            agent.tell(gpu_sample())
        with context.socket(zmq.SUB) as caller:
            caller.linger = 0
            caller.connect(f"ipc://{path}")
            for number in range(500):
                caller.subscribe(AGENT + RING + str(number).encode())
            for _ in range(100):
                most = max(most, len(agent.channel._joining))
                await asyncio.sleep(0.01)

    assert 0 < most <= channel_module.MOST_JOINING


async def test_no_host_has_more_gpus_than_there_can_be(path: Path) -> None:
    many = [gpu_info(f"GPU-{number}") for number in range(1_000)]
    with speaking(path, *many, host_sample()):
        async with following(path) as told:
            await told.until(lambda: told.of(HostSample))

    assert len(told.of(GpuInfo)) == agent_stream.MOST_GPUS
