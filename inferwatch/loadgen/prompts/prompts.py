"""Prompts as token ids: their length is exact, their content is seeded."""

from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectors.readings import Phase
from inferwatch.loadgen.plan.lengths import Lengths, Range, fixed
from inferwatch.loadgen.plan.plan import LoadPlan, TraceRow
from inferwatch.loadgen.prompts.words import Words

_PREFIXES = 1
_PHASES = {Phase.WARMUP: 2, Phase.STEADY: 3, Phase.BURST: 4}
_TRACE = 5
_BLOCKS = 6
BLOCK_TOKENS = 512
"""Of the named blocks of a trace, as Mooncake has them."""

Ids = NDArray[np.int64]


Messages = tuple[dict[str, Any], ...]


class Turn(NamedTuple):
    """What a later turn of a conversation adds to all that was said before."""

    token_ids: list[int]
    max_tokens: int
    text: str | None = None


class Prompt(NamedTuple):
    """What one request asks."""

    token_ids: list[int]
    max_tokens: int
    kv_tokens: int
    """KV cache it asks for in the end, its shared prefix left out."""
    class_name: str | None = None
    text: str | None = None
    """Says it in words, instead of ids."""
    estimated: bool = False
    """Its text may have another number of tokens than it has ids."""
    counted: int | None = None
    """Tokens of its text, where that was not made of ids."""
    said: Messages = ()
    """In a chat: what was said before the text."""
    turn: int | None = None
    """Of its conversation, from 1; None where that has one."""
    later: tuple[Turn, ...] = ()
    """Still to come in its conversation."""

    @property
    def tokens(self) -> int | None:
        """Its length, where that is known."""
        if self.counted is not None or self.estimated:
            return self.counted
        return len(self.token_ids)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """As a chat."""
        return [*self.said, {"role": "user", "content": self.text}]


class _Kind(NamedTuple):
    name: str | None
    prompt_tokens: Lengths
    output_tokens: Lengths


class Prompts:
    """Makes the n-th prompt of a phase, whatever was asked for before.

    So the steady part of a run is the same however long its warm-up took.
    """

    def __init__(self, plan: LoadPlan, words: Words | None = None) -> None:
        self._plan = plan
        self._words = words
        self._talks = plan.turns != fixed(1)
        shared = plan.shared_prefixes
        rng = np.random.default_rng([plan.seed, _PREFIXES])
        self._prefixes = [
            self._draw(rng, plan.token_ids, shared.tokens) for _ in range(shared.groups)
        ]
        self._kinds = [
            _Kind(each.name, each.prompt_tokens, each.output_tokens)
            for each in plan.classes
        ] or [_Kind(None, plan.prompt_tokens, plan.output_tokens)]
        shares = np.array([each.share for each in plan.classes] or [1.0])
        self._odds = shares / shares.sum()

    def make(self, phase: Phase, number: int) -> Prompt:
        """The prompt of request ``number`` of a phase."""
        rng = np.random.default_rng([self._plan.seed, _PHASES[phase], number])
        kind = self._kind(rng)
        length = kind.prompt_tokens.draw(rng)
        max_tokens = kind.output_tokens.draw(rng)
        prefix = self._prefix(rng)
        own = self._draw(rng, self._plan.token_ids, length - len(prefix))
        prompt = self._say(np.append(prefix, own), max_tokens, len(own), kind.name)
        later = self._later(rng, kind)
        return prompt._replace(turn=1, later=later) if self._talks else prompt

    def _later(self, rng: np.random.Generator, kind: _Kind) -> tuple[Turn, ...]:
        """What the conversation goes on with."""
        plan = self._plan
        adds = plan.turn_tokens or kind.prompt_tokens
        turns = plan.turns.draw(rng) if self._talks else 1
        return tuple(self._turn(rng, adds, kind) for _ in range(turns - 1))

    def _turn(self, rng: np.random.Generator, adds: Lengths, kind: _Kind) -> Turn:
        ids: list[int] = self._draw(rng, self._plan.token_ids, adds.draw(rng)).tolist()
        text = self._words.say(ids) if self._words else None
        return Turn(ids, kind.output_tokens.draw(rng), text)

    def all(self, phase: Phase) -> Iterator[Prompt]:
        """One after the other, without end."""
        return (self.make(phase, number) for number in count())

    def seen(self, row: TraceRow, number: int) -> Prompt:
        """As long as one that was seen, and sharing what that one shared."""
        rng = np.random.default_rng([self._plan.seed, _TRACE, number])
        shared = [self._block(name) for name in row.blocks]
        ids = np.concatenate(shared) if shared else np.empty(0, np.int64)
        ids = ids[: row.prompt_tokens]
        own = self._draw(rng, self._plan.token_ids, row.prompt_tokens - len(ids))
        return self._say(np.append(ids, own), row.output_tokens, len(own), None)

    def _say(
        self, ids: Ids, max_tokens: int, own: int, class_name: str | None
    ) -> Prompt:
        token_ids: list[int] = ids.tolist()
        words = self._words
        return Prompt(
            token_ids=token_ids,
            max_tokens=max_tokens,
            kv_tokens=own + max_tokens,
            class_name=class_name,
            text=words.say(token_ids) if words else None,
            estimated=words is not None and not words.exact,
        )

    def _kind(self, rng: np.random.Generator) -> _Kind:
        if len(self._kinds) == 1:
            return self._kinds[0]
        return self._kinds[int(rng.choice(len(self._kinds), p=self._odds))]

    def _prefix(self, rng: np.random.Generator) -> Ids:
        if not self._prefixes:
            return np.empty(0, np.int64)
        return self._prefixes[rng.integers(len(self._prefixes))]

    def _block(self, name: int) -> Ids:
        rng = np.random.default_rng([self._plan.seed, _BLOCKS, name])
        return self._draw(rng, self._plan.token_ids, BLOCK_TOKENS)

    @staticmethod
    def _draw(rng: np.random.Generator, ids: Range, count: int) -> Ids:
        return rng.integers(ids.low, ids.high + 1, count)
