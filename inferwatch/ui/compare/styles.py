"""Texts and inks of a comparison."""

from collections import Counter

from inferwatch.studies.compare.comparison import SessionPair
from inferwatch.studies.compare.quality import Quality, doubts
from inferwatch.studies.compare.report import PROBABLE, SHOWN, at_another_load
from inferwatch.studies.compare.verdicts import MetricVerdict

INKS = {
    MetricVerdict.BETTER: "good bold",
    MetricVerdict.WORSE: "bad bold",
    MetricVerdict.DIFFERS: "accent",
    MetricVerdict.PROBABLY_BETTER: "good",
    MetricVerdict.PROBABLY_WORSE: "bad",
    MetricVerdict.PROBABLY_DIFFERS: "accent",
    MetricVerdict.SAME: "muted",
    MetricVerdict.OPEN: "warn",
}
QUALITY_LOOKS = {
    Quality.VOID: ("✗", "bad bold"),
    Quality.DOUBTFUL: ("!", "warn"),
    Quality.UNKNOWN: ("–", "muted"),
    Quality.GOOD: ("✓", "good"),
}
"""Glyph and ink, the gravest first."""
SAYS_SOMETHING = frozenset((*SHOWN, *PROBABLE))
VICTORIES = {MetricVerdict.BETTER, MetricVerdict.PROBABLY_BETTER}


def verdict_ink(verdict: MetricVerdict, pair: SessionPair) -> str:
    """Return the ink; better at another load does not count as better."""
    if verdict in VICTORIES and at_another_load(pair):
        return "accent"
    return INKS[verdict]


def quality_text(pair: SessionPair) -> str:
    """Return ``9 good, 1 doubtful: GPU clocks differ``; empty without checks."""
    many = Counter(check.quality for check in pair.quality)
    order = (Quality.GOOD, Quality.UNKNOWN, Quality.DOUBTFUL, Quality.VOID)
    counts = ", ".join(f"{many[each]} {each}" for each in order if many[each])
    grave = doubts(pair.quality)
    if len(grave) == 1:
        return f"{counts}: {grave[0].sentence}"
    named = ", ".join(check.subject for check in grave)
    return f"{counts}: {named}" if named else counts
