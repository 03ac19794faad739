"""The dialog before a profile: what it costs, how many steps, and who else notices."""

from typing import ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label

from collectors.probe.profiling import MOST_STEPS, STEPS
from inferwatch.errors import InferwatchError, UsageError
from inferwatch.feed import Feed
from inferwatch.ui.frame.host_question import HostQuestion, HostWarning
from inferwatch.ui.kit.dialogs import DialogInput
from inferwatch.ui.kit.keys import KeyFooter
from inferwatch.visible import visible_lines

COSTS = (
    "vLLM's own profiler records the next steps of the engine: each kernel, each "
    "operator. While it does, steps take longer; then vLLM writes its traces within a "
    "step: that stalls every request for some 100 ms to seconds, the longer the more "
    "steps."
)
ENDS = "It ends by itself, or with x. The traces are kept beside the record."
ASKED = HostWarning(
    question="This engine has other users. Profile its steps?",
    consequence="Their requests stall while vLLM writes its traces.",
    anyway="To profile it anyway",
    yes="Profile it",
    no="Leave it",
)


class StepsField(DialogInput):
    """An input for digits; other keys keep their meaning."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "begin", tooltip="Profile the next steps"),
    ]

    def __init__(self) -> None:
        super().__init__(str(STEPS), compact=True, id="steps", max_length=6)
        self.cursor_blink = False

    def check_consume_key(self, key: str, character: str | None) -> bool:
        del key
        return character is not None and character.isdecimal()

    async def _on_key(self, event: events.Key) -> None:
        if event.is_printable and not self.check_consume_key(
            event.key, event.character
        ):
            event.prevent_default()


def steps_in(text: str) -> int:
    """Return how many steps are asked for.

    >>> steps_in("20")
    20

    Raises:
        UsageError: it is no number of steps.
    """
    if not text.isdecimal() or not 1 <= int(text) <= MOST_STEPS:
        raise UsageError(f"how many steps? From 1 to {MOST_STEPS:,}")
    return int(text)


class ProfileDialog(ModalScreen[bool]):
    """Returns whether a profile was begun."""

    DEFAULT_CSS = """
    ProfileDialog {
        align: center middle; background: $background 60%;
        Vertical {
            width: 74; max-width: 100%; height: auto; max-height: 100%;
            padding: 0 1; background: $surface; border: round $primary;
        }
        Label { width: 100%; }
        #ends { color: $ink-muted; }
        #asked { height: 1; margin-top: 1; }
        #asked Label { width: auto; color: $ink-muted; }
        Input { width: 12; height: 1; margin: 0 1; background: $panel; }
        Input.-textual-compact { padding: 0 1 !important; }
        #told.-wrong { color: $error; }
        #buttons { height: 1; margin-top: 1; align-horizontal: right; }
        Button { margin-left: 2; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "close"),
        Binding("ctrl+c", "leave", "close", show=False, priority=True),
        Binding("P", "leave", "close", show=False),
    ]

    def __init__(self, feed: Feed) -> None:
        super().__init__()
        self._feed, self._desk = feed, feed.profile_desk
        self._why_not = self._desk.unavailable

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label("Profile steps of this engine", id="title")
            if self._why_not is not None:
                said = visible_lines(self._why_not)
                yield Label(f"▲ It cannot be: {said}.", id="why", markup=False)
            else:
                yield Label(COSTS, id="costs", markup=False)
                yield Label(ENDS, id="ends", markup=False)
                with Horizontal(id="asked"):
                    yield Label("the next")
                    yield StepsField()
                    yield Label(f"steps, at most {MOST_STEPS:,}", markup=False)
            yield Label("", id="told", markup=False)
            with Horizontal(id="buttons"):
                yield Button("esc  Close", id="no", compact=True)
                if self._why_not is None:
                    yield Button("enter  Profile", id="yes", compact=True)
        yield KeyFooter()

    def on_mount(self) -> None:
        """Leave the focus to the field."""
        for button in self.query(Button):
            button.can_focus = False
        for field in self.query(StepsField):
            field.focus()
            field.action_select_all()

    def action_leave(self) -> None:
        self.dismiss(False)  # noqa: FBT003 - Textual's way

    @on(Button.Pressed)
    def _pressed(self, message: Button.Pressed) -> None:
        if message.button.id == "yes":
            self._begin()
        else:
            self.action_leave()

    @on(Input.Submitted)
    def _submitted(self) -> None:
        self._begin()

    @on(Input.Changed)
    def _typing(self) -> None:
        self._tell("")

    @work(exclusive=True, group="begin")
    async def _begin(self) -> None:
        try:
            steps = steps_in(self.query_one(StepsField).value)
            if not await self._may_begin():
                return
            self._tell("asking the engine…")
            await self._desk.begin(steps)
        except InferwatchError as error:
            self._tell(f"▲ {error}", is_wrong=True)
        else:
            self.dismiss(True)  # noqa: FBT003 - Textual's way

    async def _may_begin(self) -> bool:
        """Ask for the name of the host, if others use the engine."""
        limits = self._feed.limit_desk  # it acts on the same engine
        host = None if limits is None else limits.must_name_host
        return host is None or await self.app.push_screen_wait(
            HostQuestion(host, ASKED)
        )

    def _tell(self, text: str, *, is_wrong: bool = False) -> None:
        told = self.query_one("#told", Label)
        told.update(visible_lines(text))
        told.set_class(is_wrong, "-wrong")
