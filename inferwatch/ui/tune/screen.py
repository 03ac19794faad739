"""The tune screen: the best settings so far, and how certain that is."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.markup import escape
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

from inferwatch.studies.tune.progress import TuneProgress
from inferwatch.studies.tune.search.standings import SearchRules, machine_drift
from inferwatch.ui.kit.dialogs import ConfirmScreen
from inferwatch.ui.kit.keys import HERE, KeyFooter
from inferwatch.ui.messages import GoBack
from inferwatch.ui.pages import TunePage
from inferwatch.ui.tune.panels import (
    TuneDetail,
    TuneHead,
    TuneLegend,
    TuneMessages,
    TunePlot,
    setting_lines,
)
from inferwatch.ui.tune.rows import TuneRow, rows_of
from inferwatch.ui.tune.table import TuneTable
from inferwatch.ui.widgets.help_drawer import HELP_BINDING, Key, toggle_help
from inferwatch.visible import visible, visible_lines

NUMBERS: Mapping[str, Sequence[str]] = {
    "how it works": (
        (
            "Each setting is measured with the same requests at the same moments; "
            "the warm-up is left out."
        ),
        (
            "The order is drawn. Between the others the present setting is measured "
            "again and again: what moves it is the machine, not a setting, and is "
            "taken off all."
        ),
        (
            "What is surely worse than the best is dropped; the rest is repeated "
            "until the intervals part, or the repeats or the time are used up."
        ),
        (
            "max-num-seqs and max-num-batched-tokens are turned while the engine "
            "runs, all else by a restart; each trial is a session of its own, "
            "tagged with the tune."
        ),
    ),
    "the table": (
        (
            "★ the best so far · ≈ not told apart from it · ▼ surely worse, by so "
            "much · ✗ did not start, or failed · ○ left out: the what-if model says "
            "it cannot win."
        ),
        "▶ is measured now; ● is the present setting, which all is compared with.",
        "n: trials of this setting.",
        (
            "good/s: requests per second that met every objective. tok/s: output "
            "tokens per second. TTFT p99: 99% of requests had their first token "
            "within that. cost/M: price of a million output tokens of good "
            "requests. rate/s: the highest request rate that met the objectives."
        ),
        (
            "━●━ the 95% interval of the score, all rows on one scale; without a "
            "line a setting was measured once, which tells nothing about how sure "
            "it is."
        ),
    ),
    "the rest": (
        (
            "throughput and p99: up and left is better; capitals, joined by dots, "
            "are the frontier: nothing else has both more tokens/s and a lower p99."
        ),
        (
            "the machine drifts: by how much its fastest and slowest moments of the "
            "tune differ, as all scores together tell."
        ),
        (
            "time left counts the trials that are likely to be needed still; it "
            "changes as settings are dropped."
        ),
    ),
}


class EndTuneScreen(ConfirmScreen):
    """Asks before ending a tune; a second ctrl+c means yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "answer(True)", "yes", show=False, priority=True),
    ]

    def __init__(self) -> None:
        super().__init__(
            "End the tune?",
            "What was measured is told; --resume takes up the rest.",
            "End it",
            "Go on",
        )


class SettingScreen(ModalScreen[None]):
    """A setting in full: numbers, trials, sessions, causes."""

    DEFAULT_CSS = """
    SettingScreen { align: center middle; background: $background 60%; }
    SettingScreen VerticalScroll {
        width: 96; max-width: 100%; height: auto; max-height: 90%; padding: 0 1;
        background: $surface; border: round $primary;
        scrollbar-size-vertical: 1;
    }
    SettingScreen Static { height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "dismiss", "close", key_display="esc"),
        Binding("ctrl+c", "dismiss", "close", show=False, priority=True),
    ]

    def __init__(self, row: TuneRow, progress: TuneProgress) -> None:
        super().__init__()
        self._row, self._progress = row, progress

    def compose(self) -> ComposeResult:
        text = "\n".join(setting_lines(self._row, self._progress))
        with VerticalScroll() as scroll:
            scroll.border_title = escape(visible(self._row.point.text))
            yield Static(visible_lines(text), markup=False)
        yield KeyFooter()

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()


QUESTION = "Which settings are best, and how sure is that?"
WIDE, TALL = 150, 34
"""Size from which there is room for the plot."""
LOOK_EVERY_S = 0.5
KEYS: tuple[Key, ...] = (("click", "on a row: that setting; twice: its details"),)


class TuneScreen(Screen[None]):
    """Polls a tune twice a second, until it has ended and the user leaves."""

    NAME = "tune"
    DEFAULT_CSS = """
    TuneScreen {
        layers: default drawer;
        #body { height: 1fr; }
        #settings { width: 1fr; }
        #beside { display: none; width: 72; }
        #settings TunePlot { display: none; }
        &.-tall #settings TunePlot { display: block; }
        &.-tall TuneDetail { height: 6; }
        &.-tall #settings TuneMessages { height: 6; }
        &.-low TuneLegend { display: none; }
        &.-low TuneMessages, &.-over TuneMessages { display: none; }
        &.-over.-tall TuneMessages { display: block; }
        &.-low TuneDetail { height: 3; }
        &.-wide #beside { display: block; }
        &.-wide #settings TunePlot, &.-wide #settings TuneMessages { display: none; }
        &.-wide #beside TunePlot { height: 2fr; max-height: 30; }
        &.-wide #beside TuneMessages { height: 1fr; min-height: 4; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        HELP_BINDING,
        Binding(
            "q",
            "cancel",
            "end",
            tooltip="End the tune with what it has, after asking; --resume goes on",
        ),
        Binding("q", "leave", "leave", tooltip="Leave: the result is printed, too"),
        Binding("ctrl+c", "cancel", "end", show=False, priority=True),
        Binding("ctrl+c", "leave", "leave", show=False, priority=True),
        Binding("escape", "cancel", "end", show=False),
        Binding("escape", "leave", "leave", show=False),
    ]

    def __init__(self, page: TunePage) -> None:
        super().__init__()
        self.page = page
        self._rows: dict[str, TuneRow] = {}
        self._judged: tuple[object, ...] | None = None
        """What the rows were computed from."""
        self._drift: float | None = None
        self._ending = False
        self._saw_end = False

    def compose(self) -> ComposeResult:
        yield TuneHead()
        with Horizontal(id="body"):
            with Vertical(id="settings"):
                yield TuneTable()
                yield TuneLegend()
                yield TunePlot()
                yield TuneDetail()
                yield TuneMessages()
            with Vertical(id="beside"):
                yield TunePlot()
                yield TuneMessages()
        yield KeyFooter()

    def on_mount(self) -> None:
        self.query_one(TuneTable).focus()
        self.set_interval(LOOK_EVERY_S, self.look)
        self.look()

    def on_resize(self) -> None:
        wide, tall = self.size.width >= WIDE, self.size.height >= TALL
        self.set_class(wide, "-wide")
        self.set_class(tall, "-tall")
        self.set_class(self.size.height < 20, "-low")
        self.call_after_refresh(self.look)

    @property
    def progress(self) -> TuneProgress:
        return self.page.task.progress

    def look(self) -> None:
        if not self.is_mounted:
            return
        now = self.progress
        self._judge(now)
        plan = self.page.task.plan
        name = plan.url or plan.model
        self.query_one(TuneHead).show(now, name, ending=self._ending)
        rows = tuple(self._rows.values())
        self.query_one(TuneTable).show(now, rows)
        self.query_one(TuneLegend).show(rows)
        self._show_detail(now)
        for plot in self.query(TunePlot):
            plot.show(now)
        for panel in self.query(TuneMessages):
            panel.show(now, self._drift)
        if self.is_over and not self._saw_end:
            self._saw_end = True
            self._end()

    def _judge(self, now: TuneProgress) -> None:
        """Compute the rows again if there are new trials or results."""
        basis = (len(now.trials), now.space, now.now, now.result)
        if basis == self._judged:
            return
        self._judged = basis
        self._rows = {row.key: row for row in rows_of(now)}
        if any(each.numbers for each in now.trials):
            rules = SearchRules(goal=now.goal)
            self._drift = machine_drift(now.space, rules, now.trials)

    @on(TuneTable.RowHighlighted)
    def _pointed(self) -> None:
        self._show_detail(self.progress)

    def _show_detail(self, now: TuneProgress) -> None:
        row = self.query_one(TuneTable).pointed
        self.query_one(TuneDetail).show(row, now)

    @on(TuneTable.RowSelected)
    def _open(self, message: TuneTable.RowSelected) -> None:
        row = self._rows.get(message.key)
        if row is not None:
            self.app.push_screen(SettingScreen(row, self.progress))

    def action_help(self) -> None:
        toggle_help(self, QUESTION, {HERE: KEYS}, texts=NUMBERS)

    @property
    def is_over(self) -> bool:
        return self.page.running.done()

    def _end(self) -> None:
        """Show the result, or leave if the tune was ended or failed."""
        running = self.page.running
        if self._ending or running.cancelled() or running.exception() is not None:
            self.post_message(GoBack())
        if isinstance(self.app.screen, EndTuneScreen):
            self.app.screen.dismiss(False)  # noqa: FBT003 - it has ended by itself
        self.set_class(True, "-over")  # noqa: FBT003 - Textual's
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Allow ending a running tune, and leaving a result."""
        del parameters
        possible = {"leave": self.is_over, "cancel": not self.is_over}
        return possible.get(action, True)

    def action_leave(self) -> None:
        self.post_message(GoBack())

    def action_cancel(self) -> None:
        """End the tune, after asking."""
        if not self._ending:
            self._ask()

    @work
    async def _ask(self) -> None:
        if await self.app.push_screen_wait(EndTuneScreen()) and not self.is_over:
            self._ending = True
            self.page.stop.set()
            self.look()
