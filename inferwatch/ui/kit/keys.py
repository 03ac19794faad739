"""The keys of a screen, from its bindings, for footer, help and command palette.

A binding's description is its name in the footer, its tooltip the text in help and
palette; one without a tooltip is a second key of another binding. Bindings of classes
nearer to the focus come first and stay in a footer without room for all.
"""

from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Sequence
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


@dataclass(frozen=True, slots=True)
class Signpost:
    """A way on that has no key here: an action, or a command to type in a shell."""

    group: str
    name: str
    tells: str
    action: str = ""
    """Of the screen; empty for a command."""
    command: str = ""


def signposts_of(screen: Screen[Any]) -> Sequence[Signpost]:
    """Return the signposts of a screen, without those for which it has a key."""
    posts: Sequence[Signpost] = getattr(screen, "SIGNPOSTS", ())
    keys = {each.binding.action for each in active_keys(screen) if each.possible}
    return [each for each in posts if each.command or each.action not in keys]


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
                groups = getattr(cls, "ACTION_GROUPS", {})
                for binding in Binding.make_bindings(vars(cls).get("BINDINGS", ())):
                    yield node, groups.get(binding.action, group), binding


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
    """The actions of all active keys and signposts, for the command palette."""

    async def discover(self) -> Hits:
        for key, text, run in self._rows:
            yield DiscoveryHit(_hit_text(key, Content(text)), run, text)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for key, text, run in self._rows:
            score = matcher.match(text)
            if score > 0:
                yield Hit(score, _hit_text(key, matcher.highlight(text)), run, text)

    @property
    def _rows(self) -> Iterator[tuple[str, str, Callable[[], Awaitable[None]]]]:
        """Yield key, text and action of each row: the screen's own keys come first.

        Then come those of a group with signposts, together.
        """
        posts = signposts_of(self.screen)
        groups = [HERE, *dict.fromkeys(each.group for each in posts)]
        commands = list(self._commands)
        for group in groups:
            lead, _, _ = group.partition(":")
            lead = "" if group == HERE else f"{lead} · "
            for key in commands:
                if key.group == group:
                    text = _text(key) if key.name == group else f"{lead}{_text(key)}"
                    yield key.key, text, partial(self._run, key)
            for post in posts:
                if post.group == group:
                    text = f"{lead}{post.name}: {post.tells}"
                    yield "", text, partial(self._follow, post)
        for key in commands:
            if key.group not in groups:
                yield key.key, _text(key), partial(self._run, key)

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

    async def _follow(self, post: Signpost) -> None:
        if post.action:
            await self.app.run_action(post.action, self.screen)
            return
        self.app.copy_to_clipboard(post.command)
        self.app.notify(
            f"{post.command}\ncopied, if the terminal allows programs to copy",
            title=f"{post.name}: type in a shell",
            timeout=12,
            markup=False,
        )


def _text(key: ActiveKey) -> str:
    named = key.tells.startswith(key.name)
    return key.tells if named else f"{key.name}: {key.tells}"


def _hit_text(key: str, text: Content) -> Content:
    return Content.assemble((f"{key:>8}  ", "bold $primary"), text)
