"""Keeps the latest prompts with their hashes, to tell what they missed when asked."""

from collections import deque

import msgspec

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import PromptBlocks
from inferwatch.metrics.cache.miss_finder import EndedPrompt, MissFinder
from inferwatch.metrics.cache.misses import PrefixMisses
from inferwatch.metrics.requests.request import Request
from inferwatch.metrics.series.saving import Parts, WrittenParts

MOST_PROMPTS = 512
MOST_HASHES = 1 << 14
"""Hashes kept over all prompts: some milliseconds when they are looked through."""
JUDGED_NS = 10 * NS_PER_S
"""How often findings look through them."""
LATE_NS = 2 * NS_PER_S
"""By then the hashes of a request that ended have come."""
MOST_RESETS = 64
CHUNK = 32
"""Prompts saved together."""


class SavedPrompts(msgspec.Struct, array_like=True):
    """RecentPrompts as checkpoints keep them."""

    prompts: list[int]
    """Numbers of the parts that hold them."""
    taken: int
    resets: list[tuple[str, int, int]]


class RecentPrompts:
    """The latest prompts, whose misses are found only where somebody asks."""

    def __init__(self) -> None:
        self._prompts: deque[EndedPrompt] = deque()
        self._hashes = self._taken = 0
        self._resets: deque[tuple[str, int, int]] = deque(maxlen=MOST_RESETS)
        self._found: tuple[tuple[int, int], PrefixMisses] | None = None
        self._judged: tuple[int, PrefixMisses] | None = None

    def __deepcopy__(self, memo: dict[int, object]) -> "RecentPrompts":
        """Return a copy that shares the prompts, which never change."""
        copy = RecentPrompts()
        copy._prompts, copy._resets = self._prompts.copy(), self._resets.copy()
        copy._hashes, copy._taken = self._hashes, self._taken
        copy._found = self._found
        return copy

    def take(self, blocks: PromptBlocks, request: Request | None) -> None:
        """Keep a prompt whose request ended."""
        size, tokens = blocks.block_tokens, blocks.prompt_tokens
        if request is None or request.scheduled_ns is None or not size:
            return
        tokens = tokens or request.prompt_tokens
        if not tokens or not 0 <= blocks.prompt_blocks <= tokens:
            return
        hashes = blocks.hashes[:MOST_HASHES]
        self._keep(
            EndedPrompt(
                key=request.key,
                source=blocks.source,
                rank=blocks.rank,
                scheduled_ns=request.scheduled_ns,
                ready_ns=request.first_ns,
                end_ns=blocks.t_ns,
                prompt_tokens=tokens,
                cached_tokens=request.cached_tokens,
                block_tokens=size,
                prompt_blocks=blocks.prompt_blocks,
                hashes=hashes,
                places=blocks.places[: len(hashes)],
                one_in=blocks.one_in,
                plain=blocks.plain,
                salt=blocks.salt,
                lora=request.lora,
                media=bool(request.media_items),
            )
        )

    def ended(self, request: Request, block_tokens: int | None, t_ns: int) -> None:
        """Keep a prompt that ended without a full block, of which no hash is told."""
        tokens = request.prompt_tokens
        if request.scheduled_ns is None or not tokens or not block_tokens:
            return
        self._keep(
            EndedPrompt(
                key=request.key,
                source=request.source,
                scheduled_ns=request.scheduled_ns,
                ready_ns=None,
                end_ns=t_ns,
                prompt_tokens=tokens,
                cached_tokens=request.cached_tokens,
                block_tokens=block_tokens,
                prompt_blocks=tokens // block_tokens,
                hashes=[],
                places=[],
                plain=[],
            )
        )

    def reset(self, source: str, rank: int, t_ns: int) -> None:
        """Record that a cache was reset on demand."""
        self._resets.append((source, rank, t_ns))
        self._found = None

    def over(self, now_ns: int, span_ns: int | None) -> PrefixMisses | None:
        """Return the misses of prompts that ended in a span; None where none is known.

        The span begins with a whole second, so that little is found anew.
        """
        if not self._prompts:
            return None
        begin_s = 0 if span_ns is None else (now_ns - span_ns) // NS_PER_S
        key = self._taken, begin_s
        if self._found is not None and self._found[0] == key:
            return self._found[1]
        result = self._find(begin_s, None)
        self._found = key, result
        return result

    def judged(self, now_ns: int, span_ns: int) -> PrefixMisses | None:
        """Return the misses of a span for findings: as of every tenth second."""
        until_ns = (now_ns - LATE_NS) // JUDGED_NS * JUDGED_NS
        if not self._prompts or until_ns <= 0:
            return None
        if self._judged is None or self._judged[0] != until_ns:
            begin_s = (until_ns - span_ns) // NS_PER_S
            self._judged = until_ns, self._find(begin_s, until_ns)
        return self._judged[1]

    def _find(self, begin_s: int, until_ns: int | None) -> PrefixMisses:
        """Find the misses of prompts that ended in a span, by all before them."""
        finder = MissFinder(self._resets)
        for prompt in sorted(self._prompts, key=_as_scheduled):
            if until_ns is None or prompt.end_ns <= until_ns:
                finder.take(prompt, counts=prompt.end_ns // NS_PER_S >= begin_s)
        return finder.result()

    def saved(self, parts: Parts) -> SavedPrompts:
        """Return the state for a checkpoint; the prompts are in ``parts``."""
        gone = self._taken - len(self._prompts)
        prompts = parts.add_queue(list(self._prompts), gone, CHUNK)
        return SavedPrompts(prompts, self._taken, list(self._resets))

    def restore(self, saved: SavedPrompts, parts: WrittenParts) -> None:
        for number in saved.prompts:
            for prompt in parts.get(number, list[EndedPrompt]):
                if prompt.block_tokens < 1 or prompt.prompt_tokens < 1:
                    raise msgspec.ValidationError("this is not a prompt")
                self._keep(prompt)
        self._taken = saved.taken
        self._resets.extend(saved.resets)

    def _keep(self, prompt: EndedPrompt) -> None:
        self._taken += 1
        self._prompts.append(prompt)
        self._hashes += len(prompt.hashes)
        while len(self._prompts) > MOST_PROMPTS or self._hashes > MOST_HASHES:
            self._hashes -= len(self._prompts.popleft().hashes)


def _as_scheduled(prompt: EndedPrompt) -> int:
    return prompt.scheduled_ns
