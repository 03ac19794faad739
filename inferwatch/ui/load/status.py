"""A load run in a few rows: progress, counts, client health, failures."""

from collections.abc import Sequence
from textwrap import wrap

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import (
    format_count,
    format_durations,
    format_rate,
    format_share,
)
from inferwatch.metrics.load.book import error_text
from inferwatch.metrics.load.client_run import ClientView
from inferwatch.metrics.load.client_verdict import client_words
from inferwatch.metrics.load.view import FailureCount, LoadRun, RunState
from inferwatch.metrics.number import label_of
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    age_text,
    cells,
    fact,
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
    "CLIENT-BOUND": ("▲", "warn"),
    "UNKNOWN": ("○", "muted"),
}
"""Shape, word and colour say the same."""
NONE_YET = "What a load generator measures is shown here."
FILLED, EMPTY = "█", "░"
HEADED = 3
"""Rows always shown above the verdict: heading, counts, rates."""
TOLD_S = 30.0
"""Seconds for which a change is shown."""


class LoadStatus(Panel):
    """Progress of a run, outcome of its requests and health of the client.

    Unknown values are dashes in their usual place.
    """

    DEFAULT_CSS = """
    LoadStatus { height: 7; }
    """

    _view: ClientView | None = None
    _of = 1
    _now_ns = 0
    _wish = ""

    def show(self, view: ClientView | None, of: int, now_ns: int, wish: str) -> None:
        """Show one of ``of`` runs; ``wish`` is a change requested just now."""
        self._view, self._of = view, of
        self._now_ns, self._wish = now_ns, wish
        if view is not None and self.size.width:
            verdict = _verdict(view, self.size.width - 1)
            self.styles.min_height = HEADED + len(verdict)
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Draw the run; reasons not to trust its client are never cut."""
        view = self._view
        if view is None or view.run is None:
            return _nothing(width, self._wish)
        run = view.run
        change = _change(run, self._now_ns, self._wish)
        rows = [_counts(run, width), _rates(view, change, width)]
        verdict = _verdict(view, width - 1)
        if len(rows) + len(verdict) < height - 1:
            rows = [_progress(run, width), *rows]
        rows += verdict
        return [
            _head(view, self._of, width),
            *(fit((TextRun(" "), *row), width) for row in rows),
        ]


def _nothing(width: int, wish: str) -> Sequence[Line]:
    head = ruled(
        (TextRun("load", "strong"),), (TextRun("○ none so far", "muted"),), width
    )
    text = TextRun(wish) if wish else TextRun(NONE_YET, "muted")
    return (head, (), fit((TextRun(" "), text), width))


def _head(view: ClientView, of: int, width: int) -> Line:
    run = view.run
    if run is None:
        return ()
    glyph, ink = STATES[run.state]
    state = (TextRun(f"{glyph} {run.state.value.upper()}", f"{ink} bold"),)
    name: Line = (TextRun("load ", "strong"), TextRun(run.run_id, "muted"))
    if view.elsewhere:
        label = label_of(ClientView.elsewhere)
        name = (*name, TextRun(f"  {label}", "accent"))
    if of > 1:
        name = (
            *name,
            TextRun(f"  run {view.number} of {of} "),
            TextRun("{", "accent", "screen.run(-1)"),
            TextRun(" "),
            TextRun("}", "accent", "screen.run(1)"),
        )
    return ruled(name, state, width)


def _progress(run: LoadRun, width: int) -> Line:
    """Draw how far the run is, as a bar if it has an end."""
    progress = _how_far(run)
    if run.share is None:
        return progress
    room = max(min(width - width_of(progress) - 9, 60), 4)
    full = round(run.share * room)
    return (
        TextRun(FILLED * full, "output"),
        TextRun(EMPTY * (room - full), "rule"),
        TextRun(f" {format_share(run.share)}  ", "strong"),
        *progress,
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
    """Draw requests sent and their outcomes, which add up.

    Outcomes that are zero are left out if there is no room.
    """
    if run.state is RunState.WARMING_UP:
        return (
            TextRun("warm-up ", "muted"),
            TextRun(f"{run.warmup:,} answered, {_count(run.in_flight)} in flight"),
        )
    bad = "bad" if run.failed else "muted"
    sent = fact(label_of(LoadRun.sent), _count(run.sent))
    parts = [
        (True, fact(label_of(LoadRun.succeeded), _count(run.succeeded), "good")),
        (run.failed, fact(label_of(LoadRun.failed), _count(run.failed), bad)),
        (run.aborted, fact(label_of(LoadRun.aborted), _count(run.aborted))),
        (
            run.in_flight != 0 or run.state.going_on,
            fact(label_of(LoadRun.in_flight), _count(run.in_flight)),
        ),
    ]
    if run.unaccounted:
        lost = fact(label_of(LoadRun.unaccounted), _count(run.unaccounted), "warn")
        parts.append((run.unaccounted, lost))
    beside = []
    if run.held_back:
        beside = [fact(label_of(LoadRun.held_back), _count(run.held_back), "warn")]
    if run.warmup:
        beside.append(fact(label_of(LoadRun.warmup), _count(run.warmup)))
    whole = join([each for _, each in parts], " + ")
    some = join([each for many, each in parts if many], " + ")
    equals = TextRun(" = ", "faint")
    for line in (
        join([(*sent, equals, *whole), *beside]),
        join([(*sent, equals, *some), *beside]),
        join([(*sent, equals, *some), *beside[: int(bool(run.held_back))]]),
    ):
        if width_of(line) + 1 <= width:
            return line
    return (*sent, equals, *some)


def _count(value: int | None) -> str:
    return format_count(value).strip()


def _per_s(label: str, rate: float | None, ink: str = "muted") -> Line:
    return fact(label, f"{format_rate(rate).strip()}/s", ink)


def _rates(view: ClientView, change: Line, width: int) -> Line:
    """Draw the requested, sent and completed rates, and a recent change of the load."""
    run = view.run
    if run is None:
        return ()
    if view.users is not None:
        target = fact(label_of(LoadRun.users), f"{view.users:,}")
    elif run.rate_per_s is not None:
        target = _per_s(label_of(LoadRun.rate_per_s), run.rate_per_s, "waiting")
    else:
        target = _per_s(label_of(LoadRun.rate_per_s), view.asked_mean_per_s, "waiting")
    tokens = format_rate(run.tokens_per_s).strip()
    came = [
        _per_s(label_of(ClientView.achieved_per_s), view.achieved_per_s, "output"),
        _per_s(label_of(LoadRun.done_per_s), run.done_per_s, "good"),
        (TextRun(f"{tokens} "), TextRun(label_of(LoadRun.tokens_per_s), "muted")),
    ]
    line = join([change or target, *came])
    return line if width_of(line) < width else join([change[:1] or target, *came])


def _change(run: LoadRun, now_ns: int, wish: str) -> Line:
    """Return a requested change; later how long ago the generator followed it."""
    if wish:
        return (TextRun(wish, "accent"),)
    if run.before is None or run.changed_ns is None or run.state is RunState.ENDED:
        return ()
    since_s = max(now_ns - run.changed_ns, 0) / NS_PER_S
    if since_s > TOLD_S:
        return ()
    after = run.users if run.users is not None else run.rate_per_s
    return (
        TextRun(changed(run.before, after, users=run.users is not None)),
        TextRun(f"  {age_text(since_s)} ago", "muted"),
    )


def changed(before: float, after: float | None, *, users: bool) -> str:
    now = "–" if after is None else f"{after:g}"
    if after is not None and not users:
        now = f"{after:.3g}"
    unit = " users" if users else "/s"
    return f"asked {before:.3g} → {now}{unit}"


def _verdict(view: ClientView, width: int) -> Sequence[Line]:
    """Return whether to trust the client: all reasons not to, else its lags."""
    glyph, ink = VERDICTS.get(view.verdict, VERDICTS["UNKNOWN"])
    word = TextRun(f"{glyph} {client_words(view.verdict)}", f"{ink} bold")
    reasons = [*view.reasons, *([view.cause] if view.cause else [])]
    if why := "; ".join(reasons) or _held_back(view):
        return _wrapped_verdict(word, why, width)
    transport = view.run.transport if view.run else None
    send, receive = format_durations((view.send_lag_p99_s, view.recv_lag_p99_s))
    facts = [
        fact(label, text.strip())
        for label, text in (
            (label_of(ClientView.send_lag_p99_s), send),
            (label_of(ClientView.recv_lag_p99_s), receive),
            (label_of(ClientView.cpu_share), format_share(view.cpu_share)),
            (label_of(ClientView.merged_share), format_share(view.merged_share)),
        )
    ]
    facts.append((TextRun(transport or "–", "muted"),))
    line: Line = (word,)
    for many in range(len(facts), 0, -1):
        longer = join(((word,), *facts[:many]))
        if width_of(longer) <= width:
            line = longer
            break
    return line, _slo(view)


def _held_back(view: ClientView) -> str:
    """Explain why the client's health is unknown if every request waits for another."""
    run = view.run
    if run is None or view.verdict != "UNKNOWN" or run.state is not RunState.SENDING:
        return ""
    most, here = run.most_in_flight, run.in_flight
    if most is None or here is None or here < most:
        return ""
    return (
        f"{most:,} requests are in flight, as many as the plan allows, so the next "
        "ones are held back. Latencies include that wait."
    )


def _slo(view: ClientView) -> Line:
    if view.slo is None:
        return ()
    share = view.good / view.judged if view.judged else None
    return (
        TextRun("SLO ", "muted"),
        TextRun(f"{view.slo} "),
        TextRun(format_share(share).strip(), "strong"),
        TextRun(f" of {_count(view.judged)} good", "muted"),
    )


def _wrapped_verdict(word: TextRun, why: str, width: int) -> list[Line]:
    first, *rest = wrap(f"{word.text}: {why}", max(width, 20))
    rows = [(TextRun(line),) for line in rest]
    return [(word, TextRun(first.removeprefix(word.text))), *rows]


KIND_WIDTH = 20


class LoadFailures(Panel):
    """Failures by kind, how often, and the first message of each.

    The screen sets its height; kinds that do not fit are counted.
    """

    DEFAULT_CSS = """
    LoadFailures { height: 4; }
    """

    _failures: Sequence[FailureCount] = ()

    def show(self, failures: Sequence[FailureCount]) -> None:
        """Show failures, the most frequent first."""
        self._failures = failures
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        total = sum(each.count for each in self._failures)
        room = max(height - 1, 0)
        hidden = len(self._failures) - room
        more = f", {hidden} more kinds" if hidden > 0 else ""
        ink = "bad" if total else "muted"
        summary = f"{format_count(total).strip()}{more}" if total else "none"
        head = ruled(
            (
                TextRun("failures", "strong"),
                TextRun(" by kind, what the first said", "muted"),
            ),
            (TextRun(summary, ink),),
            width,
        )
        return [head, *(_row(each, width) for each in self._failures[:room])]


def _row(failure: FailureCount, width: int) -> Line:
    message = error_text(failure.first) or "(nothing)"
    return (
        cells(format_count(failure.count).strip(), 8, "bad", right=True),
        TextRun(" × ", "muted"),
        cells(failure.kind, KIND_WIDTH, "strong"),
        cells(message, max(width - 11 - KIND_WIDTH, 0)),
    )
