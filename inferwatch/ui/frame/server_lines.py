"""News of an attached server, advice, and what to show before it answers."""

from collections.abc import Mapping, Sequence
from textwrap import wrap

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import counted
from inferwatch.metrics.servers.server_state import ServerState, Via
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.kit.panel import LinePanel, Panel
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    age_text,
    cells,
    fit,
    join,
    spread,
    width_of,
)
from inferwatch.visible import visible

NEWS_NS = 10 * 60 * NS_PER_S
"""How long a restart is news."""
RESTARTED = "its counters began anew"


class ServerNews(LinePanel):
    """A restart, slow or failing answers; hidden while all is well."""

    DEFAULT_CSS = """
    ServerNews { display: none; height: 1; background: $warning 10%; }
    """

    _news: Sequence[Line] = ()

    def show(self, snapshot: Snapshot, restarted_at: str) -> None:
        """Show news of the server; ``restarted_at`` is a wall time."""
        server = snapshot.server
        answers = server is not None and server.answers is not False
        self._news = _news(snapshot, server, restarted_at) if server and answers else ()
        self.display = bool(self._news)
        self.redraw()

    def line(self, width: int) -> Line:
        return fit((TextRun(" "), *join(self._news, " · ")), width)


def _news(snapshot: Snapshot, server: ServerState, at: str) -> Sequence[Line]:
    news: list[Line] = []
    if server.why:
        news.append((TextRun("▲ ", "warn"), TextRun(server.why)))
        if server.last_ns is not None:
            age = age_text(max(snapshot.now_ns - server.last_ns, 0) / NS_PER_S)
            news.append((TextRun(f"its last reading is {age} old", "warn"),))
    since_ns = _since_restart(snapshot, server)
    if since_ns is not None:
        ago = age_text(since_ns / NS_PER_S)
        news.append(
            (
                TextRun("↻ restarted ", "warn bold"),
                TextRun(f"at {at}, {ago} ago: {RESTARTED}"),
            )
        )
    return news


def _since_restart(snapshot: Snapshot, server: ServerState) -> int | None:
    if server.restarted_ns is None:
        return None
    since_ns = snapshot.now_ns - server.restarted_ns
    news_ns = max(snapshot.window.value or 0, NEWS_NS)
    return since_ns if 0 <= since_ns < news_ns else None


class AdviceLine(Panel):
    """The first setting that would reveal more, and the key to the others."""

    DEFAULT_CSS = """
    AdviceLine { display: none; }
    """
    ROWS = 2

    _advice: Sequence[str] = ()

    def show(self, advice: Sequence[str], *, short: bool = False) -> None:
        """Show advice on how to see more; ``short`` limits it to one row."""
        self._advice = advice
        self.display = bool(advice)
        folded = self._folded(self.screen.size.width) if advice else ()
        self.styles.height = 1 if short else min(max(len(folded), 1), self.ROWS)
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Draw the first piece of advice, with keys to its right."""
        if not self._advice:
            return ()
        first, *rest = self._folded(width)
        if height == 1 and rest:
            first = self._advice[0]
        rows = [first, *rest][:height]
        begin = (TextRun(" → ", "accent"), TextRun(rows[0], "muted"))
        return [
            spread(begin, self._keys, width),
            *(fit((TextRun(f"   {row}", "muted"),), width) for row in rows[1:]),
        ]

    @property
    def _keys(self) -> Line:
        more = len(self._advice) - 1
        return (
            TextRun("? ", "accent", "screen.help"),
            TextRun(f"{more} more  " if more else "explains  ", "muted", "screen.help"),
            TextRun("y ", "accent", "screen.copy_advice"),
            TextRun("copies ", "muted", "screen.copy_advice"),
        )

    def _folded(self, width: int) -> list[str]:
        """Return the first piece of advice, wrapped beside the keys."""
        room = max(width - width_of(self._keys) - 5, 20)
        return wrap(visible(self._advice[0]), room, break_on_hyphens=False) or [""]


HOW = "how this is known"
TELLS_MORE = "what would tell more: y copies it"
SAID_BY: dict[Via, str] = {
    Via.SCRAPE: (
        "scrape: the server's own counters, asked for again and again. Counts and "
        "means are exact over the window. What was between two readings is not seen."
    ),
    Via.PROMETHEUS: (
        "prometheus: a Prometheus server that scrapes this one told it; nothing is "
        "finer than its interval."
    ),
    Via.TRACES: (
        "traces: the server told of each request that ended, whoever sent it. What "
        "traces do not have is from its counters: each row says who saw it."
    ),
    Via.CLIENT: "client: the server tells nothing; requests of our own are measured.",
}
BRACKETED = (
    (
        "A percentile of a counter is known by the bucket it fell into: 1–2.5 s is "
        "above 1 s and at most 2.5 s. More digits than that would be made up."
    ),
    (
        "Grafana p99 is what a panel with histogram_quantile draws within that bucket. "
        "It is not a measurement, and stands here because others look at it."
    ),
    "met 91–95%: no fewer and no more of the n can have met the objective.",
    "ø is an exact mean. ≈ is near to what single steps would tell.",
)
COARSE = (
    "Some brackets are wider than a factor of two: narrower buckets of the server "
    "would tell more."
)


def explained(snapshot: Snapshot) -> Mapping[str, Sequence[str]]:
    """Return texts on the server for the help: vantage, brackets and advice."""
    if not snapshot.servers:
        return {}
    how = [SAID_BY[via] for via in (snapshot.via,) if via in SAID_BY]
    brackets = [
        each.brackets for each in snapshot.latencies if each.brackets is not None
    ]
    how += BRACKETED if brackets else ()
    ends = [end for each in brackets for end in (each.p50, each.p95, each.p99)]
    how += [COARSE] if any(end is not None and end.coarse for end in ends) else []
    return {
        title: tuple(texts)
        for title, texts in ((TELLS_MORE, snapshot.advice), (HOW, how))
        if texts
    }


NEXT_STEPS = (
    "Is it still loading its model? Then it answers as soon as it is up.",
    "Is the address right, and reachable from here? curl says the same as we.",
    "Does it want a key? Give one with --header, or by a settings file.",
)
AGAIN = "They are asked again and again; whatever they tell is shown at once."
MUTE = "It answers, and tells nothing of its work."
SENDS = "7 sends a load from here: what its clients see is then shown there."


class NoMetricsPanel(Panel):
    """Servers without metrics, or none yet: why, and what to do about it."""

    DEFAULT_CSS = """
    NoMetricsPanel { display: none; height: 1fr; }
    """

    _snapshot: Snapshot | None = None

    def show(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Draw the servers that give no numbers, and why, then what to try."""
        if self._snapshot is None:
            return ()
        servers, silent = self._snapshot.shown_servers, never_answered(self._snapshot)
        advice = NEXT_STEPS if silent else (*self._snapshot.advice, SENDS)
        sentences = _sentences(advice, width)
        room = max(height - len(sentences) - 5, 1)
        rows = [_server_line(each, width) for each in servers[:room]]
        left = len(servers) - len(rows)
        if left:
            rows.append((TextRun(f"   and {counted(left, 'other')}", "muted"),))
        if silent:
            head: Line = (
                TextRun(" No answer yet. ", "strong"),
                TextRun(AGAIN, "muted"),
            )
        else:
            head = (TextRun(f" {MUTE}", "strong"),)
        return [(), fit(head, width), (), *rows, (), *sentences][:height]


def _server_line(server: ServerState, width: int) -> Line:
    glyph, ink, said = {
        None: ("◌", "accent", "asking"),
        False: ("✖", "bad", "no answer"),
        True: ("●", "good", "answers"),
    }[server.answers]
    name = cells(server.source, min(max(width // 3, 10), 40), "strong")
    why = TextRun(server.why or said)
    return fit((TextRun(f" {glyph} ", ink), name, TextRun(" "), why), width)


def _sentences(texts: Sequence[str], width: int) -> list[Line]:
    """Wrap texts, each behind a bullet."""
    lines: list[Line] = []
    for text in texts:
        folded = wrap(visible(text), max(width - 6, 20), break_on_hyphens=False)
        lines += [
            (TextRun(" · " if at == 0 else "   ", "accent"), TextRun(each, "muted"))
            for at, each in enumerate(folded)
        ]
    return lines


def never_answered(snapshot: Snapshot) -> bool:
    """Return True if there are servers and none has answered yet."""
    servers = snapshot.shown_servers
    return bool(servers) and all(
        each.answers is not True and each.last_ns is None for each in servers
    )


def tells_nothing(snapshot: Snapshot) -> bool:
    """Return True if the server answers but has no readable metrics."""
    server = snapshot.server
    if server is None or not server.answers or server.info is None:
        return False
    has_values = (
        snapshot.latencies
        or snapshot.requests_seen
        or snapshot.flow.running is not None
    )
    return snapshot.without_steps and server.last_ns is None and not has_values
