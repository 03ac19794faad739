"""Limits that were turned while it ran: a setting like any other, or a doubt."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest

from collectors.contract.readings import AnyReading, EngineInfo, LimitChange, LiveLimits
from inferwatch.record.connections import open_for_reading
from inferwatch.record.sessions.sessions import list_sessions
from inferwatch.record.writing.recorder import Recorder
from inferwatch.studies.compare.checks.every import check_limits, check_settings
from inferwatch.studies.compare.quality import Quality
from inferwatch.studies.compare.reading.conditions import Conditions
from inferwatch.studies.compare.reading.configuration import configuration, differing
from inferwatch.studies.compare.reading.live_limits import (
    Values,
    limit_text,
    limits_held,
)
from inferwatch.studies.compare.reading.session_numbers import ComparedSide
from inferwatch.studies.compare.reading.session_reader import SessionQuery, read_session
from inferwatch.studies.compare.reading.span import SpanChoice

S = 10**9
LOAD_NS = 2 * S
INFO = EngineInfo(
    source="engine-1",
    t_ns=1,
    pid=7,
    model="tiny",
    vllm_version="0.32.0",
    max_num_seqs=32,
    max_num_batched_tokens=640,
)
"""Its budget of a step is less than its flag, as with speculative tokens."""


def limits(t_ns: int, seqs: int = 32, tokens: int = 512, **more: Any) -> LiveLimits:
    change = LimitChange.START if (seqs, tokens) == (32, 512) else LimitChange.SET
    told = LiveLimits(
        source="engine-1",
        t_ns=t_ns,
        version=t_ns,
        change=change,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        start_max_num_seqs=32,
        start_max_num_batched_tokens=512,
    )
    return msgspec.structs.replace(told, **more)


Put = Callable[[list[AnyReading]], None]


@pytest.fixture
def put(record: Callable[..., Recorder]) -> Put:
    def recorded(readings: list[AnyReading]) -> None:
        recorder = record()
        for numbered in enumerate(readings, 1):
            recorder.put(*numbered)
        recorder.close()

    return recorded


def test_a_cap_that_was_turned_to_is_as_good_as_one_started_with(
    put: Put, path: Path
) -> None:
    restarted = msgspec.structs.replace(INFO, max_num_seqs=8)
    put([INFO, limits(2), limits(3, seqs=8)])
    put([restarted, limits(2, seqs=8, start_max_num_seqs=8)])
    put([restarted])  # without control
    put([INFO])

    with closing(open_for_reading(path)) as connection:
        rows = list_sessions(path)[::-1]
        live, same, plain, other = (configuration(connection, row) for row in rows)
        held = [limits_held(connection, row.session) for row in rows]

    assert differing([{**live, "engine max_num_seqs": "8"}, same, plain]) == []
    assert [each.name for each in differing([plain, other])] == ["engine max_num_seqs"]
    assert live["engine max_num_seqs"] == "32 → 8"
    assert live["engine max_num_batched_tokens"] == "640"  # as it was typed
    assert held == [((32, 512), (8, 512)), ((8, 512),), (), ()]


class Turned:
    """A session of a simulated engine whose cap is turned at some moments."""

    def __init__(self, make: Any, turns: dict[float, int]) -> None:
        self._make, self._turns = make, turns

    def readings(self, seconds: float) -> Iterator[AnyReading]:
        told = [
            limits(LOAD_NS + round(at_s * S), seqs=seqs)
            for at_s, seqs in self._turns.items()
        ]
        for reading in self._make.run(seconds):
            t_ns = getattr(reading, "end_ns", 0)
            while told and told[0].t_ns <= t_ns:
                yield told.pop(0)
            yield reading
            if isinstance(reading, EngineInfo):
                yield limits(2)


@pytest.mark.parametrize(
    ("choice", "held"),
    [
        (SpanChoice(warmup_s=0), ((32, 512), (8, 512), (4, 512))),
        (SpanChoice(from_s=6, to_s=9), ((8, 512),)),
        (SpanChoice(from_s=6), ((8, 512), (4, 512))),
        (SpanChoice(warmup_s=0, to_s=4), ((32, 512),)),
    ],
    ids=["all", "between", "the end", "the beginning"],
)
def test_limits_are_those_of_the_compared_part(
    put: Put, path: Path, tiny: Any, choice: SpanChoice, held: tuple[Values, ...]
) -> None:
    put([*Turned(tiny, {5.0: 8, 10.0: 4}).readings(15)])

    with closing(open_for_reading(path)) as connection:
        numbers = read_session(
            connection, list_sessions(path)[0], SessionQuery(choice=choice)
        )

    assert numbers.conditions.limits == held
    said = " → ".join(str(seqs) for seqs, _ in held)
    as_started = held == ((32, 512),)
    assert numbers.configuration["engine max_num_seqs"] == (
        "16" if as_started else said
    )


@pytest.fixture
def tiny() -> Any:
    from tests.inferwatch.studies.compare.conftest import TinyEngine  # noqa: PLC0415

    return TinyEngine(3)


@pytest.mark.parametrize(
    ("seqs", "said"),
    [
        ([], None),
        ([8], "8"),
        ([32, 8], "32 → 8"),
        ([32, 8, 8, 32], "32 → 8 → 32"),
        ([32, 8, 16, 4, 32], "4–32, changed 4 times"),
    ],
)
def test_a_limit_is_said_as_it_went(seqs: list[int], said: str | None) -> None:
    held = [(each, 512) for each in seqs]

    assert limit_text(held, "max_num_seqs") == said
    assert limit_text(held, "max_num_batched_tokens") == ("512" if seqs else None)


def test_numbers_of_two_settings_are_doubtful(honesty: ModuleType) -> None:
    def run(name: str, *held: Values) -> ComparedSide:
        numbers = honesty.Simulated(np.random.default_rng(4), 2000, 3).numbers(4)
        row = replace(numbers.row, name=name)
        told = {"engine max_num_seqs": limit_text(held, "max_num_seqs")}
        return ComparedSide.of(
            replace(
                numbers,
                row=row,
                conditions=Conditions(limits=held),
                configuration=told,
            )
        )

    steady, turned = run("steady", (8, 512)), run("turned", (32, 512), (8, 256))

    assert check_limits(run("a"), run("b")) is None
    good = check_limits(run("a"), steady)
    assert good is not None
    assert good.quality is Quality.GOOD
    doubt = check_limits(steady, turned)
    assert doubt is not None
    assert doubt.quality is Quality.DOUBTFUL
    assert doubt.sentence.startswith(
        "Limits of turned were changed while it was measured (max_num_seqs 32 → 8, "
        "max_num_batched_tokens 512 → 256): "
    )
    assert check_settings(steady, run("same", (8, 512))).sentence == (
        "No recorded setting of the engine differs."
    )
