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
MOST_PLAIN = 32
"""Plain hashes kept of a prompt, which is as many as a probe tells."""
JUDGED_NS = 10 * NS_PER_S
"""How often findings judge them: at multiples of it in session time."""
JUDGED_SPAN_NS = 60 * NS_PER_S
"""How far back findings look."""
MOST_RESETS = 64
CHUNK = 32
"""Prompts saved together."""
Kept = tuple[tuple[EndedPrompt, ...], tuple[tuple[str, int, int], ...]]
"""Prompts and resets."""


class SavedPrompts(msgspec.Struct, array_like=True):
    """RecentPrompts as checkpoints keep them."""

    prompts: list[int]
    """Numbers of the parts that hold them."""
    taken: int
    resets: list[tuple[str, int, int]]
    judged: tuple[int, PrefixMisses] | None
    """What was judged last, and when: of prompts that may be gone."""


class JudgedMisses:
    """What was kept at a moment, whose misses are found once somebody asks.

    It never changes but for that, so copies of a Model share it.
    """

    def __init__(self, t_ns: int, of: Kept | PrefixMisses) -> None:
        self.t_ns = t_ns
        self._of = of

    @property
    def misses(self) -> PrefixMisses:
        """The misses of the last minute, without groups, which no finding shows."""
        of = self._of
        if not isinstance(of, PrefixMisses):
            begin_s = (self.t_ns - JUDGED_SPAN_NS) // NS_PER_S
            self._of = of = _find(of, begin_s).result(most=0)
        return of


class RecentPrompts:
    """The latest prompts, whose misses are found only where somebody asks."""

    def __init__(self) -> None:
        self._prompts: deque[EndedPrompt] = deque()
        self._hashes = self._taken = 0
        self._resets: deque[tuple[str, int, int]] = deque(maxlen=MOST_RESETS)
        self._found: tuple[tuple[int, int], PrefixMisses] | None = None
        self._judged: JudgedMisses | None = None
        """Of the latest tenth second that a prompt has come after."""
        self._ahead: tuple[int, JudgedMisses] | None = None
        """Of a later one, after which none has come yet, and how many had come."""

    def __deepcopy__(self, memo: dict[int, object]) -> "RecentPrompts":
        """Return a copy that shares the prompts, which never change."""
        copy = RecentPrompts()
        copy._prompts, copy._resets = self._prompts.copy(), self._resets.copy()
        copy._hashes, copy._taken = self._hashes, self._taken
        copy._found = self._found
        copy._judged, copy._ahead = self._judged, self._ahead
        return copy

    def take(self, blocks: PromptBlocks, request: Request | None) -> None:
        """Keep a prompt whose request ended."""
        size, tokens = blocks.block_tokens, blocks.prompt_tokens
        if request is None or request.scheduled_ns is None or size is None:
            return
        tokens = tokens or request.prompt_tokens
        if size < 1 or not tokens or not 0 <= blocks.prompt_blocks <= tokens:
            return
        hashes = blocks.hashes[: MOST_HASHES - MOST_PLAIN]
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
                plain=blocks.plain[:MOST_PLAIN],
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
        self._found = self._ahead = None

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
        result = _find(self._kept, begin_s).result()
        self._found = key, result
        return result

    def judged(self, now_ns: int) -> PrefixMisses | None:
        """Return the misses of a minute for findings: as of every tenth second.

        They are of what was kept at that second, whoever asks and when: prompts that
        came since, which push others out, change nothing.
        """
        t_ns = now_ns // JUDGED_NS * JUDGED_NS
        if not self._prompts or t_ns <= 0:
            return None
        if self._judged is not None and self._judged.t_ns >= t_ns:
            return self._judged.misses
        judgement = self._as_of(t_ns)
        self._ahead = self._taken, judgement
        return judgement.misses

    def _as_of(self, t_ns: int) -> JudgedMisses:
        """Return what is kept now as a judgement, the one that was asked for if any."""
        if self._ahead is not None:
            taken, judgement = self._ahead
            if taken == self._taken and judgement.t_ns == t_ns:
                return judgement
        return JudgedMisses(t_ns, self._kept)

    @property
    def _kept(self) -> Kept:
        return tuple(self._prompts), tuple(self._resets)

    def saved(self, parts: Parts) -> SavedPrompts:
        """Return the state for a checkpoint; the prompts are in ``parts``."""
        gone = self._taken - len(self._prompts)
        prompts = parts.add_queue(list(self._prompts), gone, CHUNK)
        last = self._judged
        judged = None if last is None else (last.t_ns, last.misses)
        return SavedPrompts(prompts, self._taken, list(self._resets), judged)

    def restore(self, saved: SavedPrompts, parts: WrittenParts) -> None:
        for number in saved.prompts:
            for prompt in parts.get(number, list[EndedPrompt]):
                if prompt.block_tokens < 1 or prompt.prompt_tokens < 1:
                    raise msgspec.ValidationError("this is not a prompt")
                self._keep(prompt)
        self._taken = saved.taken
        self._resets.extend(saved.resets)
        self._judged = None if saved.judged is None else JudgedMisses(*saved.judged)

    def _keep(self, prompt: EndedPrompt) -> None:
        t_ns = prompt.end_ns // JUDGED_NS * JUDGED_NS
        if t_ns > (0 if self._judged is None else self._judged.t_ns):
            self._judged, self._ahead = self._as_of(t_ns), None
        self._taken += 1
        self._prompts.append(prompt)
        self._hashes += _hashes_of(prompt)
        while len(self._prompts) > MOST_PROMPTS or self._hashes > MOST_HASHES:
            self._hashes -= _hashes_of(self._prompts.popleft())


def _find(kept: Kept, begin_s: int) -> MissFinder:
    """Find the misses of prompts that ended from a second on, by all before them."""
    prompts, resets = kept
    finder = MissFinder(resets)
    for prompt in sorted(prompts, key=_as_scheduled):
        finder.take(prompt, counts=prompt.end_ns // NS_PER_S >= begin_s)
    return finder


def _hashes_of(prompt: EndedPrompt) -> int:
    return len(prompt.hashes) + len(prompt.plain)


def _as_scheduled(prompt: EndedPrompt) -> int:
    return prompt.scheduled_ns
