"""A session that watches servers which run already: it asks, and never ends one."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from collectors.clock import SessionClock
from collectors.collector import Collector
from collectors.http_client import goes_direct
from collectors.probe.server_probe import ServerProbe
from collectors.readings import AnyReading, Contact, NoteKind
from collectors.scrape import ServerScraper
from collectors.server import Server
from inferwatch.feed import FeedState
from inferwatch.formatting import counted
from inferwatch.session.load_desk import WatchedLoadDesk
from inferwatch.session.pipeline import Pipeline, TappedCollector
from inferwatch.session.watch import Watch

NAMED = 3
"""Of so many servers that do not answer the reason is told."""


Collect = Callable[[SessionClock, Server], Sequence[Collector]]


def collectors_of(clock: SessionClock, server: Server) -> list[Collector]:
    """Everything that can be heard of a server, the surest first."""
    probe = [ServerProbe(clock, server)] if goes_direct(server.url, server.uds) else []
    return [*probe, ServerScraper(clock, server)]


class AttachedSession(Watch):
    """Watches servers as long as people like; one that is lost is asked for ever."""

    def __init__(
        self,
        clock: SessionClock,
        pipeline: Pipeline,
        servers: Sequence[Server],
        others: Sequence[Collector] = (),
        collect: Collect = collectors_of,
    ) -> None:
        super().__init__(clock, pipeline)
        self.servers = tuple(servers)
        self._contacts: dict[str, Contact] = {}
        """The latest of each source."""
        self._begun, self._lost = asyncio.Event(), asyncio.Event()
        self._came_up = False
        self._desk = WatchedLoadDesk(self._session, served=True)
        every = [each for server in servers for each in collect(clock, server)]
        self._probes = [each for each in every if isinstance(each, ServerProbe)]
        self._session.collectors += [
            TappedCollector(each, self._hear) for each in (*every, *others)
        ]

    @property
    def load_desk(self) -> WatchedLoadDesk:
        """Where load on a server is started, changed and stopped."""
        return self._desk

    @property
    def _state(self) -> FeedState:
        """Live until all have failed: the dashboard opens at once."""
        waiting = len(self._contacts) < len(self.servers)
        return FeedState.LIVE if waiting or self._any_answers else FeedState.LOST

    @property
    def _any_answers(self) -> bool:
        return any(each.answers for each in self._contacts.values())

    @property
    def begun(self) -> asyncio.Event:
        """Set once a server has answered, or failed to."""
        return self._begun

    @property
    def lost(self) -> asyncio.Event:
        """Never set: who does not answer is asked again."""
        return self._lost

    @property
    def came_up(self) -> bool:
        """A server has answered, now or earlier."""
        return self._came_up

    @property
    def failure(self) -> str | None:
        """Why no server answers."""
        if self._any_answers:
            return None
        whys = [f"{name}: {each.why}" for name, each in self._contacts.items()]
        if not whys:
            names = ", ".join(each.source for each in self.servers[:NAMED])
            return f"no answer came from {names}"
        more = len(whys) - NAMED
        rest = f"; {counted(more, 'other')} likewise" if more > 0 else ""
        return "; ".join(whys[:NAMED]) + rest

    @property
    def served(self) -> bool:
        """They are none of ours to end."""
        return True

    @property
    def runs_on(self) -> bool:
        """Whatever we do."""
        return True

    @property
    def farewell(self) -> str:
        """Nothing was changed."""
        return "detached; what was watched runs on as before."

    async def restart(self) -> None:
        """Nothing that we could start again."""

    async def stop_engine(self) -> None:
        """Nothing that is ours to end."""

    def _work(self) -> list[Coroutine[Any, Any, None]]:
        for server in self.servers:
            self._session.note(NoteKind.STAGE, f"asking {server.source}", server.source)
        return []

    def _processes(self) -> list[tuple[int, str]]:
        load_pid = self._desk.pid
        load = [(load_pid, "load")] if load_pid is not None else []
        return [*(each for p in self._probes for each in p.processes()), *load]

    # What the servers tell.

    def _hear(self, reading: AnyReading) -> None:
        if isinstance(reading, Contact):
            self._contact(reading)
        self._desk.hear(reading)

    def _contact(self, contact: Contact) -> None:
        """Keep it, and note what people should find again in the record."""
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

    def _note(self, kind: NoteKind, text: str, contact: Contact) -> None:
        self._session.note(kind, f"{contact.source} {text}", contact.source)
