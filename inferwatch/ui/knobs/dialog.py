"""The dialog that changes limits of a running engine."""

import asyncio
from collections.abc import Sequence
from threading import Event
from typing import ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Button, Input, Label

from collectors.contract.readings import LimitChange
from inferwatch.errors import InferwatchError, UsageError
from inferwatch.feed import Feed, FeedState, LimitPair
from inferwatch.formatting import counted
from inferwatch.ui.frame.host_question import HostQuestion, HostWarning
from inferwatch.ui.kit.dialogs import (
    DialogInput,
    DialogTable,
    GivenUpError,
    TableDialog,
)
from inferwatch.ui.kit.keys import KeyFooter
from inferwatch.ui.kit.panel import LinePanel
from inferwatch.ui.kit.renderables.text import Line, TextRun, fit
from inferwatch.ui.knobs.knob_state import NAMES, KnobState, LimitKnob, knob_state
from inferwatch.ui.knobs.span_numbers import Outlook, changed_ns
from inferwatch.ui.knobs.table import (
    change_list,
    outcome_lines,
    prediction_lines,
    text_lines,
)
from inferwatch.visible import visible, visible_lines


class LimitField(DialogInput):
    """An input for digits; other keys keep their meaning."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "turn", tooltip="Turn the limits as proposed"),
        Binding(
            "up",
            "choose(1)",
            "choose",
            key_display="↑ ↓",
            tooltip="The next higher value that is worth trying; ↓ the next lower",
        ),
        Binding("down", "choose(-1)", "lower", show=False),
    ]

    def __init__(self, name: str) -> None:
        super().__init__(compact=True, id=f"field-{name}", max_length=9)
        self.cursor_blink = False
        self.knob = LimitKnob(name=name)

    def check_consume_key(self, key: str, character: str | None) -> bool:
        del key
        return character is not None and character.isdecimal()

    async def _on_key(self, event: events.Key) -> None:
        if event.is_printable and not self.check_consume_key(
            event.key, event.character
        ):
            event.prevent_default()  # not for the field: let its parents handle it

    def action_choose(self, by: int) -> None:
        """Propose the next higher or lower value of the limit."""
        typed = int(self.value) if self.value.isdecimal() else None
        value = self.knob.beside(typed, by)
        if value is not None and not self.disabled:
            self.put(value)

    def put(self, value: int | None) -> None:
        """Fill in a value; what the user types next replaces it."""
        self.value = "" if value is None else str(value)
        self.action_select_all()


class KnobRow(Horizontal):
    """A limit: start, present and proposed value."""

    DEFAULT_CSS = """
    KnobRow {
        height: 1;
        Label { width: 10; text-align: right; }
        .name { width: 24; text-align: left; color: $ink-muted; }
        .remark { width: 1fr; text-align: left; padding: 0 1; color: $ink-muted; }
        Input { width: 14; height: 1; margin-left: 2; background: $panel; }
        Input.-textual-compact { padding: 0 1 !important; }
        Input:disabled { color: $ink-muted; }
    }
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._limit = name
        self._followed = ""
        """The present value in the field, as long as the user typed nothing."""

    def compose(self) -> ComposeResult:
        yield Label(self._limit, classes="name", markup=False)
        yield Label("", classes="start", markup=False)
        yield Label("", classes="present", markup=False)
        yield LimitField(self._limit)
        yield Label("", classes="remark", markup=False)

    @property
    def field(self) -> LimitField:
        return self.query_one(LimitField)

    def show(self, knob: LimitKnob, *, can_turn: bool) -> None:
        """Show a limit at start and at present; text typed by the user stays."""
        field = self.field
        field.knob = knob
        field.disabled = not can_turn or knob.fixed is not None or knob.start is None
        self.query_one(".start", Label).update(_text(knob.start))
        self.query_one(".present", Label).update(_present(knob))
        remark = f"1 to {knob.start:,}" if knob.start is not None else "not told"
        if knob.fixed is not None:
            remark = "fixed, see below"
        self.query_one(".remark", Label).update(remark)
        if field.value == self._followed:
            self._followed = "" if knob.present is None else str(knob.present)
            if field.value != self._followed:
                field.put(knob.present)

    def follow(self) -> None:
        """Reset the field to the limit's present value."""
        self.field.put(self.field.knob.present)
        self._followed = self.field.value


def _text(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _present(knob: LimitKnob) -> str:
    if knob.present is None or knob.highest in {None, knob.present}:
        return _text(knob.present)
    return f"{knob.present:,}–{knob.highest:,}"


class KeepSwitch(LinePanel):
    """Whether limits stay after we disconnect; a click toggles it."""

    DEFAULT_CSS = """
    KeepSwitch { height: 1; width: 1fr; }
    """
    ACTION = "screen.keep"

    on = False
    can_turn = True

    def show(self, *, on: bool, can_turn: bool) -> None:
        if (on, can_turn) != (self.on, self.can_turn):
            self.on, self.can_turn = on, can_turn
            self.redraw()

    def line(self, width: int) -> Line:
        action = self.ACTION if self.can_turn else None
        ink = "strong" if self.on else "muted"
        mark = "[×]" if self.on else "[ ]"
        says = " keep: they stay when we go" if self.on else " keep when we go"
        return fit((TextRun(mark, ink, action), TextRun(says, ink, action)), width)


ASKED = HostWarning(
    question="This engine has other users. Turn its limits?",
    consequence="Their requests may wait longer, or run slower.",
    anyway="To turn them anyway",
    yes="Turn them",
    no="Leave them",
)
HINT = (
    "Only down from what the engine was started with, and back. Nothing is preempted."
)
RECORDED = "A recorded session: nothing can be turned here, only seen."
IDLE = "The engine is idle: what comes of it is told after its next step."
NOT_YET = "Nobody changed a limit up to the moment that is shown."
NO_OUTLOOK = (
    "↑ ↓ or digits propose another value: what it would have made of the last minutes "
    "is told here, before anything is turned."
)


def pair_text(limits: LimitPair) -> str:
    parts = zip(
        NAMES, (limits.max_num_seqs, limits.max_num_batched_tokens), strict=True
    )
    return ", ".join(f"{name} {value:,}" for name, value in parts if value is not None)


def done_text(wanted: tuple[int | None, int | None], *, keep: bool) -> str:
    """Return a text that confirms which limits were set."""
    seqs, tokens = wanted
    stays = "; they stay when we go" if keep else ""
    return f"turned: max_num_seqs {seqs:,}, max_num_batched_tokens {tokens:,}{stays}"


def _in_force_text(state: KnobState, us: str) -> str:
    """Describe who set the limits, and what becomes of them when they leave."""
    stays = "they stay" if state.kept else "start-up values return 10 s later"
    if us and state.by == us:
        return f"In force by us; when we leave (q), {stays}."
    return f"In force by {state.by or 'somebody'}; when that goes, {stays}."


def state_texts(state: KnobState, refusal: str | None, us: str) -> Sequence[str]:
    """Return texts about the limits in force, refusals and fixed limits."""
    texts = [f"▲ {refusal}"] if refusal is not None else []
    if state.in_force:
        texts.append(_in_force_text(state, us))
    elif any(each.change is LimitChange.WATCHER_GONE for each in state.limits):
        texts.append("Start-up values are back: who set others is gone.")
    elif state.limits:
        texts.append("Both are as at start.")
    texts += [
        f"{knob.name} is fixed: {knob.fixed}" for knob in state.knobs if knob.fixed
    ]
    return texts


LOOK_EVERY_S = 0.5
TYPING_S = 0.4
"""Time after the last digit before a prediction starts."""
ROWS_BESIDE = 11
"""Rows of border, title, hint, limits, switch and footer."""
TEXTS = "state", "told"
"""Ids of labels with a variable height."""


class KnobScreen(TableDialog):
    """The dialog; it acts on the present engine, whatever moment is shown."""

    DEFAULT_CSS = """
    KnobScreen {
        #sheet { width: 96; }
        #heads { height: 1; }
        #heads Label { width: 10; text-align: right; color: $ink-muted; }
        #heads .name { width: 24; }
        #heads .proposed { width: 16; text-align: left; padding: 0 0 0 3; }
        #hint, #state { color: $ink-muted; width: 100%; }
        #told { width: 100%; }
        #told.-wrong { color: $error; }
        #told.-done { color: $success; }
        #turns { height: 1; }
        #turns Button { margin-left: 1; }
        VerticalScroll { margin-top: 1; }
        &.-short #hint { display: none; }
        &.-short VerticalScroll { margin-top: 0; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "turn", "turn", tooltip="Turn the limits as proposed"),
        Binding(
            "u",
            "reset",
            "back to start",
            priority=True,
            tooltip="Back to the values that the engine was started with, at once",
        ),
        Binding(
            "k",
            "keep",
            "keep",
            priority=True,
            tooltip="Whether they stay when we go; else they return 10 s later",
        ),
        Binding("escape", "leave", "close"),
        Binding("ctrl+c", "leave", "close", show=False, priority=True),
        Binding("tab", "app.focus_next", "next", key_display="tab"),
        Binding("shift+tab", "app.focus_previous", "before", show=False),
        Binding("pagedown", "scroll(1)", "scroll", key_display="pgdn", priority=True),
        Binding("pageup", "scroll(-1)", "scroll up", show=False, priority=True),
    ]

    def __init__(self, feed: Feed, source: str | None = None) -> None:
        super().__init__()
        self._feed, self._source = feed, source
        self._outlook = Outlook(feed, source)
        self._state = self._known_state()
        self._keep = self._state.kept
        self._host_named = False
        self._drawn: tuple[object, ...] = ()
        self._kept_before = self._keep
        self._refused: str | None = None

    def compose(self) -> ComposeResult:
        with Vertical(id="sheet"):
            yield Label("Limits of this engine, while it runs", id="title")
            yield Label(HINT, id="hint", markup=False)
            with Horizontal(id="heads"):
                yield Label("", classes="name")
                yield Label("start-up")
                yield Label("present")
                yield Label("proposed", classes="proposed")
            for name in NAMES:
                yield KnobRow(name)
            with Horizontal(id="turns"):
                yield KeepSwitch()
                yield Button("enter  Turn", id="turn", compact=True)
                yield Button("u  Back to start", id="back", compact=True)
            yield Label("", id="state", markup=False)
            yield Label("", id="told", markup=False)
            with VerticalScroll(can_focus=False):
                yield DialogTable()
        yield KeyFooter()

    def on_mount(self) -> None:
        """Start polling; buttons leave the focus to the fields."""
        for button in self.query(Button):
            button.can_focus = False
        self._look()
        self.set_interval(LOOK_EVERY_S, self._look)
        for field in self.query(LimitField):
            if not field.disabled:
                field.focus()
                return

    def on_resize(self) -> None:
        """Give the table of predictions the rows that are left."""
        self.set_class(self.size.height < 30, "-short")
        self.call_after_refresh(self._fit)

    def _fit(self) -> None:
        beside = ROWS_BESIDE - 2 * self.has_class("-short")
        beside += sum(self.query_one(f"#{each}").size.height for each in TEXTS)
        most = max(self.size.height - beside, 3)
        self.query_one(VerticalScroll).styles.max_height = most

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in {"turn", "reset", "keep"}:
            return self._refused is None
        return super().check_action(action, parameters)

    @property
    def is_recorded(self) -> bool:
        """Whether there is no live engine whose limits can be set."""
        return self._feed.limit_desk is None or self._feed.state is FeedState.REPLAYING

    @property
    def refusal(self) -> str | None:
        desk = self._feed.limit_desk
        if desk is None or self.is_recorded:
            return RECORDED
        return desk.unavailable

    def _known_state(self) -> KnobState:
        desk = self._feed.limit_desk
        answered = desk.answered if desk is not None else ()
        return knob_state(self._feed.present(self._source), answered)

    def _look(self) -> None:
        """Show the present limits; text typed by the user stays."""
        self._state = state = self._known_state()
        refusal = self.refusal
        for row, knob in zip(self.query(KnobRow), state.knobs, strict=True):
            row.show(knob, can_turn=refusal is None)
        if state.kept != self._kept_before:  # it was turned, by us or others
            self._keep = self._kept_before = state.kept
        self.query_one(KeepSwitch).show(on=self._keep, can_turn=refusal is None)
        self.query_one("#turn", Button).disabled = refusal is not None
        self.query_one("#back", Button).disabled = refusal is not None
        self.query_one("#state", Label).update(
            visible_lines("\n".join(state_texts(state, refusal, self._us)))
        )
        self.call_after_refresh(self._fit)
        if self._refused != refusal:
            self._refused = refusal
            self.refresh_bindings()
        self._look_ahead()

    @property
    def _us(self) -> str:
        desk = self._feed.limit_desk
        return desk.by if desk is not None else ""

    @property
    def _wanted(self) -> tuple[int, int]:
        """The limits proposed in the fields: of sequences, and of batched tokens.

        Raises:
            UsageError: one is invalid.
        """
        seqs, tokens = (
            knob.present or 0 if field.disabled else knob.read(field.value)
            for field, knob in zip(
                self.query(LimitField), self._state.knobs, strict=True
            )
        )
        return seqs, tokens

    def _look_ahead(self) -> None:
        """Predict the effect of the proposed limits, else show the last change's."""
        try:
            limits = self._state.changed_by(self._wanted)
        except UsageError:
            return
        change_ns = changed_ns(self._state)
        if limits != LimitPair() and not self.is_recorded:
            drawn: tuple[object, ...] = ("asked", limits, change_ns)
        else:
            waits = "" if change_ns is None else self._outlook.waits_text(change_ns)
            marks = self._outlook.changes()
            drawn = ("came of it", change_ns, waits, marks, self._state.pending)
        if drawn == self._drawn:
            return
        self._drawn = drawn
        self._given_up.set()
        self._given_up = Event()
        if drawn[0] == "asked":
            self._predict(limits, self._given_up)
        else:
            self._tell_outcome(change_ns)

    @work(exclusive=True, group="table")
    async def _predict(self, limits: LimitPair, given_up: Event) -> None:
        title, table = f"predicted: {pair_text(limits)}", self.query_one(DialogTable)
        table.show(lambda width: text_lines(title, "simulating…", width))
        await asyncio.sleep(TYPING_S)
        try:
            prediction = await self._outlook.prediction(limits, self._state, given_up)
        except InferwatchError as error:
            why = f"Cannot say: {error}."
            table.show(lambda width: text_lines(title, why, width))
        except GivenUpError:
            return
        else:
            requests = counted(prediction.measured.requests, "request")
            of = f"{title}, from the last {requests}"
            table.show(lambda width: prediction_lines(of, prediction, width))

    @work(exclusive=True, group="table")
    async def _tell_outcome(self, change_ns: int | None) -> None:
        table, outlook = self.query_one(DialogTable), self._outlook
        marks, wall_text = outlook.changes(), self._feed.wall_text
        if change_ns is None:
            text = NO_OUTLOOK if self._refused is None else ""
            if self._state.pending:
                text = IDLE
            if self.is_recorded and not marks:
                text = NOT_YET
            table.show(
                lambda width: [
                    *(text_lines("other values", text, width) if text else ()),
                    *change_list(marks, wall_text, width),
                ]
            )
            return
        before, after = await outlook.outcome(change_ns)
        title = f"what came of it: before and after {wall_text(change_ns)}"
        waits = outlook.waits_text(change_ns)
        table.show(
            lambda width: [
                *outcome_lines(title, before, after, waits, width),
                *change_list(marks, wall_text, width),
            ]
        )

    @on(Input.Changed)
    def _typing(self) -> None:
        if self.query_one("#told", Label).has_class("-wrong"):
            self._tell("")
        self._look_ahead()

    @on(Input.Submitted)
    def _submitted(self) -> None:
        self.action_turn()

    @on(Button.Pressed)
    def _pressed(self, message: Button.Pressed) -> None:
        if message.button.id == "turn":
            self.action_turn()
        else:
            self.action_reset()

    def action_keep(self) -> None:
        """Toggle whether limits stay when we disconnect; sent with the next change."""
        if self.refusal is None:
            self._keep = not self._keep
            self.query_one(KeepSwitch).show(on=self._keep, can_turn=True)

    def action_turn(self) -> None:
        """Set the proposed limits, unless a change is under way."""
        if not self.is_turning:
            self._turn(back=False)

    def action_reset(self) -> None:
        if not self.is_turning:
            self._turn(back=True)

    @property
    def is_turning(self) -> bool:
        """Whether a change is under way: a host is asked for, or no answer has come."""
        return any(
            each.group == "turn" and not each.is_finished and each.node is self
            for each in self.workers
        )

    @work(group="turn")
    async def _turn(self, *, back: bool) -> None:
        desk = self._feed.limit_desk
        try:
            target = self._state.start if back else self._wanted
            limits = self._changes_of(target)
            if limits is None or desk is None:
                return
            if not await self._may_turn(desk.must_name_host):
                return
            self._tell("turning…")
            if back or target == self._state.start:
                await desk.reset()
            else:
                await desk.set(limits, keep=self._keep)
        except InferwatchError as error:
            self._tell(f"▲ {error}", "-wrong")
            self._look()
        else:
            self._look()
            for row in self.query(KnobRow):
                row.follow()
            self._tell(f"✔ {done_text(target, keep=self._keep)}", "-done")

    def _changes_of(self, target: tuple[int | None, int | None]) -> LimitPair | None:
        """Return the limits to change; None if all have these values already."""
        if (why := self.refusal) is not None:
            raise UsageError(why)
        seqs, tokens = target
        if seqs is None or tokens is None:
            raise UsageError("the engine does not tell its limits")
        limits = self._state.changed_by((seqs, tokens))
        keeps = self._state.in_force and self._keep != self._state.kept
        if limits == LimitPair() and not keeps:
            self._tell("nothing to turn: these are the present values")
            return None
        return limits

    async def _may_turn(self, host: str | None) -> bool:
        """Return True if no host name is needed, or the user has typed it once."""
        if host is None or self._host_named:
            return True
        self._host_named = await self.app.push_screen_wait(HostQuestion(host, ASKED))
        return self._host_named

    def _tell(self, text: str, kind: str = "") -> None:
        label = self.query_one("#told", Label)
        label.update(visible(text))
        label.set_class(kind == "-wrong", "-wrong")
        label.set_class(kind == "-done", "-done")
