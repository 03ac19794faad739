"""What can be done when nothing runs."""

from collections.abc import Sequence

from inferwatch import __version__
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.text import (
    Line,
    TextRun,
    cells,
    fit,
    ruled,
    spread,
)

CHOICES = (
    ("D", "demo", "start a small real vLLM engine; no GPU needed"),
    ("x", "sample", "look at a session that comes with inferwatch"),
)
"""Key, action, what it does."""
COMMANDS = (
    ("inferwatch serve MODEL", "start a vLLM engine and watch it"),
    ("inferwatch load URL --rate 5", "drive a server that runs, and measure it"),
)
"""What wants more than a key."""


class StartPanel(Panel):
    """What can be done when nothing runs: keys to press, commands to type."""

    DEFAULT_CSS = """
    StartPanel { height: 8; }
    """

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The rows."""
        del height
        name = (TextRun(" inferwatch ", "strong"), TextRun(__version__, "muted"))
        none = (TextRun("○ no served engine runs here ", "muted"),)
        return (
            spread(name, none, width),
            (),
            *(fit(_choice(*choice), width) for choice in CHOICES),
            *(fit(_command(*command), width) for command in COMMANDS),
            (),
            ruled((TextRun("recorded sessions", "muted"),), (), width),
        )


def _choice(key: str, action: str, what: str) -> Line:
    run = f"screen.{action}"
    return (
        TextRun(f"  {key} ", "accent", run),
        cells(action, 29, "")._replace(action=run),
        TextRun(what, "muted", run),
    )


def _command(typed: str, what: str) -> Line:
    return (TextRun("  $ ", "faint"), cells(typed, 29), TextRun(what, "muted"))
