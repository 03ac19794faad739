"""Whether two sides can be compared, and how well.

:mod:`inferwatch.studies.compare.checks.every` calls the checks, one function per
subject.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

NOT_RECORDED = "not recorded"


class Quality(StrEnum):
    """The result of one check."""

    GOOD = "good"
    DOUBTFUL = "doubtful"
    """Compared nevertheless; the sentence says what to keep in mind."""
    VOID = "void"
    """The sides cannot be compared, so no verdict is given."""
    UNKNOWN = "unknown"
    """It was not recorded, or the recording is not enough to tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityCheck:
    """The result of the check on one subject, such as the model, the GPU or drift."""

    subject: str
    """For example ``load`` or ``drift``; also the name in JSON."""
    quality: Quality
    sentence: str
    """What was found, and what to do about it if something can be done."""


def judged(
    subject: str, doubts: Sequence[str], good: str | None, *, void: bool = False
) -> QualityCheck:
    """The check's result: doubtful or void if there are doubts, else ``good``.

    Unknown if ``good`` is None.
    """
    if doubts:
        quality = Quality.VOID if void else Quality.DOUBTFUL
        sentence = " ".join(dict.fromkeys(doubts))
        return QualityCheck(subject=subject, quality=quality, sentence=sentence)
    if good is None:
        sentence = f"{NOT_RECORDED.capitalize()}."
        return QualityCheck(subject=subject, quality=Quality.UNKNOWN, sentence=sentence)
    return QualityCheck(subject=subject, quality=Quality.GOOD, sentence=good)


def doubts(checks: Iterable[QualityCheck]) -> list[QualityCheck]:
    """The checks that found a doubt; those that make the comparison void come first."""
    checks_in_doubt = [
        each for each in checks if each.quality in {Quality.VOID, Quality.DOUBTFUL}
    ]
    return sorted(checks_in_doubt, key=lambda each: each.quality is not Quality.VOID)


def void(checks: Iterable[QualityCheck]) -> str | None:
    """Why no verdict may be given; None if one may."""
    reasons = [each.sentence for each in checks if each.quality is Quality.VOID]
    return " ".join(reasons) or None


def not_recorded(checks: Iterable[QualityCheck]) -> str | None:
    """The unknown subjects: ``not recorded: clocks, host; cannot tell: drift``."""
    unknown = [each for each in checks if each.quality is Quality.UNKNOWN]
    absent = [each.subject for each in unknown if NOT_RECORDED in each.sentence.lower()]
    undecided = [each.subject for each in unknown if each.subject not in absent]
    parts = ((NOT_RECORDED, absent), ("cannot tell", undecided))
    return "; ".join(f"{text}: {', '.join(n)}" for text, n in parts if n) or None
