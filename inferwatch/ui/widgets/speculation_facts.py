"""Facts about speculative decoding, side by side on several screens."""

from inferwatch.formatting import format_count, format_share
from inferwatch.metrics.number import label_of, numbers, numbers_in
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.steps.speculation import Speculation
from inferwatch.ui.widgets.totals import Fact

SPECULATION_NUMBERS = (
    *numbers_in(Speculation),
    *numbers(Timeline.acceptance, Timeline.acceptance_length),
)


def speculation_facts(speculation: Speculation) -> list[Fact]:
    """Return what drafts brought, the most important first; unknown is left out."""
    length, shares = speculation.acceptance_length, speculation.acceptance_by_position
    facts = [
        (
            label_of(Speculation.acceptance),
            format_share(speculation.acceptance),
            "decode",
        ),
        (
            label_of(Speculation.acceptance_length),
            "–" if length is None else f"{length:.2f}",
            "",
        ),
    ]
    if shares:
        text = " ".join(f"{share * 100:2.0f}" for share in shares)
        facts.append((label_of(Speculation.acceptance_by_position), f"{text}%", ""))
    counts = (
        (Speculation.drafts, speculation.drafts),
        (Speculation.drafted_tokens, speculation.drafted_tokens),
        (Speculation.wasted_tokens, speculation.wasted_tokens),
    )
    return facts + [
        (label_of(field), format_count(count).strip(), "")
        for field, count in counts
        if count is not None
    ]
