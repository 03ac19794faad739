"""Why prompts missed the prefix cache, as screens and files show it."""

from enum import StrEnum
from typing import Annotated

from collectors.contract.readings import Vantage
from inferwatch.formatting import counted, duration_text, format_share
from inferwatch.metrics.number import Better, Number, Unit, piece
from inferwatch.metrics.series.window import Quantiles


class MissCause(StrEnum):
    """Why tokens of a prompt were not found in the prefix cache."""

    EVICTED = "evicted before reuse"
    FIRST_DIFFERS = "first block differs"
    DIFFERS_LATER = "differs later"
    OTHER_SALT = "other salt"
    OTHER_ADAPTER = "other adapter"
    OTHER_MEDIA = "other media"
    IN_FLIGHT = "in flight"
    RESET = "cache was reset"
    NEW = "new"
    TOO_SHORT = "too short"
    LAST_BLOCK = "last block"
    UNKNOWN = "not known"


MEANINGS = {
    MissCause.EVICTED: "seen before, but its blocks had given way to others",
    MissCause.FIRST_DIFFERS: "later blocks are alike, the first is not: none can hit",
    MissCause.DIFFERS_LATER: "begins like another prompt, then goes on differently",
    MissCause.OTHER_SALT: "the same tokens, under another cache_salt",
    MissCause.OTHER_ADAPTER: "the same tokens, for another LoRA adapter or the model",
    MissCause.OTHER_MEDIA: "the same tokens around other images, sounds or videos",
    MissCause.IN_FLIGHT: "an alike prompt was still being computed",
    MissCause.RESET: "seen before, but the cache was reset since",
    MissCause.NEW: "nothing alike was seen",
    MissCause.TOO_SHORT: "no full block before its last token",
    MissCause.LAST_BLOCK: "beyond the last full block, which no cache holds",
    MissCause.UNKNOWN: "the hashes do not tell",
}
ADVICE = {
    MissCause.EVICTED: "give the cache more blocks (--gpu-memory-utilization, "
    "--kv-cache-dtype fp8), or offload it (--kv-offloading-size)",
    MissCause.FIRST_DIFFERS: "put what changes (dates, ids, names) last",
    MissCause.DIFFERS_LATER: "put what changes (dates, ids, names) last",
    MissCause.OTHER_SALT: "use one cache_salt for all who may share a cache",
    MissCause.OTHER_ADAPTER: "send each adapter to a server of its own, or use fewer",
    MissCause.IN_FLIGHT: "let one prompt warm the cache before the others are sent",
    MissCause.TOO_SHORT: "nothing: a prompt below a block cannot hit; smaller blocks "
    "(--block-size) could",
}
"""What helps, where something does."""
DIFFERING = (MissCause.FIRST_DIFFERS, MissCause.DIFFERS_LATER)
HELPED = tuple(each for each in ADVICE if each not in DIFFERING)
"""Causes of which each missed token could have been a hit."""
LEAST_TOLD = 0.02
"""Share of the prompt tokens from which a cause is worth a sentence."""


@piece("miss", Vantage.ENGINE)
class MissShare:
    """What was missed for one cause."""

    cause: Annotated[
        MissCause, Number("missed for", "Miss cause", "Why the cache had them not.")
    ]
    requests: Annotated[
        int,
        Number(
            "prompts",
            "Prompts that missed for it",
            "Prompts that missed more tokens for this cause than for any other.",
            unit=Unit.REQUESTS,
        ),
    ]
    tokens: Annotated[
        int,
        Number(
            "tokens",
            "Tokens missed for it",
            "Prompt tokens that were computed although they, or a cache for them, were "
            "looked for.",
            unit=Unit.TOKENS,
            better=Better.LOWER,
        ),
    ]


@piece("miss_group", Vantage.ENGINE)
class MissGroup:
    """Prompts that are alike: each shares blocks with another of them."""

    requests: Annotated[
        int,
        Number(
            "prompts",
            "Prompts of the group",
            "Prompts of which each has blocks in common with another of them.",
            unit=Unit.REQUESTS,
        ),
    ]
    prompt_tokens: Annotated[
        int,
        Number(
            "prompt", "Prompt tokens of the group", "Their length.", unit=Unit.TOKENS
        ),
    ]
    hit_tokens: Annotated[
        int,
        Number(
            "hit",
            "Hits of the group",
            "Of these tokens, those found in the prefix cache.",
            unit=Unit.TOKENS,
            better=Better.HIGHER,
        ),
    ]
    missed: Annotated[
        tuple[MissShare, ...],
        Number("missed", "Misses of the group", "What they missed, most tokens first."),
    ]
    differs_at: Annotated[
        int | None,
        Number(
            "differ at block",
            "First different block",
            "The block, counted from 0, at which most of those that differ stop being "
            "like another prompt; where some are alike again further on, of those.",
            unit=Unit.BLOCKS,
        ),
    ] = None
    differs_at_token: Annotated[
        int | None,
        Number(
            "at token",
            "First token of that block",
            "Where in the prompt that block begins; what differs is in the block.",
            unit=Unit.TOKENS,
        ),
    ] = None
    differing: Annotated[
        int,
        Number(
            "differ there",
            "Prompts that differ there",
            "How many of them differ from that block on.",
            unit=Unit.REQUESTS,
        ),
    ] = 0
    idle_s: Annotated[
        Quantiles | None,
        Number(
            "idle before",
            "Idle time of what was evicted",
            "How long the blocks that were evicted had not been used when they were "
            "looked for.",
            unit=Unit.SECONDS,
        ),
    ] = None
    unlimited_tokens: Annotated[
        int,
        Number(
            "in an unlimited cache",
            "Hits that would have been: unlimited",
            "Tokens that would have been hits had nothing ever been evicted, all else "
            "equal.",
            unit=Unit.TOKENS,
        ),
    ] = 0
    reordered_tokens: Annotated[
        int | None,
        Number(
            "with what changes last",
            "Hits that would have been: reordered",
            "Tokens of blocks that were seen before, but stood behind one that "
            "differs: hits if it came last. A lower bound, as only whole blocks are "
            "compared, and only the first 32 of a prompt.",
            unit=Unit.TOKENS,
        ),
    ] = None
    """None where blocks were not told by themselves, as of older probes."""
    key: str = ""
    """A request of the group: the latest that missed."""
    estimated: bool = False
    """Only a sample of the hashes is reported."""

    @property
    def missed_tokens(self) -> int:
        return self.prompt_tokens - self.hit_tokens

    @property
    def avoidable(self) -> tuple[MissShare, ...]:
        """What could have been hits, most tokens first.

        Of prompts that differ, only blocks that are alike again behind what differs.
        """
        found = [each for each in self.missed if each.cause in HELPED]
        differing = [each for each in self.missed if each.cause in DIFFERING]
        if differing and self.reordered_tokens:
            tokens = self.reordered_tokens
            requests = sum(each.requests for each in differing)
            cause = differing[0].cause
            found.append(MissShare(cause=cause, requests=requests, tokens=tokens))
        return tuple(sorted(found, key=lambda each: -each.tokens))


@piece("prefix_misses", Vantage.ENGINE)
class PrefixMisses:
    """Why the prompts of a window missed the prefix cache."""

    prompts: Annotated[
        int,
        Number(
            "prompts",
            "Prompts looked up",
            "Prompts whose request has ended and whose hits are known.",
            unit=Unit.REQUESTS,
        ),
    ]
    unknown: Annotated[
        int,
        Number(
            "not known",
            "Prompts not known",
            "Prompts of which nobody told how much was found.",
            unit=Unit.REQUESTS,
        ),
    ]
    total: MissGroup
    groups: Annotated[
        tuple[MissGroup, ...],
        Number("groups", "Groups of alike prompts", "Those that missed most first."),
    ]
    """At most 20."""
    groups_seen: int
    alone: Annotated[
        int,
        Number(
            "alike to none",
            "Prompts alike to none",
            "Prompts that are in no group: nothing else had a block of them.",
            unit=Unit.REQUESTS,
        ),
    ]
    block_tokens: int | None
    from_ns: int | None
    """When the first of them was scheduled."""
    span_s: float | None
    """From the first end of them to the last; None where none is known."""

    @property
    def estimated(self) -> bool:
        return self.total.estimated

    @property
    def hit_share(self) -> float | None:
        total = self.total
        return total.hit_tokens / total.prompt_tokens if total.prompt_tokens else None

    def share_of(self, tokens: int) -> float:
        return tokens / self.total.prompt_tokens if self.total.prompt_tokens else 0.0

    def tokens_of(self, *causes: MissCause) -> int:
        return sum(each.tokens for each in self.total.missed if each.cause in causes)

    @property
    def worst(self) -> MissShare | None:
        """What most tokens were missed for that could have been hits."""
        worst = next(iter(self.total.avoidable), None)
        if worst is None or self.share_of(worst.tokens) < LEAST_TOLD:
            return None
        return worst

    @property
    def sentence(self) -> str:
        """What was found, and why not more, without a full stop."""
        if not self.prompts:
            return "No prompt was looked up in the prefix cache"
        total, sure = self.total, "~" if self.estimated else ""
        found = format_share(self.hit_share).strip()
        text = f"Of {total.prompt_tokens:,} prompt tokens {found} were found"
        worst = self.worst
        if worst is None:
            return f"{text}; {self._nothing_avoidable(sure)}"
        share = f"{sure}{format_share(self.share_of(worst.tokens)).strip()}"
        return f"{text}; {share} {self._missed_for(worst.cause)}"

    def _nothing_avoidable(self, sure: str) -> str:
        total = self.total
        not_known = self.share_of(self.tokens_of(MissCause.UNKNOWN))
        rest = "hardly any of the others could have been"
        if total.reordered_tokens is None:
            rest = "hardly any was evicted, and this probe tells no more"
        if not_known < LEAST_TOLD:
            return rest
        share = f"{sure}{format_share(not_known).strip()}"
        is_all = 1 - (self.hit_share or 0.0) - not_known < LEAST_TOLD
        said = f"why {share} were not is not known"
        return said if is_all else f"{rest}; {said}"

    def _missed_for(self, cause: MissCause) -> str:
        total = self.total
        if cause is MissCause.EVICTED:
            idle = total.idle_s.p50 if total.idle_s is not None else None
            for_s = "" if idle is None else f", idle for {duration_text(idle)} (p50)"
            return f"were evicted before they were used again{for_s}"
        if cause in DIFFERING:
            at = f"{total.differs_at:,}"
            if total.differs_at_token is not None:  # blocks may be of several sizes
                at += f", token {total.differs_at_token:,}"
            return (
                "stood behind something that changes, "
                f"of {counted(total.differing, 'prompt')} at block {at}"
            )
        return {
            MissCause.OTHER_SALT: "were cached under another cache_salt",
            MissCause.OTHER_ADAPTER: "were cached for another adapter",
            MissCause.IN_FLIGHT: "were still being computed for an alike prompt",
            MissCause.TOO_SHORT: "were of prompts shorter than a block "
            f"of {self.block_tokens or 0:,} tokens",
        }[cause]
