"""How sampling decides the length of answers, as text in 80 columns and as JSON."""

from collections.abc import Iterator
from typing import Any

import msgspec

from inferwatch.formatting import about, counted, format_share
from inferwatch.metrics.number import label_of
from inferwatch.metrics.requests.sampling import NO_COST, Sampled, SamplingGroup
from inferwatch.printing.text import grid, shortened, wrapped_sentence

MOST = 30
"""Groups that are listed."""


def sampling_row(found: Sampled) -> dict[str, Any]:
    """The result for JSON, named as the fields."""
    groups = [
        msgspec.to_builtins(each)
        | {"cut_share": each.cut_share, "sentences": list(each.sentences)}
        for each in found.groups
    ]
    return {
        "answers": found.answers,
        "unknown": found.unknown,
        "by_front_end": found.by_front_end,
        "sentences": list(found.sentences),
        "groups": groups,
    }


def sampling_lines(found: Sampled) -> list[str]:
    """The result as lines of text."""
    if not found.groups:
        text = "No answer had ended by then of which anybody told how it was sampled."
        return wrapped_sentence(text, then="")
    nothing = (
        f"Of {counted(found.answers, 'answer')}, no setting cuts many off among others "
        "that end by themselves, and no max_tokens is far above what answers take"
    )
    lines: list[str] = []
    for text in found.sentences or [nothing]:
        lines += wrapped_sentence(f"{text[0].upper()}{text[1:]}.", then="")
    if found.roomy:
        lines += wrapped_sentence(f"A high max_tokens: {NO_COST}.", then="")
    lines += ["", *_table(found)]
    rest = (
        f"{_told_by(found)}, of the {counted(found.answers, 'answer')} of the session"
    )
    rest += " that had ended by then, aborted ones aside"
    if found.unknown:
        rest += f"; of {found.unknown:,} more nobody told how they were sampled"
    return [*lines, "", *wrapped_sentence(f"{rest}.", then="")]


def _told_by(found: Sampled) -> str:
    if found.by_front_end == found.answers:
        return "By the front end"
    also = f", {found.by_front_end:,} by the front end" if found.by_front_end else ""
    return f"By the engine{also}"


def _table(found: Sampled) -> Iterator[str]:
    head = [
        label_of(SamplingGroup.name),
        label_of(SamplingGroup.answers),
        "out p50",
        "p99",
        label_of(SamplingGroup.cut),
        label_of(SamplingGroup.thinking_share),
    ]
    rows = [head, *map(_row, found.groups[:MOST])]
    for line in grid(rows):
        yield f"  {line.rstrip()}"
    if len(found.groups) > MOST:
        yield f"  and {counted(len(found.groups) - MOST, 'setting')}"


def _row(group: SamplingGroup) -> list[str]:
    lengths = group.output_tokens
    return [
        shortened(group.name, 40),
        f"{group.answers:,}",
        *(_length(lengths.p50, "p50", group), _length(lengths.p99, "p99", group)),
        format_share(group.cut_share).strip(),
        format_share(group.thinking_share).strip(),
    ]


def _length(value: float | None, name: str, group: SamplingGroup) -> str:
    if value is None:
        return "–"
    text = f"{value:,.0f}"
    return about(text) if name in group.output_tokens.weak else text
