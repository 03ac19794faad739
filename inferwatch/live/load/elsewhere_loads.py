"""Finds and watches load runs that were started elsewhere on the watched engine."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol
from urllib.parse import urlsplit

from collectors.contract.clock import monotonic_ns
from collectors.contract.collector import CollectorError
from collectors.contract.readings import LoadPlanned, NoteKind
from collectors.load.load_relay import LoadNotice, RelayedLoad, notices
from inferwatch.live.live_session import LiveSession
from inferwatch.live.supervision import FaultReporter

LOOK_S = 0.5
"""A generator takes longer than this to start, so nothing it reports is missed."""
HERE = {"localhost", "127.0.0.1", "::1", "0.0.0.0"}  # noqa: S104 - compared, not bound


class ServerAddress(Protocol):
    """A server that listens at a URL or on a Unix socket."""

    @property
    def url(self) -> str | None:
        """The server's URL; None when it listens on a Unix socket."""
        ...

    @property
    def uds(self) -> str | None:
        """The path of the server's Unix socket; None when it listens at a URL."""
        ...


class ExternalLoadWatcher:
    """Takes the readings of load runs that others started into the session."""

    def __init__(
        self, session: LiveSession, watched: Callable[[], Sequence[ServerAddress]]
    ) -> None:
        self._session = session
        self._watched = watched
        self._followed: set[str] = set()

    async def run(self) -> None:
        """Follow each run that begins on a watched engine, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                for notice in await asyncio.to_thread(notices):
                    if self._is_news(notice):
                        self._followed.add(notice.run_id)
                        tasks.create_task(self._follow(notice))
                await asyncio.sleep(LOOK_S)

    def _is_news(self, notice: LoadNotice) -> bool:
        if notice.run_id in self._followed:
            return False
        return any(is_load_on(notice, each) for each in self._watched())

    async def _follow(self, notice: LoadNotice) -> None:
        plan = LoadPlanned(t_ns=monotonic_ns(), plan=notice.plan, elsewhere=True)
        self._session.take(plan, source=notice.run_id)
        text = f"load {notice.run_id} was started elsewhere, by process {notice.pid}"
        self._session.note(NoteKind.STARTED, text, source=notice.run_id)
        say = partial(self._session.note, NoteKind.PROBE)
        try:
            collector = RelayedLoad(self._session.clock, notice)
            await self._session.pipeline.pump(collector)
        except CollectorError as error:
            say(str(error))
        except Exception as error:  # noqa: BLE001 - the session goes on
            FaultReporter(f"load {notice.run_id}", say).report(error)


def is_load_on(notice: LoadNotice, endpoint: ServerAddress) -> bool:
    """Tell whether a load run sends its requests to this endpoint."""
    if notice.uds or endpoint.uds:
        return notice.uds == endpoint.uds
    place = _place(notice.url)
    return place is not None and place == _place(endpoint.url or "")


def _place(url: str) -> tuple[str | None, int | None] | None:
    """Return a URL's host and port; None if what another process wrote is no URL."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    return ("localhost" if host in HERE else host), port
