"""The load plan as a form: checked as it is typed, with a sketch below."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import msgspec
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Button, Input

from inferwatch.errors import UsageError
from inferwatch.loadgen.plan.fields import SPACED
from inferwatch.loadgen.plan.file import make_plan
from inferwatch.loadgen.plan.plan import (
    FIELDS,
    FOREIGN,
    Api,
    Arrivals,
    LoadPlan,
    PlanField,
    RequestClass,
)
from inferwatch.loadgen.plan.text import read_number, written
from inferwatch.ui.kit.panel import LinePanel, Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, fit, join, ruled
from inferwatch.ui.load.sketch import LoadSketch, LoadSketchAxis
from inferwatch.ui.widgets.charts import ChartPlan

Fields = dict[str, Any]
ARRIVALS = (*SPACED, "closed")
COARSE = {"arrivals", "scenario"}
"""Set several fields; where rows set the same fields, the rows win."""
DEFAULTS = {each.name: each.default for each in FIELDS}


@dataclass(frozen=True, kw_only=True)
class FormField:
    """A row of the form and how its text maps to plan fields."""

    key: str
    label: str
    hint: str
    """Unit, or meaning of an empty field."""
    parse: Callable[[str], Fields]
    """Returns plan fields for a text. Raises ValueError with a message to show."""
    text: Callable[[LoadPlan], str]
    only: tuple[str, ...] = ARRIVALS


@dataclass(frozen=True, kw_only=True)
class FormReading:
    """The plan the form describes, or what is wrong with it."""

    plan: LoadPlan | None
    """None while there is a mistake."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """Messages by field; under the empty name what belongs to no single field."""


def read_form(base: LoadPlan, arrivals: str, texts: Mapping[str, str]) -> FormReading:
    """Read a load plan from the form's texts; fields not shown are as in ``base``."""
    before: Fields = msgspec.to_builtins(base)
    parsed: dict[str, Fields] = {"arrivals": _arrivals(base, arrivals)}
    faults: dict[str, str] = {}
    for each in FORM:
        if arrivals not in each.only or each.key not in texts:
            continue
        text = texts[each.key].strip()
        if text == each.text(base):
            continue
        try:
            parsed[each.key] = each.parse(text)
        except ValueError as error:
            faults[each.key] = str(error)
        except UsageError as error:
            faults[each.key] = str(error).removeprefix("--slo: ")
    if faults:
        return FormReading(plan=None, faults=faults)
    ordered = sorted(parsed, key=lambda key: key not in COARSE)
    whole = {name: value for key in ordered for name, value in parsed[key].items()}
    plan = _plan({**before, **whole})
    if isinstance(plan, LoadPlan):
        return FormReading(plan=plan)
    return FormReading(plan=None, faults=_blame(before, parsed, plan))


def beside(plan: LoadPlan) -> str:
    """Describe the plan's settings that the form has no field for."""
    texts = []
    if plan.burst_every_s is not None:
        texts.append(f"a burst every {plan.burst_every_s:g} s")
    if plan.shared_prefixes.groups:
        shared = plan.shared_prefixes
        texts.append(f"{shared.groups} shared prefixes of {shared.tokens} tokens")
    if plan.classes:
        texts.append(f"classes {', '.join(map(_class_text, plan.classes))}")
    if plan.hang_up:
        texts.append(f"{plan.hang_up:.0%} hang up")
    if plan.ask_again_after:
        texts.append("each prompt asked twice")
    if plan.dataset:
        texts.append(f"prompts of {plan.dataset}")
    if plan.endpoint is Api.CHAT:
        texts.append("chat")
    return ", ".join(texts)


def _class_text(each: RequestClass) -> str:
    if each.priority is None:
        return each.name
    return f"{each.name} (priority {each.priority})"


def _blame(before: Fields, parsed: Mapping[str, Fields], why: str) -> dict[str, str]:
    """Return mistakes by field; if no field is at fault alone, that of the plan."""
    arrivals = parsed["arrivals"]
    alone = {
        key: fault
        for key, part in parsed.items()
        if isinstance(fault := _plan({**before, **arrivals, **part}), str)
    }
    named = [key for key in parsed if key != "arrivals" and key in alone]
    return {key: alone[key] for key in named} or {_named(why): why}


def _named(why: str) -> str:
    """Return the form's field that a plan's error message names; empty if none."""
    names = {"rate_per_s": "rate", "rates": "rate", "concurrency": "users"}
    return next((key for word, key in names.items() if word in why), "")


def _plan(fields: Fields) -> LoadPlan | str:
    try:
        return make_plan(fields)
    except UsageError as error:
        return str(error).removeprefix("the load plan: ").partition(" - at ")[0]


def _arrivals(base: LoadPlan, chosen: str) -> Fields:
    """Return the chosen arrivals; fields that they do not use get their defaults."""
    lost = FOREIGN[Arrivals(chosen)] & set(base.__struct_fields__)
    if base.converses:
        lost -= {"think_s"}
    return {"arrivals": chosen, **{name: DEFAULTS[name] for name in lost}}


def _form_fields() -> Iterator[FormField]:
    rows = [(each.option.row, each) for each in FIELDS if each.option.row is not None]
    for row, declared in sorted(rows, key=lambda each: each[0].place):
        of = declared.option.of
        yield FormField(
            key=row.key,
            label=row.label,
            hint=row.hint,
            parse=row.read or partial(_parsed, declared),
            text=row.write or partial(_text, declared.name),
            only=tuple(each for each in ARRIVALS if Arrivals(each) in of),
        )


def _parsed(declared: PlanField, text: str) -> Fields:
    bounds, read = declared.option.bounds, declared.option.read
    if declared.number is None or bounds is None:
        return {declared.name: read(text) if read else text}
    whole = declared.number is int
    number = read_number(text, bounds, whole=whole, optional=declared.optional)
    return {declared.name: number}


def _text(name: str, plan: LoadPlan) -> str:
    return written(getattr(plan, name))


FORM = tuple(_form_fields())


INSIDE = [("esc", " leaves, "), ("↑ ↓", " other fields")]
OUTSIDE = [("e", " or a click edits")]


class LoadRemark(LinePanel):
    """The hint of a form field, or its error message."""

    _hint = ""
    _fault = ""

    def say(self, hint: str, fault: str) -> None:
        self._hint, self._fault = hint, fault
        self.redraw()

    def line(self, width: int) -> Line:
        if self._fault:
            return fit((TextRun(" ✖ ", "bad"), TextRun(self._fault, "bad")), width)
        return fit((TextRun(f" {self._hint}", "faint"),), width)


class LoadLabel(LinePanel):
    """The label of a form field."""

    DEFAULT_CSS = """
    LoadLabel { width: 15; }
    """

    _pointed = False

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def point(self, *, pointed: bool) -> None:
        """Mark the label of the field that has the focus."""
        if pointed != self._pointed:
            self._pointed = pointed
            self.redraw()

    def line(self, width: int) -> Line:
        if self._pointed:
            mark = TextRun("▸", "accent")
            return fit((mark, TextRun(self._text, "strong")), width)
        return fit((TextRun(f" {self._text}", "muted"),), width)


class LoadField(Horizontal):
    """A form field in one row: label, input, remark."""

    DEFAULT_CSS = """
    LoadField {
        height: 1;
        Input { width: 21; height: 1; background: $surface; }
        Input:focus { background: $primary 35%; }
        Input.-textual-compact { padding: 0 1 !important; }
        LoadRemark { width: 1fr; }
        &#row-slo Input { width: 26; }
    }
    """

    def __init__(self, field: FormField, text: str) -> None:
        super().__init__(id=f"row-{field.key}")
        self.field = field
        self._text = text

    def compose(self) -> ComposeResult:
        yield LoadLabel(self.field.label)
        yield Input(self._text, compact=True, id=f"field-{self.field.key}")
        yield LoadRemark()

    @property
    def value(self) -> str:
        return self.query_one(Input).value if self.is_mounted else self._text

    def write(self, text: str) -> None:
        self.query_one(Input).value = text

    def say(self, fault: str) -> None:
        """Show what is wrong with the field's text, empty for nothing."""
        message = " ".join(fault.split())
        self.query_one(LoadRemark).say(self.field.hint, message)


class WordChoice(LinePanel, can_focus=True):
    """A choice of words in one row, by arrows, first letter or mouse.

    While focused it takes letters, like an input.
    """

    DEFAULT_CSS = """
    WordChoice { background: $surface; }
    WordChoice:focus { background: $primary 35%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right", "move(1)", "next", show=False),
        Binding("left", "move(-1)", "before", show=False),
    ]

    @dataclass
    class WordChosen(Message):
        """Another word was chosen."""

        word: str

    def __init__(self, words: Sequence[str], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._words = tuple(words)
        self.word = self._words[0]

    def offer(self, words: Sequence[str], word: str) -> None:
        """Replace the words to choose from, without posting a message."""
        self._words, self.word = tuple(words), word
        self.redraw()

    def choose(self, word: str) -> None:
        if word != self.word:
            self.word = word
            self.redraw()
            self.post_message(self.WordChosen(word))

    def action_choose(self, word: str) -> None:
        self.focus()
        self.choose(word)

    def action_move(self, by: int) -> None:
        index = (self._words.index(self.word) + by) % len(self._words)
        self.choose(self._words[index])

    def check_consume_key(self, key: str, character: str | None) -> bool:
        """Take letters, which would otherwise be keys of the screen."""
        del key
        return character is not None and character.isprintable()

    def on_key(self, event: events.Key) -> None:
        """Choose the next word that begins with the letter."""
        if event.character is None or not event.is_printable:
            return
        event.stop()
        at = self._words.index(self.word) + 1
        turned = (*self._words[at:], *self._words[:at])
        match = next((word for word in turned if word[0] == event.character), None)
        if match is not None:
            self.choose(match)

    def watch_has_focus(self, value: bool) -> None:  # noqa: FBT001 - Textual's way
        super().watch_has_focus(value)
        self.redraw()

    def line(self, width: int) -> Line:
        edge = "accent" if self.has_focus else "faint"
        words = [
            TextRun(
                f" {word} ",
                "chip" if word == self.word else "muted",
                f"choose('{word}')",
            )
            for word in self._words
        ]
        return fit((TextRun("‹", edge), *words, TextRun("›", edge)), width)


class StartButton(Button):
    """Starts or stops the load; takes letters while focused, like a field."""

    def check_consume_key(self, key: str, character: str | None) -> bool:
        del key
        return character is not None and character.isprintable()

    async def _on_key(self, event: events.Key) -> None:
        """Press at the letter on the button; other letters are no keys here."""
        if event.is_printable and event.character != " ":
            event.stop()
            if event.character == "s":
                self.press()


class LoadFormHead(LinePanel):
    """The form's heading, with the keys that enter and leave it."""

    inside = False

    def line(self, width: int) -> Line:
        keys = INSIDE if self.inside else OUTSIDE
        way = [(TextRun(key, "accent"), TextRun(does, "muted")) for key, does in keys]
        return ruled((TextRun("load plan", "strong"),), join(way, ""), width)


class LoadFormFoot(Panel):
    """Why the plan cannot be used, or what the form does not show."""

    DEFAULT_CSS = """
    LoadFormFoot { height: 2; }
    """

    _text = ""
    _bad = False

    def say(self, text: str, *, bad: bool) -> None:
        self._text, self._bad = " ".join(text.split()), bad
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
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
    """The load plan as a form, checked as it is typed, with a sketch below.

    Letters go to the focused field; ``esc`` leaves.
    """

    DEFAULT_CSS = """
    LoadForm {
        height: 1fr;
        Horizontal { height: 1; }
        .go { height: 2; }
        #start { width: 15; margin: 0 1 0 0; }
        #start:focus { text-style: bold reverse; }
        LoadSketch { height: 1fr; max-height: 24; }
        LoadSketch.-blank { height: 1; min-height: 1; }
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
        Binding(
            "shift+tab,up", "step(-1)", "previous field", show=False, priority=True
        ),
    ]
    """Priority: handled before the next key looks for its field."""

    @dataclass
    class FormLeft(Message):
        """The focus has left the form."""

    class SketchChanged(Message):
        """The sketch now needs rows for a curve, or no longer does."""

    @dataclass
    class StartPressed(Message):
        """The button was pressed: start or stop the load."""

    def __init__(self, plan: LoadPlan, sketch: ChartPlan) -> None:
        super().__init__()
        self._base = plan
        self._sketch = sketch
        self._blocked = ""
        self._measured: float | None = None
        self.reading = FormReading(plan=None)

    def compose(self) -> ComposeResult:
        yield LoadFormHead()
        with Horizontal(classes="choice"):
            yield LoadLabel("arrivals")
            yield WordChoice(ARRIVALS, id="arrivals")
        for each in FORM:
            yield LoadField(each, each.text(self._base))
        with Horizontal(classes="go"):
            yield StartButton("Start", id="start", compact=True, variant="primary")
            yield LoadFormFoot()
        yield LoadSketch(self._sketch)
        yield LoadSketchAxis()

    def on_mount(self) -> None:
        self._offer()
        self.judge()

    def show(self, *, running: bool, blocked: str) -> None:
        """Set the text of the button that starts or stops, and why it is disabled."""
        button = self.query_one("#start", Button)
        label = " s  Stop " if running else " s  Start "
        if str(button.label) != label:
            button.label = label
            button.variant = "error" if running else "primary"
        button.disabled = bool(blocked) and not running
        if blocked != self._blocked:
            self._blocked = blocked
            self._tell()

    def follow(self, plan: LoadPlan, *, running: bool) -> None:
        """Show another plan unless the user has edited this one.

        A new run's plan replaces the text, except while a field has the focus.
        """
        begun = running and plan.run_id != self._base.run_id
        if plan == self._base:
            return
        if not self._says(plan):
            if self._inside or not (begun or self._says(self._base)):
                return
            for row in self.query(LoadField):
                row.write(row.field.text(plan))
        self._base = plan
        self._offer()
        self.judge()

    def _says(self, plan: LoadPlan) -> bool:
        if self.query_one(WordChoice).word != plan.arrivals.value:
            return False
        rows = self.query(LoadField)
        return all(row.value.strip() == row.field.text(plan) for row in rows)

    def enter(self) -> None:
        """Focus the first field with a mistake, else the first of all."""
        faulty = next((key for key in self.reading.faults if key), None)
        self._focus(self.query_one(f"#field-{faulty}" if faulty else "#arrivals"))

    def judge(self) -> None:
        """Read the form and show mistakes next to their fields."""
        arrivals = self.query_one(WordChoice).word
        rows = list(self.query(LoadField))
        texts = {row.field.key: row.value for row in rows}
        self.reading = read_form(self._base, arrivals, texts)
        for row in rows:
            row.display = arrivals in row.field.only
            row.say(self.reading.faults.get(row.field.key, ""))
        self._sketch_it()
        self._tell()

    def measured(self, rate_per_s: float | None) -> None:
        """Set the request rate that the plan's warm-up has measured."""
        if rate_per_s != self._measured:
            self._measured = rate_per_s
            self._sketch_it()

    def runs_at(self, rate_per_s: float | None) -> None:
        """Fill in the rate of the running load where the plan leaves it to be measured.

        It stands there for reading: what is typed takes its place.
        """
        text = "" if rate_per_s is None else f"{rate_per_s:.4g} now"
        field = self.query_one("#field-rate", Input)
        if field.placeholder != text:
            field.placeholder = text

    @property
    def sketched(self) -> bool:
        """Whether the sketch draws a curve, and not only a sentence."""
        plan = self.reading.plan
        return plan is not None and self.query_one(LoadSketch).drawn

    def _sketch_it(self) -> None:
        """Sketch the plan; if the warm-up measures its rate, once that is known."""
        plan, also = self.reading.plan, ""
        if plan is not None and plan.measures_rate and self._measured is not None:
            also = f"{self._measured:.3g}/s: {plan.rate_fraction:.0%} of the measured"
            plan = msgspec.structs.replace(plan, rate_per_s=self._measured)
        sketch = self.query_one(LoadSketch)
        before = sketch.drawn
        sketch.sketch(plan, also)
        self.query_one(LoadSketchAxis).show(plan)
        sketch.set_class(not sketch.drawn, "-blank")
        if sketch.drawn != before:
            self.post_message(self.SketchChanged())

    def _offer(self) -> None:
        own = self._base.arrivals.value
        words = ARRIVALS if own in ARRIVALS else (*ARRIVALS, own)
        self.query_one(WordChoice).offer(words, own)

    def _tell(self) -> None:
        faults = self.reading.faults
        focused = self.app.focused
        here = (focused.id or "").removeprefix("field-") if focused else ""
        at = here if here in faults else next(iter(faults), "")
        label = next((f"{each.label}: " for each in FORM if each.key == at), "")
        fault = f"{label}{faults[at]}" if faults else ""
        also = beside(self._base)
        hint = next((each.hint for each in FORM if each.key == here), "")
        text = self._blocked or fault or hint or (f"also: {also}" if also else "")
        foot = self.query_one(LoadFormFoot)
        foot.say(text, bad=bool(self._blocked or fault))

    @property
    def _stops(self) -> list[Widget]:
        """The visible fields that can have the focus, in the order of the form."""
        return [
            each
            for each in (self.query("WordChoice, Input, StartButton"))
            if each.focusable and each.display and self._is_visible(each)
        ]

    @staticmethod
    def _is_visible(widget: Widget) -> bool:
        return all(
            node.display for node in widget.ancestors if isinstance(node, Widget)
        )

    def action_step(self, by: int) -> None:
        stops = self._stops
        focused = self.app.focused
        index = stops.index(focused) + by if focused in stops else 0
        self._focus(stops[index % len(stops)])

    def _focus(self, widget: Widget) -> None:
        """Focus at once, so that the next key goes there."""
        self.screen.set_focus(widget)

    def action_leave(self) -> None:
        """Leave the form, so that letters are keys of the screen again."""
        self.screen.set_focus(None)
        self.post_message(self.FormLeft())

    def on_descendant_focus(self) -> None:
        """Show the key that leaves the form, and what is to be known of the field."""
        self._show_focus()
        self._tell()

    def on_descendant_blur(self) -> None:
        """Show the key that enters the form, unless another field has the focus."""
        self._show_focus()

    def _show_focus(self) -> None:
        head = self.query_one(LoadFormHead)
        head.inside = self._inside
        head.redraw()
        focused = self.screen.focused
        row = None if focused is None else focused.parent
        for label in self.query(LoadLabel):
            label.point(pointed=row is label.parent)

    @property
    def _inside(self) -> bool:
        focused = self.screen.focused
        return focused is not None and self in focused.ancestors

    @on(Input.Changed)
    @on(WordChoice.WordChosen)
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
        self.post_message(self.StartPressed())
