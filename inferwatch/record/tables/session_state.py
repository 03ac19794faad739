"""The states of a session."""

from enum import StrEnum


class SessionState(StrEnum):
    """State of a session, by its row and by whether its recorder is alive."""

    RECORDING = "recording"
    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    """Its recorder died: it ends with the last commit."""
    UNKNOWN = "unknown"
    """Whether its recorder is alive cannot be determined here; never stored."""
    GOING = "going"
    """It is being deleted permanently and partly gone, so it is hidden."""
