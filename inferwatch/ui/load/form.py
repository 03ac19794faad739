"""The load plan as a form: judged as it is typed, sketched below."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Button, Input

from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.ui.load.choice import LoadChoice
from inferwatch.ui.load.field import LoadField, LoadLabel
from inferwatch.ui.load.plan_form import ARRIVALS, FORM, FormReading, beside, read_form
from inferwatch.ui.load.sketch import LoadSketch, LoadSketchAxis
from inferwatch.ui.shared.chart_plan import ChartPlan
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.text import Line, TextRun, fit, join, ruled

INSIDE = [("esc", " leaves, "), ("tab", " goes on")]
OUTSIDE = [("e", " or a click edits")]


class LoadFormHead(Panel):
    """What it is and how to get in and out."""

    inside = False

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The row."""
        del height
        keys = INSIDE if self.inside else OUTSIDE
        way = [(TextRun(key, "accent"), TextRun(does, "muted")) for key, does in keys]
        return (ruled((TextRun("load plan", "strong"),), join(way, ""), width),)


class LoadFormFoot(Panel):
    """What keeps the plan from being followed, else what it says besides."""

    DEFAULT_CSS = """
    LoadFormFoot { height: 2; }
    """

    _text = ""
    _bad = False

    def say(self, text: str, *, bad: bool) -> None:
        """Take it."""
        self._text, self._bad = " ".join(text.split()), bad
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """As many rows as there are."""
        ink = "bad" if self._bad else "muted"
        rest, lines = f"{'✖ ' if self._bad else ''}{self._text}", []
        for _ in range(height - 1):
            head = rest[: width - 1]
            if len(rest) > len(head) and " " in head:
                head = head[: head.rindex(" ")]
            lines.append((TextRun(f" {head}", ink),))
            rest = rest[len(head) :].lstrip()
        return [*lines, fit((TextRun(f" {rest}", ink),), width)]


class LoadForm(Vertical):
    """While a field has the focus, letters are its; ``esc`` leaves."""

    DEFAULT_CSS = """
    LoadForm {
        height: 1fr;
        Horizontal { height: 1; }
        .go { height: 2; }
        #start { width: 15; margin: 0 1 0 0; }
        LoadSketch { height: 1fr; max-height: 11; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "escape",
            "leave",
            "leave the form",
            tooltip="Back to the keys",
            priority=True,
        ),
        Binding("tab,down", "step(1)", "next field", key_display="tab", priority=True),
        Binding("shift+tab,up", "step(-1)", "field before", show=False, priority=True),
    ]
    """At once, before the next key finds its field: who types fast is not misread."""

    @dataclass
    class Left(Message):
        """Nobody is in it any more."""

    @dataclass
    class StartAsked(Message):
        """The button was pressed."""

    def __init__(self, plan: LoadPlan, sketch: ChartPlan) -> None:
        super().__init__()
        self._base = plan
        self._sketch = sketch
        self._blocked = ""
        self.reading = FormReading(plan=None)

    def compose(self) -> ComposeResult:
        """Fields from top to bottom, the button, the sketch."""
        yield LoadFormHead()
        with Horizontal(classes="choice"):
            yield LoadLabel("arrivals")
            yield LoadChoice(ARRIVALS, id="arrivals")
        for field in FORM:
            yield LoadField(field, field.text(self._base))
        with Horizontal(classes="go"):
            yield Button("Start", id="start", compact=True, variant="primary")
            yield LoadFormFoot()
        yield LoadSketch(self._sketch)
        yield LoadSketchAxis()

    def on_mount(self) -> None:
        """What is there to begin with is judged, too."""
        self._offer()
        self.judge()

    def show(self, *, running: bool, blocked: str) -> None:
        """What the button would do, and why nothing can be done."""
        button = self.query_one("#start", Button)
        label = " s  Stop " if running else " s  Start "
        if str(button.label) != label:
            button.label = label
            button.variant = "error" if running else "primary"
        button.disabled = bool(blocked) and not running
        if blocked != self._blocked:
            self._blocked = blocked
            self._tell()

    def follow(self, plan: LoadPlan) -> None:
        """Say another plan, unless somebody is typing or has typed one of his own."""
        if plan == self._base:
            return
        if not self._says(plan):
            if not self._says(self._base) or self._inside:
                return
            for row in self.query(LoadField):
                row.write(row.field.text(plan))
        self._base = plan
        self._offer()
        self.judge()

    def _says(self, plan: LoadPlan) -> bool:
        if self.query_one(LoadChoice).word != plan.arrivals.value:
            return False
        rows = self.query(LoadField)
        return all(row.value.strip() == row.field.text(plan) for row in rows)

    def enter(self, key: str | None = None) -> None:
        """Into a field: the one at fault, else the first."""
        first = next((key for key in self.reading.faults if key), None)
        wanted = key or first
        field = f"#field-{wanted}" if wanted else "#arrivals"
        self._focus(self.query_one(field))

    def judge(self) -> None:
        """Read all of it; say beside each field what is wrong with it."""
        arrivals = self.query_one(LoadChoice).word
        rows = list(self.query(LoadField))
        texts = {row.field.key: row.value for row in rows}
        self.reading = read_form(self._base, arrivals, texts)
        for row in rows:
            row.display = arrivals in row.field.only
            row.say(self.reading.faults.get(row.field.key, ""))
        self.query_one(LoadSketch).sketch(self.reading.plan)
        self.query_one(LoadSketchAxis).show(self.reading.plan)
        self._tell()

    def _offer(self) -> None:
        """The words to choose from; a trace can be kept, not made up."""
        own = self._base.arrivals.value
        words = ARRIVALS if own in ARRIVALS else (*ARRIVALS, own)
        self.query_one(LoadChoice).offer(words, own)

    def _tell(self) -> None:
        faults = self.reading.faults
        focused = self.app.focused
        here = (focused.id or "").removeprefix("field-") if focused else ""
        at = here if here in faults else next(iter(faults), "")
        label = next((f"{each.label}: " for each in FORM if each.key == at), "")
        fault = f"{label}{faults[at]}" if faults else ""
        also = beside(self._base)
        text = self._blocked or fault or (f"also: {also}" if also else "")
        foot = self.query_one(LoadFormFoot)
        foot.say(text, bad=bool(self._blocked or fault))

    @property
    def _stops(self) -> list[Widget]:
        """What can be focused, in order."""
        return [
            each
            for each in (self.query("LoadChoice, Input, Button"))
            if each.focusable and each.display and self._shown(each)
        ]

    @staticmethod
    def _shown(widget: Widget) -> bool:
        return all(
            node.display for node in widget.ancestors if isinstance(node, Widget)
        )

    def action_step(self, by: int) -> None:
        """The next field, round and round."""
        stops = self._stops
        focused = self.app.focused
        index = stops.index(focused) + by if focused in stops else 0
        self._focus(stops[index % len(stops)])

    def _focus(self, widget: Widget) -> None:
        """At once: what is typed next is for it already."""
        self.screen.set_focus(widget)

    def action_leave(self) -> None:
        """Letters are keys of the screen again."""
        self.screen.set_focus(None)
        self.post_message(self.Left())

    def on_descendant_focus(self) -> None:
        """Say how to get out, and what is wrong here."""
        self._head()
        self._tell()

    def on_descendant_blur(self) -> None:
        """Say how to get in, unless another field has the focus now."""
        self._head()

    def _head(self) -> None:
        head = self.query_one(LoadFormHead)
        head.inside = self._inside
        head.redraw()

    @property
    def _inside(self) -> bool:
        focused = self.screen.focused
        return focused is not None and self in focused.ancestors

    @on(Input.Changed)
    @on(LoadChoice.Chosen)
    def _changed(self, message: Message) -> None:
        message.stop()
        self.judge()

    @on(Input.Submitted)
    def _submitted(self, message: Input.Submitted) -> None:
        message.stop()
        self.action_step(1)

    @on(Button.Pressed)
    def _pressed(self, message: Button.Pressed) -> None:
        message.stop()
        self.post_message(self.StartAsked())
