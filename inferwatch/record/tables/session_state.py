"""Where a session stands."""

from enum import StrEnum


class SessionState(StrEnum):
    """Where a session stands, as its row says and as its recorder still runs or not."""

    RECORDING = "recording"
    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    """Its recorder died: it ends where the last commit left it."""
    UNKNOWN = "unknown"
    """Whether its recorder still runs cannot be seen from here; in no file."""
    GOING = "going"
    """It is being deleted for good: part of it is gone, so nobody is shown it."""
