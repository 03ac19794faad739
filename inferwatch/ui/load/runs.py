"""A table of the session's load runs."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from inferwatch.formatting import (
    TimeUnit,
    about,
    counted,
    format_in,
    format_rate,
    format_share,
    shared_unit,
)
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.metrics.load.client_run import ClientView
from inferwatch.metrics.series.window import Quantiles
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, cells, fit, ruled
from inferwatch.ui.load.status import VERDICTS

OWN = ("run_id", "seed", "rate_per_s", "concurrency", "headers", "url", "uds", "slo")
"""Fields in which runs of one search or sweep differ."""
HEADS = ("sent/s", "done/s", "tok/s", "TTFT p50", "p99", "good")
WIDTHS = (7, 7, 7, 12, 8, 5)
NAME = 14
LEAST_BAR = 6


class LoadRuns(Panel):
    """All load runs; those of a search or sweep are sorted by load.

    The bars show p99 TTFT, so a search shows where queueing begins.
    """

    DEFAULT_CSS = """
    LoadRuns { height: 0; }
    """

    _views: Sequence[ClientView] = ()
    _selected: int | None = None

    def show(self, views: Sequence[ClientView], shown: int | None) -> None:
        self._views, self._selected = views, shown
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        if height < 3:
            return ()
        ordered = in_order(self._views)
        at = next((i for i, v in enumerate(ordered) if v.number == self._selected), 0)
        room = height - 2
        first = max(min(at - room // 2, len(ordered) - room), 0)
        visible = ordered[first : first + room]
        scale = _scale(ordered)
        return [
            _head(ordered, visible, width),
            _columns(scale.unit, width),
            *(
                _row(view, scale, width, here=view.number == self._selected)
                for view in visible
            ),
        ]


class LatencyScale(NamedTuple):
    """The unit of latencies and the longest bar."""

    unit: TimeUnit
    worst: float


def _scale(views: Sequence[ClientView]) -> LatencyScale:
    p99s = [view.p99 for view in map(_ttft, views)]
    latencies = [*p99s, *(view.p50 for view in map(_ttft, views))]
    return LatencyScale(
        shared_unit(latencies), max((each or 0.0 for each in p99s), default=0.0)
    )


def in_order(views: Sequence[ClientView]) -> Sequence[ClientView]:
    """Sort by load if runs differ only in rate, else by start."""
    if len(views) < 2 or len({_alike(view) for view in views}) > 1:
        return views
    return sorted(views, key=lambda view: (_load(view) or 0.0, view.number))


def _alike(view: ClientView) -> bytes | str:
    """Return what a run's plan has in common with others of its search."""
    return _likeness(view.run.plan or "") if view.run else ""


@lru_cache(maxsize=256)
def _likeness(plan: str) -> bytes | str:
    """Return a plan without the fields in which runs of a search differ."""
    try:
        plain = msgspec.to_builtins(msgspec.json.decode(plan, type=LoadPlan))
    except msgspec.MsgspecError:
        return plan
    return msgspec.json.encode({k: v for k, v in plain.items() if k not in OWN})


def _load(view: ClientView) -> float | None:
    return view.users if view.users is not None else view.asked_mean_per_s


def _load_text(view: ClientView) -> str:
    if view.users is not None:
        return counted(view.users, "user")
    return f"{format_rate(view.asked_mean_per_s).strip()}/s"


def _ttft(view: ClientView) -> Quantiles:
    rows = [row.quantiles for row in view.latencies if row.metric == "ttft_s"]
    return rows[0] if rows else Quantiles()


def _head(
    ordered: Sequence[ClientView], visible: Sequence[ClientView], width: int
) -> Line:
    alike = len({_alike(view) for view in ordered}) == 1
    what = " of the same load, by rate" if alike else " of this session"
    count = f"{len(visible)} of {len(ordered)}" if len(visible) < len(ordered) else ""
    right = (TextRun(count, "muted"),) if count else ()
    return ruled((TextRun("runs", "strong"), TextRun(what, "muted")), right, width)


def _columns(unit: TimeUnit, width: int) -> Line:
    names = [f"{head} {unit.name}" if "TTFT" in head else head for head in HEADS]
    heads = [
        cells(head, cell, "muted", right=True)
        for head, cell in zip(names, WIDTHS, strict=True)
    ]
    return fit((cells(" run asked", NAME, "muted"), *heads), width)


def _latency(ttft: Quantiles, name: str, unit: TimeUnit) -> str:
    text = format_in(unit, getattr(ttft, name))
    return about(f" {text}") if name in ttft.weak else text


def _row(view: ClientView, scale: LatencyScale, width: int, *, here: bool) -> Line:
    run, ttft = view.run, _ttft(view)
    if run is None:
        return ()
    glyph, ink = VERDICTS[view.verdict]
    good = view.good / view.judged if view.judged else None
    values = (
        format_rate(view.achieved_per_s),
        format_rate(run.done_per_s),
        format_rate(run.tokens_per_s),
        _latency(ttft, "p50", scale.unit),
        _latency(ttft, "p99", scale.unit),
        format_share(good),
    )
    pick = f"screen.pick({view.number})"
    name = f"{'▶' if here else ' '}{view.number:>3} {_load_text(view)}"
    numbers = [
        cells(value.strip(), cell, "strong" if here else "", right=True)
        for value, cell in zip(values, WIDTHS, strict=True)
    ]
    room = width - NAME - sum(WIDTHS) - 4
    bar = ""
    if room >= LEAST_BAR and scale.worst and ttft.p99:
        bar = "▇" * max(round(ttft.p99 / scale.worst * room), 1)
    return fit(
        (
            cells(name, NAME, "accent" if here else "muted")._replace(action=pick),
            *(each._replace(action=pick) for each in numbers),
            TextRun(f" {glyph} ", ink),
            TextRun(bar, "worst"),
        ),
        width,
    )
