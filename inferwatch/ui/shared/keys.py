"""The keys of the whole program: bindings, and how the help drawer writes them."""

from textual.binding import Binding, BindingType

from inferwatch.ui.shared.help_drawer import Key
from inferwatch.ui.shared.moment_text import UNDERSTOOD

TABS = (
    ("1", "overview", "Overview"),
    ("2", "requests", "Requests"),
    ("3", "steps", "Steps"),
    ("4", "kv", "KV"),
    ("7", "load", "Load"),
    ("8", "sessions", "Sessions"),
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
    Binding(
        "escape", "release", "cursor off", show=False, tooltip="No time cursor any more"
    ),
    Binding("w", "window", "window", show=False, tooltip="10 s, 60 s, 5 min, session"),
]
PLAYBACK_BINDINGS: list[BindingType] = [
    Binding("space", "pause", "pause", tooltip="Hold the view; recording goes on"),
    Binding("space", "play", "play", tooltip="Let time go on from here"),
    Binding(
        "left_square_bracket",
        "skip(-1)",
        "second",
        key_display="[ ]",
        show=False,
        tooltip="A second back or forward; more while held",
    ),
    Binding("right_square_bracket", "skip(1)", "a second on", show=False),
    Binding(
        "comma",
        "engine_step(-1)",
        "step",
        key_display=", .",
        show=False,
        tooltip="One engine step back or forward",
    ),
    Binding("full_stop", "engine_step(1)", "step on", show=False),
    Binding(
        "n",
        "mark(1)",
        "next",
        key_display="n N",
        tooltip="Next or previous mark: load, loss, stall, preemption, bookmark",
    ),
    Binding("N", "mark(-1)", "mark before", show=False),
    Binding("minus", "speed(-1)", "slower", show=False, tooltip="Play slower"),
    Binding(
        "plus,equals_sign", "speed(1)", "faster", show=False, tooltip="Play faster"
    ),
    Binding("g", "go_to", "go to", tooltip="Go to a time: 12:03:40, +90s, 50%"),
    Binding("b", "bookmark", "mark", tooltip="Mark this moment with a text"),
    Binding("home", "go_to_start", "start", show=False, tooltip="To the start"),
    Binding("end", "go_live", "live", tooltip="Back to what happens now"),
    Binding("end", "now", "now", tooltip="Let the time cursor go with time again"),
    Binding("end", "go_to_end", "end", show=False, tooltip="To the end"),
]
DRAWER_BINDINGS: list[BindingType] = [
    Binding("l", "log", "log", tooltip="The engine's log"),
    Binding("l", "log_too", "log", show=False),
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
    Binding("q", "go_back", "back", tooltip="To where you came from"),
    Binding("ctrl+c", "quit", "quit", show=False, priority=True),
    Binding("ctrl+c", "detach", "detach", show=False, priority=True),
    Binding("ctrl+c", "go_back", "back", show=False, priority=True),
    Binding(
        "ctrl+s", "picture", "picture", show=False, tooltip="Save the screen as SVG"
    ),
    Binding("t", "theme", "light/dark", show=False, tooltip="Dark or light"),
]

MOMENT_KEYS: tuple[Key, ...] = (
    ("← →", "move the time cursor by a bin, with shift by ten"),
    ("click", "on a chart: put the time cursor there"),
    ("esc", "no time cursor any more"),
    ("w", "window: 10 s, 60 s, 5 min, whole session"),
)
PLAYBACK_KEYS: tuple[Key, ...] = (
    ("space", "pause and play; what is recorded goes on being recorded"),
    ("[ ]", "a second back, forward; more while held"),
    (", .", "one engine step back, forward"),
    ("n N", "next mark, previous mark"),
    ("g", f"go to a time: {UNDERSTOOD}"),
    ("− +", "play slower, faster: 0.1× to 100×"),
    ("b", "bookmark the moment with a text, kept with the session"),
    ("home", "the start of the session"),
    ("end", "the end; live, where the session goes on"),
)
ENGINE_KEYS: tuple[Key, ...] = (
    ("r", "restart the engine, once it is lost"),
    ("Q", "stop a served engine, after asking"),
)
"""There is no engine behind a replay."""
KEYS: tuple[Key, ...] = (
    ("1–4 7 8", "go to a screen"),
    ("l", "the engine's log"),
    ("?", "this help"),
    *ENGINE_KEYS,
    ("t", "dark or light"),
    ("ctrl+s", "save the screen as a picture (SVG)"),
    ("q", "quit, detach from a served engine, or go back"),
)
