"""Can two sides be compared at all, and how well? Said before any number.

Each check, a subject a function, is called by
:mod:`inferwatch.studies.compare.checks.every`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

NOT_RECORDED = "not recorded"


class Quality(StrEnum):
    """What one check found."""

    GOOD = "good"
    DOUBTFUL = "doubtful"
    """Compared all the same; the sentence says what to keep in mind."""
    VOID = "void"
    """No verdict may be given."""
    UNKNOWN = "unknown"
    """It was not recorded, or cannot be told from what was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityCheck:
    """One subject: the model, the GPU, the load, drift."""

    subject: str
    """``load``, ``drift``; also the name in JSON."""
    quality: Quality
    sentence: str
    """What was found, in full, with what to do where something can be done."""


def judged(
    subject: str, doubts: Sequence[str], good: str | None, *, void: bool = False
) -> QualityCheck:
    """All doubts of a subject, else what is good; nothing to say of it is unknown."""
    if doubts:
        quality = Quality.VOID if void else Quality.DOUBTFUL
        said = " ".join(dict.fromkeys(doubts))
        return QualityCheck(subject=subject, quality=quality, sentence=said)
    if good is None:
        said = f"{NOT_RECORDED.capitalize()}."
        return QualityCheck(subject=subject, quality=Quality.UNKNOWN, sentence=said)
    return QualityCheck(subject=subject, quality=Quality.GOOD, sentence=good)


def doubts(checks: Iterable[QualityCheck]) -> list[QualityCheck]:
    """What must be kept in mind, what makes it void first."""
    found = [
        each for each in checks if each.quality in {Quality.VOID, Quality.DOUBTFUL}
    ]
    return sorted(found, key=lambda each: each.quality is not Quality.VOID)


def void(checks: Iterable[QualityCheck]) -> str | None:
    """Why no verdict may be given; None: one may."""
    found = [each.sentence for each in checks if each.quality is Quality.VOID]
    return " ".join(found) or None


def not_recorded(checks: Iterable[QualityCheck]) -> str | None:
    """All that is unknown: ``not recorded: clocks, host; cannot tell: drift``."""
    unknown = [each for each in checks if each.quality is Quality.UNKNOWN]
    absent = [each.subject for each in unknown if NOT_RECORDED in each.sentence.lower()]
    untold = [each.subject for each in unknown if each.subject not in absent]
    parts = ((NOT_RECORDED, absent), ("cannot tell", untold))
    return "; ".join(f"{said}: {', '.join(n)}" for said, n in parts if n) or None
