"""The keys of what is shown, from its bindings: for footer, help and command palette.

A binding says it all once: its description is what the footer calls it, its tooltip
what help and palette tell of it; without a tooltip it is one more key for something
that another binding tells. Those of a class that is nearer to what is shown go first:
in a footer without room for all, they are the ones that stay.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.command import (
    CommandPalette,
    DiscoveryHit,
    Hit,
    Hits,
    Provider,
    SearchIcon,
)
from textual.content import Content
from textual.dom import DOMNode
from textual.keys import format_key, key_to_character
from textual.screen import Screen
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

from inferwatch.ui.kit.renderables.text import cells_of

HERE = "this screen"
ALWAYS = {
    "restart",
    "stop_engine",
    "help",
    "quit",
    "detach",
    "go_back",
    "leave",
    "clear",
    "cancel",
}
"""What a footer leaves out last: how to get help, and how to get out."""


@dataclass(frozen=True, slots=True)
class KnownKey:
    """A key that does something now."""

    key: str
    """As it is shown."""
    name: str
    tells: str
    binding: Binding
    node: DOMNode
    """Whose action it is."""
    possible: bool
    group: str


def known_keys(screen: Screen[Any]) -> Sequence[KnownKey]:
    """Every key that does something on a screen now, the nearest to it first."""
    active = screen.active_bindings
    found: dict[str, KnownKey] = {}
    for node, group, binding in _declared(screen):
        now = active.get(binding.key)
        if now is None or now.binding.action != binding.action or now.node is not node:
            continue
        if binding.key not in found and not _is_typed(screen, binding.key):
            found[binding.key] = KnownKey(
                key=screen.app.get_key_display(binding),
                name=binding.description,
                tells=binding.tooltip,
                binding=binding,
                node=node,
                possible=now.enabled,
                group=group,
            )
    return list(found.values())


def _is_typed(screen: Screen[Any], key: str) -> bool:
    """The key goes into a field."""
    focused, shown = screen.focused, format_key(key)
    character = shown if len(shown) == 1 and shown.isascii() else key_to_character(key)
    return focused is not None and focused.check_consume_key(key, character)


def _declared(screen: Screen[Any]) -> Iterator[tuple[DOMNode, str, Binding]]:
    """Bindings of ours, from what is focused up to the app, of each class its own."""
    inner = screen.focused
    nodes = (screen if inner is None else inner).ancestors_with_self
    for node in nodes:
        for cls in type(node).__mro__:
            if cls.__module__.startswith("inferwatch."):
                group = vars(cls).get("KEY_GROUP", HERE)
                for binding in Binding.make_bindings(vars(cls).get("BINDINGS", ())):
                    yield node, group, binding


class KeyFooter(Footer):
    """As many keys as there is room for, none of them cut; the last are never cut."""

    def __init__(self) -> None:
        super().__init__(compact=True, show_command_palette=False)
        self._said: Sequence[Hashable] = ()

    def bindings_changed(self, screen: Screen[Any]) -> None:
        """Anew only where it would say something else: making keys is slow."""
        here, said = self.is_attached and screen is self.screen, _said(screen)
        if not (here and self._said == said):
            super().bindings_changed(screen)
            if here and screen.app.app_focus:
                self._said = said  # it soon does: keys are not made twice
            return
        tells = {
            each.binding.key: each.tells or each.name for each in known_keys(screen)
        }
        for key in self.query(FooterKey):
            key.tooltip = tells.get(key.key)

    def compose(self) -> ComposeResult:
        """All keys in order; those without room are hidden."""
        self._said = _said(self.screen) if self._bindings_ready else ()
        place = {each.binding.key: n for n, each in enumerate(known_keys(self.screen))}
        made = (each for each in super().compose() if isinstance(each, FooterKey))
        keys = [each for each in made if each.key in place]
        keys.sort(key=lambda each: place[each.key])
        keys.sort(key=lambda each: each.action in ALWAYS)
        self._fit(keys)
        yield from keys

    def on_resize(self, event: events.Resize) -> None:
        """Another width has room for others."""
        del event
        self._fit(list(self.query(FooterKey)))

    def _fit(self, keys: Sequence[FooterKey]) -> None:
        room = self.size.width or self.app.size.width
        kept = [each for each in keys if each.action in ALWAYS]
        room -= sum(map(_width, kept)) - 1
        for each in keys:
            if each in kept:
                continue
            room -= _width(each)
            each.display = room >= 0


def _said(screen: Screen[Any]) -> Sequence[Hashable]:
    """All that a footer says of a screen."""
    return [
        (each.binding, each.possible)
        for each in known_keys(screen)
        if each.binding.show
    ]


def _width(key: FooterKey) -> int:
    return cells_of(f"{key.key_display} {key.description} ")


class KeyPalette(CommandPalette):
    """Textual's, without a picture in it that not every terminal has."""

    DEFAULT_CSS = """
    KeyPalette SearchIcon { color: $primary; }
    """

    def __init__(self) -> None:
        super().__init__(placeholder="what to do, or where to go; esc closes")

    def on_mount(self) -> None:
        """A plain prompt."""
        self.query_one(SearchIcon).icon = "/"


class KeyCommands(Provider):
    """Everything that a key does on this screen now, for the command palette."""

    async def discover(self) -> Hits:
        """All of it."""
        for each in self._commands:
            yield DiscoveryHit(
                _shown(each, Content(_told(each))),
                partial(self._run, each),
                _told(each),
            )

    async def search(self, query: str) -> Hits:
        """What the words fit."""
        matcher = self.matcher(query)
        for each in self._commands:
            told = _told(each)
            score = matcher.match(told)
            if score > 0:
                shown = _shown(each, matcher.highlight(told))
                yield Hit(score, shown, partial(self._run, each), told)

    @property
    def _commands(self) -> Iterable[KnownKey]:
        """Each action once."""
        found = [each for each in known_keys(self.screen) if each.possible]
        told = [each for each in found if each.name and each.tells]
        actions = {each.binding.action: each for each in told}
        actions.pop("command_palette", None)  # it is open
        return actions.values()

    async def _run(self, wanted: KnownKey) -> None:
        await self.app.run_action(wanted.binding.action, wanted.node)


def _told(key: KnownKey) -> str:
    named = key.tells.startswith(key.name)
    return key.tells if named else f"{key.name}: {key.tells}"


def _shown(key: KnownKey, told: Content) -> Content:
    return Content.assemble((f"{key.key:>8}  ", "bold $primary"), told)
