"""Can two sides be compared at all, and how well? Said before any number."""

from dataclasses import dataclass
from enum import StrEnum


class Quality(StrEnum):
    """What one check found."""

    GOOD = "good"
    DOUBTFUL = "doubtful"
    """Compared all the same; the sentence says what to keep in mind."""
    VOID = "void"
    """No verdict may be given."""
    UNKNOWN = "unknown"
    """It was not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityCheck:
    """One subject: the model, the GPU, the load, drift."""

    subject: str
    """``load``, ``drift``; also the name in JSON."""
    quality: Quality
    sentence: str
    """What was found, in full, with what to do where something can be done."""
