"""Turns limits of the engine that is shown, tells what came of it, and turns back."""

import asyncio
from collections.abc import Sequence
from threading import Event
from typing import ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label

from collectors.contract.readings import LimitChange
from inferwatch.errors import InferwatchError, UsageError
from inferwatch.feed import Feed, FeedState, LimitPair
from inferwatch.formatting import counted
from inferwatch.ui.frame.host_question import HostAsked, HostQuestion
from inferwatch.ui.kit.dialogs import DialogInput
from inferwatch.ui.kit.keys import KeyFooter
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, fit
from inferwatch.ui.knobs.knob_state import NAMES, KnobState, LimitKnob, knob_state
from inferwatch.ui.knobs.outlook import GivenUpError, Outlook, changed_ns
from inferwatch.ui.knobs.table import (
    KnobTable,
    change_list,
    outcome_lines,
    prediction_lines,
    said,
)
from inferwatch.visible import visible, visible_lines

LABELS = {"max_num_seqs": "max_num_seqs", "max_num_batched_tokens": "batched tokens"}


class LimitField(DialogInput):
    """Takes digits; other keys mean what they mean elsewhere."""

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
        """Digits alone are typed here."""
        del key
        return character is not None and character.isdecimal()

    async def _on_key(self, event: events.Key) -> None:
        if event.is_printable and not self.check_consume_key(
            event.key, event.character
        ):
            event.prevent_default()  # the field does not take it, whoever is above may

    def action_choose(self, by: int) -> None:
        """Another value."""
        typed = int(self.value) if self.value.isdecimal() else None
        wanted = self.knob.beside(typed, by)
        if wanted is not None and not self.disabled:
            self.put(wanted)

    def put(self, value: int | None) -> None:
        """Show it; what is typed next takes its place."""
        self.value = "" if value is None else str(value)
        self.action_select_all()


class KnobRow(Horizontal):
    """A limit, from left to right in the order of time."""

    DEFAULT_CSS = """
    KnobRow {
        height: 1;
        Label { width: 10; text-align: right; }
        .name { width: 17; text-align: left; color: $ink-muted; }
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
        """The present value, where the field shows it: people have typed nothing."""

    def compose(self) -> ComposeResult:
        """Name, start-up, present, a field, a remark."""
        yield Label(LABELS[self._limit], classes="name", markup=False)
        yield Label("", classes="start", markup=False)
        yield Label("", classes="present", markup=False)
        yield LimitField(self._limit)
        yield Label("", classes="remark", markup=False)

    @property
    def field(self) -> LimitField:
        """Where it is typed."""
        return self.query_one(LimitField)

    def show(self, knob: LimitKnob, *, can_turn: bool) -> None:
        """Take what is known of it; what people typed stays."""
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
        """The field shows the present value again, whatever was typed."""
        self.field.put(self.field.knob.present)
        self._followed = self.field.value


def _text(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _present(knob: LimitKnob) -> str:
    if knob.present is None or knob.highest in {None, knob.present}:
        return _text(knob.present)
    return f"{knob.present:,}–{knob.highest:,}"


class KeepSwitch(Panel):
    """Whether they stay when we go; a click turns it."""

    DEFAULT_CSS = """
    KeepSwitch { height: 1; width: 1fr; }
    """
    ACTION = "screen.keep"

    on = False
    can_turn = True

    def show(self, *, on: bool, can_turn: bool) -> None:
        """Take how it stands."""
        if (on, can_turn) != (self.on, self.can_turn):
            self.on, self.can_turn = on, can_turn
            self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """One row."""
        del height
        action = self.ACTION if self.can_turn else None
        ink = "strong" if self.on else "muted"
        mark = "[×]" if self.on else "[ ]"
        says = " keep: they stay when we go" if self.on else " keep when we go"
        return [
            fit((TextRun(mark, ink, action), TextRun(says, ink, action)), width),
        ]


ASKED = HostAsked(
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


def pair_text(asked: LimitPair) -> str:
    """What is other."""
    parts = zip(NAMES, (asked.max_num_seqs, asked.max_num_batched_tokens), strict=True)
    return ", ".join(f"{name} {value:,}" for name, value in parts if value is not None)


def done_text(wanted: tuple[int | None, int | None], *, keep: bool) -> str:
    """That it was done."""
    seqs, tokens = wanted
    stays = "; they stay when we go" if keep else ""
    return f"turned: max_num_seqs {seqs:,}, max_num_batched_tokens {tokens:,}{stays}"


def _in_force_text(state: KnobState, us: str) -> str:
    """Who is the watcher, and what becomes of them when it goes."""
    stays = "they stay" if state.kept else "start-up values return 10 s later"
    if us and state.by == us:
        return f"In force by us; when we leave (q), {stays}."
    return f"In force by {state.by or 'somebody'}; when that goes, {stays}."


def state_texts(state: KnobState, refusal: str | None, us: str) -> Sequence[str]:
    """Who turned what is in force, what becomes of it, and what cannot be."""
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
"""So long after the last digit nothing is predicted."""
ROWS_BESIDE = 11
"""Border, title, hint, the rows of limits, the switch, a free one, footer."""
TEXTS = "state", "told"
"""Labels that are as high as what they say."""


class KnobScreen(ModalScreen[None]):
    """The dialog: it acts on the engine of now, whatever moment is shown."""

    DEFAULT_CSS = """
    KnobScreen {
        align: center middle; background: $background 60%;
        #sheet {
            width: 96; max-width: 100%; height: auto; max-height: 100%;
            padding: 0 1; margin-bottom: 1; background: $surface;
            border: round $primary;
        }
        #heads { height: 1; }
        #heads Label { width: 10; text-align: right; color: $ink-muted; }
        #heads .name { width: 17; }
        #heads .proposed { width: 16; text-align: left; padding: 0 0 0 3; }
        #hint, #state { color: $ink-muted; width: 100%; }
        #told { width: 100%; }
        #told.-wrong { color: $error; }
        #told.-done { color: $success; }
        #turns { height: 1; }
        #turns Button { margin-left: 1; }
        VerticalScroll {
            height: auto; scrollbar-size-vertical: 1; margin-top: 1;
            scrollbar-color: $ink-faint; scrollbar-background: $surface;
        }
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
        self._given_up = Event()
        self._drawn: tuple[object, ...] = ()
        """What the table is of."""
        self._kept_before = self._keep
        self._refused: str | None = None
        """Why nothing could be turned when we looked last."""

    def compose(self) -> ComposeResult:
        """The limits, a switch and two buttons, what is told, a table."""
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
                yield KnobTable()
        yield KeyFooter()

    def on_mount(self) -> None:
        """Begin to look; buttons leave the focus where digits go."""
        for button in self.query(Button):
            button.can_focus = False
        self._look()
        self.set_interval(LOOK_EVERY_S, self._look)
        for field in self.query(LimitField):
            if not field.disabled:
                field.focus()
                return

    def on_resize(self) -> None:
        """The table has what the rest leaves."""
        self.set_class(self.size.height < 30, "-short")
        self.call_after_refresh(self._fit)

    def _fit(self) -> None:
        beside = ROWS_BESIDE - 2 * self.has_class("-short")
        beside += sum(self.query_one(f"#{each}").size.height for each in TEXTS)
        most = max(self.size.height - beside, 3)
        self.query_one(VerticalScroll).styles.max_height = most

    def on_unmount(self) -> None:
        """Whoever computes may stop."""
        self._given_up.set()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """No keys for what the engine does not do."""
        if action in {"turn", "reset", "keep"}:
            return self._refused is None
        return super().check_action(action, parameters)

    # What is.

    @property
    def is_recorded(self) -> bool:
        """There is no engine any more."""
        return self._feed.limit_desk is None or self._feed.state is FeedState.REPLAYING

    @property
    def refusal(self) -> str | None:
        """Why nothing can be turned now."""
        desk = self._feed.limit_desk
        if desk is None or self.is_recorded:
            return RECORDED
        return desk.unavailable

    def _known_state(self) -> KnobState:
        desk = self._feed.limit_desk
        answered = desk.answered if desk is not None else ()
        return knob_state(self._feed.present(self._source), answered)

    def _look(self) -> None:
        """Show what is known now; what people typed stays."""
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
        """As proposed.

        Raises:
            UsageError: one is no number it could have.
        """
        seqs, tokens = (
            knob.present or 0 if field.disabled else knob.read(field.value)
            for field, knob in zip(
                self.query(LimitField), self._state.knobs, strict=True
            )
        )
        return seqs, tokens

    # The table.

    def _look_ahead(self) -> None:
        """What is proposed, predicted; else what the last change came to."""
        try:
            asked = self._state.changed_by(self._wanted)
        except UsageError:
            return
        change_ns = changed_ns(self._state)
        if asked != LimitPair() and not self.is_recorded:
            drawn: tuple[object, ...] = ("asked", asked, change_ns)
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
            self._predict(asked, self._given_up)
        else:
            self._tell_outcome(change_ns)

    @work(exclusive=True, group="table")
    async def _predict(self, asked: LimitPair, given_up: Event) -> None:
        title, table = f"predicted: {pair_text(asked)}", self.query_one(KnobTable)
        table.show(lambda width: said(title, "simulating…", width))
        await asyncio.sleep(TYPING_S)
        try:
            told = await self._outlook.prediction(asked, self._state, given_up)
        except InferwatchError as error:
            why = f"Cannot say: {error}."
            table.show(lambda width: said(title, why, width))
        except GivenUpError:
            return
        else:
            of = f"{title}, from the last {counted(told.measured.requests, 'request')}"
            table.show(lambda width: prediction_lines(of, told, width))

    @work(exclusive=True, group="table")
    async def _tell_outcome(self, change_ns: int | None) -> None:
        table, outlook = self.query_one(KnobTable), self._outlook
        marks, wall_text = outlook.changes(), self._feed.wall_text
        if change_ns is None:
            text = NO_OUTLOOK if self._refused is None else ""
            if self._state.pending:
                text = IDLE
            if self.is_recorded and not marks:
                text = NOT_YET
            table.show(
                lambda width: [
                    *(said("other values", text, width) if text else ()),
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

    # Turning.

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
        """The switch says it; to turn them says it to the engine."""
        if self.refusal is None:
            self._keep = not self._keep
            self.query_one(KeepSwitch).show(on=self._keep, can_turn=True)

    def action_turn(self) -> None:
        """Turn them as proposed; once at a time."""
        if not self.is_turning:
            self._turn(back=False)

    def action_reset(self) -> None:
        """Back to the start-up values, whatever is proposed."""
        if not self.is_turning:
            self._turn(back=True)

    @property
    def is_turning(self) -> bool:
        """The engine has yet to answer, or somebody to name its host."""
        return any(
            each.group == "turn" and not each.is_finished and each.node is self
            for each in self.workers
        )

    @property
    def is_busy(self) -> bool:
        """It turns, or the table is yet to come."""
        return any(not each.is_finished for each in self.workers if each.node is self)

    @work(group="turn")
    async def _turn(self, *, back: bool) -> None:
        desk = self._feed.limit_desk
        try:
            wanted = self._state.start if back else self._wanted
            asked = self._asked_of(wanted)
            if asked is None or desk is None:
                return
            if not await self._may_turn(desk.must_name_host):
                return
            self._tell("turning…")
            if back or wanted == self._state.start:
                await desk.reset()
            else:
                await desk.set(asked, keep=self._keep)
        except InferwatchError as error:
            self._tell(f"▲ {error}", "-wrong")
            self._look()
        else:
            self._look()
            for row in self.query(KnobRow):
                row.follow()
            self._tell(f"✔ {done_text(wanted, keep=self._keep)}", "-done")

    def _asked_of(self, wanted: tuple[int | None, int | None]) -> LimitPair | None:
        """What differs from the present; None where nothing is to be done, said why."""
        if (why := self.refusal) is not None:
            raise UsageError(why)
        seqs, tokens = wanted
        if seqs is None or tokens is None:
            raise UsageError("the engine does not tell its limits")
        asked = self._state.changed_by((seqs, tokens))
        keeps = self._state.in_force and self._keep != self._state.kept
        if asked == LimitPair() and not keeps:
            self._tell("nothing to turn: these are the present values")
            return None
        return asked

    async def _may_turn(self, host: str | None) -> bool:
        """Who named the host once need not do it again."""
        if host is None or self._host_named:
            return True
        self._host_named = await self.app.push_screen_wait(HostQuestion(host, ASKED))
        return self._host_named

    def _tell(self, text: str, kind: str = "") -> None:
        told = self.query_one("#told", Label)
        told.update(visible(text))
        told.set_class(kind == "-wrong", "-wrong")
        told.set_class(kind == "-done", "-done")

    def action_leave(self) -> None:
        """Back to the screen; what was turned stays turned while we are there."""
        self.dismiss(None)

    def action_scroll(self, way: int) -> None:
        """Through the table, where it is higher than the screen."""
        scrolled = self.query_one(VerticalScroll)
        scrolled.scroll_relative(y=way * max(scrolled.size.height - 1, 1))
