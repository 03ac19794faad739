"""Why prompts missed the prefix cache, as text in 80 columns and as JSON."""

from collections.abc import Iterator
from typing import Any

import msgspec

from inferwatch.formatting import (
    about,
    counted,
    duration_text,
    format_count,
    format_share,
)
from inferwatch.metrics.cache.misses import (
    ADVICE,
    MEANINGS,
    MissGroup,
    MissShare,
    PrefixMisses,
)
from inferwatch.metrics.number import label_of
from inferwatch.printing.text import grid, wrapped_sentence

NOT_TOLD = (
    "Nobody told of the blocks of prompts: it takes a probe with its block map, in an "
    "engine with prefix caching."
)
NONE_ENDED = "No prompt had ended by then."

INDENT = " " * 10
"""Of what a cause means, below it."""


def misses_row(misses: PrefixMisses | None) -> dict[str, Any] | None:
    """The result for JSON, named as the fields; None where nobody told."""
    if misses is None:
        return None
    row: dict[str, Any] = msgspec.to_builtins(misses)
    worst = misses.worst
    advice = None if worst is None else ADVICE[worst.cause]
    return row | {"sentence": misses.sentence, "advice": advice}


def misses_lines(misses: PrefixMisses | None, *, is_told: bool = False) -> list[str]:
    """The result as lines; ``is_told``: prompts tell of their blocks once they end."""
    if misses is None:
        return wrapped_sentence(NONE_ENDED if is_told else NOT_TOLD, then="")
    lines = wrapped_sentence(f"{misses.sentence}.", then="")
    if misses.worst is not None:
        lines += wrapped_sentence(f"What helps: {ADVICE[misses.worst.cause]}.", then="")
    if misses.prompts:
        lines += ["", *_causes(misses), "", *_would_be(misses)]
    if misses.groups:
        lines += ["", *_groups(misses)]
    return [*lines, "", *wrapped_sentence(_rests_on(misses), then="")]


def _causes(misses: PrefixMisses) -> Iterator[str]:
    total = misses.total
    sure = about if total.estimated else str
    found = format_share(misses.hit_share)
    rows = [["share", "tokens", label_of(MissShare.requests), "missed for", ""]]
    rows.append([found, f"{total.hit_tokens:,}", "", "(found)", ""])
    for each in total.missed:
        share = format_share(misses.share_of(each.tokens)).strip()
        prompts = f"{each.requests:,}" if each.requests else ""
        rows.append(
            [sure(share), sure(f"{each.tokens:,}"), prompts, str(each.cause), ""]
        )
    lines = grid(rows, left=(3, 4))
    yield f"  {lines[0].rstrip()}"
    yield f"  {lines[1].rstrip()}"
    for line, each in zip(lines[2:], total.missed, strict=True):
        yield f"  {line.rstrip()}"
        yield from wrapped_sentence(MEANINGS[each.cause], first=INDENT, then=INDENT)


def _would_be(misses: PrefixMisses) -> Iterator[str]:
    total = misses.total
    sure = about if total.estimated else str
    yield "hits that would have been, of all prompt tokens:"
    for field, tokens, note in (
        (MissGroup.unlimited_tokens, total.unlimited_tokens, ""),
        (MissGroup.reordered_tokens, total.reordered_tokens, "at least "),
    ):
        if tokens is None:
            yield f"  {label_of(field)}: not known, as of older probes"
            continue
        share = sure(format_share(misses.share_of(tokens)).strip())
        yield f"  {label_of(field)}: {note}{share} more ({tokens:,} tokens)"


def _groups(misses: PrefixMisses) -> Iterator[str]:
    shown = len(misses.groups)
    more = f", {shown} of {misses.groups_seen:,}" if shown < misses.groups_seen else ""
    yield f"groups of alike prompts, those that missed most first{more}:"
    rows = [["prompts", "tokens", "hit", "missed most for", "differ at", "idle p50"]]
    rows += [_row(each) for each in misses.groups]
    for line in grid(rows, left=(3, 4)):
        yield f"  {line.rstrip()}"


def _row(group: MissGroup) -> list[str]:
    worst = next(iter(group.avoidable), None) or next(iter(group.missed), None)
    hit = group.hit_tokens / group.prompt_tokens if group.prompt_tokens else None
    idle = group.idle_s.p50 if group.idle_s is not None else None
    return [
        f"{group.requests:,}",
        format_count(group.prompt_tokens).strip(),
        format_share(hit).strip(),
        "–" if worst is None else str(worst.cause),
        differs_text(group),
        "–" if idle is None else duration_text(idle),
    ]


def differs_text(group: MissGroup) -> str:
    """Where most of the prompts that differ begin to, as text."""
    if group.differs_at is None:
        return "–"
    at = f"block {group.differs_at:,}"
    if group.differs_at_token is not None:
        at += f", token {group.differs_at_token:,}"
    return about(at) if group.estimated else at


def _rests_on(misses: PrefixMisses) -> str:
    text = (
        f"By the engine, of the {counted(misses.prompts, 'prompt')} of the session "
        "that had ended by then"
    )
    if misses.alone:
        text += f"; {misses.alone:,} of them are alike to no other"
    if misses.unknown:
        text += f"; of {misses.unknown:,} more nobody told what was found"
    text += (
        ". Whole blocks are compared, those of one engine process: what is shared "
        "within a block shows as a block that differs."
    )
    if misses.estimated:
        text += " ~: only a sample of the hashes is reported of so large a cache."
    return text
