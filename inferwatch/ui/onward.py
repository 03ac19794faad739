"""Where people want to go next: what an app ends with, instead of nothing.

One app shows one feed. Whoever runs it goes there and, when that is left, comes back:
a live session goes on meanwhile, unseen.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSession:
    """Replay a recorded session."""

    database: Path
    session: str
    """Its id in that file, as ``s17``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareSessions:
    """Put sessions side by side; the first is what the others are compared with."""

    database: Path
    sessions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OpenSample:
    """Replay the session that comes with inferwatch."""


@dataclass(frozen=True, slots=True)
class RunDemo:
    """Start the demo."""


Onward = OpenSession | CompareSessions | OpenSample | RunDemo
