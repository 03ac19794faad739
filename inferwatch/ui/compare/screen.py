"""The comparison screen: which metrics changed, and could that be chance?"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from textwrap import wrap
from time import monotonic
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.worker import Worker, get_current_worker

from inferwatch.errors import InferwatchError, UsageError
from inferwatch.metrics.load.request_latencies import CLIENT_LATENCIES
from inferwatch.metrics.number import numbers
from inferwatch.metrics.requests.latencies import E2EL, ITL, QUEUE, TPOT, TTFT
from inferwatch.metrics.steps.counter import StepTotals
from inferwatch.metrics.steps.flow import Flow
from inferwatch.studies.compare.comparison import Comparison, SessionPair
from inferwatch.studies.compare.conclusion import conclusion
from inferwatch.studies.compare.quality import Quality, doubts
from inferwatch.studies.compare.reading.span import SpanChoice
from inferwatch.studies.compare.report import pairing_sentence
from inferwatch.studies.compare.runs.selection import ComparisonRequest, run_comparison
from inferwatch.studies.compare.runs.sides import PARTS, grouped
from inferwatch.studies.compare.side_names import short_names
from inferwatch.ui.compare.chart import CompareChart, cdf, over_time, throughput
from inferwatch.ui.compare.detail import CompareDetail
from inferwatch.ui.compare.table import (
    QUALITY_LOOKS,
    CompareQuality,
    CompareSetup,
    CompareTable,
    ReadingList,
    quality_text,
)
from inferwatch.ui.kit.keys import HERE, KeyFooter
from inferwatch.ui.kit.panel import Inked, Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, fit, spread
from inferwatch.ui.messages import GoBack
from inferwatch.ui.pages import ComparePage
from inferwatch.ui.widgets.help_drawer import HELP_BINDING, Key, toggle_help

PANES = ("metrics", "charts", "quality", "set-up")
TITLE_NAME = 16
CONCLUDES = "→"
"""Marks the conclusion: a row's ▼ before "Take" would contradict it."""
NARROWEST = 10
"""Least width of a text; narrower ones are cut."""


class CompareHead(Panel):
    """Title and verdict of a comparison; doubts are marked ``!``."""

    DEFAULT_CSS = """
    CompareHead { height: 3; }
    """

    _names: tuple[str, ...] = ()
    _busy = ""
    _since = ""
    _failed = ""
    _place = 0
    _pane = PANES[0]
    _comparison: Comparison | None = None

    def wait(self, names: tuple[str, ...], busy: str, since: str = "") -> None:
        """Show what is being computed, and for how long."""
        self._names, self._busy, self._failed = names, busy, ""
        self._since = since
        self.redraw()

    def fail(self, why: str) -> None:
        self._busy, self._failed = "", why
        self._take_room()
        self.redraw()

    def show(self, comparison: Comparison, place: int) -> None:
        self._comparison, self._place = comparison, place
        pair = comparison.pairs[place]
        self._names = tuple(short_names((pair.a, pair.b), TITLE_NAME))
        self._busy = self._failed = ""
        self._take_room()
        self.redraw()

    def mark(self, pane: str) -> None:
        self._pane = pane
        self.redraw()

    def on_resize(self) -> None:
        self._take_room()
        super().on_resize()

    def _take_room(self) -> None:
        """Give the head the rows its text needs, up to a quarter of the screen."""
        if self.size.width:
            needed = 1 + len(self._body(self.size.width - 2))
            most = max(self.screen.size.height // 4, 3)
            self.styles.height = max(min(needed, most), 2)

    def draw(self, width: int, height: int) -> Sequence[Line]:
        lines = list(self._body(width - 2))
        room = max(height - 1, 1)
        if len(lines) > room:
            more = len(lines) - room + 1
            note = f"   … {more} more lines: quality"
            action = "screen.look('quality')"
            lines = [*lines[: room - 1], (TextRun(note, "muted", action),)]
        return [self._title(width), *lines]

    def _title(self, width: int) -> Line:
        left = (
            TextRun(" Compare ", "chip"),
            TextRun(f" {' and '.join(self._names[1:])}", "strong"),
            TextRun(" against ", "muted"),
            TextRun(self._names[0] if self._names else "", "strong"),
        )
        return spread(left, tuple(self._right()), width)

    def _right(self) -> Iterator[TextRun]:
        if self._comparison is None:
            return
        if len(self._comparison.pairs) > 1:
            count = len(self._comparison.pairs)
            yield TextRun(" ← ", "accent", "screen.pair(-1)")
            yield TextRun(f"{self._place + 1} of {count}", "muted")
            yield TextRun(" → ", "accent", "screen.pair(1)")
        for pane in PANES:
            chosen = pane == self._pane
            yield TextRun(
                f" {pane} ", "chip" if chosen else "muted", f"screen.look('{pane}')"
            )

    def _body(self, width: int) -> Sequence[Line]:
        if self._failed:
            return [
                (TextRun(f" {line}", "bad"),)
                for line in wrap(self._failed, max(width, NARROWEST))
            ]
        if self._busy or self._comparison is None:
            doing = TextRun(f" ◌ {self._busy} ...  ", "accent")
            return [(doing, TextRun(self._since), TextRun("  esc stops", "faint"))]
        return list(_verdict(self._comparison.pairs[self._place], width))


def _verdict(pair: SessionPair, width: int) -> Iterator[Line]:
    """Yield lines on a pair: its verdict, how it was paired, and its quality checks."""
    glyph, ink = QUALITY_LOOKS[Quality.VOID] if pair.void else (CONCLUDES, "accent")
    yield from _marked(f" {glyph} ", ink, f"{conclusion(pair)}.", "", width)
    if pair.void:
        return
    mark = "∥" if pair.pairing is not None else "×" if pair.is_repeated else " "
    text = pair.about_runs if pair.is_repeated else pairing_sentence(pair)
    yield fit((TextRun(f" {mark} ", "accent"), TextRun(text, "muted")), width + 2)
    if pair.quality:
        worst = doubts(pair.quality)[:1]
        glyph, ink = QUALITY_LOOKS[worst[0].quality if worst else Quality.GOOD]
        yield fit(
            (
                TextRun(f" {glyph} ", ink),
                TextRun("quality: ", "muted", "screen.look('quality')"),
                TextRun(quality_text(pair), "warn" if glyph == "!" else "muted"),
            ),
            width + 2,
        )


def _marked(mark: str, ink: str, text: str, ink_of_text: str, width: int) -> list[Line]:
    """Wrap a text behind a mark; its later lines are indented."""
    return [
        fit(
            (TextRun("   " if line else mark, ink), TextRun(each, ink_of_text)),
            width + 2,
        )
        for line, each in enumerate(wrap(text, max(width - 2, NARROWEST)))
    ]


WIDE = 140
"""Width from which charts are beside the table."""
TALL = 34
"""Height from which there is room for when and for whom."""
METRICS, CHARTS, QUALITY, SETUP = PANES
TELL_EVERY_S = 0.5
WORTH_TELLING_S = 1.0
EXPLAINS = (
    *(TTFT, TPOT, ITL, E2EL, QUEUE),
    *numbers(Flow.output_tokens_per_s),
    *numbers(StepTotals.duration_s, StepTotals.batch_mean),
    *CLIENT_LATENCIES.values(),
)
KEYS: tuple[Key, ...] = (
    ("↑ ↓", "beside the charts: another metric; in lists, as the wheel: more lines"),
    ("click", "on what is folded: unfold it; on the name of a part: show it"),
)


class _Left(Exception):  # noqa: N818 - not an error: nobody waits any more
    """The screen was left during the computation."""


class CompareScreen(Screen[None]):
    """Computes a comparison in a thread and shows it."""

    NAME = "compare"
    DEFAULT_CSS = """
    CompareScreen {
        layers: default drawer;
        #panes { height: 1fr; }
        #metrics { width: 1fr; }
        #charts { width: 1fr; display: none; }
        CompareSetup, CompareQuality { display: none; }
        #throughput { display: none; }
        &.-tall #throughput { display: block; }
        &.-tall CompareDetail { height: 8; }
        &.-charts, &.-quality, &.-set-up {
            #metrics { display: none; }
        }
        &.-charts #charts { display: block; }
        &.-quality CompareQuality { display: block; }
        &.-set-up CompareSetup { display: block; }
        &.-wide #charts { display: block; width: 1fr; }
        &.-wide #metrics, &.-wide ReadingList { width: 88; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "tab",
            "pane(1)",
            "charts, quality",
            tooltip="The metrics, their charts, how good it is, how both were set up",
        ),
        Binding("shift+tab", "pane(-1)", "previous pane", show=False),
        Binding(
            "left",
            "pair(-1)",
            "pair",
            key_display="← →",
            tooltip="Another one against the first",
        ),
        Binding("right", "pair(1)", "next pair", show=False),
        Binding("up", "lines(-1)", "up", show=False),
        Binding("down", "lines(1)", "down", show=False),
        Binding("pageup", "lines(-10)", "page up", show=False),
        Binding("pagedown", "lines(10)", "page down", show=False),
        Binding(
            "x", "swap", "swap", tooltip="The other way round: A against B, B against A"
        ),
        Binding(
            "w",
            "warmup",
            "warm-up",
            tooltip="Leave out the warm-up that was found, or keep it",
        ),
        HELP_BINDING,
        Binding("q", "leave", "back", tooltip="Leave the comparison"),
        Binding("escape", "stop", "stop", tooltip="Stop comparing"),
        Binding("escape", "leave", "back", show=False),
    ]

    def __init__(self, page: ComparePage) -> None:
        super().__init__()
        self.page = page
        self.wanted = page.request
        self._shown_as = page.request
        """The request that the comparison shown answers."""
        self._pane = METRICS
        self._place = 0
        self.found: Comparison | None = None
        """The comparison shown, even while it is computed again."""
        self._computing: Worker[None] | None = None
        self._began_s = 0.0
        self._doing = ""

    @property
    def comparing(self) -> bool:
        nothing_yet = self.found is None and self.page.failure is None
        return nothing_yet or self._computing is not None

    def compose(self) -> ComposeResult:
        yield CompareHead()
        with Horizontal(id="panes"):
            with Vertical(id="metrics"):
                yield CompareTable()
                yield CompareDetail()
            yield CompareQuality()
            yield CompareSetup()
            with Vertical(id="charts"):
                yield CompareChart(id="cdf")
                yield CompareChart(id="over_time")
                yield CompareChart(id="throughput")
        yield KeyFooter()

    def on_mount(self) -> None:
        self.query_one(CompareTable).focus()
        self.set_interval(TELL_EVERY_S, self._tell)
        self._compare("comparing")

    def on_resize(self) -> None:
        """Show charts beside the table if there is room."""
        self.set_class(self.size.width >= WIDE, "-wide")
        self.set_class(self.size.height >= TALL, "-tall")
        self._show_pane()

    def _compare(self, doing: str) -> None:
        """Compute the comparison; the old one is grey meanwhile."""
        self._began_s = monotonic()
        self._doing = doing
        self._grey(grey=True)
        self._computing = self._compute(self.wanted)
        self._tell()
        self.refresh_bindings()

    @work(thread=True, exclusive=True)
    def _compute(self, request: ComparisonRequest) -> None:
        worker = get_current_worker()

        def tell(what: str) -> None:
            if worker.is_cancelled:
                raise _Left
            self._doing = what

        try:
            comparison = run_comparison(request, tell)
            tell("drawing")
        except _Left:
            return
        except InferwatchError as error:
            self._hand_over(worker, partial(self._fail, error))
        else:
            self._hand_over(worker, partial(self._take, comparison))

    def _hand_over(self, worker: Worker[None], take: partial[None]) -> None:
        """Run ``take`` on the app's thread, unless the worker or the screen is gone."""

        def here() -> None:
            if self._computing is worker and self.is_mounted:
                self._computing = None
                self._grey(grey=False)
                take()
                self.refresh_bindings()

        self.app.call_from_thread(here)

    def _tell(self) -> None:
        """Show what is being computed, and for how long."""
        if self._computing is None:
            return
        took_s = monotonic() - self._began_s
        since = f"{took_s:.0f} s" if took_s >= WORTH_TELLING_S else ""
        self.query_one(CompareHead).wait(self._names, self._doing, since)

    @property
    def _names(self) -> tuple[str, ...]:
        if self.found is not None and self.wanted is self._shown_as:
            return tuple(side.name for side in self.found.sides)
        with suppress(UsageError):  # computing it reports the error
            return tuple(" ".join(words) for words in grouped(self.wanted.sessions))
        return self.wanted.sessions

    def _grey(self, *, grey: bool) -> None:
        for panel in self.query("#panes Inked").results(Inked):
            panel.grey = grey

    def _fail(self, error: InferwatchError) -> None:
        if self.found is None:
            self.page.failure = error
            self.query_one(CompareHead).fail(str(error))
            return
        self.wanted = self._shown_as  # the earlier comparison is still valid
        self._show_pair()
        self.notify(str(error), severity="error", timeout=10, markup=False)

    def _take(self, comparison: Comparison) -> None:
        self._shown_as, self.page.failure = self.wanted, None
        self.show(comparison)

    def show(self, comparison: Comparison) -> None:
        """Show a comparison; the selected pair and row stay."""
        self.found = comparison
        self._place = min(self._place, len(comparison.pairs) - 1)
        self.query_one(CompareSetup).show(comparison)
        self._show_pair()

    @property
    def _pair(self) -> SessionPair | None:
        return None if self.found is None else self.found.pairs[self._place]

    def _show_pair(self) -> None:
        pair = self._pair
        if self.found is not None and pair is not None:
            self.query_one(CompareHead).show(self.found, self._place)
            self.query_one(CompareQuality).show(pair)
            self.query_one(CompareTable).show(pair)
            chart = throughput((pair.a, pair.b))
            self.query_one("#throughput", CompareChart).show(chart)
            self._show_pane()
            self.refresh_bindings()

    @on(CompareTable.RowHighlighted)
    def _choose(self) -> None:
        table, pair = self.query_one(CompareTable), self._pair
        row = table.pointed
        if self.found is None or pair is None or row is None:
            return
        self.query_one(CompareDetail).show(row, pair, self.found.rules.matters)
        result = table.pointed_result
        if result is None:
            return  # a folded row has no curve: the last one stays
        sides = (pair.a, pair.b)
        self.query_one("#cdf", CompareChart).show(cdf(sides, result.metric))
        timed = over_time(sides, result.metric)
        self.query_one("#over_time", CompareChart).show(timed)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        del parameters
        stops = self.comparing and self.found is not None
        if action in {"stop", "leave"}:
            return stops if action == "stop" else True
        if action == "help":
            return True
        if self.found is None or self.comparing:
            return False
        return action != "pair" or len(self.found.pairs) > 1

    def action_pane(self, by: int) -> None:
        """Show the next pane; charts are skipped if they are always visible."""
        wide = self.has_class("-wide")
        panes = [pane for pane in PANES if pane != CHARTS or not wide]
        here = panes.index(self._pane) if self._pane in panes else 0
        self._pane = panes[(here + by) % len(panes)]
        self._show_pane()

    def action_look(self, pane: str) -> None:
        """Show the pane that was clicked."""
        self._pane = pane
        self._show_pane()

    def _show_pane(self) -> None:
        pane, wide = self._pane, self.has_class("-wide")
        if pane == CHARTS and wide:
            pane = METRICS
        if pane == METRICS and self._pair is not None and self._pair.void:
            pane = (
                QUALITY  # no number may be believed: the reason stands in their place
            )
        for each in (CHARTS, QUALITY, SETUP):
            self.set_class(pane == each, f"-{each}")
        self.query_one(CompareHead).mark(pane)
        if pane == METRICS:
            self.query_one(CompareTable).focus()

    def action_lines(self, by: int) -> None:
        """Scroll the text shown; beside charts, select another metric instead."""
        for each in self.query(ReadingList):
            if each.region:
                each.move(by)
        if self.has_class(f"-{CHARTS}"):
            self.query_one(CompareTable).action_step(by)

    def action_pair(self, by: int) -> None:
        """Compare another side with the first."""
        if self.found is not None:
            self._place = (self._place + by) % len(self.found.pairs)
            self._show_pair()

    def action_swap(self) -> None:
        other = self._place + 1
        self.wanted = swapped(self.wanted, other)
        self._compare("swapping")

    def action_warmup(self) -> None:
        """Compare again with or without the warm-up."""
        choices = _choices(self.wanted)
        detect = choices[0].warmup_s is not None
        self.wanted = replace(
            self.wanted,
            choices=tuple(
                replace(each, warmup_s=None if detect else 0.0) for each in choices
            ),
        )
        self._compare("leaving out the warm-up" if detect else "including the warm-up")

    def action_stop(self) -> None:
        if self._computing is not None:
            self._computing.cancel()
            self._computing = None
            self.wanted = self._shown_as
            self._grey(grey=False)
            self._show_pair()

    def action_help(self) -> None:
        question = "Did it get better, and could that be chance?"
        toggle_help(self, question, {HERE: KEYS}, EXPLAINS, "what is compared")

    def action_leave(self) -> None:
        self.post_message(GoBack())


def swapped(request: ComparisonRequest, other: int) -> ComparisonRequest:
    """Return the request with the first and another side swapped."""
    sides = grouped(request.sessions)
    choices = _choices(request)
    sides[0], sides[other] = sides[other], sides[0]
    choices[0], choices[other] = choices[other], choices[0]
    words = [word for side in sides for word in (PARTS, *side)][1:]
    if PARTS not in request.sessions:
        words = [word for side in sides for word in side]
    return replace(request, sessions=tuple(words), choices=tuple(choices))


def _choices(request: ComparisonRequest) -> list[SpanChoice]:
    missing = len(grouped(request.sessions)) - len(request.choices)
    return [*request.choices, *[SpanChoice()] * missing]
