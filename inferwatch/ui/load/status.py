"""A load run in a few rows: how far, how much, how good the client is, what failed."""

from collections.abc import Sequence

from collectors.clock import NS_PER_S
from inferwatch.formatting import (
    format_count,
    format_duration,
    format_rate,
    format_share,
)
from inferwatch.metrics.catalog import label_of
from inferwatch.metrics.load.error_text import error_text
from inferwatch.metrics.snapshot import (
    ClientView,
    FailureCount,
    LoadRun,
    RunState,
    Snapshot,
)
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.text import (
    Line,
    TextRun,
    age_text,
    cells,
    fit,
    join,
    ruled,
    width_of,
)

STATES = {
    RunState.STARTING: ("◌", "accent"),
    RunState.WARMING_UP: ("◔", "accent"),
    RunState.SENDING: ("●", "good"),
    RunState.DRAINING: ("◑", "accent"),
    RunState.SILENT: ("▲", "warn"),
    RunState.ENDED: ("○", "muted"),
}
VERDICTS = {
    "OK": ("●", "good"),
    "CLIENT-BOUND": ("▲", "bad"),
    "UNKNOWN": ("○", "muted"),
}
"""Shape, word and colour say the same."""
FILLED, EMPTY = "█", "░"


class LoadStatus(Panel):
    """How far a run is, at what rate and by how good a client, in seven rows.

    What is unknown is a dash in the same place.
    """

    DEFAULT_CSS = """
    LoadStatus { height: 7; }
    """

    _snapshot: Snapshot | None = None
    _wish = ""

    def show(self, snapshot: Snapshot, wish: str) -> None:
        """Take what is known, and what was asked a moment ago."""
        self._snapshot, self._wish = snapshot, wish
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The rows."""
        del height
        if self._snapshot is None:
            return ()
        client = self._snapshot.client
        if client is None or client.run is None:
            return _nothing(width, self._wish)
        now_ns, label = self._snapshot.now_ns, self._snapshot.window.label
        rows = (
            _progress(client.run, width),
            _counts(client.run, width),
            _rates(client, label),
            _change(client.run, now_ns, self._wish),
            _verdict(client, width),
            _reasons_or_slo(client, label),
        )
        return [
            _head(client.run, width),
            *(fit((TextRun(" "), *r), width) for r in rows),
        ]


def _nothing(width: int, wish: str) -> Sequence[Line]:
    head = ruled(
        (TextRun("load", "strong"),), (TextRun("○ none so far", "muted"),), width
    )
    return (head, (), fit((TextRun(f" {wish}" if wish else ""),), width))


def _head(run: LoadRun, width: int) -> Line:
    glyph, ink = STATES[run.state]
    state = (TextRun(f"{glyph} {run.state.value.upper()}", f"{ink} bold"),)
    return ruled(
        (TextRun("load ", "strong"), TextRun(run.run_id, "muted")), state, width
    )


def _progress(run: LoadRun, width: int) -> Line:
    """A progress bar where the run has an end."""
    told = _how_far(run)
    if run.share is None:
        return told
    room = max(min(width - width_of(told) - 9, 60), 4)
    full = round(run.share * room)
    return (
        TextRun(FILLED * full, "output"),
        TextRun(EMPTY * (room - full), "rule"),
        TextRun(f" {format_share(run.share)}  ", "strong"),
        *told,
    )


def _how_far(run: LoadRun) -> Line:
    elapsed = "–" if run.elapsed_s is None else age_text(round(run.elapsed_s))
    parts: list[Line] = []
    if run.duration_s is not None:
        parts.append((TextRun(f"{elapsed} of {age_text(run.duration_s)}"),))
    else:
        parts.append((TextRun(f"{elapsed} of sending"),))
    if run.requests is not None:
        what = "conversations" if run.in_turns else "requests"
        many = f"{run.begun:,} of {run.requests:,} {what}"
        parts.append((TextRun(many),))
    if run.share is None and run.state.going_on:
        parts.append((TextRun("until stopped", "muted"),))
    return join(parts)


def _counts(run: LoadRun, width: int) -> Line:
    """As many counts as fit, the most telling first."""
    facts = [
        _fact(label_of("run.sent"), _count(run.sent)),
        _fact(label_of("run.in_flight"), _count(run.in_flight, 4)),
        _fact(label_of("run.succeeded"), _count(run.succeeded), "good"),
        _fact(
            label_of("run.failed"),
            _count(run.failed, 5),
            "bad" if run.failed else "muted",
        ),
        _fact(label_of("run.aborted"), _count(run.aborted, 4)),
        _fact(label_of("run.warmup"), _count(run.warmup, 4)),
    ]
    for many in range(len(facts), 0, -1):
        line = join(facts[:many], "  ")
        if width_of(line) + 1 <= width:
            return line
    return facts[0]


def _count(value: int | None, width: int = 7) -> str:
    return format_count(value).strip().rjust(width)


def _fact(label: str, value: str, ink: str = "muted") -> Line:
    return (TextRun(f"{label} ", ink), TextRun(value))


def _rates(client: ClientView, window: str) -> Line:
    run = client.run
    users = run.users if run is not None else None
    if users is not None:
        asked = _fact(label_of("run.users"), f"{users:>5}")
    else:
        rate = run.rate_per_s if run is not None else None
        asked = _fact(label_of("run.rate_per_s"), f"{format_rate(rate)}/s", "waiting")
    achieved = f"{format_rate(client.achieved_per_s)}/s"
    sent = _fact(label_of("client.achieved_per_s"), achieved, "output")
    mean: Line = ()
    if users is None and client.asked_mean_per_s is not None:
        mean = (
            TextRun(
                f" of {format_rate(client.asked_mean_per_s).strip()}/s asked", "muted"
            ),
        )
    return (*join((asked, sent), "   "), TextRun(f" over {window}", "muted"), *mean)


def _change(run: LoadRun, now_ns: int, wish: str) -> Line:
    """A change is shown at once; once the generator follows it, since when."""
    if wish:
        return (TextRun(wish, "accent"),)
    if run.before is None or run.changed_ns is None or run.state is RunState.ENDED:
        return ()
    ago = age_text(max(now_ns - run.changed_ns, 0) / NS_PER_S)
    after = run.users if run.users is not None else run.rate_per_s
    return (
        TextRun(changed(run.before, after, users=run.users is not None)),
        TextRun(f"  {ago} ago", "muted"),
    )


def changed(before: float, after: float | None, *, users: bool) -> str:
    """A change of the rate or the users, in words."""
    now = "–" if after is None else f"{after:g}"
    if after is not None and not users:
        now = f"{after:.3g}"
    unit = " users" if users else "/s"
    return f"asked {before:.3g} → {now}{unit}"


def _verdict(client: ClientView, width: int) -> Line:
    glyph, ink = VERDICTS.get(client.verdict, VERDICTS["UNKNOWN"])
    word = (TextRun(f"{glyph} client {client.verdict}", f"{ink} bold"),)
    transport = client.run.transport if client.run else None
    facts = [
        _fact(
            label_of("client.send_lag_p99_s"), format_duration(client.send_lag_p99_s)
        ),
        _fact(
            label_of("client.recv_lag_p99_s"), format_duration(client.recv_lag_p99_s)
        ),
        _fact(label_of("client.cpu_share"), format_share(client.cpu_share)),
        _fact(label_of("client.merged_share"), format_share(client.merged_share)),
        (TextRun(transport or "–", "muted"),),
    ]
    for many in range(len(facts), 0, -1):
        line = join((word, *facts[:many]), "  ")
        if width_of(line) + 1 <= width:
            return line
    return word


def _reasons_or_slo(client: ClientView, window: str) -> Line:
    """Why the client is the bottleneck, which makes all else void; else the SLO."""
    if client.reasons:
        return (TextRun("because ", "bad"), TextRun(client.reasons[0]))
    if client.slo is None:
        return ()
    share = client.good / client.judged if client.judged else None
    return (
        TextRun("SLO ", "muted"),
        TextRun(f"{client.slo} "),
        TextRun(format_share(share), "strong"),
        TextRun(
            f" of {format_count(client.judged).strip()} good over {window}", "muted"
        ),
    )


KIND_WIDTH = 20


class LoadFailures(Panel):
    """What failed, how often, and what the first of each kind said.

    Its height is the screen's; kinds that do not fit are counted.
    """

    DEFAULT_CSS = """
    LoadFailures { height: 4; }
    """

    _failures: Sequence[FailureCount] = ()

    def show(self, failures: Sequence[FailureCount]) -> None:
        """Most frequent first."""
        self._failures = failures
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """A heading and a row a kind."""
        total = sum(each.count for each in self._failures)
        room = max(height - 1, 0)
        hidden = len(self._failures) - room
        more = f", {hidden} more kinds" if hidden > 0 else ""
        ink = "bad" if total else "muted"
        told = f"{format_count(total).strip()}{more}" if total else "none"
        head = ruled(
            (
                TextRun("failures", "strong"),
                TextRun(" by kind, what the first said", "muted"),
            ),
            (TextRun(told, ink),),
            width,
        )
        return [head, *(_row(each, width) for each in self._failures[:room])]


def _row(failure: FailureCount, width: int) -> Line:
    said = error_text(failure.first) or "(nothing)"
    return (
        cells(format_count(failure.count).strip(), 8, "bad", right=True),
        TextRun(" × ", "muted"),
        cells(failure.kind, KIND_WIDTH, "strong"),
        cells(said, max(width - 11 - KIND_WIDTH, 0)),
    )
