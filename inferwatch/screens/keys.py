"""The keys of the whole program: bindings, and how the help drawer writes them."""

from textual.binding import Binding, BindingType

from inferwatch.widgets.help_drawer import Key

TABS = (
    ("1", "overview", "Overview"),
    ("2", "requests", "Requests"),
    ("3", "steps", "Steps"),
    ("4", "kv", "KV"),
)
"""Key, mode, title of the screens that exist."""

MOMENT_BINDINGS: list[BindingType] = [
    Binding(
        "left",
        "move(-1)",
        "moment",
        key_display="←→",
        tooltip="Move the time cursor by a bin; shift: by ten",
    ),
    Binding("right", "move(1)", "later", show=False),
    Binding("shift+left", "move(-10)", "10 bins earlier", show=False),
    Binding("shift+right", "move(10)", "10 bins later", show=False),
    Binding("end", "now", "now", tooltip="Let the time cursor go with time again"),
    Binding("w", "window", "window", tooltip="10 s, 60 s, 5 min, session"),
    Binding("space", "freeze", "freeze", tooltip="Hold the view; recording goes on"),
]
DRAWER_BINDINGS: list[BindingType] = [
    Binding("g", "log", "log", tooltip="The engine's log"),
    Binding(
        "question_mark",
        "help",
        "help",
        key_display="?",
        tooltip="What every number means, and all keys",
    ),
]
APP_BINDINGS: list[BindingType] = [
    *(
        Binding(key, f"look_at('{mode}')", title, show=False, tooltip=f"Go to {title}")
        for key, mode, title in TABS
    ),
    Binding("r", "restart", "restart", tooltip="Start the lost engine again"),
    Binding("Q", "stop_engine", "stop", tooltip="End the engine, after asking"),
    Binding("q", "quit", "quit", tooltip="Leave; an engine of ours ends with us"),
    Binding("q", "detach", "detach", tooltip="Leave; the engine runs on"),
    Binding("ctrl+c", "quit", "quit", show=False, priority=True),
    Binding("ctrl+c", "detach", "detach", show=False, priority=True),
    Binding(
        "ctrl+s", "picture", "picture", show=False, tooltip="Save the screen as SVG"
    ),
    Binding("t", "theme", "light/dark", show=False, tooltip="Dark or light"),
]

KEYS: tuple[Key, ...] = (
    ("1 – 4", "go to a screen"),
    ("← →", "move the time cursor by a bin, with shift by ten"),
    ("click", "on a chart: put the time cursor there"),
    ("end", "let the time cursor go with time again"),
    ("w", "window: 10 s, 60 s, 5 min, whole session"),
    ("space", "freeze the view; recording goes on"),
    ("g", "the engine's log"),
    ("?", "this help"),
    ("r", "restart the engine, once it is lost"),
    ("Q", "stop a served engine, after asking"),
    ("t", "dark or light"),
    ("ctrl+s", "save the screen as a picture (SVG)"),
    ("q", "quit, or detach from a served engine"),
)
