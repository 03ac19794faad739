"""The what-if dialog: predicts the last minutes with other settings."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import nan
from textwrap import wrap
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Input, Label

from collectors.contract.clock import NS_PER_S
from inferwatch.errors import InferwatchError, UsageError
from inferwatch.feed import Feed
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.quantities import count_of
from inferwatch.studies.what_if.answer import answers
from inferwatch.studies.what_if.prediction import WhatIf, predict
from inferwatch.studies.what_if.priorities import read_priorities, with_priorities
from inferwatch.studies.what_if.recorded import RecordedRun
from inferwatch.studies.what_if.setting import (
    SchedulerSetting,
    SchedulingPolicy,
    SettingChange,
    combined,
    policies_asked,
)
from inferwatch.studies.what_if.shown import run_shown
from inferwatch.studies.what_if.table import NOT_TOLD, heads, rows, sentences
from inferwatch.ui.kit.dialogs import (
    DialogInput,
    DialogTable,
    GivenUpError,
    TableDialog,
)
from inferwatch.ui.kit.keys import KeyFooter
from inferwatch.ui.kit.renderables.text import Line, TextRun


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingField:
    """A setting that can be changed."""

    key: str
    label: str
    least: float = 1
    most: float = 0
    whole: bool = True
    now: Callable[[SchedulerSetting], str]
    """Formats the present value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedChanges:
    """What was typed: the changes, and priorities by name."""

    changes: Sequence[SettingChange] = ()
    priorities: Mapping[str, int] = field(default_factory=dict)


def _blocks(setting: SchedulerSetting) -> str:
    return "unknown" if setting.kv_blocks is None else f"{setting.kv_blocks:,}"


FIELDS = (
    SettingField(
        key="max_num_seqs",
        label="max_num_seqs",
        most=65_536,
        now=lambda setting: f"{setting.max_num_seqs:,}",
    ),
    SettingField(
        key="max_num_batched_tokens",
        label="max_num_batched_tokens",
        most=10_000_000,
        now=lambda setting: f"{setting.max_num_batched_tokens:,}",
    ),
    SettingField(key="kv_blocks", label="KV blocks", most=1_000_000_000, now=_blocks),
    SettingField(
        key="rate",
        label="arrival rate ×",
        least=0.01,
        most=100,
        whole=False,
        now=lambda _: "1",
    ),
)
POLICY = SettingField(
    key="policy",
    label="scheduled by",
    now=lambda setting: str(setting.policy),
)
"""``fcfs``, ``priority``, or priorities by name: ``chat=0 batch=10``."""
EVERY_FIELD = (*FIELDS, POLICY)


def read_fields(texts: Mapping[str, str]) -> AskedChanges:
    """Return what was typed into the fields.

    Raises:
        UsageError: a text is invalid, or there are too many combinations.
    """
    values = {each.key: _values(each, texts.get(each.key, "")) for each in FIELDS}
    whole = {each.key: [int(n) for n in values[each.key]] for each in FIELDS}
    words = texts.get(POLICY.key, "")
    given = read_priorities(words) if "=" in words else {}
    changes = combined(
        max_num_seqs=whole["max_num_seqs"],
        max_num_batched_tokens=whole["max_num_batched_tokens"],
        kv_blocks=whole["kv_blocks"],
        rate=values["rate"],
        policy=policies_asked([] if given else _policies(words), given=bool(given)),
    )
    return AskedChanges(changes=changes, priorities=given)


def _policies(words: str) -> list[str]:
    chosen = words.replace(",", " ").split()
    if wrong := set(chosen) - set(SchedulingPolicy):
        raise UsageError(
            f"{POLICY.label}: fcfs, priority or NAME=N ..., not {min(wrong)!r}"
        )
    return chosen


def _values(field: SettingField, text: str) -> list[float]:
    return [_value(field, word) for word in text.replace(",", " ").split()]


def _value(field: SettingField, word: str) -> float:
    count = count_of(word) if field.whole else None
    try:
        value = float(word if count is None else count)
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
"""The last minutes are kept in memory."""

ROWS_BESIDE = len(EVERY_FIELD) + 7
"""Rows of title, hint, border and footer."""


def _note_lines(note: str, width: int) -> Sequence[Line]:
    return [(TextRun(each, "muted"),) for each in wrap(note, width)]


def _result_lines(result: WhatIf, width: int) -> Sequence[Line]:
    """Return the answer, then values as measured, simulated and predicted."""
    lines: list[Line] = []
    for answer in answers(result):
        ink = "warn" if "cannot be told" in answer else "strong"
        lines += [(TextRun(each, ink),) for each in wrap(f"{answer}.", width)]
    lines += [*([()] if lines else []), *_table(result, width), ()]
    for sentence in sentences(result):
        ink = "warn" if "cannot say" in sentence else "muted"
        lines += [(TextRun(each, ink),) for each in wrap(sentence, width)]
    return lines


def _table(result: WhatIf, width: int) -> list[Line]:
    """Return the columns of the table that fit, and how many more there are."""
    body = list(rows(result))
    titles = ["", "measured", "as it was", "error", *heads(result)]
    every = [
        [row.name, row.measured, row.as_was, row.error, *row.predicted] for row in body
    ]
    widths = [max(len(row[n]) for row in [titles, *every]) for n in range(len(titles))]
    count = len(widths)
    while count > 4 and sum(widths[:count]) + 2 * (count - 1) > width:
        count -= 1
    lines: list[Line] = [_row(titles[:count], widths, None)]
    lines += [_row(row[:count], widths, result) for row in every]
    if count < len(widths):
        more = len(widths) - count
        lines.append((TextRun(f"{more} more: a wider terminal shows them", "faint"),))
    return lines


def _row(cells: Sequence[str], widths: Sequence[int], result: WhatIf | None) -> Line:
    runs = [TextRun(cells[0].ljust(widths[0]), "muted")]
    for place, (cell, width) in enumerate(zip(cells, widths, strict=False)):
        if not place:
            continue
        ink = "muted" if result is None or place in {2, 3} else "strong"
        if result is not None and cell == NOT_TOLD:
            ink = "warn"
        runs.append(TextRun(f"  {cell.rjust(width)}", ink))
    return tuple(runs)


async def recorded_lately(feed: Feed, source: str | None) -> RecordedRun:
    """Return the steps and requests of the last minutes before the moment shown.

    Raises:
        CannotTellError: nothing can be predicted from them.
    """
    now_ns = feed.now_ns()
    state = feed.snapshot(SnapshotQuery(Window.SESSION, client=True, source=source))
    steps = await feed.recall.steps(max(now_ns - SPAN_NS, 0), now_ns, source)
    return await asyncio.to_thread(run_shown, state, steps, source)


class WhatIfScreen(TableDialog):
    """The dialog; it starts from the moment shown when it opens."""

    DEFAULT_CSS = """
    WhatIfScreen {
        .row { height: 1; }
        .row Label { width: 24; color: $ink-muted; }
        .row .now { width: 18; color: $ink-muted; padding: 0 1; }
        Input { width: 24; height: 1; background: $panel; }
        Input.-textual-compact { padding: 0 1 !important; }
        #hint { color: $ink-muted; width: 100%; margin-bottom: 1; }
        #hint.-wrong { color: $error; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "close"),
        Binding("ctrl+c", "leave", "close", show=False, priority=True),
        Binding("tab,down", "app.focus_next", "next", key_display="tab"),
        Binding("shift+tab,up", "app.focus_previous", "before", show=False),
        Binding("pagedown", "scroll(1)", "scroll", key_display="pgdn", priority=True),
        Binding("pageup", "scroll(-1)", "scroll up", show=False, priority=True),
    ]
    HINT = "others, such as 16, 64; enter predicts, esc closes"

    def __init__(self, feed: Feed, source: str | None = None) -> None:
        super().__init__()
        self._feed, self._source = feed, source
        self._run: RecordedRun | None = None
        self._asked = AskedChanges()

    def compose(self) -> ComposeResult:
        with Vertical(id="sheet"):
            yield Label("What if it were set otherwise?", id="title")
            for each in EVERY_FIELD:
                with Horizontal(classes="row"):
                    yield Label(each.label, markup=False)
                    made = DialogInput(compact=True, id=f"field-{each.key}")
                    made.cursor_blink = False
                    yield made
                    yield Label("", classes="now", id=f"now-{each.key}", markup=False)
            yield Label(self.HINT, id="hint", markup=False)
            with VerticalScroll(can_focus=False):
                yield DialogTable()
        yield KeyFooter()

    def on_mount(self) -> None:
        """Simulate the present setting at once."""
        self.query_one(Input).focus()
        self._predict()

    def on_resize(self) -> None:
        """Give the table the rows that the fields leave."""
        left = max(self.size.height - ROWS_BESIDE, 3)
        self.query_one(VerticalScroll).styles.max_height = left

    @on(Input.Submitted)
    def _answer(self) -> None:
        hint = self.query_one("#hint", Label)
        try:
            typed = {each.key: self._text(each) for each in EVERY_FIELD}
            self._asked = read_fields(typed)
        except InferwatchError as error:
            hint.update(f"▲ {error}")
            hint.add_class("-wrong")
            return
        hint.update(self.HINT)
        hint.remove_class("-wrong")
        self._predict()

    def _text(self, field: SettingField) -> str:
        return self.query_one(f"#field-{field.key}", Input).value

    @work(exclusive=True)
    async def _predict(self) -> None:
        table = self.query_one(DialogTable)
        table.show(partial(_note_lines, "simulating…"))
        try:
            if self._run is None:
                self._run = await recorded_lately(self._feed, self._source)
                self._show_present(self._run.setting)
            result = await asyncio.to_thread(self._computed, self._run, self._asked)
        except InferwatchError as error:
            table.show(partial(_note_lines, f"Cannot say: {error}."))
        except GivenUpError:
            return
        else:
            table.show(partial(_result_lines, result))

    def _computed(self, run: RecordedRun, asked: AskedChanges) -> WhatIf:
        ranked = with_priorities(run, asked.priorities)
        return predict(ranked, asked.changes, self._heard)

    def _heard(self, _: int) -> None:
        if self._given_up.is_set():
            raise GivenUpError

    def _show_present(self, setting: SchedulerSetting) -> None:
        for each in EVERY_FIELD:
            now = self.query_one(f"#now-{each.key}", Label)
            now.update(f"now {each.now(setting)}")
