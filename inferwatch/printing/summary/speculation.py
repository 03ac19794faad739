"""Speculative decoding in a summary: one object, one line."""

from collections.abc import Sequence
from dataclasses import asdict

from inferwatch.formatting import format_share
from inferwatch.metrics.number import label_of
from inferwatch.metrics.steps.speculation import Speculation
from inferwatch.printing.summary.latencies import Summary
from inferwatch.printing.text import named_line


def speculation_row(speculation: Speculation | None) -> Summary | None:
    """Speculative decoding as JSON; None where it is off."""
    if speculation is None:
        return None
    return asdict(speculation) | {"wasted_tokens": speculation.wasted_tokens}


def speculation_lines(summary: Summary) -> list[str]:
    row = summary["speculation"]
    return [] if row is None else [named_line("drafts", ", ".join(_words(row)))]


def _words(row: Summary) -> list[str]:
    drafted, length = row["drafted_tokens"], row["acceptance_length"]
    accepted = f"{format_share(row['acceptance']).strip()} accepted"
    words = [accepted if drafted is None else f"{drafted:,} tokens, {accepted}"]
    if length is not None:
        words.append(f"{label_of(Speculation.acceptance_length)} {length:.2f}")
    if row["acceptance_by_position"]:
        words.append(f"by position {position_text(row['acceptance_by_position'])}")
    return words


def position_text(shares: Sequence[float]) -> str:
    return " ".join(format_share(share).strip() for share in shares)
