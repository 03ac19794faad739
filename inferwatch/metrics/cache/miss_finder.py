"""Why prompts missed the prefix cache, from the hashes of their blocks.

A prompt finds what another left behind only as far as both are equal from the start,
block by block, with the same salt and adapter. Each prompt is compared with those that
were scheduled before it: the chained hashes of its blocks tell how far it was seen
before, the *plain* hashes of its first blocks whether their tokens stood elsewhere.

Hashes are keyed by a secret of each engine process. So prompts of two processes are
never alike here, whichever models they serve: each has a cache of its own.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Generic, TypeVar

import msgspec

from collectors.contract.clock import NS_PER_S
from inferwatch.metrics.cache.misses import (
    MissCause,
    MissGroup,
    MissShare,
    PrefixMisses,
)
from inferwatch.metrics.requests.request_groups import quantiles_of

MOST_KNOWN = 1 << 20
"""Blocks whose last use is remembered, in two halves of which the older goes first."""
MOST_GROUPS = 1 << 12
"""Groups of alike prompts; prompts of further ones are counted in the last."""
MOST_IDLE = 1 << 12
"""Idle times kept for their quantiles, of a group and of all."""
SHOWN_GROUPS = 20
Kind = TypeVar("Kind")


class EndedPrompt(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """A prompt that was looked up in the prefix cache, told when its request ended."""

    key: str
    source: str = ""
    rank: int = 0
    scheduled_ns: int
    ready_ns: int | None
    """When all its blocks were computed, which is its first token; None if never."""
    end_ns: int
    prompt_tokens: int
    cached_tokens: int | None
    block_tokens: int
    prompt_blocks: int
    hashes: list[int]
    """Chained, of prompt and output."""
    places: list[int]
    one_in: int = 1
    plain: list[int]
    salt: int | None = None
    lora: str | None = None
    media: bool = False

    @property
    def findable(self) -> int:
        """The number of blocks that can hit: the last token is always computed."""
        by_tokens = (self.prompt_tokens - 1) // self.block_tokens
        return max(min(self.prompt_blocks, by_tokens), 0)


class Use(msgspec.Struct, gc=False):
    """The last use of the blocks of a prompt."""

    ready_ns: int
    """When their content was there."""
    end_ns: int
    """When the request ended."""
    group: int


class Owner(msgspec.Struct, gc=False):
    """The latest prompt that had certain tokens."""

    plain: list[int]
    salt: int | None
    lora: str | None
    group: int


class LatestOf(Generic[Kind]):
    """What was put last under each of many keys; the oldest half goes at once."""

    def __init__(self) -> None:
        self._new: dict[int, Kind] = {}
        self._old: dict[int, Kind] = {}

    def get(self, key: int) -> Kind | None:
        found = self._new.get(key)
        return self._old.get(key) if found is None else found

    def __contains__(self, key: int) -> bool:
        return key in self._new or key in self._old

    def put(self, keys: Iterable[int], kind: Kind) -> None:
        self._new.update(dict.fromkeys(keys, kind))
        if len(self._new) > MOST_KNOWN // 2:
            self._old, self._new = self._new, {}

    def __len__(self) -> int:
        return len(self._new) + len(self._old)


class GroupTally:
    """The counts of a group of alike prompts."""

    def __init__(self) -> None:
        self.requests = self.prompt_tokens = self.hit_tokens = 0
        self.tokens: Counter[MissCause] = Counter()
        self.mains: Counter[MissCause] = Counter()
        self.differ: Counter[int] = Counter()
        """Prompts by the block from which they differ."""
        self.parted: Counter[int] = Counter()
        """Of these, those that are alike again further on."""
        self.idle_ns: list[int] = []
        self.unlimited = self.reordered = 0
        self.key = ""
        self.members = 0
        """Prompts in the group, counted or not."""
        self.estimated = False
        self.told_alone = True
        """Whether blocks of all prompts were told by themselves."""

    def shown(self, block_tokens: int | None) -> MissGroup:
        by_block = self.parted or self.differ
        at, differing = next(iter(by_block.most_common(1)), (None, 0))
        size = block_tokens or 0
        return MissGroup(
            requests=self.requests,
            prompt_tokens=self.prompt_tokens,
            hit_tokens=self.hit_tokens,
            missed=tuple(
                MissShare(cause=cause, requests=self.mains[cause], tokens=tokens)
                for cause, tokens in self.tokens.most_common()
                if tokens
            ),
            differs_at=at,
            differs_at_token=None if at is None or not size else at * size,
            differing=differing,
            idle_s=quantiles_of(each / NS_PER_S for each in self.idle_ns)
            if self.idle_ns
            else None,
            unlimited_tokens=self.unlimited,
            reordered_tokens=self.reordered if self.told_alone else None,
            key=self.key,
            estimated=self.estimated,
        )


class PromptMiss:
    """What one prompt missed, block by block."""

    def __init__(self, prompt: EndedPrompt, cached_tokens: int) -> None:
        self.prompt = prompt
        self.hit_tokens = max(min(cached_tokens, prompt.prompt_tokens), 0)
        self.first = min(self.hit_tokens // prompt.block_tokens, prompt.findable)
        """The first block that missed."""
        self.tokens: Counter[MissCause] = Counter()
        self.differs_at: int | None = None
        self.idle_ns: list[int] = []
        self.unlimited = self.reordered = 0
        self.estimated = False
        full = prompt.findable * prompt.block_tokens
        rest = prompt.prompt_tokens - max(full, self.hit_tokens)
        cause = MissCause.LAST_BLOCK if prompt.findable else MissCause.TOO_SHORT
        self.tokens[cause] += max(rest, 0)

    def add(self, cause: MissCause, place: int, blocks: int = 1) -> int:
        """Add blocks from a place on; return how many of their tokens were missed."""
        tokens = self.missed(place, blocks)
        self.tokens[cause] += tokens
        return tokens

    def missed(self, place: int, blocks: int = 1) -> int:
        """Return the tokens of blocks that were missed: part of one may be a hit."""
        size = self.prompt.block_tokens
        return max((place + blocks) * size - max(place * size, self.hit_tokens), 0)

    @property
    def main(self) -> MissCause | None:
        """The cause of most of its missed tokens, its last block aside."""
        found = [each for each in self.tokens if each is not MissCause.LAST_BLOCK]
        return max(found, key=self.tokens.__getitem__, default=None)


class MissFinder:
    """Finds the miss causes of prompts, taken in the order they were scheduled."""

    def __init__(self, resets: Iterable[tuple[str, int, int]] = ()) -> None:
        """``resets``: source, rank and time of each reset of a cache."""
        self._resets: dict[tuple[str, int], list[int]] = {}
        for source, rank, t_ns in resets:
            self._resets.setdefault((source, rank), []).append(t_ns)
        self._chained: LatestOf[Use] = LatestOf()
        self._begun: LatestOf[Use] = LatestOf()
        """Uses by hash of all tokens so far with salt and adapter; only where chained
        hashes are a sample."""
        self._alone: LatestOf[Owner] = LatestOf()
        """By plain hash."""
        self._groups: list[GroupTally] = []
        self._short = GroupTally()
        self._total = GroupTally()
        self._unknown = 0
        self._block_tokens: set[int] = set()
        self._from_ns: int | None = None
        self._ended_ns: tuple[int, int] | None = None
        """The first and the last end of those counted."""

    def take(self, prompt: EndedPrompt, *, counts: bool = True) -> PromptMiss | None:
        """Take the next prompt; None if nobody told how much was found of it.

        With ``counts`` it is part of the result, else only something to be alike to.
        """
        begun: Sequence[int] = ()
        if prompt.one_in > 1:
            begun = _prefixes(prompt.plain, (prompt.salt, prompt.lora))
        uses = self._uses(prompt, begun)
        miss = None
        group = self._group_of(prompt, uses)
        if prompt.cached_tokens is not None:
            miss = PromptMiss(prompt, prompt.cached_tokens)
            self._explain(miss, uses)
        if counts:
            self._count(prompt, miss, group)
        self._remember(prompt, begun, group)
        return miss

    def result(self, most: int = SHOWN_GROUPS) -> PrefixMisses:
        """Return what was found, with the groups that missed most."""
        sizes = self._block_tokens
        size = next(iter(sizes)) if len(sizes) == 1 else None
        counted = [each for each in self._groups if each.requests]
        alike = [each for each in counted if each.members > 1]
        if self._short.requests:
            alike.append(self._short)
        alike.sort(key=lambda each: each.hit_tokens - each.prompt_tokens)
        total, ended = self._total, self._ended_ns
        return PrefixMisses(
            prompts=total.requests,
            unknown=self._unknown,
            total=total.shown(size),
            groups=tuple(each.shown(size) for each in alike[:most]),
            groups_seen=len(alike),
            alone=sum(each.requests for each in counted if each.members == 1),
            block_tokens=size,
            from_ns=self._from_ns,
            span_s=None if ended is None else (ended[1] - ended[0]) / NS_PER_S,
        )

    def _uses(self, prompt: EndedPrompt, begun: Sequence[int]) -> list[Use | None]:
        """Return the last use of each leading block that was seen before.

        Of a sample of hashes: of as many as surely were, None where a block's own use
        is not known.
        """
        full = prompt.findable
        if prompt.one_in == 1:
            uses: list[Use | None] = []
            for number in islice(prompt.hashes, full):
                use = self._chained.get(number)
                if use is None:
                    break
                uses.append(use)
            return uses
        told: dict[int, Use] = {}
        for place, number in zip(prompt.places, prompt.hashes, strict=False):
            use = self._chained.get(number) if place < full else None
            if use is None:
                break
            told[place] = use
        for place, key in enumerate(islice(begun, full)):
            use = self._begun.get(key)
            if use is None:
                break
            told[place] = use
        seen = max(told, default=-1) + 1
        return [told.get(place) for place in range(seen)]

    def _group_of(self, prompt: EndedPrompt, uses: Sequence[Use | None]) -> int | None:
        """Return the group of the most alike earlier prompt, or a new one.

        None for a prompt that is too short to be alike to any.
        """
        if not prompt.findable:
            return None
        alike = next((use.group for use in reversed(uses) if use is not None), None)
        if alike is None:
            owners = map(self._alone.get, prompt.plain)
            alike = next((each.group for each in owners if each is not None), None)
        if alike is None:
            if len(self._groups) < MOST_GROUPS:
                self._groups.append(GroupTally())
            alike = len(self._groups) - 1
        return alike

    def _explain(self, miss: PromptMiss, uses: Sequence[Use | None]) -> None:
        prompt, full = miss.prompt, miss.prompt.findable
        for place in range(miss.first, len(uses)):
            self._explain_seen(miss, place, uses[place])
        start = max(len(uses), miss.first)
        if start >= full:
            miss.estimated = prompt.one_in > 1 and miss.first < full
            return
        length, twin = self._twin(prompt, start)
        if twin is not None:
            until = full if length == len(prompt.plain) else min(length, full)
            cause = _set_apart_by(prompt, twin)
            miss.add(cause, start, until - start)
            start = until
        if start < full:
            self._explain_differing(miss, start, full)
        # What follows the plain hashes is told by a sample of the chained ones alone.
        miss.estimated = prompt.one_in > 1 and full > len(prompt.plain)

    def _explain_seen(self, miss: PromptMiss, place: int, use: Use | None) -> None:
        """Add a block that was seen before and was not found."""
        t_ns = miss.prompt.scheduled_ns
        if use is not None and use.ready_ns > t_ns:
            miss.add(MissCause.IN_FLIGHT, place)
            return
        if use is not None and self._was_reset(miss.prompt, use.end_ns):
            miss.add(MissCause.RESET, place)
            return
        miss.unlimited += miss.add(MissCause.EVICTED, place)
        if use is not None and use.end_ns <= t_ns:
            miss.idle_ns.append(t_ns - use.end_ns)

    def _explain_differing(self, miss: PromptMiss, start: int, full: int) -> None:
        """Add the blocks from the first that differs from all that was seen."""
        prompt = miss.prompt
        again = [
            place
            for place in range(start, min(full, len(prompt.plain)))
            if prompt.plain[place] in self._alone
        ]
        if not prompt.plain and not prompt.hashes:
            cause = MissCause.UNKNOWN  # nobody told of its blocks
        elif start:
            cause = MissCause.DIFFERS_LATER
        elif again:
            cause = MissCause.FIRST_DIFFERS
        else:
            cause = MissCause.NEW if prompt.plain else MissCause.UNKNOWN
        miss.add(cause, start, full - start)
        if cause in {MissCause.DIFFERS_LATER, MissCause.FIRST_DIFFERS}:
            miss.differs_at = start
            miss.reordered = sum(map(miss.missed, again))

    def _twin(self, prompt: EndedPrompt, start: int) -> tuple[int, Owner | None]:
        """Return whose tokens are the same beyond what was seen, and up to where.

        Such a prompt has another salt or adapter, or other media: else its blocks would
        have been the same, and seen.
        """
        plain = prompt.plain
        owner = self._alone.get(plain[start]) if start < len(plain) else None
        if owner is None or owner.plain[: start + 1] != plain[: start + 1]:
            return 0, None
        length = start + 1
        for ours, theirs in zip(plain[length:], owner.plain[length:], strict=False):
            if ours != theirs:
                break
            length += 1
        return length, owner

    def _was_reset(self, prompt: EndedPrompt, since_ns: int) -> bool:
        resets = self._resets.get((prompt.source, prompt.rank), ())
        return any(since_ns <= each <= prompt.scheduled_ns for each in resets)

    def _count(
        self, prompt: EndedPrompt, miss: PromptMiss | None, group: int | None
    ) -> None:
        if miss is None:
            self._unknown += 1
            return
        self._block_tokens.add(prompt.block_tokens)
        if self._from_ns is None:
            self._from_ns = prompt.scheduled_ns
        first, last = self._ended_ns or (prompt.end_ns, prompt.end_ns)
        self._ended_ns = min(first, prompt.end_ns), max(last, prompt.end_ns)
        main = miss.main
        of_group = self._short if group is None else self._groups[group]
        for tally in (self._total, of_group):
            tally.requests += 1
            tally.prompt_tokens += prompt.prompt_tokens
            tally.hit_tokens += miss.hit_tokens
            tally.tokens.update(miss.tokens)
            if main is not None and miss.tokens[main]:
                tally.mains[main] += 1
                tally.key = prompt.key
            tally.key = tally.key or prompt.key
            if miss.differs_at is not None:
                tally.differ[miss.differs_at] += 1
                if miss.reordered:
                    tally.parted[miss.differs_at] += 1
            if len(tally.idle_ns) < MOST_IDLE:
                tally.idle_ns += miss.idle_ns[:1]
            tally.unlimited += miss.unlimited
            tally.reordered += miss.reordered
            tally.estimated |= miss.estimated
            tally.told_alone &= bool(prompt.plain) or not prompt.findable

    def _remember(
        self, prompt: EndedPrompt, begun: Sequence[int], group: int | None
    ) -> None:
        """Make the prompt one that others may be alike to, if it was computed."""
        if group is None:
            return
        self._groups[group].members += 1
        if prompt.ready_ns is None:
            return
        found = (prompt.cached_tokens or 0) // prompt.block_tokens
        asked = max(prompt.prompt_blocks, found)
        hashes, at, until = prompt.hashes, found, asked
        if prompt.places:
            at, until = (bisect_left(prompt.places, each) for each in (found, asked))
        # What was found was there, and what it answered when it ended.
        there = Use(prompt.scheduled_ns, prompt.end_ns, group)
        computed = Use(prompt.ready_ns, prompt.end_ns, group)
        self._chained.put(hashes[:at], there)
        self._chained.put(hashes[at:until], computed)
        if len(hashes) > until:
            answer = Use(prompt.end_ns, prompt.end_ns, group)
            self._chained.put(hashes[until:], answer)
        if begun:
            self._begun.put(begun[:found], there)
            self._begun.put(begun[found:], computed)
        owner = Owner(prompt.plain, prompt.salt, prompt.lora, group)
        self._alone.put(prompt.plain, owner)


def _set_apart_by(prompt: EndedPrompt, twin: Owner) -> MissCause:
    """Return why blocks of equal tokens were not the same."""
    if twin.lora != prompt.lora:
        return MissCause.OTHER_ADAPTER
    if twin.salt != prompt.salt:
        return MissCause.OTHER_SALT
    return MissCause.OTHER_MEDIA if prompt.media else MissCause.UNKNOWN


def _prefixes(plain: Sequence[int], apart: tuple[int | None, str | None]) -> list[int]:
    """Return for each first block a hash of all tokens up to its end."""
    key, keys = hash(apart), []
    for number in plain:
        key = hash((key, number))
        keys.append(key)
    return keys
