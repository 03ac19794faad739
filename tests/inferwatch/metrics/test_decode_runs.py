"""Tokens counted once a step for all that decode alike are those counted one by one."""

from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec
import pytest

from collectors.contract.readings import (
    AnyReading,
    EngineInfo,
    EventKind,
    Note,
    NoteKind,
    RequestEvent,
    Step,
    Vantage,
)
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.requests import request as requests
from inferwatch.metrics.requests.request_tracker import RequestTracker
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery

MS = 1_000_000


class OneByOne(RequestTracker):
    """Counts every member of a step by itself."""

    def _count_together(self, run: Any, step: Step, *_: Any) -> range:
        run.start(step.end_ns)
        return range(len(step.members))


def one_by_one() -> Model:
    model = Model()
    model._tracker.__class__ = OneByOne
    return model


class Erratic:
    """Two ranks whose requests come late, pause, are preempted, draft and vanish."""

    def __init__(self, seed: int, drafts: float) -> None:
        self._random = Random(seed)
        self._drafts = drafts
        self._now_ns = [0, 0]
        self._live: list[dict[int, int]] = [{}, {}]
        self._next = [0, 1 << 40]
        self._index = [0, 0]

    def readings(self, steps: int) -> Iterator[AnyReading]:
        yield EngineInfo(
            source="e", t_ns=0, pid=1, model="m", vllm_version="0", num_kv_blocks=64
        )
        for _ in range(steps):
            rank = self._random.choice((0, 0, 0, 1))
            yield from self._come(rank)
            yield from self._step(rank)
            yield from self._go(rank)
            if self._random.random() < 0.004:
                kind = self._random.choice((NoteKind.DROPPED, NoteKind.LOST))
                yield Note(source="e", t_ns=self._now_ns[rank], kind=kind, text="")
                if kind is NoteKind.LOST:
                    self._live, self._next = [{}, {}], [0, 1 << 40]

    def _come(self, rank: int) -> Iterator[AnyReading]:
        if len(self._live[rank]) > 12 or self._random.random() < 0.7:
            return
        ordinal, self._next[rank] = self._next[rank], self._next[rank] + 1
        self._live[rank][ordinal] = 0
        if self._random.random() < 0.9:  # else nobody tells of it
            for kind in (EventKind.ADDED, EventKind.SCHEDULED):
                yield self._event(rank, ordinal, kind, prompt_tokens=9)

    def _step(self, rank: int) -> Iterator[AnyReading]:
        random, live = self._random, self._live[rank]
        start_ns = self._now_ns[rank]
        took_ms = random.choice((5, 5, 5, 6, 7, random.randint(1, 90)))
        self._now_ns[rank] = end_ns = start_ns + took_ms * MS
        members = [each for each in live if random.random() < 0.97]
        preempted = [each for each in live if each not in members]
        preempted = preempted if random.random() < 0.5 else []
        produced = [self._tokens() for _ in members]
        for ordinal, tokens in zip(members, produced, strict=True):
            live[ordinal] += tokens
        self._index[rank] += 1
        yield Step(
            source="e",
            rank=rank,
            index=self._index[rank],
            start_ns=start_ns,
            end_ns=end_ns,
            duration_ns=end_ns - start_ns,
            decode_requests=len(members),
            decode_tokens=len(members),
            running=len(members),
            preempted=preempted,
            members=members,
            scheduled=[max(each, 1) for each in produced],
            produced=produced,
        )

    def _tokens(self) -> int:
        if self._random.random() < self._drafts:
            return self._random.choice((0, 2, 3))
        return 1

    def _go(self, rank: int) -> Iterator[AnyReading]:
        for ordinal, tokens in list(self._live[rank].items()):
            if self._random.random() < 0.01:  # a client that goes away
                finished = self._event(rank, ordinal, EventKind.FINISHED)
                yield msgspec.structs.replace(finished, vantage=Vantage.FRONTEND)
            if self._random.random() < 0.02:
                del self._live[rank][ordinal]
                yield self._event(
                    rank,
                    ordinal,
                    EventKind.FINISHED,
                    output_tokens=tokens,
                    reason=self._random.choice(("stop", "abort")),
                )

    def _event(
        self, rank: int, ordinal: int, kind: EventKind, **fields: Any
    ) -> RequestEvent:
        return RequestEvent(
            source="e",
            t_ns=self._now_ns[rank],
            kind=kind,
            vantage=Vantage.ENGINE,
            request_id=f"r{ordinal}",
            ordinal=ordinal,
            **fields,
        )


def seen(model: Model, now_ns: int) -> Snapshot:
    return model.snapshot(now_ns, SnapshotQuery(Window.MINUTE, breakdown=True))


def state(model: Model) -> tuple[bytes, list[bytes]]:
    saved = model.saved()
    return saved.state, saved.parts


@pytest.mark.parametrize("drafts", [0.0, 0.02, 0.5])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in (1, 2, 3))]
)
def test_every_number_is_that_of_counting_one_by_one(
    seed: int, drafts: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "MOST_LONGEST", 3)
    together, watched, alone = Model(), Model(), one_by_one()
    look, now_ns = Random(seed), 0
    for reading in Erratic(seed, drafts).readings(600):
        for model in (together, watched, alone):
            model.fold(reading)
        if isinstance(reading, Step):
            now_ns = max(now_ns, reading.end_ns)
        if look.random() < 0.05:
            assert seen(watched, now_ns) == seen(alone, now_ns)
        if look.random() < 0.01:
            assert state(watched) == state(alone)
    assert seen(together, now_ns) == seen(alone, now_ns)
    assert state(watched) == state(alone)


def test_requests_that_decode_alike_are_counted_together() -> None:
    model = Model()
    for reading in Erratic(0, 0.0).readings(300):
        model.fold(reading)
    counted = [run.steps for run in model._tracker._runs.values()]
    assert min(counted) > 40
    assert any(run.members for run in model._tracker._runs.values())


def test_of_a_lost_engine_no_run_is_kept() -> None:
    model = Model()
    for reading in Erratic(0, 0.0).readings(300):
        model.fold(reading)
    assert model._tracker._runs
    model.fold(Note(source="e", t_ns=10**12, kind=NoteKind.LOST, text=""))
    assert not model._tracker._runs


def test_a_copied_model_goes_on_as_the_one_it_is_of() -> None:
    readings = [*Erratic(3, 0.0).readings(900)]
    model = Model()
    for each in readings[:300]:
        model.fold(each)

    copied = model.copied()

    runs = [each.run for each in copied._requests.live if each.run is not None]
    assert runs
    for request in copied._requests.live:
        if request.run is not None:
            assert request.run.members[request.ordinal or 0] is request
    for each in readings[300:]:
        model.fold(each)
        copied.fold(each)
    now_ns = max(each.end_ns for each in readings if isinstance(each, Step))
    assert seen(copied, now_ns).requests == seen(model, now_ns).requests
