"""Prompts as token ids: their length is exact, their content is seeded."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectors.readings import Phase
from inferwatch.loadgen.plan import LoadPlan, Range

_PREFIXES = 1
_PHASES = {Phase.WARMUP: 2, Phase.STEADY: 3, Phase.BURST: 4}


class Prompt(NamedTuple):
    """What one request asks."""

    token_ids: list[int]
    max_tokens: int
    kv_tokens: int
    """KV cache it asks for in the end, its shared prefix left out."""


class Prompts:
    """Makes the n-th prompt of a phase, whatever was asked for before.

    So the steady part of a run is the same however long its warm-up took.
    """

    def __init__(self, plan: LoadPlan) -> None:
        self._plan = plan
        shared = plan.shared_prefixes
        rng = np.random.default_rng([plan.seed, _PREFIXES])
        self._prefixes = [
            self._draw(rng, plan.token_ids, shared.tokens) for _ in range(shared.groups)
        ]

    def make(self, phase: Phase, number: int) -> Prompt:
        """The prompt of request ``number`` of a phase."""
        rng = np.random.default_rng([self._plan.seed, _PHASES[phase], number])
        length = _length(rng, self._plan.prompt_tokens)
        max_tokens = _length(rng, self._plan.output_tokens)
        prefix = self._prefix(rng)
        own = self._draw(rng, self._plan.token_ids, length - len(prefix))
        return Prompt(
            token_ids=[*prefix.tolist(), *own.tolist()],
            max_tokens=max_tokens,
            kv_tokens=len(own) + max_tokens,
        )

    def _prefix(self, rng: np.random.Generator) -> NDArray[np.int64]:
        if not self._prefixes:
            return np.empty(0, np.int64)
        return self._prefixes[rng.integers(len(self._prefixes))]

    @staticmethod
    def _draw(rng: np.random.Generator, ids: Range, count: int) -> NDArray[np.int64]:
        return rng.integers(ids.low, ids.high + 1, count)


def _length(rng: np.random.Generator, tokens: Range) -> int:
    return int(rng.integers(tokens.low, tokens.high + 1))
