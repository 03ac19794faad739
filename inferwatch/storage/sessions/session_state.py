"""Where a session stands."""

from enum import StrEnum


class SessionState(StrEnum):
    """What the file says, and whether who records still lives."""

    RECORDING = "recording"
    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    """Its recorder died: it ends where the last commit left it."""
    GOING = "going"
    """It is being deleted for good: part of it is gone, so nobody is shown it."""
