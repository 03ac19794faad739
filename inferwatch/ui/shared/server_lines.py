"""What is to be said of a server that others run: news of it, advice, no answer yet."""

from collections.abc import Mapping, Sequence
from textwrap import wrap

from collectors.clock import NS_PER_S
from inferwatch.formatting import counted
from inferwatch.metrics.snapshot import ServerState, Snapshot, Via
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.text import (
    Line,
    TextRun,
    age_text,
    cells,
    fit,
    join,
    spread,
)

STALE_NS = 3 * NS_PER_S
"""A reading older than this is told of, while its server is said to answer."""
NEWS_NS = 10 * 60 * NS_PER_S
"""For so long a restart is news."""
RESTARTED = "its counters began anew"


class ServerNews(Panel):
    """It was restarted, it answers slowly or badly; no row while all is well."""

    DEFAULT_CSS = """
    ServerNews { display: none; height: 1; background: $warning 10%; }
    """

    _news: Sequence[Line] = ()

    def show(self, shown: Snapshot, restarted_at: str) -> None:
        """Take a moment, and when the server last began anew, as a clock has it."""
        server = shown.server
        known = server is not None and server.answers is not False
        self._news = _news(shown, server, restarted_at) if server and known else ()
        self.display = bool(self._news)
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The row."""
        del height
        return (fit((TextRun(" "), *join(self._news, " · ")), width),)


def _news(shown: Snapshot, server: ServerState, at: str) -> Sequence[Line]:
    news: list[Line] = []
    if server.why:
        news.append((TextRun("▲ ", "warn"), TextRun(server.why)))
    if server.last_ns is not None and shown.now_ns - server.last_ns > STALE_NS:
        age = age_text((shown.now_ns - server.last_ns) / NS_PER_S)
        news.append((TextRun(f"its last reading is {age} old", "warn"),))
    since_ns = _since_restart(shown, server)
    if since_ns is not None:
        ago = age_text(since_ns / NS_PER_S)
        news.append(
            (
                TextRun("↻ restarted ", "warn bold"),
                TextRun(f"at {at}, {ago} ago: {RESTARTED}"),
            )
        )
    return news


def _since_restart(shown: Snapshot, server: ServerState) -> int | None:
    if server.restarted_ns is None:
        return None
    since_ns = shown.now_ns - server.restarted_ns
    news_ns = max(shown.window.value or 0, NEWS_NS)
    return since_ns if 0 <= since_ns < news_ns else None


class AdviceLine(Panel):
    """What one flag or variable would add: the first such thing, and where more is."""

    DEFAULT_CSS = """
    AdviceLine { display: none; }
    """

    _advice: Sequence[str] = ()

    def show(self, advice: Sequence[str]) -> None:
        """Take the advice."""
        self._advice = advice
        self.display = bool(advice)
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The row."""
        del height
        if not self._advice:
            return ()
        more = len(self._advice) - 1
        keys = (
            TextRun("? ", "accent", "screen.help"),
            TextRun(f"{more} more  " if more else "explains  ", "muted", "screen.help"),
            TextRun("y ", "accent", "screen.copy_advice"),
            TextRun("copies ", "muted", "screen.copy_advice"),
        )
        first = (TextRun(" → ", "accent"), TextRun(self._advice[0], "muted"))
        return (spread(first, keys, width),)


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
        "It is no measurement, and stands here because others look at it."
    ),
    "met 91–95%: no fewer and no more of the n can have met the objective.",
    "ø is an exact mean. ≈ is near to what single steps would tell.",
)
COARSE = (
    "Some brackets are wider than a factor of two: narrower buckets of the server "
    "would tell more."
)


def explained(shown: Snapshot) -> Mapping[str, Sequence[str]]:
    """For the help: who measured, what brackets mean, what would tell more."""
    if not shown.servers:
        return {}
    how = [SAID_BY[via] for via in (shown.via,) if via in SAID_BY]
    brackets = [each.brackets for each in shown.latencies if each.brackets is not None]
    how += BRACKETED if brackets else ()
    ends = [end for each in brackets for end in (each.p50, each.p95, each.p99)]
    how += [COARSE] if any(end is not None and end.coarse for end in ends) else []
    return {
        title: tuple(texts)
        for title, texts in ((TELLS_MORE, shown.advice), (HOW, how))
        if texts
    }


NEXT_STEPS = (
    "Is it still loading its model? Then it answers as soon as it is up.",
    "Is the address right, and reachable from here? curl says the same as we.",
    "Does it want a key? Give one with --header, or by a settings file.",
)


class Unanswered(Panel):
    """Servers that have never answered: why, and what to do about it."""

    DEFAULT_CSS = """
    Unanswered { display: none; height: 1fr; }
    """

    _servers: Sequence[ServerState] = ()

    def show(self, servers: Sequence[ServerState]) -> None:
        """Take those that are asked."""
        self._servers = servers
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Each with its reason, as many as there is room for; then what to try."""
        told = _whole_sentences(NEXT_STEPS, width)
        room = max(height - len(told) - 5, 1)
        shown = self._servers[:room]
        rows = [_asked(each, width) for each in shown]
        left = len(self._servers) - len(shown)
        if left:
            rows.append((TextRun(f"   and {counted(left, 'other')}", "muted"),))
        head = (TextRun(" No answer yet. ", "strong"), TextRun(AGAIN, "muted"))
        lines = [(), fit(head, width), (), *rows, (), *told]
        return lines[:height]


AGAIN = "They are asked again and again; whatever they tell is shown at once."


def _asked(server: ServerState, width: int) -> Line:
    why = server.why or "asking"
    name = cells(server.source, min(max(width // 3, 10), 40), "strong")
    glyph, ink = (" ✖ ", "bad") if server.answers is False else (" ◌ ", "accent")
    return fit((TextRun(glyph, ink), name, TextRun(" "), TextRun(why)), width)


def _whole_sentences(texts: Sequence[str], width: int) -> list[Line]:
    lines: list[Line] = []
    for text in texts:
        folded = wrap(text, max(width - 6, 20))
        lines += [
            (TextRun(" · " if at == 0 else "   ", "accent"), TextRun(each, "muted"))
            for at, each in enumerate(folded)
        ]
    return lines


def never_answered(shown: Snapshot) -> bool:
    """There are servers, and none has told anything."""
    return bool(shown.servers) and all(
        each.answers is not True and each.last_ns is None for each in shown.servers
    )
