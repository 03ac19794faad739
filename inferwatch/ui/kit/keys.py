"""The keys of a screen, from its bindings, for footer, help and command palette.

A binding's description is its name in the footer, its tooltip the text in help and
palette; one without a tooltip is a second key of another binding. Bindings of classes
nearer to the focus come first and stay in a footer without room for all.
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
"""Actions that a footer drops last: help and ways out."""


@dataclass(frozen=True, slots=True)
class ActiveKey:
    """A key that does something now."""

    key: str
    name: str
    tells: str
    binding: Binding
    node: DOMNode
    """The node whose action runs."""
    possible: bool
    group: str


def active_keys(screen: Screen[Any]) -> Sequence[ActiveKey]:
    """Return every active key of a screen, the nearest to the focus first."""
    active = screen.active_bindings
    keys: dict[str, ActiveKey] = {}
    for node, group, binding in _declared(screen):
        now = active.get(binding.key)
        if now is None or now.binding.action != binding.action or now.node is not node:
            continue
        if binding.key not in keys and not _is_typed(screen, binding.key):
            keys[binding.key] = ActiveKey(
                key=screen.app.get_key_display(binding),
                name=binding.description,
                tells=binding.tooltip,
                binding=binding,
                node=node,
                possible=now.enabled,
                group=group,
            )
    return list(keys.values())


def _is_typed(screen: Screen[Any], key: str) -> bool:
    """Return True if the focused widget consumes the key as text."""
    focused, name = screen.focused, format_key(key)
    character = name if len(name) == 1 and name.isascii() else key_to_character(key)
    return focused is not None and focused.check_consume_key(key, character)


def _declared(screen: Screen[Any]) -> Iterator[tuple[DOMNode, str, Binding]]:
    """Yield the bindings that our classes declare, from the focus up to the app."""
    inner = screen.focused
    nodes = (screen if inner is None else inner).ancestors_with_self
    for node in nodes:
        for cls in type(node).__mro__:
            if cls.__module__.startswith("inferwatch."):
                group = vars(cls).get("KEY_GROUP", HERE)
                for binding in Binding.make_bindings(vars(cls).get("BINDINGS", ())):
                    yield node, group, binding


class KeyFooter(Footer):
    """A footer with as many whole keys as fit; the ways out always do."""

    def __init__(self) -> None:
        super().__init__(compact=True, show_command_palette=False)
        self._footer_state: Sequence[Hashable] = ()

    def bindings_changed(self, screen: Screen[Any]) -> None:
        """Recompose the footer only if it would change, as creating keys is slow."""
        here, state = self.is_attached and screen is self.screen, _footer_state(screen)
        if not (here and self._footer_state == state):
            super().bindings_changed(screen)
            if here and screen.app.app_focus:
                self._footer_state = state  # it soon does: keys are not made twice
            return
        tells = {
            each.binding.key: each.tells or each.name for each in active_keys(screen)
        }
        for key in self.query(FooterKey):
            key.tooltip = tells.get(key.key)

    def compose(self) -> ComposeResult:
        self._footer_state = _footer_state(self.screen) if self._bindings_ready else ()
        place = {each.binding.key: n for n, each in enumerate(active_keys(self.screen))}
        made = (each for each in super().compose() if isinstance(each, FooterKey))
        keys = [each for each in made if each.key in place]
        keys.sort(key=lambda each: place[each.key])
        keys.sort(key=lambda each: each.action in ALWAYS)
        self._fit(keys)
        yield from keys

    def on_resize(self, event: events.Resize) -> None:
        del event
        self._fit(list(self.query(FooterKey)))

    def _fit(self, keys: Sequence[FooterKey]) -> None:
        room = self.size.width or self.app.size.width
        result = [each for each in keys if each.action in ALWAYS]
        room -= sum(map(_width, result)) - 1
        for each in keys:
            if each in result:
                continue
            room -= _width(each)
            each.display = room >= 0


def _footer_state(screen: Screen[Any]) -> Sequence[Hashable]:
    """Return the bindings in a screen's footer, and whether each is possible."""
    return [
        (each.binding, each.possible)
        for each in active_keys(screen)
        if each.binding.show
    ]


def _width(key: FooterKey) -> int:
    return cells_of(f"{key.key_display} {key.description} ")


class KeyPalette(CommandPalette):
    """Textual's command palette, without an icon that some terminals lack."""

    DEFAULT_CSS = """
    KeyPalette SearchIcon { color: $primary; }
    """

    def __init__(self) -> None:
        super().__init__(placeholder="what to do, or where to go; esc closes")

    def on_mount(self) -> None:
        self.query_one(SearchIcon).icon = "/"


class KeyCommands(Provider):
    """The actions of all active keys, for the command palette."""

    async def discover(self) -> Hits:
        for each in self._commands:
            yield DiscoveryHit(
                _hit_text(each, Content(_text(each))),
                partial(self._run, each),
                _text(each),
            )

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for each in self._commands:
            text = _text(each)
            score = matcher.match(text)
            if score > 0:
                line = _hit_text(each, matcher.highlight(text))
                yield Hit(score, line, partial(self._run, each), text)

    @property
    def _commands(self) -> Iterable[ActiveKey]:
        """Return each action that is possible now once, for the command palette."""
        possible = [each for each in active_keys(self.screen) if each.possible]
        named = [each for each in possible if each.name and each.tells]
        actions = {each.binding.action: each for each in named}
        actions.pop("command_palette", None)  # it is open
        return actions.values()

    async def _run(self, key: ActiveKey) -> None:
        await self.app.run_action(key.binding.action, key.node)


def _text(key: ActiveKey) -> str:
    named = key.tells.startswith(key.name)
    return key.tells if named else f"{key.name}: {key.tells}"


def _hit_text(key: ActiveKey, text: Content) -> Content:
    return Content.assemble((f"{key.key:>8}  ", "bold $primary"), text)
