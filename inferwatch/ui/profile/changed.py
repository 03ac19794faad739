"""What has changed since the profile before, as lines of the drawer."""

from collections.abc import Sequence

from inferwatch.feed import TakenProfile
from inferwatch.printing.summary.profile import ProfileContext
from inferwatch.printing.text import document_text
from inferwatch.profiles.report import ProfileReport
from inferwatch.studies.profiles.compared import ComparedProfile, ProfileComparison
from inferwatch.studies.profiles.printed import comparison_document
from inferwatch.ui.kit.renderables.text import Line, TextRun


def side_of(taken: TakenProfile, report: ProfileReport, at: str) -> ComparedProfile:
    """Return a profile of the session; ``at`` says when it began."""
    context = ProfileContext(key=taken.key, source=taken.source, at=at)
    return ComparedProfile(report=report, context=context)


def changed_lines(comparison: ProfileComparison, width: int) -> Sequence[Line]:
    """Draw a comparison as it is printed."""
    blocks = comparison_document(comparison)
    text = document_text(([each] for each in blocks), width - 2)
    return [(TextRun(f" {line}"),) for line in text.splitlines()]
