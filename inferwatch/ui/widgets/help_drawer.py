"""The help drawer: keys and numbers of a screen explained."""

from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Static

from inferwatch.metrics.hardware.own_cost import Cost
from inferwatch.metrics.number import FlowColumn, FlowFact, Number, numbers, numbers_in
from inferwatch.metrics.objectives.spending_view import Spending
from inferwatch.metrics.objectives.view import SloState
from inferwatch.metrics.requests.latencies import LATENCIES
from inferwatch.metrics.steps.flow import Flow
from inferwatch.ui.kit.keys import HERE, active_keys, signposts_of
from inferwatch.visible import visible

HELP_BINDING = Binding(
    "question_mark",
    "help",
    "help",
    key_display="?",
    tooltip="This help: all keys, and what every number means",
)
Key = tuple[str, str]
KEY_WIDTH = 9
WIDEST = 71
"""Cells of text at full width."""


class HelpDrawer(VerticalScroll, inherit_bindings=False):
    """A drawer at the right that explains the keys and numbers of a screen."""

    DEFAULT_CSS = """
    HelpDrawer {
        layer: drawer; dock: right; width: 76; max-width: 100%; height: 100%;
        margin: 2 0 1 0; padding: 0 2; background: $surface;
        border-left: outer $primary 60%; scrollbar-size-vertical: 1;
        overflow-y: scroll;
        scrollbar-color: $ink-faint; scrollbar-background: $surface;
    }
    HelpDrawer Static { height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "screen.help", "close", tooltip="Close this help"),
        Binding("up", "scroll_up", "scroll", key_display="↑↓"),
        Binding("down", "scroll_down", "down", show=False),
        Binding("pageup", "page_up", "page up", show=False),
        Binding("pagedown", "page_down", "page down", show=False),
    ]
    """No left and right arrows: those move the time cursor."""

    def __init__(
        self,
        question: str,
        keys: Mapping[str, Sequence[Key]],
        numbers: Iterable[Number] = (),
        window: str = "",
        texts: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        super().__init__()
        self.focused_before: Widget | None = None
        """Gets the focus back when the drawer closes."""
        self._texts = texts or {}
        self._question, self._keys = question, keys
        self._numbers, self._window = tuple(numbers), window
        self._width = WIDEST

    def compose(self) -> ComposeResult:
        yield Static(self._explained(self._width), markup=False)

    def on_resize(self) -> None:
        """Wrap the text again so that it stays under its own indent."""
        width = self.scrollable_content_region.width
        if width != self._width:
            self._width = width
            self.query_one(Static).update(self._explained(width))

    def _explained(self, width: int) -> Content:
        keys = [
            Content("\n").join(
                [_title(group), *(_key(key, width) for key in keys)],
            )
            for group, keys in self._keys.items()
        ]
        numbers = [_explain(each, self._window) for each in self._numbers]
        if numbers:
            weak = Content("~ marks a percentile with fewer than 10/(1−p) samples.")
            numbers = [_title("the numbers"), *numbers, weak]
        head = Content.assemble(
            "\n", (self._question, "bold"), ("   esc closes", "$ink-muted")
        )
        sections = [
            Content("\n").join([_title(title), *(_item(each, width) for each in texts)])
            for title, texts in self._texts.items()
        ]
        return Content("\n\n").join([head, *sections, *keys, *numbers, Content("")])


def toggle_help(
    screen: Screen[None],
    question: str,
    more: Mapping[str, Sequence[Key]],
    numbers: Iterable[Number] = (),
    window: str = "",
    texts: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Open the help of a screen, or close it.

    ``more`` adds keys by group that its bindings do not cover, such as the mouse;
    ``texts`` go before all keys and numbers.
    """
    for open_drawer in screen.query(HelpDrawer):
        # first, or Textual would move the focus to a neighbour
        screen.set_focus(open_drawer.focused_before)
        open_drawer.remove()
        return
    keys: dict[str, list[Key]] = {HERE: []}
    listed: set[str] = set()
    for each in active_keys(screen):
        if each.tells and each.key not in listed:
            listed.add(each.key)
            keys.setdefault(each.group, []).append((each.key, each.tells))
    for post in signposts_of(screen):
        told = f"{post.tells}: {post.command}" if post.command else post.tells
        keys.setdefault(post.group, []).append((post.name, told))
    for group, rows in more.items():
        fresh = [each for each in rows if each[0] not in listed]
        keys.setdefault(group, []).extend(fresh)
    groups = {group: rows for group, rows in keys.items() if rows}
    drawer = HelpDrawer(question, groups, numbers, window, texts)
    drawer.focused_before = screen.focused
    screen.mount(drawer)
    drawer.focus()


COST_NUMBERS = numbers(
    Cost.dropped_readings,
    Cost.unrecorded_readings,
    Cost.self_cpu_share,
    Cost.process_cpu_share,
    Cost.probe_us_per_step,
)
"""Numbers of the cost of watching, which the header of every screen shows."""
SLO_NUMBERS = numbers(
    SloState.slo,
    SloState.judged,
    SloState.good,
    SloState.undetermined,
    SloState.goodput_per_s,
    SloState.missed,
    SloState.burn,
    SloState.burn_long,
    SloState.budget_left,
    SloState.missed_since_ns,
    SloState.classes,
)
"""Numbers of objectives, for sessions that have any."""
SPENDING_NUMBERS = numbers(
    Spending.per_hour,
    Spending.per_mtok,
    Spending.per_mtok_good,
    Spending.read_from,
    Spending.joules_per_prefill_token,
    Spending.joules_per_decode_token,
)
"""Numbers of the price of tokens, if one is set, and of their energy."""
LATENCY_NUMBERS = tuple(each for each in LATENCIES.values() if each.place)
"""Numbers in the table of latencies."""
FLOW_NUMBERS = tuple(
    each
    for column in FlowColumn
    for each in numbers_in(Flow)
    if isinstance(each.place, FlowFact) and each.place.column is column
)
"""Numbers in the flow of the overview screen."""


def _explain(number: Number, window: str) -> Content:
    origin = f"seen by {number.vantage.value}" if number.vantage else "counted here"
    span = number.span or f"window {window}"
    facts = [fact for fact in (number.unit.value, origin, span) if fact]
    return Content.assemble(
        (number.label, "bold"),
        f"  {number.title}",
        (f"  {' · '.join(facts)}", "$ink-muted"),
        f"\n{number.help}",
    )


def _item(text: str, width: int) -> Content:
    """Wrap a text behind a bullet."""
    folded = wrap(visible(text), max(width - 2, 20), break_on_hyphens=False)
    first, *rest = folded or [""]
    below = "".join(f"\n  {each}" for each in rest)
    return Content.assemble(("· ", "$primary"), f"{first}{below}")


def _title(text: str) -> Content:
    return Content.assemble((text, "bold $primary"))


def _key(key: Key, width: int) -> Content:
    name, what = key
    first, *rest = wrap(what, max(width - KEY_WIDTH - 2, 20)) or [""]
    below = "".join(f"\n{' ' * (KEY_WIDTH + 2)}{each}" for each in rest)
    return Content.assemble((f"{name:>{KEY_WIDTH}}", "$primary"), f"  {first}{below}")
