"""Draws lengths of prompts and responses from their distributions."""

import math

import numpy as np

from inferwatch.loadgen.plan.lengths import Lengths, LogNormal, Range


def draw_length(lengths: Lengths, rng: np.random.Generator) -> int:
    if isinstance(lengths, Range):
        return int(rng.integers(lengths.low, lengths.high + 1))
    if isinstance(lengths, LogNormal):
        drawn = rng.lognormal(math.log(lengths.median), lengths.sigma)
        return round(min(max(drawn, lengths.low), lengths.high))
    return lengths.values[int(rng.integers(len(lengths.values)))]
