"""The start screen: running servers, recorded sessions and what to start."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from collectors.http.server import Server, ServerError
from collectors.servers.families import FAMILIES
from inferwatch import __version__
from inferwatch.formatting import counted, short_name
from inferwatch.live.attached.nearby import (
    LookAround,
    NearbyEngine,
    attachable,
    nobody,
    recent_servers,
)
from inferwatch.ui.frame.session_screen import SHORT
from inferwatch.ui.kit.dialogs import PromptScreen
from inferwatch.ui.kit.keys import HERE, KeyFooter
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, cells, fit, ruled, spread
from inferwatch.ui.messages import (
    GoTo,
    OpenComparison,
    OpenDemo,
    OpenSample,
    OpenServed,
    OpenServers,
    OpenSession,
)
from inferwatch.ui.sessions.browser import BROWSER_KEYS, SessionBrowser
from inferwatch.ui.view import ChosenSessions
from inferwatch.ui.widgets.help_drawer import toggle_help

LOOK_EVERY_S = 3.0
MOST_PLACES = 9
"""One per number key."""
TALL = 36
"""Height from which all servers are listed."""
FEW_ENGINES, FEW_NAMED, FEW_RECENT = 4, 2, 1
"""Servers listed on a short screen."""


class StartPlace(NamedTuple):
    """A server to attach to."""

    what: str
    model: str
    where: str
    wish: GoTo


class StartScreen(Screen[None]):
    """Leads to a running server, the demo, the sample or a recorded session."""

    NAME = "start"

    DEFAULT_CSS = """
    StartScreen { layers: default drawer; }
    """
    AUTO_FOCUS = "SessionTable"
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(
                str(number),
                f"attach({number})",
                "watch it",
                show=False,
                tooltip="Watch the engine or server of that number",
            )
            for number in range(1, MOST_PLACES + 1)
        ),
        Binding(
            "a",
            "attach_to",
            "attach to",
            tooltip="Watch a server anywhere, by its address",
        ),
        Binding(
            "f",
            "fleet",
            "fleet",
            show=False,
            tooltip="Watch all servers of the settings file",
        ),
        Binding(
            "D",
            "demo",
            "demo",
            tooltip="Start the demo: a small real vLLM engine under load",
        ),
        Binding(
            "x",
            "sample",
            "sample",
            tooltip="Replay the recorded session that ships with inferwatch",
        ),
        Binding(
            "question_mark",
            "help",
            "help",
            key_display="?",
            tooltip="This help: all keys",
        ),
    ]

    def __init__(
        self,
        database: Path,
        look: LookAround = nobody,
        named: Mapping[str, str] | None = None,
        chosen: ChosenSessions | None = None,
    ) -> None:
        super().__init__()
        self._chosen = chosen
        self._database = database
        self._look = look
        self._named = named or {}

    def compose(self) -> ComposeResult:
        yield StartPanel(self._named)
        yield SessionBrowser(
            self._database,
            "nothing is recorded yet: D records a demo",
            chosen=self._chosen,
        )
        yield KeyFooter()

    def on_mount(self) -> None:
        """Look for engines and servers now, and every few seconds while visible."""
        self._look_around()
        self.set_interval(LOOK_EVERY_S, self._look_around)

    @work(exclusive=True, group="nearby")
    async def _look_around(self) -> None:
        if not self.is_current:
            return
        recent = await asyncio.to_thread(recent_servers, self._database)
        engines = await self._look()
        for panel in self.query(StartPanel):  # no panel while the screen is being left
            panel.show(engines, recent)

    def on_resize(self) -> None:
        self.query_one(StartPanel).tall = self.size.height >= TALL
        self.query_one(SessionBrowser).set_class(self.size.height < SHORT, "-short")

    def action_attach(self, number: int) -> None:
        places = self.query_one(StartPanel).places
        if number <= len(places):
            self.post_message(places[number - 1].wish)

    def action_fleet(self) -> None:
        if self._named:
            self.post_message(OpenServers(urls=tuple(self._named)))

    @work
    async def action_attach_to(self) -> None:
        """Ask for a server's address and watch that server."""
        typed = await self.app.push_screen_wait(
            PromptScreen(
                "Attach to which server?",
                "host:port, https://host/prefix, or a name of the settings file",
                _unusable,
            )
        )
        if typed:
            self.post_message(OpenServers(urls=tuple(typed.split())))

    def action_demo(self) -> None:
        self.post_message(OpenDemo())

    def action_sample(self) -> None:
        self.post_message(OpenSample())

    def action_help(self) -> None:
        toggle_help(self, "What can I watch?", {HERE: BROWSER_KEYS})

    @on(SessionBrowser.ReplayRequested)
    def _open(self, message: SessionBrowser.ReplayRequested) -> None:
        session = message.session.row.id
        self.post_message(OpenSession(database=self._database, session=session))

    @on(SessionBrowser.CompareRequested)
    def _compare(self, message: SessionBrowser.CompareRequested) -> None:
        self.post_message(OpenComparison(database=self._database, sessions=message.ids))


def _unusable(text: str) -> str | None:
    if not text.split():
        return "an address, such as gpu1:8000"
    for each in text.split():
        try:
            Server(url=each)
        except ServerError as error:
            return str(error)
    return None


CHOICES = (
    ("a", "attach_to", "attach to …", "watch a server anywhere, by its address"),
    ("D", "demo", "demo", "start a small real vLLM engine; no GPU needed"),
    ("x", "sample", "sample", "replay the session that ships with inferwatch"),
)
"""Key, action, name and description."""
COMMANDS = (
    ("inferwatch serve MODEL", "start a vLLM engine and watch it"),
    ("inferwatch load URL --rate 5", "load a running server, and measure it"),
)
TITLES = {each.name: each.title for each in FAMILIES}


class StartPanel(Panel):
    """Servers to attach to, keys and commands."""

    DEFAULT_CSS = """
    StartPanel { height: 9; }
    """

    _engines: Sequence[NearbyEngine] | None = None
    """None before the first search."""
    _recent: Sequence[str] = ()
    tall = False

    def __init__(self, named: Mapping[str, str]) -> None:
        super().__init__()
        self._named = named
        """Addresses of the servers in the settings file, by name."""

    def show(self, engines: Sequence[NearbyEngine], recent: Sequence[str]) -> None:
        self._engines, self._recent = engines, recent
        rows = len(self.places) + len(self._choices())
        self.styles.height = 6 + bool(self.places) + rows
        self.redraw()

    @property
    def places(self) -> list[StartPlace]:
        engines = self._engines or ()
        addresses = {each.address for each in engines} | set(self._named.values())
        recent = [each for each in self._recent if each not in addresses]
        named = [
            StartPlace("settings", name, _short(address), OpenServers(urls=(name,)))
            for name, address in self._named.items()
        ]
        if self.tall:
            every = [*map(_engine, engines), *named, *map(_recently, recent)]
            return every[:MOST_PLACES]
        return [
            *map(_engine, engines[:FEW_ENGINES]),
            *named[:FEW_NAMED],
            *map(_recently, recent[:FEW_RECENT]),
        ]

    def draw(self, width: int, height: int) -> Sequence[Line]:
        del height
        name = (TextRun(" inferwatch ", "strong"), TextRun(__version__, "muted"))
        places = [
            fit(_place(number, each), width)
            for number, each in enumerate(self.places, 1)
        ]
        return (
            spread(name, (*self._engine_count(), TextRun(" ")), width),
            (),
            *places,
            *([()] if places else []),
            *(fit(_choice(*choice), width) for choice in self._choices()),
            *(fit(_command(*command), width) for command in COMMANDS),
            (),
            ruled((TextRun("recorded sessions", "muted"),), (), width),
        )

    def _choices(self) -> Sequence[tuple[str, str, str, str]]:
        if not self._named:
            return CHOICES
        servers = f"watch the {counted(len(self._named), 'server')} of the settings"
        return (("f", "fleet", "fleet", servers), *CHOICES)

    def _engine_count(self) -> Line:
        """Return a line on how many engines run here."""
        if self._engines is None:
            return (TextRun("◌ looking for engines …", "muted"),)
        if not self._engines:
            return (TextRun("○ no engine is running here", "muted"),)
        verb = "runs" if len(self._engines) == 1 else "run"
        more = len(self._engines) - MOST_PLACES
        rest = f", {more} more than keys" if more > 0 else ""
        text = f"{counted(len(self._engines), 'engine')} {verb} here{rest}"
        return (TextRun("● ", "good"), TextRun(text))


def _engine(engine: NearbyEngine) -> StartPlace:
    names = [short_name(each) for each in engine.models]
    model = ", ".join(names[:3]) if engine.answered else "busy: it did not say"
    wish = (
        OpenServed(engine_id=engine.engine_id)
        if engine.engine_id
        else OpenServers(urls=(engine.attach_to,))
    )
    title = TITLES.get(engine.family, engine.family)
    if engine.in_application:
        title += " app"
    where = engine.place
    if engine.orphan_pid is not None:
        title, where = "orphan", f"pid {engine.orphan_pid}: its API process is gone"
    return StartPlace(title, model, where, wish)


def _recently(address: str) -> StartPlace:
    return StartPlace(
        "watched", "before", _short(address), OpenServers(urls=(attachable(address),))
    )


def _short(address: str) -> str:
    return address.removeprefix("http://")


def _place(number: int, place: StartPlace) -> Line:
    action = f"screen.attach({number})"
    return (
        TextRun(f"  {number} ", "accent", action),
        cells(place.what, 9, "muted")._replace(action=action),
        cells(f" {place.model}", 20)._replace(action=action),
        TextRun(f" {place.where}", "", action),
    )


def _choice(key: str, action: str, name: str, what: str) -> Line:
    run = f"screen.{action}"
    return (
        TextRun(f"  {key} ", "accent", run),
        cells(name, 29, "")._replace(action=run),
        TextRun(what, "muted", run),
    )


def _command(typed: str, what: str) -> Line:
    return (TextRun("  $ ", "faint"), cells(typed, 29), TextRun(what, "muted"))
