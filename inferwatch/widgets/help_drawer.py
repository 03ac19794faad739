"""Every number of a screen explained, and every key."""

from collections.abc import Iterable, Sequence

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from inferwatch.metrics.catalog import CATALOG, Metric

Key = tuple[str, str]
"""How a key is written, what it does."""


class HelpDrawer(VerticalScroll):
    """Stands over the right side until closed; scrolls by keys and wheel."""

    DEFAULT_CSS = """
    HelpDrawer {
        layer: drawer; dock: right; width: 76; max-width: 100%; height: 100%;
        margin: 2 0 1 0; padding: 0 2; background: $surface;
        border-left: outer $primary 60%;
    }
    HelpDrawer Static { height: auto; }
    """
    BINDINGS = [Binding("escape", "app.help", "close", tooltip="Close this drawer")]

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
                    Content("\n").join(
                        [Content.styled("Keys", "bold $primary"), *map(_key, self._keys)]
                    ),
                    Content(""),
                ]
            )
        )


def _explain(metric: Metric, window: str) -> Content:
    facts = [metric.unit, metric.better, metric.vantage, f"window {window}"]
    return Content.assemble(
        (metric.abbr, "bold"),
        f"  {metric.title}",
        ("  " + " · ".join(f"{fact}" for fact in facts if fact), "$text-muted"),
        "\n",
        (metric.definition, "$foreground 80%"),
    )


def _key(key: Key) -> Content:
    name, what = key
    return Content.assemble((f"{name:>10}", "bold $accent"), f"  {what}")
