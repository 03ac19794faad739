"""Whatever a scheduler does, the parts of each TTFT add up to it, live or restored."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import strategies as some

from collectors.contract.readings import AnyReading, BoundBy, Note, NoteKind
from inferwatch.metrics.causes.cause import Cause
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.requests.request_row import RequestRow
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from tests.inferwatch.metrics.causes.scripted_engine import MS, Script
from tests.inferwatch.metrics.drawn import drawn
from tests.inferwatch.metrics.test_saved import Keeps

PROMPT = 50


@dataclass
class Rank:
    """One of several at random work."""

    script: Script
    waiting: list[int] = field(default_factory=list)
    left: dict[int, int] = field(default_factory=dict)
    """Prompt tokens of those that prefill."""
    decoding: list[int] = field(default_factory=list)
    started: set[int] = field(default_factory=set)
    computed: dict[int, int] = field(default_factory=dict)
    sent: set[int] = field(default_factory=set)

    def arrive(self, number: int, api_us: int) -> None:
        self.script.arrive(number, self.script.now_ns, api_us * 1_000)
        self.script.now_ns += api_us * 1_000
        self.waiting.append(number)

    def preempt(self) -> tuple[int, ...]:
        """The last one, prompt or not, goes back into the queue."""
        running = [*self.decoding, *self.left]
        if len(running) < 2:
            return ()
        number = running[-1]
        if self.left.pop(number, None) is None:
            self.decoding.remove(number)
        self.waiting.insert(0, number)
        return (number,)

    def step(self, draw: Random) -> None:
        bound = draw.choice([each for each in BoundBy if each is not BoundBy.NOTHING])
        back = self.preempt() if draw.randint(0, 9) == 0 else ()
        taken = [] if back else self.waiting[: draw.randint(0, 2)]
        self.waiting = self.waiting[len(taken) :]
        self.left.update(dict.fromkeys(taken, PROMPT))
        members, again = dict.fromkeys(self.decoding, 1), 0
        for number in list(self.left):
            if number in taken or draw.random() < 0.5:
                members[number] = draw.randint(1, self.left[number])
                again += self.compute(number, members[number])
        first = tuple(each for each in taken if each not in self.started)
        self.started.update(first)
        self.script.now_ns += draw.randint(0, 2) * MS  # the host is late
        if not members:
            self.script.now_ns += MS
            return
        self.script.step(
            members,
            draw.randint(1, 20),
            produced={number: int(number in self.decoding) for number in members},
            first=first,
            preempted=back,
            waiting=len(self.waiting),
            bound_by=bound if self.waiting else BoundBy.NOTHING,
            recomputed_tokens=again,
        )
        for number in sorted(members.keys() & set(self.decoding)):
            self.send(number, draw.randint(0, 900))

    def compute(self, number: int, tokens: int) -> int:
        """A chunk of a prompt; of its tokens, those that had been computed before."""
        self.left[number] -= tokens
        done, known = PROMPT - self.left[number], self.computed.get(number, 0)
        self.computed[number] = max(done, known)
        if not self.left[number]:
            del self.left[number]
            self.decoding.append(number)
        return max(0, min(done, known) - (done - tokens))

    def send(self, number: int, late_us: int) -> None:
        if number not in self.sent:
            self.sent.add(number)
            self.script.sent(number, late_us * 1_000)


def schedules(draw: Random) -> list[AnyReading]:
    """What several ranks did, one rank's readings in their order."""
    ranks = [Rank(Script(rank=number)) for number in range(draw.randint(1, 3))]
    number = 0
    for _ in range(draw.randint(5, 40)):
        for rank in ranks:
            if draw.randint(0, 2) == 0:
                number += 1
                rank.arrive(number, draw.randint(0, 3_000))
            rank.step(draw)
    return merged(draw, [list(rank.script) for rank in ranks])


def merged(draw: Random, streams: list[list[AnyReading]]) -> list[AnyReading]:
    left, told = [each for each in streams if each], []
    while left:
        stream = draw.choice(left)
        told.append(stream.pop(0))
        left = [each for each in left if each]
    return told


def with_losses(draw: Random, told: list[AnyReading]) -> Iterator[AnyReading]:
    """Some are dropped, and a note says so; some say nothing."""
    for reading in told:
        fate = draw.randint(0, 30)
        if fate > 1:
            yield reading
        elif fate == 1:
            t_ns = int(getattr(reading, "t_ns", getattr(reading, "end_ns", 0)))
            yield Note(t_ns=t_ns, kind=NoteKind.DROPPED, text="1 lost", count=1)


def check(row: RequestRow, *, lossless: bool) -> None:
    if row.ttft_s is None:
        assert row.ttft_parts == ()
        return
    parts = dict(row.ttft_parts)
    assert sum(parts.values()) == pytest.approx(row.ttft_s, abs=1e-9)
    assert all(value > 0 for value in parts.values())
    assert row.cause in parts or not parts
    if lossless and row.queue_s is not None and row.prefill_s is not None:
        assert Cause.UNKNOWN not in parts
        queued = [each for each in Cause if each.name.startswith("QUEUE")]
        total_s = sum(parts.get(each, 0) for each in queued)
        assert total_s == pytest.approx(row.queue_s, abs=1e-9)
        prefill = [each for each in Cause if each.name.startswith("PREFILL")]
        total_s = sum(parts.get(each, 0) for each in (*prefill, Cause.RECOMPUTE))
        assert total_s == pytest.approx(row.prefill_s, abs=1e-9)


@drawn(8, 40, seed=some.integers(0, 10**9))
def test_all_of_a_ttft_is_explained_where_nothing_is_lost(seed: int) -> None:
    model = Model()
    for place, reading in enumerate(schedules(Random(seed))):
        model.fold(reading)
        if place % 10 == 0:
            for row in model.snapshot(10**12, SnapshotQuery(Window.SESSION)).requests:
                check(row, lossless=True)
    shown = model.snapshot(10**12, SnapshotQuery(Window.SESSION))
    for row in shown.requests:
        check(row, lossless=True)
    told = [row.ttft_s for row in shown.requests if row.ttft_s is not None]
    assert shown.slowest is None or shown.slowest.of == len(told)


@drawn(8, 40, seed=some.integers(0, 10**9))
def test_what_is_lost_is_unknown_and_restored_as_it_was(seed: int) -> None:
    draw = Random(seed)
    told = list(with_losses(draw, schedules(draw)))
    model, keeps = Model(), Keeps()
    plain = Model()
    for reading in told:
        model.fold(reading)
        plain.fold(reading)
        if draw.randint(0, 9) == 0:
            saved = model.saved()
            keeps.keep(saved)
            model = keeps.restored(saved)
    shown = model.snapshot(10**12, SnapshotQuery(Window.SESSION))

    assert seen(shown) == seen(plain.snapshot(10**12, SnapshotQuery(Window.SESSION)))
    for row in shown.requests:
        check(row, lossless=False)


def seen(shown: Snapshot) -> tuple[object, ...]:
    return shown.requests, shown.slowest
