"""Ask for the host name before anything that affects a shared server."""

from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen, Screen
from textual.widgets import Button, Input, Label

from inferwatch.ui.kit.dialogs import DialogInput
from inferwatch.ui.kit.keys import KeyFooter
from inferwatch.visible import visible, visible_lines


class LeavingScreen(Screen[None]):
    """A blank screen with messages while an engine or a load ends."""

    NAME = "leaving"

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str] = []

    def compose(self) -> ComposeResult:
        yield Label("", markup=False)

    def clear(self) -> None:
        self._lines.clear()
        self.query_one(Label).update("")

    def tell(self, text: str) -> None:
        self._lines.append(visible_lines(text))
        self.query_one(Label).update("\n".join(self._lines))


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWarning:
    """The question and its consequence."""

    question: str
    consequence: str
    anyway: str
    """Start of the last sentence, such as "To load it anyway"."""
    yes: str
    no: str


class HostQuestion(ModalScreen[bool]):
    """Asks for the host's name before an action that other users notice."""

    DEFAULT_CSS = """
    HostQuestion { align: center middle; background: $background 60%; }
    HostQuestion Vertical {
        width: 66; height: auto; padding: 1 2; background: $surface;
        border: round $warning;
    }
    HostQuestion Input { margin-top: 1; height: 1; background: $panel; }
    HostQuestion Input.-textual-compact { padding: 0 1 !important; }
    HostQuestion #consequence { width: 100%; }
    HostQuestion #wrong { padding: 0 1; color: $error; }
    HostQuestion Horizontal { height: auto; margin-top: 1; align-horizontal: right; }
    HostQuestion Button { margin-left: 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "cancel")]

    def __init__(self, host: str, warning: HostWarning) -> None:
        super().__init__()
        self._host, self._warning = host, warning

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label(f"▲ {self._warning.question}", id="question", markup=False)
            yield Label(
                f"{self._warning.consequence}\n{self._warning.anyway}, "
                f"type the name of its host: {visible(self._host)}",
                id="consequence",
                markup=False,
            )
            name = DialogInput(compact=True, placeholder="name of the host", id="host")
            name.cursor_blink = False
            yield name
            yield Label("", id="wrong")
            with Horizontal():
                yield Button(f"esc  {self._warning.no}", id="no", compact=True)
                yield Button(
                    f"enter  {self._warning.yes}",
                    id="yes",
                    variant="error",
                    compact=True,
                    disabled=True,
                )
        yield KeyFooter()

    @property
    def _named(self) -> bool:
        return self.query_one(Input).value.strip() == self._host

    @on(Input.Changed)
    def _typed(self) -> None:
        self.query_one("#yes").disabled = not self._named
        self.query_one("#wrong", Label).update("")

    @on(Input.Submitted)
    def _submitted(self) -> None:
        if self._named:
            self.dismiss(True)  # noqa: FBT003 - Textual's way
        else:
            self.query_one("#wrong", Label).update("✖ that is not the name of its host")

    @on(Button.Pressed)
    def _pressed(self, message: Button.Pressed) -> None:
        self.dismiss(message.button.id == "yes" and self._named)

    def action_cancel(self) -> None:
        self.dismiss(False)  # noqa: FBT003 - Textual's way
