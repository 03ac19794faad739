"""The keys of screens over a session: moments, findings, what it is held against."""

from textual.binding import Binding, BindingType

from inferwatch.ui.kit.keys import Signpost

MOMENT_BINDINGS: list[BindingType] = [
    Binding(
        "left",
        "move(-1)",
        "cursor",
        key_display="← →",
        tooltip="Move the time cursor; with shift ten times as far",
    ),
    Binding(
        "right",
        "move(1)",
        "cursor forward",
        key_display="← →",
        show=False,
        tooltip="Move the time cursor forward",
    ),
    Binding("shift+left", "move(-10)", "10 bins earlier", show=False),
    Binding("shift+right", "move(10)", "10 bins later", show=False),
    Binding(
        "escape", "release", "cursor off", show=False, tooltip="Remove the time cursor"
    ),
    Binding("escape", "all_servers", "all servers", tooltip="Back to all servers"),
    Binding(
        "left_parenthesis",
        "server(-1)",
        "server",
        key_display="( )",
        tooltip="The server before, the next one",
    ),
    Binding("right_parenthesis", "server(1)", "next server", show=False),
    Binding(
        "w", "window", "window", tooltip="The next window: 10 s, 60 s, 5 min, session"
    ),
    Binding(
        "p",
        "canary",
        "canary",
        show=False,
        tooltip="Send a tiny request every 10 s: what do clients meet? Or stop that",
    ),
    Binding("y", "copy_curl", "copy curl", tooltip="Copy the command shown"),
    Binding(
        "y",
        "copy_advice",
        "copy advice",
        show=False,
        tooltip="Copy what would make more of the server known",
    ),
]


METRICS_BINDINGS: list[BindingType] = [
    Binding(
        "A",
        "all_metrics",
        "all metrics",
        show=False,
        tooltip="All metrics of this server: each name it exposes",
    ),
]


CHANGES_BINDINGS: list[BindingType] = [
    Binding(
        "a",
        "changes",
        "against",
        tooltip="What changed since a session, yesterday, a baseline?",
    ),
    Binding(
        "C",
        "compare",
        "compare",
        show=False,
        tooltip="Once ended: is it worse, or is that chance?",
    ),
    Binding(
        "i",
        "what_if",
        "what if",
        show=False,
        tooltip="Predict other settings from the last minutes",
    ),
]


OTHER_SETTING = "settings: predict, turn, measure"


AGAINST = "against"


SIGNPOSTS = (
    Signpost(
        OTHER_SETTING,
        "knobs",
        "Turn limits while the engine runs, and back: k on 1, 3 and 6",
        action="knobs",
    ),
    Signpost(
        OTHER_SETTING,
        "tune",
        "Measure other settings, each under the same load",
        command="inferwatch tune MODEL --vary max-num-seqs=16,32,64",
    ),
    Signpost(
        AGAINST,
        "baseline",
        "What one request takes alone, for a to offer",
        command="inferwatch baseline URL",
    ),
)
"""Ways to another setting, and to what this is held against."""


KNOB_BINDINGS: list[BindingType] = [
    Binding(
        "k",
        "knobs",
        "knobs",
        tooltip="Turn limits while the engine runs, and back",
    ),
]
"""Key of the front page, and of screens that show the effect of the limits."""


PROFILE_BINDINGS: list[BindingType] = [
    Binding(
        "P",
        "profile",
        "profile",
        show=False,
        tooltip="What takes how long on the GPU or CPU: vLLM's own profiler",
    ),
]
"""Of any screen; those that it answers a question of have it in the footer, too."""
PROFILE_SHOWN: list[BindingType] = [
    Binding(
        "P",
        "profile",
        "profile",
        tooltip="What takes how long on the GPU or CPU: vLLM's own profiler",
    ),
]


FINDINGS_BINDINGS: list[BindingType] = [
    Binding(
        "f",
        "findings",
        "findings",
        tooltip="What is wrong, how that is known, and what to do about it",
    ),
    Binding("f", "no_findings", "findings", show=False, tooltip="What is wrong"),
    Binding(
        "F",
        "trust",
        "trust",
        tooltip="How far the numbers can be trusted: client, host, lost readings",
    ),
    Binding("F", "no_trust", "trust", show=False, tooltip="How far to trust it all"),
    Binding(
        "T",
        "stacks",
        "stacks",
        show=False,
        tooltip="What each thread was executing when the engine last stalled",
    ),
]
"""After those of time, to leave a full footer first."""
