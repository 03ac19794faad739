"""Prompts of a data set: each row once in a drawn order, then again in another."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice

import numpy as np

from collectors.readings import Phase
from inferwatch.loadgen.plan.fields import OUTPUT_TOKENS
from inferwatch.loadgen.plan.plan import Api, LoadPlan
from inferwatch.loadgen.prompts.dataset import Talk
from inferwatch.loadgen.prompts.prompts import Prompt, Prompts, Turn
from inferwatch.loadgen.prompts.text_lengths import TextLengths

_ORDER = 7
_LENGTHS = 8


class DatasetPrompts(Prompts):
    """Says the rows of a file.

    An answer may be as long as the row says, else as the one it had, else as the plan
    draws; a plan that does not leave ``output_tokens`` at its default decides for all.
    """

    def __init__(
        self, plan: LoadPlan, talks: Sequence[Talk], lengths: TextLengths
    ) -> None:
        super().__init__(plan)
        self._talks_of_file = talks
        self._lengths = lengths
        self._plan_decides = plan.output_tokens != OUTPUT_TOKENS

    def make(self, phase: Phase, number: int) -> Prompt:
        """The prompt of request ``number``; a warm-up begins at the other end."""
        talk = self._talk(phase, number)
        warm = phase is Phase.WARMUP
        rng = np.random.default_rng([self._plan.seed, _LENGTHS, warm, number])
        turns = self._plan.turns.draw(rng)
        asked = talk.questions[:turns]
        most = [self._most(talk, at, rng) for at in range(len(asked))]
        later = tuple(
            Turn([], tokens, text)
            for text, tokens in zip(asked[1:], most[1:], strict=True)
        )
        counted = self._counted(talk)
        return Prompt(
            token_ids=[],
            max_tokens=most[0],
            kv_tokens=self._lengths.about(asked[0]) + most[0],
            text=asked[0],
            estimated=counted is None,
            counted=counted,
            said=talk.said,
            turn=1 if turns > 1 else None,
            later=later,
        )

    def texts(self) -> Iterator[str]:
        """What has a length worth knowing, first what is asked first; each row once."""
        for number in range(len(self._talks_of_file)):
            talk = self._talk(Phase.STEADY, number)
            if not talk.said and self._plan.endpoint is Api.COMPLETIONS:
                yield talk.questions[0]
            if not self._plan_decides and talk.output_tokens is None:
                yield from filter(None, talk.answers)

    def _counted(self, talk: Talk) -> int | None:
        """A chat's template adds tokens that nobody has counted."""
        if self._plan.endpoint is Api.CHAT or talk.said:
            return None
        return self._lengths.exact(talk.questions[0])

    def _most(self, talk: Talk, at: int, rng: np.random.Generator) -> int:
        """Tokens of an answer."""
        drawn = self._plan.output_tokens.draw(rng)
        if self._plan_decides:
            return drawn
        if talk.output_tokens is not None:
            return talk.output_tokens
        answer = next(islice(talk.answers, at, None), None)
        return drawn if answer is None else self._lengths.about(answer)

    def _talk(self, phase: Phase, number: int) -> Talk:
        talks = self._talks_of_file
        time, place = divmod(number, len(talks))
        if phase is Phase.WARMUP:
            place = -1 - place
        return talks[_order(self._plan.seed, time, len(talks))[place]]


@lru_cache(maxsize=4)
def _order(seed: int, time: int, rows: int) -> list[int]:
    order: list[int] = (
        np.random.default_rng([seed, _ORDER, time]).permutation(rows).tolist()
    )
    return order
