"""A session that watches running servers over the network, and never ends one."""

import asyncio
import socket
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from collectors.contract.clock import SessionClock, monotonic_ns
from collectors.contract.collector import Collector, TappedCollector
from collectors.contract.readings import (
    AnyReading,
    Contact,
    EngineInfo,
    EngineSample,
    NoteKind,
    ServerInfo,
    WatchedSlo,
)
from collectors.http.http_client import goes_direct
from collectors.http.server import Server
from collectors.probe.server_probe import ServerProbe
from collectors.remote.agent_stream import AgentStream, RemoteAgent
from collectors.remote.ssh import SshTunnel
from collectors.servers.kv_events import KvEventStream
from collectors.servers.otlp import SpanReceiver
from collectors.servers.scrape import ServerScraper
from collectors.servers.server_steps import StepStream
from inferwatch.feed import FeedState
from inferwatch.formatting import counted
from inferwatch.live.limit_desk import (
    ELSEWHERE,
    NO_PROBE,
    LimitTarget,
    WatchedLimitDesk,
)
from inferwatch.live.load.elsewhere_loads import ExternalLoadWatcher
from inferwatch.live.load.load_desk import LoadTarget, WatchedLoadDesk
from inferwatch.live.local_server import LocalServer, look_for, runs_here
from inferwatch.live.pipeline import Pipeline
from inferwatch.live.watch import Watch
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery

LOOK_EVERY_S = 10.0
"""How often the processes of servers on this host are looked up."""
SETTLES_S = 3.0
"""How long after the first answer the session counts as settled at the latest."""
NAMED = 3
"""How many servers that do not answer are listed with their reason."""


Collect = Callable[[SessionClock, Server], Sequence[Collector]]


def collectors_of(
    clock: SessionClock, server: Server, *, kv_events: bool = True
) -> list[Collector]:
    """Return the collectors of one server, the most reliable first."""
    if server.only_probe:
        return [ServerProbe(clock, server)]
    if server.ssh:
        tunnel = SshTunnel(clock, server)
        probed, scraped = ServerProbe(clock, server), ServerScraper(clock, server)
        return [tunnel, tunnel.through(probed), tunnel.through(scraped)]
    here = partial(runs_here, server)
    blocks = [KvEventStream(clock, server, here)] if kv_events else []
    steps = StepStream(clock, server, here, given=server.steps)
    return [ServerProbe(clock, server), ServerScraper(clock, server), *blocks, steps]


def receivers_of(clock: SessionClock, servers: Sequence[Server]) -> list[Collector]:
    """Return an OTLP receiver for spans, if any server runs on this host."""
    here = any(goes_direct(server.url, server.uds) for server in servers)
    return [SpanReceiver(clock, servers=servers, asked=False)] if here else []


class AttachedSession(Watch):
    """Watches servers until it is closed; a server that is lost is polled for ever."""

    def __init__(
        self,
        clock: SessionClock,
        pipeline: Pipeline,
        servers: Sequence[Server],
        others: Sequence[Collector] | None = None,
        collect: Collect = collectors_of,
        agents: Sequence[RemoteAgent] = (),
    ) -> None:
        """``others`` listen to all servers; by default, an OTLP receiver does."""
        super().__init__(clock, pipeline)
        self.servers = tuple(servers)
        if others is None:
            others = receivers_of(clock, self.servers)
        self._contacts: dict[str, Contact] = {}
        """The latest contact with each source."""
        self._first_ns: dict[str, int] = {}
        """The time of the first sample of each source."""
        self._rated: set[str] = set()
        """Sources that were sampled at least twice, so that their rates are known."""
        self._begun, self._lost = asyncio.Event(), asyncio.Event()
        self._settled = asyncio.Event()
        self._came_up = False
        self._models: dict[str, str] = {}
        """The first model that each source serves."""
        self._looked_at: str | None = None
        """The source that is viewed alone; None for all."""
        self._local = {each.source: LocalServer(each) for each in self.servers}
        self._desk = WatchedLoadDesk(self._session, served=True)
        self._aim()
        self._limit_desk = WatchedLimitDesk(self._session, self._limit_target)
        self._elsewhere = ExternalLoadWatcher(self._session, lambda: self.servers)
        every = [each for server in servers for each in collect(clock, server)]
        self._probes = [each for each in every if isinstance(each, ServerProbe)]
        self._agents, beside = self._follow_agents(clock, agents)
        self._session.collectors += [
            TappedCollector(each, self._hear)
            for each in (*every, *self._agents, *beside, *others)
        ]

    def _follow_agents(
        self, clock: SessionClock, named: Sequence[RemoteAgent]
    ) -> tuple[list[AgentStream], list[AgentStream]]:
        """Return streams of the named agents, and of those beside remote servers."""
        claimed: dict[str, AgentStream] = {}
        ours = self._session.gpus.known
        streams = [
            [AgentStream(clock, each, claimed, ours) for each in agents if each]
            for agents in (named, map(RemoteAgent.beside, self.servers))
        ]
        return streams[0], streams[1]

    @property
    def load_desk(self) -> WatchedLoadDesk:
        return self._desk

    @property
    def limit_desk(self) -> WatchedLimitDesk:
        """Sets the limits of the server that is viewed alone."""
        return self._limit_desk

    @property
    def _state(self) -> FeedState:
        """Live until every server has failed, so that the dashboard opens at once."""
        waiting = len(self._contacts) < len(self.servers) or not self._begun.is_set()
        return FeedState.LIVE if waiting or self._any_answers else FeedState.LOST

    @property
    def _any_agent_came(self) -> bool:
        return any(each.host for each in self._agents)

    @property
    def _any_answers(self) -> bool:
        if not self.servers:  # agents alone
            return any(not each.why for each in self._agents)
        return any(each.answers for each in self._contacts.values())

    @property
    def begun(self) -> asyncio.Event:
        """Set once a server has answered or failed to answer."""
        return self._begun

    @property
    def settled(self) -> asyncio.Event:
        """Set once every server was sampled twice or failed, and its probe answered."""
        return self._settled

    @property
    def lost(self) -> asyncio.Event:
        """Never set: a server that does not answer is polled again."""
        return self._lost

    @property
    def came_up(self) -> bool:
        """Whether a server has ever answered; without servers, whether an agent has."""
        return self._came_up or (not self.servers and self._any_agent_came)

    @property
    def failure(self) -> str | None:
        """Why no server answers; None while one does."""
        if self._any_answers:
            return None
        whys = [f"{name}: {each.why}" for name, each in self._contacts.items()]
        if not self.servers:
            whys = [each.why for each in self._agents]
        if not whys:
            names = ", ".join(each.source for each in self.servers[:NAMED])
            return f"no answer came from {names}"
        more = len(whys) - NAMED
        rest = f"; {counted(more, 'other')} likewise" if more > 0 else ""
        return "; ".join(whys[:NAMED]) + rest

    @property
    def served(self) -> bool:
        """Always true: the servers were not started by us."""
        return True

    @property
    def runs_on(self) -> bool:
        """Always true: the servers outlive the session."""
        return True

    @property
    def farewell(self) -> str:
        return "detached; what was watched runs on as before."

    @property
    def only_hardware(self) -> bool:
        """Whether only agents are watched, and no server."""
        return not self.servers

    async def restart(self) -> None:
        """Do nothing: we cannot start these servers."""

    async def stop_engine(self) -> None:
        """Do nothing: these servers are not ours to stop."""

    def _work(self) -> list[Coroutine[Any, Any, None]]:
        for server in self.servers:
            self._session.note(NoteKind.STAGE, f"asking {server.source}", server.source)
            if server.slo:
                slo = WatchedSlo(t_ns=monotonic_ns(), slo=server.slo)
                self._session.take(slo, source=server.source)
        return [
            self._settle_in_time(),
            self._elsewhere.run(),
            self._look_at_this_host(),
        ]

    async def _wind_down(self) -> None:
        await self._limit_desk.close()
        await self._desk.stop()

    def _processes(self) -> list[tuple[int, str]]:
        load_pid = self._desk.pid
        load = [(load_pid, "load")] if load_pid is not None else []
        engines = [each for s in self._local for each in self._engine_processes(s)]
        return [*dict(engines).items(), *load]

    def engine_processes(self) -> list[tuple[int, str]]:
        """Return the processes of the viewed server on this host, with their roles."""
        return self._engine_processes(self._viewed)

    def _engine_processes(self, source: str) -> list[tuple[int, str]]:
        """Return the processes of one server on this host."""
        probes = (each for each in self._probes if each.server.source == source)
        local = self._local.get(source)
        found = dict(local.processes() if local else ())
        found |= {pid: role for probe in probes for pid, role in probe.processes()}
        return [*found.items()]

    def _engine_log(self, source: str, lines: int) -> list[str]:
        """Return the last log lines of one server."""
        local = self._local.get(source)
        return local.log_tail(lines) if local else []

    async def _look_at_this_host(self) -> None:
        while True:
            await asyncio.to_thread(look_for, self._local.values())
            await asyncio.sleep(LOOK_EVERY_S)

    @property
    def no_log(self) -> str:
        """Why there is no log of the viewed server."""
        local = self._local.get(self._viewed)
        return local.no_log if local else self._no_server

    def log_tail(self, lines: int) -> list[str]:
        """Return the last log lines of the viewed server, if they can be read."""
        local = self._local.get(self._viewed)
        return local.log_tail(lines) if local else []

    @property
    def _no_server(self) -> str:
        """Why the view is not of exactly one server."""
        if not self.servers:
            return "no server is watched: attach to one by its URL"
        return "several servers are watched: open one first"

    @property
    def _viewed(self) -> str:
        """The source of the one server that is viewed; empty for several."""
        only = self.servers[0].source if len(self.servers) == 1 else ""
        return self._looked_at or only

    def snapshot(self, query: SnapshotQuery) -> Snapshot:
        """Return the snapshot to show, and aim the load desk at the viewed server."""
        if query.source != self._looked_at:
            self._looked_at = query.source
            self._aim()
        return super().snapshot(query)

    def _aim(self) -> None:
        """Aim the load desk at the one server that is viewed."""
        server = {each.source: each for each in self.servers}.get(self._viewed)
        if server is None:
            self._desk.aim(None, self._no_server)
            return
        contact, model = (
            self._contacts.get(server.source),
            self._models.get(server.source),
        )
        if contact is None or not contact.answers:
            self._desk.aim(None, f"{server.source} does not answer")
        elif model is None:
            self._desk.aim(None, f"{server.source} names no model to ask")
        else:
            self._desk.aim(_load_target(server, model))

    def _limit_target(self) -> LimitTarget | str:
        """Return the viewed server's engine, or why its limits cannot be set."""
        source = self._viewed
        server = next((each for each in self.servers if each.source == source), None)
        probe = next((p for p in self._probes if p.server.source == source), None)
        contact = self._contacts.get(source)
        if server is None:
            return self._no_server
        if contact is not None and not contact.answers:
            return f"{source} does not answer"
        if server.ssh or (probe is not None and probe.is_elsewhere):
            return ELSEWHERE
        if probe is None or not probe.engine_id:
            return NO_PROBE
        host = socket.gethostname()  # it was started by somebody else
        return LimitTarget(engine_id=probe.engine_id, source=source, host=host)

    def _canary_targets(self) -> dict[str, LoadTarget]:
        """Return load targets for the servers that answer and name a model."""
        return {
            server.source: _load_target(server, model)
            for server in self.servers
            if (contact := self._contacts.get(server.source)) and contact.answers
            if (model := self._models.get(server.source)) is not None
        }

    # What the servers report.

    def _hear(self, reading: AnyReading) -> None:
        if isinstance(reading, Contact):
            self._contact(reading)
        elif isinstance(reading, EngineSample):
            self._note_sample(reading)
        elif isinstance(reading, ServerInfo) and reading.models:
            self._models[reading.source] = reading.models[0]
            self._aim()
        elif isinstance(reading, EngineInfo):
            self._look_if_settled()
        elif not self.servers and not self._begun.is_set():
            self._begun.set()  # an agent has answered, or failed to answer
        self._session.measured.hear(reading)
        self._desk.hear(reading)

    def _note_sample(self, sample: EngineSample) -> None:
        """Note that a server's rates are known once it was sampled twice."""
        if self._settled.is_set():
            return  # called for each sample, hundreds a second
        if self._first_ns.setdefault(sample.source, sample.t_ns) != sample.t_ns:
            self._rated.add(sample.source)
            self._look_if_settled()

    def _look_if_settled(self) -> None:
        failed = {name for name, each in self._contacts.items() if not each.answers}
        awaited = any(each.is_awaited for each in self._probes)
        if (
            self.servers
            and not awaited
            and all(each.source in self._rated | failed for each in self.servers)
        ):
            self._settled.set()

    async def _settle_in_time(self) -> None:
        """Set ``settled`` after a while even if some server offers no samples."""
        await self._begun.wait()
        await asyncio.sleep(SETTLES_S)
        self._settled.set()

    def _contact(self, contact: Contact) -> None:
        """Keep a server's latest contact, and note in the record if it changed."""
        before = self._contacts.get(contact.source)
        self._contacts[contact.source] = contact
        self._came_up = self._came_up or contact.answers
        changed = before is None or before.answers != contact.answers
        if contact.restarted:
            self._note(
                NoteKind.RESTARTED, "was restarted: its counters began anew", contact
            )
        elif changed and contact.answers:
            self._note(
                NoteKind.STARTED, "answers again" if before else "answers", contact
            )
        elif changed:
            lost = self._state is FeedState.LOST
            kind = NoteKind.LOST if lost else NoteKind.STOPPED
            self._note(kind, f"does not answer: {contact.why}", contact)
        self._begun.set()
        self._look_if_settled()
        self._aim()

    def _note(self, kind: NoteKind, text: str, contact: Contact) -> None:
        self._session.note(kind, f"{contact.source} {text}", contact.source)


def _load_target(server: Server, model: str) -> LoadTarget:
    """Return the server as a load target, with the host name users must type.

    For a server on this host that is this host's name, whatever its URL says.
    """
    host = urlsplit(server.ssh or server.url).hostname
    here = not server.ssh and goes_direct(server.url, server.uds)
    return LoadTarget(
        url=server.url,
        uds=server.uds,
        model=model,
        headers=server.headers,
        insecure=server.insecure,
        ca_file=server.ca_file,
        host=socket.gethostname() if here else host,
    )
