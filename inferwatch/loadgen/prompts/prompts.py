"""The prompts of a plan: synthetic ones from seeded token ids, or those of a dataset.

Synthetic prompts have exactly the drawn length.
"""

import gc
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectors.contract.readings import Phase
from inferwatch.loadgen.plan.fields import OUTPUT_TOKENS
from inferwatch.loadgen.plan.lengths import Lengths, LogNormal, Range, fixed
from inferwatch.loadgen.plan.plan import Api, LoadPlan, TraceRow
from inferwatch.loadgen.prompts.dataset import DatasetRow, Messages, read_dataset
from inferwatch.loadgen.prompts.tokenizer import TextLengths, Tokenizer, Vocabulary


def draw_length(lengths: Lengths, rng: np.random.Generator) -> int:
    if isinstance(lengths, Range):
        return int(rng.integers(lengths.low, lengths.high + 1))
    if isinstance(lengths, LogNormal):
        drawn = rng.lognormal(math.log(lengths.median), lengths.sigma)
        return round(min(max(drawn, lengths.low), lengths.high))
    return lengths.values[int(rng.integers(len(lengths.values)))]


_PREFIXES = 1
_PHASES = {Phase.WARMUP: 2, Phase.STEADY: 3, Phase.BURST: 4}
_TRACE = 5
_BLOCKS = 6
_ORDER = 7
_LENGTHS = 8
_HANG_UPS = 9
COLD, WARM = "cold", "warm"
"""Class names of prompts sent for the first and for the second time."""
FRESH = 1 << 40
"""Larger than the number of any prompt that is repeated."""
BLOCK_TOKENS = 512
"""Tokens per block of a trace, as in Mooncake."""

Ids = NDArray[np.int64]


class Turn(NamedTuple):
    """What a later turn adds to the conversation so far."""

    token_ids: list[int]
    max_tokens: int
    text: str | None = None


class Prompt(NamedTuple):
    """The prompt of one request, and the most tokens to generate."""

    token_ids: list[int]
    max_tokens: int
    kv_tokens: int
    """KV cache it needs at its end, without its shared prefix."""
    class_name: str | None = None
    text: str | None = None
    """The prompt as text, instead of ids."""
    estimated: bool = False
    """The text may have a different number of tokens than there are ids."""
    counted: int | None = None
    """Tokens of a text that was not made from ids."""
    said: Messages = ()
    """Chat messages before the text."""
    turn: int | None = None
    """Turn of its conversation, from 1; None for single requests."""
    later: tuple[Turn, ...] = ()
    """Later turns of its conversation."""
    hang_up_after: int | None = None
    """The client hangs up at this chunk with tokens; None: never."""
    priority: int | None = None
    """What its class asks for; None: nothing."""

    @property
    def tokens(self) -> int | None:
        """Length in tokens; None if unknown."""
        if self.counted is not None or self.estimated:
            return self.counted
        return len(self.token_ids)

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [*self.said, {"role": "user", "content": self.text}]


class _Kind(NamedTuple):
    """A class of requests: its lengths, and its name if the plan has classes."""

    name: str | None
    prompt_tokens: Lengths
    output_tokens: Lengths
    priority: int | None = None


class Prompts:
    """Creates the n-th prompt of a phase independently of all others.

    So the steady part of a run is the same however long its warm-up took.
    """

    def __init__(self, plan: LoadPlan, words: Vocabulary | None = None) -> None:
        self._plan = plan
        self._words = words
        self._multi_turn = plan.turns != fixed(1)
        shared = plan.shared_prefixes
        rng = np.random.default_rng([plan.seed, _PREFIXES])
        self._prefixes = [
            self._draw(rng, plan.token_ids, shared.tokens) for _ in range(shared.groups)
        ]
        self._kinds = [
            _Kind(each.name, each.prompt_tokens, each.output_tokens, each.priority)
            for each in plan.classes
        ] or [_Kind(None, plan.prompt_tokens, plan.output_tokens)]
        shares = np.array([each.share for each in plan.classes] or [1.0])
        self._odds = shares / shares.sum()

    def make(self, phase: Phase, number: int) -> Prompt:
        """The prompt of request ``number`` of a phase."""
        prompt = self._repeated(phase, number)
        if phase is Phase.WARMUP:
            return prompt
        return self._with_hang_up(prompt, _PHASES[phase], number)

    def _repeated(self, phase: Phase, number: int) -> Prompt:
        """A request's prompt; with ``ask_again_after``, every other one is a repeat."""
        after = self._plan.ask_again_after
        if not after or phase is not Phase.STEADY:
            return self._made(phase, number)
        first, again = divmod(number, 2)
        if again:
            first = first - after if first >= after else FRESH + first
        warm = again and first < FRESH
        prompt = self._made(phase, first)
        return prompt._replace(class_name=WARM if warm else COLD)

    def _with_hang_up(self, prompt: Prompt, kind: int, number: int) -> Prompt:
        """The prompt, marked if by chance its client is to hang up."""
        if not self._plan.hang_up:
            return prompt
        rng = np.random.default_rng([self._plan.seed, _HANG_UPS, kind, number])
        if rng.random() >= self._plan.hang_up:
            return prompt
        return prompt._replace(hang_up_after=self._plan.hang_up_after_tokens)

    def _made(self, phase: Phase, number: int) -> Prompt:
        rng = np.random.default_rng([self._plan.seed, _PHASES[phase], number])
        kind = self._kind(rng)
        length = draw_length(kind.prompt_tokens, rng)
        max_tokens = draw_length(kind.output_tokens, rng)
        prefix = self._prefix(rng)
        own = self._draw(rng, self._plan.token_ids, length - len(prefix))
        prompt = self._say(np.append(prefix, own), max_tokens, len(own), kind.name)
        prompt = prompt._replace(priority=kind.priority)
        later = self._later(rng, kind)
        return prompt._replace(turn=1, later=later) if self._multi_turn else prompt

    def _later(self, rng: np.random.Generator, kind: _Kind) -> tuple[Turn, ...]:
        plan = self._plan
        adds = plan.turn_tokens or kind.prompt_tokens
        turns = draw_length(plan.turns, rng) if self._multi_turn else 1
        return tuple(self._turn(rng, adds, kind) for _ in range(turns - 1))

    def _turn(self, rng: np.random.Generator, adds: Lengths, kind: _Kind) -> Turn:
        ids: list[int] = self._draw(
            rng, self._plan.token_ids, draw_length(adds, rng)
        ).tolist()
        text = self._words.say(ids) if self._words else None
        return Turn(ids, draw_length(kind.output_tokens, rng), text)

    def all(self, phase: Phase) -> Iterator[Prompt]:
        """All prompts of a phase in order, without end."""
        return (self.make(phase, number) for number in count())

    def seen(self, row: TraceRow, number: int) -> Prompt:
        """A prompt for a trace's request, with the same length and shared blocks."""
        rng = np.random.default_rng([self._plan.seed, _TRACE, number])
        shared = [self._block(name) for name in row.blocks]
        ids = np.concatenate(shared) if shared else np.empty(0, np.int64)
        ids = ids[: row.prompt_tokens]
        own = self._draw(rng, self._plan.token_ids, row.prompt_tokens - len(ids))
        prompt = self._say(np.append(ids, own), row.output_tokens, len(own), None)
        return self._with_hang_up(prompt, _TRACE, number)

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


class DatasetPrompts(Prompts):
    """Prompts from the rows of a file, in a seeded order, then in another one.

    The most tokens of a response are taken from the row, else from its recorded answer,
    else drawn by the plan; a plan with its own ``output_tokens`` decides for all.
    """

    def __init__(
        self, plan: LoadPlan, rows: Sequence[DatasetRow], lengths: TextLengths
    ) -> None:
        super().__init__(plan)
        self._rows = rows
        self._lengths = lengths
        self._plan_decides = plan.output_tokens != OUTPUT_TOKENS

    def _made(self, phase: Phase, number: int) -> Prompt:
        """The prompt of request ``number``; the warm-up takes rows in reverse order."""
        row = self._row(phase, number)
        warm = phase is Phase.WARMUP
        rng = np.random.default_rng([self._plan.seed, _LENGTHS, warm, number])
        turns = draw_length(self._plan.turns, rng)
        questions = row.questions[:turns]
        most = [self._output_limit(row, at, rng) for at in range(len(questions))]
        later = tuple(
            Turn([], tokens, text)
            for text, tokens in zip(questions[1:], most[1:], strict=True)
        )
        counted = self._counted(row)
        return Prompt(
            token_ids=[],
            max_tokens=most[0],
            kv_tokens=self._lengths.about(questions[0]) + most[0],
            text=questions[0],
            estimated=counted is None,
            counted=counted,
            said=row.said,
            turn=1 if turns > 1 else None,
            later=later,
        )

    def texts(self) -> Iterator[str]:
        """Texts whose length in tokens should be known, in the order of their use."""
        for number in range(len(self._rows)):
            row = self._row(Phase.STEADY, number)
            if not row.said and self._plan.endpoint is Api.COMPLETIONS:
                yield row.questions[0]
            if not self._plan_decides and row.output_tokens is None:
                yield from filter(None, row.answers)

    def _counted(self, row: DatasetRow) -> int | None:
        """Tokens of a row's question; None for chats, whose template adds some."""
        if self._plan.endpoint is Api.CHAT or row.said:
            return None
        return self._lengths.exact(row.questions[0])

    def _output_limit(self, row: DatasetRow, at: int, rng: np.random.Generator) -> int:
        """The most output tokens to request for one of a row's questions."""
        drawn = draw_length(self._plan.output_tokens, rng)
        if self._plan_decides:
            return drawn
        if row.output_tokens is not None:
            return row.output_tokens
        answer = next(islice(row.answers, at, None), None)
        return drawn if answer is None else self._lengths.about(answer)

    def _row(self, phase: Phase, number: int) -> DatasetRow:
        rows = self._rows
        time, place = divmod(number, len(rows))
        if phase is Phase.WARMUP:
            place = -1 - place
        return rows[_order(self._plan.seed, time, len(rows))[place]]


@lru_cache(maxsize=4)
def _order(seed: int, time: int, rows: int) -> list[int]:
    order: list[int] = (
        np.random.default_rng([seed, _ORDER, time]).permutation(rows).tolist()
    )
    return order


async def prompts_of(plan: LoadPlan) -> tuple[Prompts, str]:
    """The prompts of a plan, and a short description of their form.

    Raises:
        DatasetError: its dataset cannot be read.
    """
    if plan.dataset is not None:
        return await _dataset(plan, Path(plan.dataset))
    words = await Vocabulary.learn(plan) if plan.text_prompts else None
    return Prompts(plan, words), _form(words)


async def _dataset(plan: LoadPlan, path: Path) -> tuple[Prompts, str]:
    rows = read_dataset(path, turns=plan.turns != fixed(1))
    gc.freeze()  # a collection that visits every prompt would delay a timestamp
    lengths = TextLengths()
    prompts = DatasetPrompts(plan, rows, lengths)
    async with Tokenizer(plan, as_text=True) as tokenizer:
        await lengths.ask(tokenizer, prompts.texts())
    basis = "counted by /tokenize" if lengths.told else "lengths estimated"
    return prompts, f"{len(rows):,} prompts of {path.name}, {basis}"


def _form(words: Vocabulary | None) -> str:
    if words is None:
        return "prompts as token ids"
    if words.exact:
        return "prompts counted by /tokenize"
    return "length of prompts estimated"
