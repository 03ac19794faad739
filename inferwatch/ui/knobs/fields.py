"""The row of a limit: start-up, present, proposed; and the switch that keeps them."""

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Label

from inferwatch.ui.kit.dialogs import DialogInput
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, fit
from inferwatch.ui.knobs.knob_state import Knob

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
        self.knob = Knob(name=name)

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

    def show(self, knob: Knob, *, can_turn: bool) -> None:
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


def _present(knob: Knob) -> str:
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
