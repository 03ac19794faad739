"""Asks for other settings and shows what they would have made of the last minutes."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from textwrap import wrap
from threading import Event
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Label

from collectors.contract.clock import NS_PER_S
from inferwatch.errors import InferwatchError, UsageError
from inferwatch.feed import Feed
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.studies.what_if.prediction import WhatIf, predict
from inferwatch.studies.what_if.recorded import RecordedRun
from inferwatch.studies.what_if.setting import SchedulerSetting, SettingChange, combined
from inferwatch.studies.what_if.shown import run_shown
from inferwatch.studies.what_if.table import NOT_TOLD, heads, rows, sentences
from inferwatch.ui.kit.dialogs import DialogInput
from inferwatch.ui.kit.keys import KeyFooter
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, fit


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedField:
    """One setting that may be other."""

    key: str
    label: str
    least: float = 1
    most: float
    whole: bool = True
    now: Callable[[SchedulerSetting], str]
    """Its present value."""


def _blocks(setting: SchedulerSetting) -> str:
    return "unknown" if setting.kv_blocks is None else f"{setting.kv_blocks:,}"


FIELDS = (
    AskedField(
        key="max_num_seqs",
        label="max_num_seqs",
        most=65_536,
        now=lambda setting: f"{setting.max_num_seqs:,}",
    ),
    AskedField(
        key="max_num_batched_tokens",
        label="batched tokens",
        most=10_000_000,
        now=lambda setting: f"{setting.max_num_batched_tokens:,}",
    ),
    AskedField(key="kv_blocks", label="KV blocks", most=1_000_000_000, now=_blocks),
    AskedField(
        key="rate",
        label="arrival rate ×",
        least=0.01,
        most=100,
        whole=False,
        now=lambda _: "1",
    ),
)


def read_fields(texts: Mapping[str, str]) -> list[SettingChange]:
    """The changes that are asked for, as typed.

    Raises:
        UsageError: a text is none of that, or it is too much at once.
    """
    found = {each.key: _values(each, texts.get(each.key, "")) for each in FIELDS}
    whole = {each.key: [int(n) for n in found[each.key]] for each in FIELDS}
    return combined(
        max_num_seqs=whole["max_num_seqs"],
        max_num_batched_tokens=whole["max_num_batched_tokens"],
        kv_blocks=whole["kv_blocks"],
        rate=found["rate"],
    )


def _values(field: AskedField, text: str) -> list[float]:
    return [_value(field, word) for word in text.replace(",", " ").split()]


def _value(field: AskedField, word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = nan
    if field.least <= value <= field.most and (value.is_integer() or not field.whole):
        return value
    kind = "whole numbers" if field.whole else "numbers"
    raise UsageError(
        f"{field.label}: {kind} from {field.least:g} to {field.most:,.0f}, such as "
        + ("16, 64" if field.whole else "1.5, 2")
    )


SPAN_NS = 300 * NS_PER_S
"""The last minutes are those that are kept in memory."""

ROWS_BESIDE = len(FIELDS) + 7
"""Title, hint, border, footer."""


class _GivenUpError(Exception):
    """Nobody waits for it any more."""


class WhatIfTable(Panel):
    """Measured, simulated as it was, its error, and what was asked; then sentences."""

    DEFAULT_CSS = """
    WhatIfTable { height: auto; min-height: 3; }
    """

    _told: WhatIf | None = None
    _said = ""

    def say(self, text: str) -> None:
        """In place of a table."""
        self._told, self._said = None, text
        self._fit()

    def show(self, told: WhatIf) -> None:
        """Take what was found."""
        self._told, self._said = told, ""
        self._fit()

    def _fit(self) -> None:
        width = self.size.width or 76
        self.styles.height = max(len(self._told_lines(width)), 3)
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """All of it: what holds it scrolls."""
        del height
        return [fit(line, width) for line in self._told_lines(width)]

    def _told_lines(self, width: int) -> list[Line]:
        if self._told is None:
            return [(TextRun(each, "muted"),) for each in wrap(self._said, width)]
        told = self._told
        lines = _table(told, width)
        lines.append(())
        for sentence in sentences(told):
            ink = "warn" if "cannot say" in sentence else "muted"
            lines += [(TextRun(each, ink),) for each in wrap(sentence, width)]
        return lines


def _table(told: WhatIf, width: int) -> list[Line]:
    """As many columns as there is room for; the last ones are counted."""
    body = list(rows(told))
    titles = ["", "measured", "as it was", "error", *heads(told)]
    every = [
        [row.name, row.measured, row.as_was, row.error, *row.predicted] for row in body
    ]
    widths = [max(len(row[n]) for row in [titles, *every]) for n in range(len(titles))]
    shown = len(widths)
    while shown > 4 and sum(widths[:shown]) + 2 * (shown - 1) > width:
        shown -= 1
    lines: list[Line] = [_row(titles[:shown], widths, None)]
    lines += [_row(row[:shown], widths, told) for row in every]
    if shown < len(widths):
        more = len(widths) - shown
        lines.append((TextRun(f"{more} more: a wider terminal shows them", "faint"),))
    return lines


def _row(cells: Sequence[str], widths: Sequence[int], told: WhatIf | None) -> Line:
    runs = [TextRun(cells[0].ljust(widths[0]), "muted")]
    for place, (cell, width) in enumerate(zip(cells, widths, strict=False)):
        if not place:
            continue
        ink = "muted" if told is None or place in {2, 3} else "strong"
        if told is not None and cell == NOT_TOLD:
            ink = "warn"
        runs.append(TextRun(f"  {cell.rjust(width)}", ink))
    return tuple(runs)


class WhatIfScreen(ModalScreen[None]):
    """The dialog; it looks at the moment that is shown when it opens."""

    DEFAULT_CSS = """
    WhatIfScreen {
        align: center middle; background: $background 60%;
        #sheet {
            width: 108; max-width: 100%; height: auto; max-height: 100%;
            padding: 0 1; margin-bottom: 1; background: $surface;
            border: round $primary;
        }
        .row { height: 1; }
        .row Label { width: 16; color: $ink-muted; }
        .row .now { width: 18; color: $ink-muted; padding: 0 1; }
        Input { width: 24; height: 1; background: $panel; }
        Input.-textual-compact { padding: 0 1 !important; }
        #hint { color: $ink-muted; width: 100%; margin-bottom: 1; }
        #hint.-wrong { color: $error; }
        VerticalScroll {
            height: auto; scrollbar-size-vertical: 1;
            scrollbar-color: $ink-faint; scrollbar-background: $surface;
        }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "close"),
        Binding("ctrl+c", "leave", "close", show=False, priority=True),
        Binding("tab,down", "app.focus_next", "next", key_display="tab"),
        Binding("shift+tab,up", "app.focus_previous", "before", show=False),
        Binding("pagedown", "turn(1)", "scroll", key_display="pgdn", priority=True),
        Binding("pageup", "turn(-1)", "scroll up", show=False, priority=True),
    ]
    HINT = "others, such as 16, 64; enter predicts, esc closes"

    def __init__(self, feed: Feed, source: str | None = None) -> None:
        super().__init__()
        self._feed, self._source = feed, source
        self._run: RecordedRun | None = None
        self._asked: list[SettingChange] = []
        self._given_up = Event()

    def compose(self) -> ComposeResult:
        """A row a setting, then what was found."""
        with Vertical(id="sheet"):
            yield Label("What if it were set otherwise?", id="title")
            for field in FIELDS:
                with Horizontal(classes="row"):
                    yield Label(field.label, markup=False)
                    made = DialogInput(compact=True, id=f"field-{field.key}")
                    made.cursor_blink = False
                    yield made
                    yield Label("", classes="now", id=f"now-{field.key}", markup=False)
            yield Label(self.HINT, id="hint", markup=False)
            with VerticalScroll(can_focus=False):
                yield WhatIfTable()
        yield KeyFooter()

    def on_mount(self) -> None:
        """Simulate it as it was, at once."""
        self.query_one(Input).focus()
        self._predict()

    def on_resize(self) -> None:
        """The table has what the fields leave."""
        left = max(self.size.height - ROWS_BESIDE, 3)
        self.query_one(VerticalScroll).styles.max_height = left

    def on_unmount(self) -> None:
        """Whoever computes may stop."""
        self._given_up.set()

    def action_leave(self) -> None:
        """Back to the screen."""
        self.dismiss(None)

    def action_turn(self, way: int) -> None:
        """Through the table, where it is higher than the screen."""
        scrolled = self.query_one(VerticalScroll)
        scrolled.scroll_relative(y=way * max(scrolled.size.height - 1, 1))

    @on(Input.Submitted)
    def _answer(self) -> None:
        hint = self.query_one("#hint", Label)
        try:
            self._asked = read_fields({each.key: self._text(each) for each in FIELDS})
        except InferwatchError as error:
            hint.update(f"▲ {error}")
            hint.add_class("-wrong")
            return
        hint.update(self.HINT)
        hint.remove_class("-wrong")
        self._predict()

    def _text(self, field: AskedField) -> str:
        return self.query_one(f"#field-{field.key}", Input).value

    @property
    def is_busy(self) -> bool:
        """It still computes what was asked."""
        return any(not each.is_finished for each in self.workers if each.node is self)

    @work(exclusive=True)
    async def _predict(self) -> None:
        table = self.query_one(WhatIfTable)
        table.say("simulating…")
        try:
            if self._run is None:
                self._run = await self._recorded()
                self._show_present(self._run.setting)
            told = await asyncio.to_thread(self._computed, self._run, self._asked)
        except InferwatchError as error:
            table.say(f"Cannot say: {error}.")
        except _GivenUpError:
            return
        else:
            table.show(told)

    async def _recorded(self) -> RecordedRun:
        """The last minutes, up to the moment that is shown."""
        feed, source = self._feed, self._source
        now_ns = feed.now_ns()
        shown = feed.snapshot(SnapshotQuery(Window.SESSION, client=True, source=source))
        steps = await feed.recall.steps(max(now_ns - SPAN_NS, 0), now_ns, source)
        return await asyncio.to_thread(run_shown, shown, steps, source)

    def _computed(self, run: RecordedRun, changes: Sequence[SettingChange]) -> WhatIf:
        return predict(run, changes, self._heard)

    def _heard(self, _: int) -> None:
        if self._given_up.is_set():
            raise _GivenUpError

    def _show_present(self, setting: SchedulerSetting) -> None:
        for field in FIELDS:
            now = self.query_one(f"#now-{field.key}", Label)
            now.update(f"now {field.now(setting)}")
