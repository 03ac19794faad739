"""What slides over a screen: every number and key explained."""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from inferwatch.metrics.catalog import CATALOG, Metric

Key = tuple[str, str]
"""How a key is written, what it does."""


class HelpDrawer(VerticalScroll, inherit_bindings=False):
    """Numbers and keys of a screen explained, over its right side until closed."""

    DEFAULT_CSS = """
    HelpDrawer {
        layer: drawer; dock: right; width: 76; max-width: 100%; height: 100%;
        margin: 2 0 1 0; padding: 0 2; background: $surface;
        border-left: outer $primary 60%; scrollbar-size-vertical: 1;
        scrollbar-color: $ink-faint; scrollbar-background: $surface;
    }
    HelpDrawer Static { height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "screen.help", "close", tooltip="Close this drawer"),
        Binding("up", "scroll_up", "up", show=False),
        Binding("down", "scroll_down", "down", show=False),
        Binding("pageup", "page_up", "page up", show=False),
        Binding("pagedown", "page_down", "page down", show=False),
    ]
    """Not the arrows to the sides: they move the time cursor."""

    def __init__(
        self, question: str, metrics: Iterable[str], window: str, keys: Sequence[Key]
    ) -> None:
        super().__init__()
        self._question, self._metrics = question, metrics
        self._window, self._keys = window, keys

    def compose(self) -> ComposeResult:
        """The question of the screen, its numbers, the keys."""
        yield Static(
            Content("\n\n").join(
                [
                    Content.assemble("\n", (self._question, "bold $primary")),
                    *(_explain(CATALOG[key], self._window) for key in self._metrics),
                    Content("~ marks a percentile with fewer than 10/(1−p) samples."),
                    Content("\n").join(map(_key, self._keys)),
                    Content(""),
                ]
            )
        )


def toggle_help(
    screen: Screen[None],
    question: str,
    metrics: Iterable[str],
    keys: Sequence[Key],
    window: str = "",
) -> None:
    """Open the explanations over a screen, or close them."""
    if screen.query(HelpDrawer):
        screen.query(HelpDrawer).remove()
        return
    drawer = HelpDrawer(question, metrics, window, keys)
    screen.mount(drawer)
    drawer.focus()


def catalog_keys(part: str, names: str) -> tuple[str, ...]:
    """Catalog keys of several numbers of one part of the snapshot."""
    return tuple(f"{part}.{name}" for name in names.split())


COST_KEYS = catalog_keys(
    "cost",
    "dropped_readings unrecorded_readings self_cpu_share process_cpu_share "
    "probe_us_per_step",
)
"""What watching costs: the header of every screen shows it."""
LATENCY_KEYS = tuple(key for key, metric in CATALOG.items() if metric.line)
"""What the table of latencies shows."""
FLOW_KEYS = tuple(key for key, metric in CATALOG.items() if metric.flow)
"""What Overview's flow shows."""


def _explain(metric: Metric, window: str) -> Content:
    seen = f"seen by {metric.vantage.value}" if metric.vantage else "counted here"
    span = metric.span or f"window {window}"
    facts = [fact for fact in (metric.unit.value, seen, span) if fact]
    return Content.assemble(
        (metric.abbr, "bold"),
        f"  {metric.title}",
        (f"  {' · '.join(facts)}", "$ink-muted"),
        f"\n{metric.definition}",
    )


def _key(key: Key) -> Content:
    name, what = key
    return Content.assemble((f"{name:>8}", "bold $primary"), f"  {what}")
