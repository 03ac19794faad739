"""Did it get better, and could that be chance?"""

from dataclasses import replace
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.worker import get_current_worker

from inferwatch.compare.comparison import Comparison
from inferwatch.compare.selection import run_comparison
from inferwatch.compare.span import SpanChoice
from inferwatch.errors import InferwatchError
from inferwatch.ui.compare.chart import CompareChart, cdf, throughput
from inferwatch.ui.compare.panels import CompareDetail, CompareHead, CompareSetup
from inferwatch.ui.compare.table import CompareTable
from inferwatch.ui.pages import ComparePage
from inferwatch.ui.shared.drawers import Key, toggle_help
from inferwatch.ui.shared.keys import HERE, KeyFooter
from inferwatch.ui.shared.messages import GoBack

WIDE = 140
"""Columns from which on charts stand beside the table."""
PANES = ("metrics", "charts", "setup")
EXPLAINS = (
    "ttft_s",
    "tpot_s",
    "itl_s",
    "e2el_s",
    "queue_s",
    "flow.output_tokens_per_s",
    "steps.duration_s",
    "steps.batch_mean",
    "client.ttft_s",
    "client.tpot_s",
    "client.itl_s",
    "client.e2el_s",
)
KEYS: tuple[Key, ...] = (("wheel", "in the settings: more lines"),)


class _Left(Exception):  # noqa: N818 - not an error: nobody waits any more
    """The screen was left while it was computed."""


class CompareScreen(Screen[None]):
    """Reads and resamples in a thread; shows one comparison once it is there."""

    NAME = "compare"
    DEFAULT_CSS = """
    CompareScreen {
        layers: default drawer;
        #panes { height: 1fr; }
        #metrics { width: 1fr; }
        #charts { width: 1fr; display: none; }
        CompareSetup { display: none; }
        &.-charts #metrics, &.-setup #metrics { display: none; }
        &.-charts #charts { display: block; }
        &.-setup CompareSetup { display: block; }
        &.-wide #charts { display: block; width: 1fr; }
        &.-wide #metrics, &.-wide CompareSetup { width: 88; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "tab",
            "pane(1)",
            "charts, settings",
            tooltip="The metrics, their charts, the settings of both",
        ),
        Binding("shift+tab", "pane(-1)", "previous pane", show=False),
        Binding(
            "left",
            "pair(-1)",
            "pair",
            key_display="← →",
            tooltip="Another session against the first",
        ),
        Binding("right", "pair(1)", "next pair", show=False),
        Binding("up", "lines(-1)", "up", show=False),
        Binding("down", "lines(1)", "down", show=False),
        Binding("pageup", "lines(-10)", "page up", show=False),
        Binding("pagedown", "lines(10)", "page down", show=False),
        Binding(
            "w",
            "warmup",
            "warm-up",
            tooltip="Leave out the warm-up that was found, or keep it",
        ),
        Binding(
            "question_mark",
            "help",
            "help",
            key_display="?",
            tooltip="This help: all keys, and what every number means",
        ),
        Binding("q", "leave", "back", tooltip="Leave the comparison"),
        Binding("escape", "leave", "back", show=False),
    ]

    def __init__(self, page: ComparePage) -> None:
        super().__init__()
        self.page = page
        self.wanted = page.request
        self._pane = 0
        self._place = 0
        self._found: Comparison | None = None

    @property
    def comparing(self) -> bool:
        """There is nothing to see yet."""
        return self._found is None and self.page.failure is None

    def compose(self) -> ComposeResult:
        """Verdict, then figures, charts and set-up."""
        yield CompareHead()
        with Horizontal(id="panes"):
            with Vertical(id="metrics"):
                yield CompareTable()
                yield CompareDetail()
            yield CompareSetup()
            with Vertical(id="charts"):
                yield CompareChart(id="cdf")
                yield CompareChart(id="throughput")
        yield KeyFooter()

    def on_mount(self) -> None:
        """Begin."""
        self.query_one(CompareTable).focus()
        self.query_one(CompareHead).wait(self.wanted.sessions, "comparing")
        self._compute()

    def on_resize(self) -> None:
        """Charts beside the table where there is room."""
        self.set_class(self.size.width >= WIDE, "-wide")
        self._show_pane()

    @work(thread=True, exclusive=True)
    def _compute(self) -> None:
        worker = get_current_worker()

        def tell(what: str) -> None:
            if worker.is_cancelled:
                raise _Left
            self.app.call_from_thread(self._say, what)

        try:
            found = run_comparison(self.wanted, tell)
        except _Left:
            return
        except InferwatchError as error:
            self.app.call_from_thread(self._fail, error)
        else:
            self.app.call_from_thread(self._take, found)

    def _say(self, what: str) -> None:
        if self.is_mounted:
            self.query_one(CompareHead).wait(self.wanted.sessions, what)

    def _fail(self, error: InferwatchError) -> None:
        self.page.failure = error
        self.refresh_bindings()
        if self.is_mounted:
            self.query_one(CompareHead).fail(str(error))

    def _take(self, found: Comparison) -> None:
        self._found, self.page.failure = found, None
        if self.is_mounted:
            names = tuple(each.name for each in found.sessions)
            self.query_one(CompareHead).wait(names, "")
            self.query_one(CompareSetup).show(found)
            self.query_one("#throughput", CompareChart).show(throughput(found.sessions))
            self._show_pair()

    def _show_pair(self) -> None:
        if self._found is not None:
            self.query_one(CompareHead).show(self._found, self._place)
            self.query_one(CompareTable).show(self._found.pairs[self._place])
            self.refresh_bindings()

    @on(CompareTable.RowHighlighted)
    def _choose(self) -> None:
        result = self.query_one(CompareTable).pointed
        if self._found is not None and result is not None:
            matters = self._found.rules.matters
            self.query_one(CompareDetail).show(result, matters)
            pair = self._found.pairs[self._place]
            shown = (
                self._found.sessions
                if len(self._found.pairs) == 1
                else (*pair.a.runs, *pair.b.runs)
            )
            chart = cdf(shown, result.metric)
            self.query_one("#cdf", CompareChart).show(chart)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide what cannot be done now."""
        del parameters
        if self._found is None:
            return action in {"help", "leave"}
        return action != "pair" or len(self._found.pairs) > 1

    def action_pane(self, by: int) -> None:
        """Another part; the charts are no stop where they always stand."""
        wide = self.has_class("-wide")
        panes = [pane for pane in PANES if pane != "charts" or not wide]
        here = panes.index(PANES[self._pane]) if PANES[self._pane] in panes else 0
        self._pane = PANES.index(panes[(here + by) % len(panes)])
        self._show_pane()

    def _show_pane(self) -> None:
        pane = PANES[self._pane]
        wide = self.has_class("-wide")
        self.set_class(pane == "charts" and not wide, "-charts")
        self.set_class(pane == "setup", "-setup")
        if pane == "metrics":
            self.query_one(CompareTable).focus()

    def action_lines(self, by: int) -> None:
        """Further down in the set-up; the table moves by itself."""
        self.query_one(CompareSetup).move(by)

    def action_pair(self, by: int) -> None:
        """Another session against the first."""
        if self._found is not None:
            self._place = (self._place + by) % len(self._found.pairs)
            self._show_pair()

    def action_warmup(self) -> None:
        """Compare again: with the warm-up cut where it is found, or without a cut."""
        choices = self.wanted.choices or (SpanChoice(),) * len(self.wanted.sessions)
        detect = choices[0].warmup_s is not None
        self.wanted = replace(
            self.wanted,
            choices=tuple(
                replace(each, warmup_s=None if detect else 0.0) for each in choices
            ),
        )
        self._found = None
        self._say("leaving out the warm-up" if detect else "including the warm-up")
        self._compute()

    def action_help(self) -> None:
        """Open or close the explanations."""
        question = "Did it get better, and could that be chance?"
        toggle_help(self, question, {HERE: KEYS}, EXPLAINS, "what is compared")

    def action_leave(self) -> None:
        """Back to where one came from."""
        self.post_message(GoBack())
