"""The colours, once: a dark and a light theme, and the inks that widgets name."""

from textual.theme import Theme

DARK_INKS = {
    "ink-muted": "#8592a3",
    "ink-faint": "#5b6675",
    "ink-rule": "#2f3947",
    "ink-strong": "#e8eef5",
    "ink-good": "#63c174",
    "ink-warn": "#e3b341",
    "ink-bad": "#f47067",
    "ink-accent": "#6cb6ff",
    "ink-chip-back": "#27425f",
    "ink-marker": "#e8eef5",
    "ink-decode": "#4f94e8",
    "ink-prefill": "#e0a458",
    "ink-waiting": "#e275ad",
    "ink-kv": "#35b89d",
    "ink-cached": "#8fb3a8",
    "ink-mean": "#a58af5",
    "ink-worst": "#7a6bb0",
    "ink-output": "#7cc36b",
    "ink-seqs": "#4f94e8",
    "ink-tokens": "#e0a458",
    "ink-other": "#8592a3",
    "ink-chosen-back": "#223044",
}
LIGHT_INKS = {
    "ink-muted": "#57606a",
    "ink-faint": "#8c959f",
    "ink-rule": "#ced5dc",
    "ink-strong": "#0d1117",
    "ink-good": "#1a7f37",
    "ink-warn": "#9a6700",
    "ink-bad": "#cf222e",
    "ink-accent": "#0550ae",
    "ink-chip-back": "#cfe4fb",
    "ink-marker": "#0d1117",
    "ink-decode": "#2f74c9",
    "ink-prefill": "#b87514",
    "ink-waiting": "#bf4b8a",
    "ink-kv": "#12806a",
    "ink-cached": "#6f9a90",
    "ink-mean": "#6a4fc4",
    "ink-worst": "#a493d8",
    "ink-output": "#3f8f2f",
    "ink-seqs": "#2f74c9",
    "ink-tokens": "#b87514",
    "ink-other": "#6e7781",
    "ink-chosen-back": "#dce8f5",
}

DARK = Theme(
    name="inferwatch-dark",
    primary="#6cb6ff",
    secondary="#35b89d",
    accent="#e0a458",
    warning="#e3b341",
    error="#f47067",
    success="#63c174",
    foreground="#c8d1dc",
    background="#0e131a",
    surface="#151c25",
    panel="#1b2430",
    dark=True,
    variables={
        **DARK_INKS,
        "footer-background": "#151c25",
        "footer-key-foreground": "#6cb6ff",
        "footer-description-foreground": "#8592a3",
    },
)
LIGHT = Theme(
    name="inferwatch-light",
    primary="#0550ae",
    secondary="#12806a",
    accent="#b87514",
    warning="#9a6700",
    error="#cf222e",
    success="#1a7f37",
    foreground="#24292f",
    background="#fbfcfd",
    surface="#f0f3f6",
    panel="#e6ebf0",
    dark=False,
    variables={
        **LIGHT_INKS,
        "footer-background": "#f0f3f6",
        "footer-key-foreground": "#0550ae",
        "footer-description-foreground": "#57606a",
    },
)

_PLAIN = [name for name in DARK_INKS if not name.endswith("-back")]
_BOLD = {"ink-strong", "ink-accent", "ink-marker"}

INK_CSS = (
    "\n".join(
        f".{name.replace('ink-', 'ink--')} {{ color: ${name};"
        f"{' text-style: bold;' if name in _BOLD else ''} }}"
        for name in _PLAIN
    )
    + """
.ink--chip { color: $ink-strong; background: $ink-chip-back; text-style: bold; }
.ink--bold { text-style: bold; }
.ink--chosen { background: $ink-chosen-back; }
"""
)
"""Gives every ink of :mod:`inferwatch.widgets.inked` its colour."""
