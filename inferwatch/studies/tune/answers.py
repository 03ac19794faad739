"""Which flags may change answers, and the answers of each setting of a tune."""

import sqlite3
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from collectors.contract.readings import AnswerHashes
from inferwatch.studies.answers.comparing import AnswerComparison, compare_answers
from inferwatch.studies.tune.space import Point, Space
from inferwatch.studies.tune.trial import Trial

FIND = (
    "SELECT reading FROM other_readings "
    "WHERE session = ? AND kind = 'AnswerHashes' ORDER BY ordinal"
)
ASKED_TIMES = 2
"""How often prompts are sent to the present setting; to others once."""

SAME_ANSWERS = frozenset(
    {
        "api-server-count",
        "async-scheduling",
        "block-size",
        "cpu-offload-gb",
        "enable-prefix-caching",
        "gpu-memory-utilization",
        "kv-cache-memory-bytes",
        "long-prefill-token-threshold",
        "max-long-partial-prefills",
        "max-model-len",
        "max-num-batched-tokens",
        "max-num-partial-prefills",
        "max-num-seqs",
        "num-gpu-blocks-override",
        "prefix-caching-hash-algo",
        "scheduling-policy",
        "stream-interval",
        "swap-space",
    }
)
"""Flags that affect when something is computed or where it is stored, but not what.
They move requests between batches, which changes answers no more than other traffic
does.
"""


def may_change_answers(flag: str) -> bool:
    """Whether a flag may change what a model answers; unknown flags may."""
    return flag.removeprefix("no-") not in SAME_ANSWERS


def kept_answers(connection: sqlite3.Connection, session: int) -> AnswerHashes | None:
    """The answers kept in a session; None if no prompts were sent."""
    for (blob,) in connection.execute(FIND, (session,)):
        with suppress(msgspec.MsgspecError):  # the file is damaged
            return msgspec.msgpack.decode(blob, type=AnswerHashes)
    return None


def answers_by_point(
    space: Space, trials: Sequence[Trial]
) -> dict[Point, AnswerComparison]:
    hashes: dict[Point, list[AnswerHashes]] = {}
    for trial in trials:
        if trial.numbers is not None and trial.numbers.answers is not None:
            hashes.setdefault(trial.point, []).append(trial.numbers.answers)
    present = hashes.pop(space.present, [])
    comparisons = {
        point: compare_answers(present, answers[0]) for point, answers in hashes.items()
    }
    return {point: each for point, each in comparisons.items() if each is not None}
