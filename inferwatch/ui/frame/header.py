"""The two top lines: who is watched, and the tabs and windows."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from textual.app import App

from collectors.contract.clock import NS_PER_S
from inferwatch.feed import Feed, FeedState, FlightState, RecordState
from inferwatch.formatting import (
    about,
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_share,
    short_name,
)
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.servers.server_state import ServerState, Via
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.health import Health
from inferwatch.ui.kit.panel import LinePanel
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    age_text,
    join,
    spread,
    width_of,
)
from inferwatch.ui.terminal.terminal import TerminalApp
from inferwatch.ui.widgets.limit_texts import limit_words
from inferwatch.ui.widgets.slo_line import share_line

LONGEST_WHY = 34
AGE_WIDTH = 5
"""Cells of the age of a token that was scraped, so that it moves nothing."""
FAMILIES = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "llamacpp": "llama.cpp",
    "openai": "OpenAI-compatible",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTime:
    """The time a screen shows."""

    replay: bool = False
    """A recorded session is replayed."""
    behind_s: float | None = None
    """Seconds behind the present of a running session."""


def shown_time_of(feed: Feed) -> ShownTime:
    """Return whether the feed is a replay, and how far it is behind the present."""
    playback = feed.playback
    behind_s = None
    if playback is not None and playback.goes_on and not playback.at_live:
        behind_s = (playback.span_ns[1] - playback.position_ns) / NS_PER_S
    return ShownTime(replay=feed.state is FeedState.REPLAYING, behind_s=behind_s)


class HeaderLine(LinePanel):
    """Who is watched, liveness and the cost of watching, as far as there is room."""

    _snapshot: Snapshot | None = None
    _clock = ""
    _record: RecordState | None = None
    _time = ShownTime()
    _loading = ""

    def show_loading(self, session: str) -> None:
        """Say that a recording is read, and nothing else."""
        self._loading = f" loading {session} …"
        self.redraw()

    def show(
        self,
        snapshot: Snapshot,
        clock: str,
        record: RecordState | None,
        shown: ShownTime,
    ) -> None:
        self._snapshot, self._clock, self._record = snapshot, clock, record
        self._time = shown
        self.redraw()

    def line(self, width: int) -> Line:
        if self._snapshot is None:
            return (TextRun(self._loading, "muted"),) if self._loading else ()
        rights = self._right(self._snapshot)
        lefts = _identity(self._snapshot)
        said = limit_words(self._snapshot, replay=self._time.replay)
        pairs = list(product(rights, lefts))
        if said:  # in full where the record has its place; in short, if need be
            in_full, in_short = _limited(lefts, said)
            pairs = [*product(rights[:2], in_full), *product(rights, in_short)]
            lefts = in_short
        elif self._snapshot.server is not None:  # what it is matters more than our cost
            pairs.sort(
                key=lambda pair: rights.index(pair[0]) + 2 * lefts.index(pair[1])
            )
        for right, left in pairs:
            if width_of(left) + width_of(right) + 4 <= width:
                return spread((TextRun(" "), *left), (*right, TextRun(" ")), width)
        return spread((TextRun(" "), *lefts[-1]), (*rights[-1], TextRun(" ")), width)

    def _right(self, snapshot: Snapshot) -> list[Line]:
        beat, clock = _heartbeat(snapshot), (TextRun(self._clock, "strong"),)
        record = _recording(self._record, snapshot.now_ns, replay=self._time.replay)
        behind = (*_slow(self.app), *_behind(self._time.behind_s))
        lost = snapshot.cost.dropped_readings
        drops = (TextRun(f"{format_count(lost).strip()} lost", "muted"),)
        own = (
            TextRun("self ", "muted"),
            TextRun(format_share(snapshot.cost.self_cpu_share)),
        )
        slo = share_line(snapshot)
        return [
            join((behind, beat, slo, clock, record, drops, own), "  "),
            join((behind, beat, slo, clock, record, drops if lost else ()), "  "),
            *([join((behind, beat, slo, clock), "  ")] if slo else []),
            join((behind, beat, clock), "  "),
        ]


def _identity(snapshot: Snapshot) -> list[Line]:
    """Return model, version, parallelism and address, in ever shorter texts."""
    if snapshot.server is not None:
        return _server(snapshot, snapshot.server)
    if len(snapshot.servers) > 1:
        return _of_several(snapshot)
    model = (TextRun(_model(snapshot), "strong"),)
    engine = snapshot.engines[0] if snapshot.engines else None
    hosts = [each.source for each in snapshot.hosts if each.source]
    if hosts and engine is None and not snapshot.endpoints:
        return _of_hosts(hosts)
    version = (TextRun(f"vLLM {engine.vllm_version}"),) if engine else ()
    parallel = (TextRun(f"tp{engine.tensor_parallel or 1}"),) if engine else ()
    address = (TextRun(_address(snapshot)),) if snapshot.endpoints else ()
    probe = (TextRun("probe", "good") if engine else TextRun("no probe yet", "muted"),)
    return [
        join((model, version, parallel, address, probe)),
        join((model, version, address)),
        join((model, version)),
        model,
    ]


def _limited(
    lefts: Sequence[Line], said: Sequence[str]
) -> tuple[list[Line], list[Line]]:
    """Return the identity with lowered limits: in full, then in ever shorter texts."""
    full, bare = (TextRun(said[0], "warn"),), lefts[-1]
    short = [join((bare, (TextRun(words, "warn"),))) for words in said[1:]]
    return [join((left, full)) for left in lefts], short


def _of_hosts(names: Sequence[str]) -> list[Line]:
    """Return the names of hosts watched without an engine, in full and in short."""
    more = f" and {counted(len(names) - 1, 'other host')}" if len(names) > 1 else ""
    name = (TextRun(names[0], "strong"), TextRun(more))
    return [join((name, (TextRun("agent", "good"),))), name]


def _server(snapshot: Snapshot, server: ServerState) -> list[Line]:
    """Return name, address, vantage and warnings of a server, in ever shorter texts."""
    info = server.info
    model_name = short_name(info.models[0]) if info and info.models else ""
    if (
        not model_name and snapshot.engines
    ):  # its probe knows, who listens to it may not
        model_name = short_name(snapshot.engines[0].model)
    place = _place(snapshot)
    name = model_name or server.source
    if place:  # of several, its name tells which it is
        name = info.name if info else server.source
    model = (TextRun(name, "strong"),)
    family = FAMILIES.get(info.family, info.family) if info else ""
    version = (TextRun(f"{family} {info.version or ''}".rstrip()),) if info else ()
    address = (TextRun(_bare(server)),) if model_name else ()
    danger = (TextRun("INSECURE", "bad bold"),) if info and info.insecure else ()
    via = (TextRun(server.via.value, "good" if server.via is Via.PROBE else "accent"),)
    trip = _round_trip(server)
    vantage = via if snapshot.via or server.last_ns is not None else ()
    return [
        join((danger, model, place, version, address, vantage, trip)),
        join((danger, model, place, version, address, vantage)),
        join((danger, model, place, address, vantage)),
        join((danger, model, place, vantage)),
        join((danger, model, place)),
    ]


def _round_trip(server: ServerState) -> Line:
    """Return the uncertainty of the server's timestamps, half the round trip."""
    if server.round_trip_ns is None or server.via is Via.PROBE:
        return ()
    within = format_duration(server.round_trip_ns / 2 / NS_PER_S).strip()
    return (TextRun(f"± {within}", "muted"),)


def _bare(server: ServerState) -> str:
    """Return a server's address without scheme and localhost."""
    info = server.info
    address = (info.uds or info.url if info else None) or server.source
    address = address.removeprefix("http://").removeprefix("127.0.0.1")
    return address.removeprefix("localhost").rstrip("/")


def _of_several(snapshot: Snapshot) -> list[Line]:
    """Return the number of servers and their models, in full and in short."""
    every = (TextRun(counted(len(snapshot.sources), "server"), "strong"),)
    infos = [each.info for each in snapshot.servers if each.info is not None]
    models = dict.fromkeys(short_name(name) for info in infos for name in info.models)
    named = (TextRun(", ".join([*models][:3])),) if models else ()
    return [join((every, named)), every]


def _place(snapshot: Snapshot) -> Line:
    """Return which of several servers is shown, and the key that shows all of them."""
    sources = snapshot.sources
    if snapshot.shown_source not in sources or len(sources) == 1:
        return ()
    at = sources.index(snapshot.shown_source)
    return (
        TextRun(f"{at + 1} of {len(sources)}, ", "muted"),
        TextRun("0", "accent", "app.look_at('fleet')"),
        TextRun(" all", "muted", "app.look_at('fleet')"),
    )


def _model(snapshot: Snapshot) -> str:
    names = [
        *(endpoint.model for endpoint in snapshot.endpoints[-1:]),
        *(engine.model for engine in snapshot.engines),
        "inferwatch",
    ]
    return short_name(names[0])


def _address(snapshot: Snapshot) -> str:
    endpoint = snapshot.endpoints[-1]
    address = endpoint.url or endpoint.uds or ""
    return address.removeprefix("http://").removeprefix("127.0.0.1").rstrip("/")


def _heartbeat(snapshot: Snapshot) -> Line:
    """Return the time since the last token, as /health may be 200 though none come."""
    if snapshot.verdict.health is Health.LOST:
        return (TextRun("✖ LOST", "bad bold"),)
    age_s = None
    if snapshot.last_token_ns is not None:
        age_s = max(snapshot.now_ns - snapshot.last_token_ns, 0) / NS_PER_S
    age = f"token {_age(age_s, snapshot)} ago" if age_s is not None else "no token yet"
    glyph, word, ink = {
        Health.STALLED: ("■ ", "STALLED ", "bad"),
        Health.STARTING: ("◌ ", "", "accent"),
        Health.IDLE: ("○ ", "", "muted"),
    }.get(snapshot.verdict.at_present, ("● ", "", "good"))
    return (
        TextRun(glyph + word, f"{ink} bold"),
        TextRun(age, "" if ink == "good" else ink),
    )


def _age(age_s: float, snapshot: Snapshot) -> str:
    """Format the time since the last token; whole seconds and ``~`` if scraped."""
    if snapshot.without_steps:
        return about(f" {age_text(age_s + 1)}").rjust(AGE_WIDTH)
    return format_duration(age_s)


def _slow(app: App[object]) -> Line:
    """Return how often the screen is drawn on a slow line; recording is unaffected."""
    every_s = app.drawn_every_s if isinstance(app, TerminalApp) else None
    if every_s is None:
        return ()
    every = age_text(max(every_s, 1))
    return (TextRun(f" slow line: drawing every {every} ", "warn"),)


def _behind(behind_s: float | None) -> Line:
    if behind_s is None:
        return ()
    return (TextRun(f" ‖ {age_text(behind_s)} behind ", "chip", "screen.go_live"),)


def _recording(record: RecordState | None, now_ns: int, *, replay: bool) -> Line:
    if replay:
        return (
            TextRun("replay ", "accent"),
            TextRun(record.session_id if record else ""),
        )
    if record is None:
        return (TextRun("not recorded", "warn"),)
    if record.message is not None:
        return (TextRun("rec ! ", "bad"), TextRun(record.message, "bad"))
    if record.flight is not None:
        return _in_flight(record.session_id, record.flight, now_ns)
    size = format_bytes(record.grown_bytes)
    return (TextRun("rec ", "muted"), TextRun(f"{record.session_id} {size}"))


def _span(span_s: float) -> str:
    """Format a duration; a whole number of minutes is shown without seconds."""
    minutes, seconds = divmod(round(span_s), 60)
    return f"{minutes} min" if minutes and not seconds else age_text(span_s)


def _in_flight(session: str, flight: FlightState, now_ns: int) -> Line:
    """Return the state of the flight recorder, and why it records."""
    if flight.because is not None:
        since_s = max(now_ns - (flight.since_ns or now_ns), 0) / NS_PER_S
        why = flight.because
        if len(why) > LONGEST_WHY:
            why = f"{why[: LONGEST_WHY - 1]}…"
        head = f"rec {session} {age_text(since_s)}: "
        return (TextRun(head, "bad"), TextRun(why, "warn"))
    whole = flight.kept_s >= flight.keep_s or flight.cut_short
    of = "" if whole else f" of {_span(flight.keep_s)}"
    kept = f"{_span(min(flight.kept_s, flight.keep_s))}{of} in memory"
    short = (TextRun(", no room for more", "warn"),) if flight.cut_short else ()
    return (TextRun("armed ", "accent"), TextRun(kept), *short)


class Tab(NamedTuple):
    """Key, name and title of a screen in the tab line."""

    key: str
    name: str
    title: str


class TabLine(LinePanel):
    """Screens on the left, windows on the right: all, or only the current one."""

    def __init__(self, tabs: Sequence[Tab], here: str, *, windows: bool = True) -> None:
        super().__init__()
        self._windows = windows
        """False if the screen shows whole sessions."""
        self._tabs = tabs
        self._here = here
        self._window = Window.MINUTE
        self._hidden: Collection[str] = ("fleet",)

    def show(self, window: Window, hidden: Collection[str]) -> None:
        self._window, self._hidden = window, hidden
        self.redraw()

    def line(self, width: int) -> Line:
        if not self._windows:
            return spread(self._titled(width), (), width)
        key = TextRun(" w ", "accent", "screen.window")
        chips = [run for window in Window for run in self._chip(window)]
        every = (key, TextRun("window ", "muted", "screen.window"), *chips)
        only = (key, TextRun(f" {self._window.label} ", "chip", "screen.window"))
        tabs = self._titled(width - width_of(only))
        fits = width_of(tabs) + width_of(every) <= width
        return spread(tabs, every if fits else only, width)

    def _titled(self, room: int) -> Line:
        """Return the line of tabs; if it is too long, the last lose their titles."""
        line: Line = ()
        shown = [each for each in self._tabs if each.name not in self._hidden]
        for titled in range(len(shown), -1, -1):
            line = tuple(
                run
                for at, tab in enumerate(shown)
                for run in self._tab(*tab, titled=at < titled)
            )
            if width_of(line) < room:
                break
        return line

    def _tab(self, key: str, name: str, title: str, *, titled: bool) -> Line:
        action = f"app.look_at('{name}')"
        if name == self._here:
            return (TextRun(f" {key} {title} ", "chip", action),)
        label = f"{title} " if titled else ""
        return (
            TextRun(f" {key} ", "accent", action),
            TextRun(label, "muted", action),
        )

    def _chip(self, window: Window) -> Line:
        action = f"screen.choose_window('{window.name}')"
        ink = "chip" if window is self._window else "muted"
        return (TextRun(f" {window.label} ", ink, action),)
