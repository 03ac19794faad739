"""One of a few words, in one row: by arrows, first letter or mouse."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.text import Line, TextRun, fit


class LoadChoice(Panel, can_focus=True):
    """Letters belong to it while it is focused, as they do to a field."""

    DEFAULT_CSS = """
    LoadChoice { background: $surface; }
    LoadChoice:focus { background: $panel; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right", "move(1)", "next", show=False),
        Binding("left", "move(-1)", "before", show=False),
    ]

    @dataclass
    class Chosen(Message):
        """Another word holds."""

        word: str

    def __init__(self, words: Sequence[str], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._words = tuple(words)
        self.word = self._words[0]

    def offer(self, words: Sequence[str], word: str) -> None:
        """Other words; nobody is told."""
        self._words, self.word = tuple(words), word
        self.redraw()

    def choose(self, word: str) -> None:
        """Take one of them."""
        if word != self.word:
            self.word = word
            self.redraw()
            self.post_message(self.Chosen(word))

    def action_choose(self, word: str) -> None:
        """By mouse."""
        self.focus()
        self.choose(word)

    def action_move(self, by: int) -> None:
        """The next word, round and round."""
        index = (self._words.index(self.word) + by) % len(self._words)
        self.choose(self._words[index])

    def check_consume_key(self, key: str, character: str | None) -> bool:
        """Letters are for choosing, none for the screen."""
        del key
        return character is not None and character.isprintable()

    def on_key(self, event: events.Key) -> None:
        """The next word that begins so."""
        if event.character is None or not event.is_printable:
            return
        event.stop()
        at = self._words.index(self.word) + 1
        turned = (*self._words[at:], *self._words[:at])
        found = next((word for word in turned if word[0] == event.character), None)
        if found is not None:
            self.choose(found)

    def watch_has_focus(self, value: bool) -> None:  # noqa: FBT001 - Textual's way
        """Show it."""
        super().watch_has_focus(value)
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The words, the chosen one marked."""
        del height
        edge = "accent" if self.has_focus else "faint"
        words = [
            TextRun(
                f" {word} ",
                "chip" if word == self.word else "muted",
                f"choose('{word}')",
            )
            for word in self._words
        ]
        return (fit((TextRun("‹", edge), *words, TextRun("›", edge)), width),)
