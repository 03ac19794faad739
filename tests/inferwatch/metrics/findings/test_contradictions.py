"""Traffic with planted events: verdict, findings and table of causes never disagree."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from heapq import merge
from itertools import chain, pairwise
from random import Random

import pytest

from collectors.contract.readings import AnyReading, Note, NoteKind, Tick, WatchedSlo
from inferwatch.live.pipeline import Pipeline
from inferwatch.metrics.causes.cause import Cause
from inferwatch.metrics.findings.every import DIAGNOSES
from inferwatch.metrics.findings.finding import SLIGHT, TAKEN_BACK, Subject
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.metrics.steps.health import Health, Verdict
from inferwatch.record.replay.marks import finding_marks
from tests.inferwatch.metrics.findings.planted import client, late, moment
from tests.inferwatch.metrics.findings.simulated_engine import Engine, S
from tests.inferwatch.metrics.test_saved import Keeps

PERIOD_S = 990
"""One of each event, with time enough between them that the minute forgets it."""
BURST, FULL, STALL, LATE, LOST, BACK, CLIENT, QUIET, AGAIN, BURSTS = (
    60, 180, 310, 400, 520, 526, 600, 700, 760, 840,
)  # fmt: skip
"""When an event begins, in seconds of a period."""
EVENTS = (BURST, FULL, STALL, LATE, LOST, BACK, CLIENT, QUIET, AGAIN, BURSTS)
MANY = 5
"""Waiting requests that no engine called healthy may have for two ticks."""
SLOW_S, LARGE = 1.0, 0.2
PATIENCE = 25
"""Ticks after which a cause of slow requests must have a finding."""
BY_NAME = {each.NAME: each for each in DIAGNOSES}
OF_LIMIT = {
    "max_num_seqs": {Cause.QUEUE_SEQS},
    "max_num_batched_tokens": {Cause.QUEUE_TOKENS},
    "KV blocks": {Cause.QUEUE_KV, Cause.RECOMPUTE},
}


def rate(t_s: float) -> float:
    at_s = t_s % PERIOD_S
    if BURST <= at_s < BURST + 12:
        return 12
    if BURSTS <= at_s < BURSTS + 75:  # each over before any request is slow
        return 17 if at_s % 15 < 4 else 0.5
    if QUIET <= at_s < AGAIN:
        return 0
    return 4 if t_s % 40 < 3 else 1.5  # always a little uneven


def engine(begins_s: float = 0, seed: int = 7) -> Engine:
    """An engine in steps of 50 ms whose outputs grow too long at times."""

    def output(random: Random) -> float:
        at_s = made._now_ns / S % PERIOD_S
        full = FULL <= at_s < FULL + 5
        return random.randint(500, 700) if full else random.randint(10, 40)

    made = Engine(
        seed=seed,
        starts_s=begins_s,
        step_s=0.05,
        token_s=0.0001,
        gap_s=0.001,
        max_num_seqs=16,
        kv_blocks=260,
        rate_per_s=rate,
        output=output,
        stands_still=lambda t: (
            STALL <= t % PERIOD_S < STALL + 6
            or (LATE <= t % PERIOD_S < LATE + 30 and t % 5 > 3.5)
        ),
    )
    made._number = 10_000 * seed
    return made


def shifted(readings: Iterable[AnyReading], by_ns: int) -> Iterator[AnyReading]:
    for each in readings:
        at = {name: getattr(each, name) for name in type(each).INSTANTS}
        later = {name: t + by_ns for name, t in at.items() if t is not None}
        yield type(each)(
            **{f: getattr(each, f) for f in each.__struct_fields__} | later
        )


def traffic(seconds: int) -> Iterator[AnyReading]:
    """All that is told in this time, in order, with a tick each second."""
    told: list[AnyReading] = []
    begins_s = 0.0
    for period in range(-(-seconds // PERIOD_S)):
        first_s = period * PERIOD_S
        life = engine(begins_s, seed=period).run(first_s + LOST - begins_s)
        told += (each for each in life if moment(each) < (first_s + LOST) * S)
        told.append(
            Note(
                source="engine-1",
                t_ns=(first_s + LOST) * S,
                kind=NoteKind.LOST,
                text="EngineCore was killed by SIGKILL",
            )
        )
        begins_s = first_s + BACK
        told += shifted(client(0.99)(), (first_s + CLIENT) * S)
    told += engine(begins_s, seed=99).run(max(seconds - begins_s, 0))
    told = [each for each in told if not isinstance(each, Tick)]
    ticks = [Tick(t_ns=n * S) for n in range(1, seconds)]
    return merge(sorted(told, key=moment), ticks, key=moment)


@dataclass
class Watcher:
    """Looks at each tick, and keeps for how many something has been so."""

    waits: int = 0
    unexplained: dict[Cause, int] | None = None

    def contradictions(self, shown: Snapshot) -> Iterator[str]:
        """Say what on this screen contradicts what."""
        health = shown.verdict.health
        well = health in {Health.HEALTHY, Health.IDLE}
        heavy = [each for each in shown.findings if each.cost >= SLIGHT]
        if well and heavy:
            yield f"{health} above {heavy[0].title}"
        self.waits = self.waits + 1 if (shown.flow.waiting or 0) >= MANY else 0
        if well and self.waits >= 2:
            yield f"{health} beside {shown.flow.waiting} waiting"
        p99_s = shown.slowest.from_s if shown.slowest else 0.0
        if well and (shown.flow.preemptions or 0) >= 3 and p99_s >= SLOW_S:
            yield f"{health} beside {shown.flow.preemptions} preemptions"
        if health is not Health.LOST and shown.timeline.lost_ns is not None:
            yield f"{health} though it is lost"
        for each in shown.findings:
            if each.subject is Subject.MEASURING:
                yield f"{each.name} is about measuring"
        yield from self._without_knob(shown)
        yield from self._another_cause(shown)

    def _without_knob(self, shown: Snapshot) -> Iterator[str]:
        slow, since = shown.slowest, self.unexplained or {}
        large = {
            each.cause
            for each in (slow.groups if slow else ())
            if each.share >= LARGE and slow and slow.of >= 10 and slow.from_s >= SLOW_S
        } - {Cause.UNKNOWN}
        explained = {
            cause
            for each in shown.findings
            if each.knobs
            for cause in BY_NAME[each.name].EXPLAINS
        }
        self.unexplained = {each: since.get(each, 0) + 1 for each in large - explained}
        for cause, ticks in self.unexplained.items():
            if ticks > PATIENCE:
                yield f"{cause} without a finding that has a knob"

    def _another_cause(self, shown: Snapshot) -> Iterator[str]:
        """Say whether no limit named first is the table's first."""
        verdict, slow = shown.verdict, shown.slowest
        told = re.search(r", (?:mostly|by) (.+?)(?:,|;| alike|$)", verdict.sentence)
        if verdict.health is not Health.QUEUEING or told is None:
            return
        named = told[1].split(" and ")
        shares = {each.cause: each.share for each in (slow.groups if slow else ())}
        spent = {
            limit: sum(shares.get(cause, 0.0) for cause in causes)
            for limit, causes in OF_LIMIT.items()
        }
        largest = max(spent, key=lambda limit: spent[limit])
        if spent[largest] >= LARGE and spent[largest] > 1.5 * max(
            spent.get(each, 0.0) for each in named
        ):
            yield f"{verdict.sentence}, and the table says {largest}"


def watched(readings: Iterable[AnyReading]) -> tuple[list[str], list[Verdict]]:
    """Return contradictions by tick, and the verdict of each."""
    model, watcher = Model(), Watcher()
    wrong, verdicts = [], []
    for reading in readings:
        model.fold(reading)
        if isinstance(reading, Tick):
            shown = model.snapshot(reading.t_ns, SnapshotQuery(Window.MINUTE))
            at = f"{reading.t_ns // S} s: "
            wrong += [at + each for each in watcher.contradictions(shown)]
            verdicts.append(shown.verdict)
    return wrong, verdicts


@pytest.mark.parametrize(
    ("seconds", "slo"),
    [
        (PERIOD_S, None),
        pytest.param(PERIOD_S, "ttft_s<1", marks=pytest.mark.soak),
        pytest.param(PERIOD_S, "ttft_s<0.3 itl_s<0.2", marks=pytest.mark.soak),
        pytest.param(3_600, None, marks=pytest.mark.soak),
    ],
)
def test_nothing_on_the_screen_contradicts_the_verdict(
    seconds: int, slo: str | None
) -> None:
    objectives = [] if slo is None else [WatchedSlo(t_ns=0, slo=slo)]
    wrong, verdicts = watched(chain(objectives, traffic(seconds)))

    assert wrong == []
    words = [each.health for each in verdicts]
    changes = [n for n, (one, other) in enumerate(pairwise(words), 2) if one != other]
    for period_s in range(0, seconds, PERIOD_S):
        for begins, ends in pairwise((*EVENTS, PERIOD_S + BURST)):
            of_event = [n for n in changes if begins <= n - period_s < ends]
            told = [(n, str(words[n - 1])) for n in of_event]
            assert len(of_event) <= 2, (begins, told)
    seen = set(words)
    assert {Health.QUEUEING, Health.STALLED, Health.LOST, Health.IDLE} <= seen


def ticked(readings: Iterable[AnyReading]) -> tuple[Model, list[Snapshot]]:
    """Fold readings as a live session does, and return what each tick shows."""
    pipeline, shown = Pipeline(model := Model()), []
    for reading in readings:
        if isinstance(reading, Tick):
            pipeline.tick(reading.t_ns)
            shown.append(model.snapshot(reading.t_ns, SnapshotQuery(Window.MINUTE)))
        else:
            pipeline.take([reading])
    return model, shown


def finding_notes(model: Model) -> list[str]:
    return [each.text for each in model.notes if each.kind is NoteKind.FINDING]


def busy() -> Engine:
    return Engine(max_num_seqs=8, rate_per_s=12.0)


def test_an_engine_is_not_accused_of_a_stall_that_only_our_lateness_made() -> None:
    model, shown = ticked(late(busy().run(90), 40, 45))

    words = {each.now_ns // S: each.verdict.health for each in shown}
    assert {word for t_s, word in words.items() if t_s >= 20} == {Health.QUEUEING}
    assert "stopped" not in {n.name for each in shown for n in each.findings}
    assert not any("engine stalled" in text for text in finding_notes(model))
    trust = {each.now_ns // S: [n.sentence for n in each.trust] for each in shown}
    (said,) = trust[45]
    assert said.startswith("inferwatch was late by 4.0 s")
    assert trust[39] == trust[60] == []


def test_between_late_ticks_the_engine_is_not_accused_either() -> None:
    model = Model()
    for reading in late(busy().run(90), 40, 45):
        if isinstance(reading, Tick) and reading.t_ns == 45 * S:
            break
        model.fold(reading)

    shown = model.snapshot(44 * S, SnapshotQuery(Window.MINUTE))

    assert shown.verdict.at_present is not Health.STALLED


def test_a_stall_is_taken_back_when_its_steps_come_late() -> None:
    """Our ticks are in time: the sender was kept from running."""
    model, shown = ticked(late(busy().run(120), 40, 45, ticks=False))

    words = {each.now_ns // S: each.verdict.health for each in shown}
    assert words[44] is Health.STALLED
    after = {word for t_s, word in words.items() if t_s >= 50}
    assert after == {Health.QUEUEING}
    assert not any("no step" in each.verdict.sentence for each in shown[50:])
    assert "stopped" not in {each.name for each in model.past_findings}
    told = [t for t in finding_notes(model) if t.startswith("engine stalled")]
    assert [text.split(": ")[1] for text in told][1:] == [TAKEN_BACK]
    marks = finding_marks((each.t_ns, each.text) for each in model.notes)
    assert not any("engine stalled" in each.text for each in marks)


def test_a_stall_that_our_lateness_hid_is_told_by_its_steps() -> None:
    stands = replace(busy(), stands_still=lambda t_s: 40 <= t_s < 46)

    _, shown = ticked(late(stands.run(90), 40, 46))

    first = next(each for each in shown if each.verdict.health is Health.STALLED)
    assert first.now_ns >= 47 * S
    later = next(each for each in shown if each.now_ns == 60 * S)
    assert "no step for up to 6.0 s" in later.verdict.sentence


def test_an_engine_that_stands_still_beyond_our_lateness_is_told() -> None:
    stands = replace(busy(), stands_still=lambda t_s: t_s >= 40)

    _, shown = ticked(late(stands.run(80), 40, 43))

    words = {each.now_ns // S: each.verdict.health for each in shown}
    assert words[43] is Health.QUEUEING
    assert words[50] is Health.STALLED


@pytest.mark.parametrize("at_s", [130, pytest.param(310, marks=pytest.mark.soak)])
def test_the_verdict_goes_on_from_a_checkpoint(at_s: int) -> None:
    readings = [each for each in traffic(at_s + 60) if moment(each) < (at_s + 60) * S]
    whole, halfway, keeps = Model(), Model(), Keeps()
    cut = next(n for n, each in enumerate(readings) if each == Tick(t_ns=at_s * S))
    for reading in readings[: cut + 1]:
        whole.fold(reading)
        halfway.fold(reading)
    saved, query = halfway.saved(), SnapshotQuery(Window.MINUTE)
    keeps.keep(saved)
    restored = keeps.restored(saved)

    for reading in readings[cut + 1 :]:
        whole.fold(reading)
        restored.fold(reading)
        if isinstance(reading, Tick):
            one, other = (m.snapshot(reading.t_ns, query) for m in (whole, restored))
            assert one.verdict == other.verdict
            assert one.findings == other.findings
    assert whole.snapshot(at_s * S, query).verdict.health is not Health.STARTING
