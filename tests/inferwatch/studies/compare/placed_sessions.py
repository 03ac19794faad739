"""Simulated sessions whose requests differ in length, class and turn."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from inferwatch.record.sessions.sessions import SessionRow
from inferwatch.record.tables.session_state import SessionState
from inferwatch.studies.compare.comparison import (
    Comparison,
    ComparisonRules,
    SessionPair,
    compare,
)
from inferwatch.studies.compare.reading.request_kinds import Kinds
from inferwatch.studies.compare.reading.requests import TimedValues
from inferwatch.studies.compare.reading.session_numbers import (
    ComparedSide,
    LoadFacts,
    Pairing,
    RatioSums,
    SessionNumbers,
)
from inferwatch.studies.compare.reading.span import ComparedSpan, WarmupCut
from inferwatch.studies.compare.statistics.resampling import BINS, counted

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
NS = 1_000_000_000
CLASSES = ("", "batch", "chat")


@dataclass(frozen=True)
class Sent:
    """A load: when each request came, and what it was."""

    at_s: Floats
    prompt_tokens: Ints
    classes: Ints
    turns: Ints
    moved: Floats
    """What comes of the load in any session: of logarithms."""

    @classmethod
    def of(
        cls, random: np.random.Generator, requests: int, seconds: float, memory: float
    ) -> "Sent":
        keep = (memory - 1) / (memory + 1)
        moved = np.empty(requests)
        steps = random.standard_normal(requests)
        last = random.standard_normal()
        for place in range(requests):
            last = keep * last + np.sqrt(1 - keep**2) * steps[place]
            moved[place] = last
        return cls(
            at_s=np.sort(random.uniform(0, seconds, requests)),
            prompt_tokens=np.exp(
                random.uniform(np.log(24), np.log(4000), requests)
            ).astype(np.int64),
            classes=random.integers(1, 3, requests),
            turns=np.minimum(random.geometric(0.35, requests), 8),
            moved=moved,
        )


Slower = Callable[[Sent], Floats]
"""By how much: a factor of each request."""


def as_it_was(sent: Sent) -> Floats:
    """The other side."""
    return np.ones(len(sent.at_s))


def session(
    random: np.random.Generator,
    sent: Sent,
    number: int,
    seconds: float,
    slower: Slower,
    pairing: Pairing | None,
) -> SessionNumbers:
    """Long prompts take longer, and bursts make all of them wait."""
    n = len(sent.at_s)
    own = np.exp(0.25 * random.standard_normal(n) + 0.35 * sent.moved)
    ttft_s = 0.05 * (1 + sent.prompt_tokens / 500) * own * slower(sent)
    place = (sent.at_s / seconds * BINS).astype(np.int64)
    at_ns, values_ns = (sent.at_s * NS).astype(np.int64), (ttft_s * NS).astype(np.int64)
    kinds = Kinds.made_of(sent.prompt_tokens, sent.classes, sent.turns, CLASSES)
    timed = TimedValues(at_ns, values_ns, np.arange(n))
    tokens = 100 * np.exp(0.3 * random.standard_normal(n)) / slower(sent)
    return SessionNumbers(
        row=_row(number),
        span=ComparedSpan(
            origin_ns=0,
            start_ns=0,
            end_ns=round(seconds * NS),
            cut=WarmupCut.NONE,
            load_runs=1,
        ),
        load=LoadFacts(
            requests=n,
            per_s=n / seconds,
            prompt_tokens=100.0,
            output_tokens=100.0,
            burstiness=1.0,
            failed=0,
        ),
        configuration={},
        counted={"ttft_s": counted(place, values_ns)},
        kinds={"ttft_s": kinds.counted(place, timed)},
        sums={
            "output_tokens_per_s": RatioSums(
                above=np.bincount(place, tokens, minlength=BINS).astype(float),
                below=np.full(BINS, seconds / BINS),
                n=n,
            )
        },
        pairing=pairing,
    )


def comparison(  # noqa: PLR0913  each is a case
    seed: int,
    slower: Slower,
    *,
    requests: int = 2_000,
    seconds: float = 60.0,
    memory: float = 5.0,
    paired: bool = True,
    runs: int = 1,
) -> Comparison:
    """Two sides of which the second is slower somewhere."""
    random = np.random.default_rng([11, seed])
    same = Pairing(requests=requests, of=requests) if paired else None
    sent = Sent.of(random, requests, seconds, memory)
    sides = []
    for number, change in ((1, as_it_was), (2, slower)):
        made = []
        for run in range(runs):
            if not paired:
                sent = Sent.of(random, requests, seconds, memory)
            made.append(session(random, sent, number * 10 + run, seconds, change, same))
        sides.append(ComparedSide(runs=tuple(made)))
    return compare(sides, ComparisonRules(seed=seed, draws=1_000))


def compared(seed: int, slower: Slower, **more: Any) -> SessionPair:
    """The only pair of such a comparison."""
    return comparison(seed, slower, **more).pairs[0]


def said(pair: SessionPair) -> Mapping[str, str]:
    """The sentence of each metric that has one."""
    return {each.metric.key: each.sentence for each in pair.places}


def _row(number: int) -> SessionRow:
    return SessionRow(
        session=number,
        id=f"s{number}",
        name=f"session-{number}",
        command="load",
        model="simulated",
        state=SessionState.COMPLETE,
        reason=None,
        started_ns=0,
        ended_ns=None,
        duration_ns=0,
        readings=0,
        steps=0,
        requests=0,
        unrecorded=0,
        inferwatch_version="0",
        tags="",
        deleted_ns=None,
        imported_from=None,
    )
