"""Each kind of stall is found where it was planted, and none where nothing happened."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from collectors.contract.readings import AnyReading, EventKind, Note, NoteKind, Step
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.metrics.steps import stalls
from inferwatch.metrics.steps.efficiency import Stall, StallKind
from tests.inferwatch.metrics.scripted_profiles import ended, profile
from tests.inferwatch.metrics.test_saved import Keeps

Make = Callable[..., Any]
See = Callable[..., Snapshot]
MS = 1_000_000
S = 1_000_000_000


class Engine:
    """A scripted engine: says when steps end, for whom, and what they prefilled."""

    def __init__(self, make_step: Make, make_event: Make) -> None:
        self._make_step, self._make_event = make_step, make_event
        self.t_ms = 0.0
        self.index = 0

    def come(self, *ordinals: int, **fields: Any) -> Iterator[AnyReading]:
        """They come into the queue."""
        for each in ordinals:
            yield self._event(EventKind.ADDED, each, **fields)

    def taken(self, *ordinals: int) -> Iterator[AnyReading]:
        for each in ordinals:
            yield self._event(EventKind.SCHEDULED, each, cached_tokens=0)

    def gone(self, *ordinals: int) -> Iterator[AnyReading]:
        for each in ordinals:
            yield self._event(EventKind.FINISHED, each, reason="stop")

    def born(self, *ordinals: int) -> Iterator[AnyReading]:
        """They come, are taken, and get their first token."""
        yield from self.come(*ordinals)
        yield from self.taken(*ordinals)
        yield self.step(dict.fromkeys(ordinals, 1), 10, prefill=ordinals)

    def step(
        self,
        produced: dict[int, int],
        took_ms: float = 10,
        *,
        prefill: Iterable[int] = (),
        gap_ms: float = 0.2,
        **fields: Any,
    ) -> Step:
        prefilled = set(prefill)
        self.t_ms += gap_ms + took_ms
        self.index += 1
        step = self._make_step(
            self.t_ms,
            produced,
            duration_ms=took_ms,
            index=self.index,
            prefill_requests=len(prefilled),
            prefill_tokens=512 * len(prefilled),
            decode_requests=len(produced) - len(prefilled),
            decode_tokens=len(produced) - len(prefilled),
            **fields,
        )
        assert isinstance(step, Step)
        return step

    def steps(self, count: int, *members: int, **fields: Any) -> Iterator[AnyReading]:
        for _ in range(count):
            yield self.step(dict.fromkeys(members, 1), **fields)

    def _event(self, kind: EventKind, ordinal: int, **fields: Any) -> AnyReading:
        event: AnyReading = self._make_event(
            self.t_ms, kind, f"r{ordinal}", ordinal=ordinal, **fields
        )
        return event


@pytest.fixture
def engine(make_step: Make, make_event: Make) -> Engine:
    return Engine(make_step, make_event)


def found(readings: Iterable[AnyReading], now_ms: float = 60_000) -> tuple[Stall, ...]:
    """What a Model finds; one that is saved and restored all along finds the same."""
    told = list(readings)
    model, other, keeps = Model(), Model(), Keeps()
    often = max(7, len(told) // 60)
    for number, reading in enumerate(told):
        model.fold(reading)
        other.fold(reading)
        if number % often == 0:
            saved = other.saved()
            keeps.keep(saved)
            other = keeps.restored(saved)
    shown = model.snapshot(round(now_ms * MS), SnapshotQuery(Window.SESSION))
    assert (
        shown.stalls
        == other.snapshot(round(now_ms * MS), SnapshotQuery(Window.SESSION)).stalls
    )
    return shown.stalls


def test_an_engine_at_work_has_none(traffic: Any) -> None:
    assert found([*traffic.start(), *traffic.run(8)]) == ()


def test_prefills_that_are_as_usual_are_no_stall(engine: Engine) -> None:
    readings = [*engine.born(1, 2)]
    for number in range(3, 60):
        readings += [*engine.born(number), *engine.gone(number)]
        readings += engine.steps(9, 1, 2)

    assert found(readings) == ()


@pytest.mark.parametrize(
    ("duration_ns", "told"),
    [(250 * MS, "; it compiled meanwhile, for 250.0 ms"), (None, "meanwhile")],
)
def test_a_compilation_is_evidence_of_a_stall(
    engine: Engine, duration_ns: int | None, told: str
) -> None:
    readings = [*engine.born(1, 2), *engine.steps(100, 1, 2)]
    kind, text = NoteKind.COMPILATION, "compiled while serving: torch.compile 0/1"
    at_ns = round((engine.t_ms + 50) * MS)
    gap = engine.step({1: 1, 2: 1}, gap_ms=312)
    compiled = Note(
        source=gap.source, t_ns=at_ns, kind=kind, text=text, duration_ns=duration_ns
    )
    workers = [compiled, compiled]  # each tells of it

    (stall,) = found([*readings, *workers, gap, *engine.steps(50, 1, 2)])

    assert stall.evidence.endswith(told)


def test_a_compilation_of_another_engine_is_none(engine: Engine) -> None:
    readings = [*engine.born(1, 2), *engine.steps(100, 1, 2)]
    compiled = Note(
        source="another",
        t_ns=round((engine.t_ms + 50) * MS),
        kind=NoteKind.COMPILATION,
        text="compiled while serving",
        duration_ns=250 * MS,
    )
    gap = engine.step({1: 1, 2: 1}, gap_ms=312)

    (stall,) = found([*readings, compiled, gap, *engine.steps(50, 1, 2)])

    assert "compiled" not in stall.evidence


@pytest.mark.parametrize(("source", "told"), [("engine-1", True), ("another", False)])
def test_a_profile_is_evidence_of_the_stall_in_which_it_is_written(
    engine: Engine, source: str, told: bool
) -> None:
    readings = [*engine.born(1, 2), *engine.steps(100, 1, 2)]
    on_ns, off_ns = (round((engine.t_ms + after) * MS) for after in (-50, 250))
    taken = profile(on_ns, source=source), ended(off_ns, source=source)
    gap = engine.step({1: 1, 2: 1}, gap_ms=312)

    (stall,) = found([*readings, *taken, gap, *engine.steps(50, 1, 2)])

    assert stall.evidence.endswith("while traces are written") == told


def test_a_gap_with_work_is_found(engine: Engine) -> None:
    readings = [*engine.born(1, 2), *engine.steps(100, 1, 2)]
    began_ns = round(engine.t_ms * MS)
    readings += [engine.step({1: 1, 2: 1}, gap_ms=312), *engine.steps(50, 1, 2)]

    (stall,) = found(readings)

    assert stall.kind is StallKind.GAP
    assert (stall.start_ns, stall.end_ns) == (began_ns, began_ns + 312 * MS)
    assert stall.step == 102
    assert stall.evidence == (
        "no step for 312.0 ms with 2 running, 0 waiting; a step usually takes 10.0 ms"
    )


def test_a_gap_without_work_is_none(engine: Engine) -> None:
    readings = [*engine.born(1), *engine.steps(100, 1), *engine.gone(1)]
    engine.t_ms += 4_000
    readings += [*engine.born(2), *engine.steps(100, 2)]

    assert found(readings) == ()


def test_a_gap_that_is_short_beside_a_step_is_none(engine: Engine) -> None:
    readings = [*engine.born(1), *engine.steps(100, 1, took_ms=50)]
    readings += [engine.step({1: 1}, gap_ms=150), *engine.steps(50, 1)]

    assert found(readings) == ()


def test_tokens_far_apart_while_a_prompt_is_computed_are_found(engine: Engine) -> None:
    readings = [*engine.born(1, 2), *engine.steps(200, 1, 2)]
    readings += [*engine.come(3), *engine.taken(3)]
    began_ms = engine.t_ms
    members = {1: 1, 2: 1, 3: 0}
    readings += [engine.step(members, 90, prefill=[3]) for _ in range(8)]
    readings += engine.steps(60, 1, 2, 3)

    (stall,) = found(readings)

    assert stall.kind is StallKind.DECODE
    assert stall.start_ns == pytest.approx(began_ms * MS, abs=30 * MS)
    assert stall.end_ns - stall.start_ns == pytest.approx(8 * 90 * MS, rel=0.2)
    assert stall.step in range(202, 210)
    assert "apart, usually 10.2 ms, while 3,584 prompt tokens" in stall.evidence


def test_a_long_step_that_prefills_nothing_is_no_slow_decode(engine: Engine) -> None:
    readings = [*engine.born(1, 2), *engine.steps(200, 1, 2)]
    readings += [engine.step({1: 1, 2: 1}, 90) for _ in range(8)]

    assert found([*readings, *engine.steps(60, 1, 2)]) == ()


def test_fewer_requests_are_no_slower_decode(engine: Engine) -> None:
    crowd = range(1, 33)
    readings = [*engine.born(*crowd), *engine.steps(100, *crowd)]
    readings += engine.gone(*range(3, 33))
    readings += engine.steps(100, 1, 2)
    for number in range(40, 60):
        readings += [*engine.born(number), *engine.steps(5, 1, 2, number)]
        readings += engine.gone(number)

    assert found(readings) == ()


def test_prefills_before_decodes_leave_these_without_a_token(engine: Engine) -> None:
    readings = [*engine.born(1, 2), *engine.steps(200, 1, 2)]
    readings += [*engine.come(3), *engine.taken(3)]
    for _ in range(6):
        readings.append(engine.step({3: 0}, 30, prefill=[3], running=3))
    readings += engine.steps(60, 1, 2, 3)

    stall = found(readings)[0]

    assert stall.kind is StallKind.DECODE
    assert "no request in decode got a token" in stall.evidence


def test_a_request_that_later_ones_pass_is_found(engine: Engine) -> None:
    readings = [*engine.born(1), *engine.come(2, priority=5)]
    began_ns = round(engine.t_ms * MS)
    for number in range(3, 15):
        readings += [*engine.born(number), *engine.steps(10, 1), *engine.gone(number)]
    overtaken = found(readings)
    readings += [*engine.taken(2), *engine.steps(10, 1, 2)]

    (stall,) = found(readings)

    assert stall.kind is StallKind.STARVED
    assert stall.key == "engine-1/r2"
    assert stall.start_ns == began_ns
    assert stall.evidence.endswith("while 12 later ones were taken; its priority is 5")
    assert [(each.kind, each.key) for each in overtaken] == [(stall.kind, stall.key)]


def test_a_queue_in_order_starves_nobody(engine: Engine) -> None:
    readings = [*engine.born(1), *engine.come(*range(2, 40))]
    for number in range(2, 40):
        readings += [*engine.taken(number), *engine.steps(10, 1, number)]
        readings += engine.gone(number)

    assert found(readings) == ()


def test_the_queues_of_two_ranks_are_two(engine: Engine) -> None:
    other = 1 << 40
    readings = [*engine.born(1), *engine.come(2)]
    for number in range(other, other + 12):
        readings += [*engine.come(number), *engine.taken(number)]
        readings += engine.steps(10, 1)

    assert found(readings) == ()


def test_a_request_that_steps_go_by_without_is_found(engine: Engine) -> None:
    readings = [*engine.born(1, 2, 3), *engine.steps(50, 1, 2, 3)]
    readings += engine.steps(30, 1, 2, running=3)
    still = found(readings)
    readings += engine.steps(10, 1, 2, 3)

    (stall,) = found(readings)

    assert stall.kind is StallKind.STARVED
    assert stall.key == "engine-1/r3"
    assert stall.evidence == (
        "it got no token for 306 ms: 30 steps went by without it, with up to 2 "
        "requests each"
    )
    assert still == (stall,)


def test_steps_by_turns_starve_nobody(engine: Engine) -> None:
    """As with pipeline stages: each step holds half of those that run."""
    readings = [*engine.born(1, 2, 3, 4)]
    for _ in range(100):
        readings += [engine.step({1: 1, 2: 1}, running=4)]
        readings += [engine.step({3: 1, 4: 1}, running=4)]

    assert found(readings) == ()


def test_who_ended_or_was_preempted_does_not_starve(engine: Engine) -> None:
    readings = [*engine.born(1, 2, 3), *engine.steps(50, 1, 2, 3)]
    readings += [engine.step({1: 1}, running=1, preempted=[2]), *engine.gone(3)]
    readings += engine.steps(50, 1, running=2)

    assert found(readings) == ()


def test_a_loss_of_readings_is_no_stall(engine: Engine) -> None:
    readings = [*engine.born(1, 2), *engine.come(3), *engine.steps(100, 1, 2)]
    t_ns = round(engine.t_ms * MS)
    readings.append(Note(t_ns=t_ns, kind=NoteKind.DROPPED, text="lost", count=9))
    engine.index += 9
    readings += [engine.step({1: 1, 2: 1}, gap_ms=900), *engine.steps(50, 1, 2)]
    for number in range(4, 24):
        readings += [*engine.born(number), *engine.steps(10, 1), *engine.gone(number)]

    assert found(readings) == ()


def gaps(engine: Engine, count: int) -> list[AnyReading]:
    readings = [*engine.born(1)]
    for _ in range(count):
        readings += [*engine.steps(30, 1), engine.step({1: 1}, gap_ms=100)]
    return readings


def test_those_of_the_window_are_told_newest_first(engine: Engine) -> None:
    readings, model = gaps(engine, 40), Model()
    for reading in readings:
        model.fold(reading)
    now_ns = round(engine.t_ms * MS)

    whole = model.snapshot(now_ns, SnapshotQuery(Window.SESSION)).stalls
    lately = model.snapshot(now_ns, SnapshotQuery(Window.TEN_SECONDS)).stalls

    assert len(whole) == 40
    assert [each.end_ns for each in whole] == sorted(
        (each.end_ns for each in whole), reverse=True
    )
    assert 20 < len(lately) < 30
    assert lately == whole[: len(lately)]
    assert all(each.end_ns > now_ns - 10 * S for each in lately)


def test_no_more_are_kept_than_anybody_reads(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stalls, "MOST_KEPT", 60)

    shown = found(gaps(engine, 70))

    assert len(shown) == stalls.MOST_SHOWN
    assert shown[0].end_ns > shown[-1].end_ns > S


def test_a_server_has_its_own(engine: Engine) -> None:
    """The other one works on through the gaps of this one."""
    model = Model()
    for reading in gaps(engine, 2):
        model.fold(reading)
    for number in range(1, 90):
        model.fold(
            Step(
                source="engine-2",
                index=number,
                start_ns=(number - 1) * 10 * MS,
                end_ns=number * 10 * MS,
                duration_ns=10 * MS,
                decode_requests=1,
                decode_tokens=1,
                running=1,
                members=[7],
                scheduled=[1],
                produced=[1],
            )
        )

    def of(source: str | None) -> int:
        return len(
            model.snapshot(9 * S, SnapshotQuery(Window.SESSION, source=source)).stalls
        )

    assert (of("engine-1"), of("engine-2"), of(None)) == (2, 0, 2)
