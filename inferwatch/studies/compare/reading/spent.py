"""What a million output tokens of a session cost, by bin of time.

As on screens: hours of the engine's GPUs (of all where nobody knows which are its, of
the host where there is none), else the electricity that its GPUs took.
"""

import sqlite3

import numpy as np

from collectors.contract.readings import Prices
from inferwatch.limits.plan import cost_per_million
from inferwatch.record.lookup.recorded_readings import chosen_readings
from inferwatch.studies.compare.metrics import COST, ENERGY, GOOD_COST
from inferwatch.studies.compare.reading.configuration import engine_gpus
from inferwatch.studies.compare.reading.session_numbers import RatioSums
from inferwatch.studies.compare.reading.span import ComparedSpan
from inferwatch.studies.compare.statistics.resampling import BINS, Floats

J_PER_KWH = 3.6e6
MILLION = 1e6


def latest_prices(connection: sqlite3.Connection, session: int) -> Prices | None:
    """The latest prices of a session; None if there are none."""
    latest = None
    for told in chosen_readings(connection, session, {Prices}):
        latest = told if isinstance(told, Prices) else latest
    return latest


def cost_sums(
    connection: sqlite3.Connection,
    session: int,
    prices: Prices | None,
    span: ComparedSpan,
    sums: dict[str, RatioSums],
    good_tokens: Floats | None,
) -> dict[str, RatioSums]:
    """Cost of a million output tokens, and of a million good ones, where known.

    Args:
        connection: The session file.
        session: The session's number in the file.
        prices: Its prices.
        span: The compared part.
        sums: The session's rates, of which tokens and energy are used.
        good_tokens: Output tokens per bin of requests that held their objectives.
    """
    if prices is None or (tokens := sums.get("output_tokens_per_s")) is None:
        return {}
    bin_s = span.length_s / BINS
    if prices.gpu_hour is not None:
        each = cost_per_million(prices.gpu_hour, _gpus(connection, session), 1 / bin_s)
        spent, made = np.full(BINS, each), tokens.above
    elif prices.kwh is not None and ENERGY in sums:
        energy = sums[ENERGY]
        spent = energy.above * (prices.kwh / J_PER_KWH * MILLION)
        made = energy.below
        if good_tokens is not None:
            good_tokens = np.where(made > 0, good_tokens, 0.0)
    else:
        return {}
    found = {COST: RatioSums(above=spent, below=made, n=tokens.n)}
    if good_tokens is not None and good_tokens.any():
        found[GOOD_COST] = RatioSums(
            above=spent, below=good_tokens, n=int(np.count_nonzero(good_tokens))
        )
    return {key: each for key, each in found.items() if each.below.any()}


def _gpus(connection: sqlite3.Connection, session: int) -> int:
    """How many GPUs are paid for; 1 stands for a host without any."""
    if ours := engine_gpus(connection, session):
        return len(ours)
    (every,) = connection.execute(
        "SELECT count(DISTINCT uuid) FROM gpus WHERE session = ?", (session,)
    ).fetchone()
    return max(int(every), 1)
