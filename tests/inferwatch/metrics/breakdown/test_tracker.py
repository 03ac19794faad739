"""What the phases took adds up to all E2EL, over any window and in every bucket."""

from collections.abc import Iterable
from dataclasses import replace as replaced
from random import Random

import pytest
from hypothesis import strategies as some
from msgspec.structs import replace

from collectors.contract.readings import (
    AnyReading,
    EngineInfo,
    EventKind,
    LoadPlanned,
    Phase,
    RequestEvent,
    RequestRecord,
    Tick,
    Vantage,
)
from inferwatch.metrics.breakdown import tracker
from inferwatch.metrics.breakdown.view import (
    CAUSES_OF,
    DIMENSIONS,
    Breakdown,
    BreakdownPhase,
)
from inferwatch.metrics.causes.cause import E2EL_CAUSES, Cause
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.requests.group_names import OTHERS
from inferwatch.metrics.requests.request_groups import (
    SLOT_NS,
    GroupBy,
    quantiles_of,
)
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from tests.inferwatch.metrics.causes.scripted_engine import ENGINE, MS, Script
from tests.inferwatch.metrics.causes.test_any_schedule import schedules, with_losses
from tests.inferwatch.metrics.drawn import drawn
from tests.inferwatch.metrics.test_saved import Keeps

S = 1_000_000_000
PLAN = LoadPlanned(
    source="load-1",
    t_ns=0,
    plan='{"run_id": "load-1", "classes": [{"name": "chat"}]}',
)


def broken_down(
    readings: Iterable[AnyReading],
    window: Window = Window.SESSION,
    now_ns: int = 100 * S,
) -> Breakdown | None:
    model = Model()
    for reading in readings:
        model.fold(reading)
    return shown(model, window, now_ns)


def shown(
    model: Model, window: Window = Window.SESSION, now_ns: int = 100 * S
) -> Breakdown | None:
    return model.snapshot(now_ns, SnapshotQuery(window, breakdown=True)).breakdown


def whole(found: Breakdown | None) -> Breakdown:
    """Checked: all parts add up."""
    assert found is not None
    assert sum(each.total_ns for each in found.phases) == found.total_ns
    several = {phase for phase, causes in CAUSES_OF.items() if len(causes) > 1}
    for phase in found.phases:
        causes = [each for each in found.causes if each.phase is phase.phase]
        if phase.phase in several:
            assert sum(each.total_ns for each in causes) == phase.total_ns
        assert phase.took_s is not None
        assert 0 < phase.took_s.n <= found.requests
    for dimension in DIMENSIONS:
        buckets = found.of(dimension)
        if buckets:
            assert sum(each.requests for each in buckets) == found.requests
            assert sum(each.total_ns for each in buckets) == found.total_ns
        for each in buckets:
            assert sum(ns for _, ns in each.parts) == each.total_ns
    return found


def ended(draw: Random) -> list[AnyReading]:
    """A schedule whose requests all end: some at once, some by the client."""
    told = schedules(draw)
    last_ns = max((getattr(each, "end_ns", 0) for each in told), default=0)
    events = [each for each in told if isinstance(each, RequestEvent)]
    arrived = [each for each in events if each.kind is EventKind.ARRIVED]
    for event in arrived:
        last_ns += draw.randint(0, MS)
        ends = [
            replace(
                event,
                t_ns=last_ns + draw.randint(0, 2 * MS),
                kind=EventKind.FINISHED,
                vantage=vantage,
                reason=draw.choice(("stop", "abort")),
            )
            for vantage in (Vantage.FRONTEND, Vantage.ENGINE)
        ]
        draw.shuffle(ends)
        told += ends
    return [*told, Tick(t_ns=last_ns + 5 * S)]


def test_each_cause_of_an_e2el_is_in_one_phase() -> None:
    causes = [cause for phase in BreakdownPhase for cause in CAUSES_OF[phase]]
    assert sorted(causes) == sorted(E2EL_CAUSES)


@drawn(8, 40, seed=some.integers(0, 10**9))
def test_phases_add_up_to_all_e2el_whatever_is_scheduled(seed: int) -> None:
    told = ended(Random(seed))
    events = [each for each in told if isinstance(each, RequestEvent)]
    front = [each for each in events if each.vantage is Vantage.FRONTEND]
    begun = {e.request_id: e.t_ns for e in front if e.kind is EventKind.ARRIVED}
    over = {e.request_id: e.t_ns for e in front if e.kind is EventKind.FINISHED}
    if not begun:
        return

    found = whole(broken_down(told, now_ns=1_000 * S))

    assert found.requests == len(begun)
    assert found.total_ns == sum(over[each] - begun[each] for each in begun)


@drawn(8, 40, seed=some.integers(0, 10**9))
def test_what_is_lost_is_unknown_and_all_still_adds_up_when_restored(seed: int) -> None:
    draw = Random(seed)
    model, plain, keeps = Model(), Model(), Keeps()
    for reading in with_losses(draw, ended(draw)):
        model.fold(reading)
        plain.fold(reading)
        if draw.randint(0, 9) == 0:
            saved = model.saved()
            keeps.keep(saved)
            model = keeps.restored(saved)
    for window in (Window.SESSION, Window.FIVE_MINUTES):
        found = shown(model, window)
        assert found == shown(plain, window)
        assert found is None or whole(found)


def some_requests(*numbers: int) -> Script:
    script = Script().running(1, 2)
    for number in numbers:
        script.arrive(number, script.now_ns - 1_000, header=f"team-{number % 2}")
        script.step({1: 1, 2: 1, number: 30}, 20, first=(number,))
        script.sent(number)
        script.decode(1, 2, number, steps=5)
        script.finish(number)
    return script


def one_more(script: Script, number: int) -> None:
    script.arrive(number, script.now_ns - 1_000)
    script.step({1: 1, 2: 1, number: 30}, 20, first=(number,))
    script.sent(number)
    script.finish(number)


def test_a_window_counts_who_ended_in_it() -> None:
    script = some_requests(5)
    script.now_ns += 100 * S
    later_ns = script.now_ns
    script.arrive(6, script.now_ns - 1_000)
    script.step({1: 1, 2: 1, 6: 30}, 20, first=(6,))
    script.sent(6)
    script.finish(6)

    minute = whole(broken_down(script, Window.MINUTE, later_ns + S))
    session = whole(broken_down(script, Window.SESSION, later_ns + S))

    assert (minute.requests, session.requests) == (1, 2)


def test_nobody_who_ended_is_nothing_to_tell() -> None:
    assert broken_down(Script().running(1, 2)) is None


def test_it_is_not_made_unless_asked_for() -> None:
    model = Model()
    for reading in some_requests(5):
        model.fold(reading)

    assert model.snapshot(S, SnapshotQuery(Window.SESSION)).breakdown is None


def test_requests_are_in_the_bucket_of_their_header() -> None:
    found = whole(broken_down(some_requests(5, 6, 7)))

    names = {each.name: each.requests for each in found.of(GroupBy.HEADER)}
    assert names == {"team-0": 1, "team-1": 2}


def test_who_got_no_token_is_not_among_those_of_whom_nobody_told() -> None:
    script = some_requests(5)
    script.arrive(9, script.now_ns - 1_000)
    script.decode(1, 2, steps=4)
    script.finish(9, "abort")

    found = whole(broken_down([*script, Tick(t_ns=script.now_ns + 5 * S)]))

    names = {each.name: each.requests for each in found.of(GroupBy.OUTPUT)}
    assert names == {"0": 1, "1–127": 1}


def test_a_dimension_without_a_value_has_no_buckets() -> None:
    found = whole(broken_down(some_requests(5)))

    assert found.of(GroupBy.CLASS) == ()
    assert found.of(GroupBy.PRIORITY) == ()


def test_models_are_those_of_their_source() -> None:
    info = EngineInfo(source=ENGINE, t_ns=0, pid=1, model="tiny", vllm_version="0")

    (bucket,) = whole(broken_down([info, *some_requests(5)])).of(GroupBy.MODEL)

    assert bucket.name == "tiny"


def test_too_many_values_share_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker, "MOST_BUCKETS", 1)

    found = whole(broken_down(some_requests(5, 6, 7)))

    names = {each.name: each.requests for each in found.of(GroupBy.HEADER)}
    assert names == {"team-1": 2, OTHERS: 1}


def record(number: int, name: str | None) -> RequestRecord:
    return RequestRecord(
        index=number,
        external_id=f"client-{number}",
        phase=Phase.STEADY,
        intended_ns=0,
        class_name=name,
    )


def test_a_class_told_after_the_end_is_waited_for() -> None:
    script = Script().running(1, 2)
    for number in (5, 6):
        name = f"client-{number}"
        script.arrive(number, script.now_ns - 1_000, external_id=name)
        script.step({1: 1, 2: 1, number: 30}, 20, first=(number,))
        script.sent(number)
        script.finish(number)
        script.told.append(record(number, f"class-{number}"))

    found = whole(broken_down([*script, Tick(t_ns=script.now_ns + 5 * S)]))

    names = [each.name for each in found.of(GroupBy.CLASS)]
    assert "class-6" in names


def test_the_first_wave_of_a_load_waits_for_its_classes() -> None:
    """Twenty end before the client tells of the first, a few milliseconds later."""
    script = Script().running(1, 2)
    wave = range(5, 25)
    for number in wave:
        script.arrive(number, script.now_ns - 1_000, external_id=f"client-{number}")
    members = dict.fromkeys((1, 2), 1) | dict.fromkeys(wave, 30)
    script.step(members, 20, first=tuple(wave))
    for number in wave:
        script.sent(number)
        script.finish(number)
    script.told += [record(number, "chat") for number in wave]

    found = whole(broken_down([PLAN, *script]))

    names = {each.name: each.requests for each in found.of(GroupBy.CLASS)}
    assert names == {"chat": 20}


def test_a_request_without_a_class_is_counted_when_its_client_tells() -> None:
    script = Script().running(1, 2)
    script.arrive(5, script.now_ns - 1_000, external_id="client-5")
    script.step({1: 1, 2: 1, 5: 30}, 20, first=(5,))
    script.sent(5)
    script.finish(5)

    assert broken_down([PLAN, *script]) is None
    assert broken_down([PLAN, *script, record(5, None)]) is not None
    *before, last = script
    assert broken_down([PLAN, *before, record(5, None), last]) is not None
    plain = replace(PLAN, plan='{"run_id": "load-1"}')
    assert broken_down([plain, *script]) is not None


def test_what_the_engine_never_saw_does_not_count_as_no_time() -> None:
    script = some_requests(5, 6, 7)
    for number in (20, 21):  # another front end's, say: no engine tells of them
        script.event(EventKind.ARRIVED, number, script.now_ns, front=True)
        script.now_ns += 50 * MS
        script.event(
            EventKind.FINISHED, number, script.now_ns, front=True, reason="abort"
        )
    script.told.append(Tick(t_ns=script.now_ns + 5 * S))

    for window in (Window.SESSION, Window.MINUTE):
        found = whole(broken_down(script, window, script.now_ns + 5 * S))

        n = {each.phase: each.took_s.n for each in found.phases if each.took_s}
        assert found.requests == 5
        assert n[BreakdownPhase.PREFILL] == n[BreakdownPhase.DECODE] == 3
        assert n[BreakdownPhase.API] == n[BreakdownPhase.SEND] == 3
        assert n[BreakdownPhase.UNKNOWN] == 5


def test_names_of_ours_do_not_swallow_values() -> None:
    script = Script().running(1, 2)
    for number, header in ((5, OTHERS), (6, "–"), (7, None)):
        script.arrive(number, script.now_ns - 1_000, header=header)
        script.step({1: 1, 2: 1, number: 30}, 20, first=(number,))
        script.sent(number)
        script.finish(number)

    found = whole(broken_down(script))

    names = {each.name: each.requests for each in found.of(GroupBy.HEADER)}
    assert names == {'"others"': 1, '"–"': 1, "–": 1}


def test_old_times_share_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker, "MOST_SLOTS", 2)
    script = some_requests(5)
    for number in (6, 7, 8, 9):
        script.now_ns += SLOT_NS
        one_more(script, number)
    model = Model()
    for reading in script:
        model.fold(reading)
        model._breakdown.rows.flush()

    found = whole(shown(model))

    slots = found.of(GroupBy.TIME)
    assert [(each.name, each.since_ns, each.requests) for each in slots] == [
        (tracker.EARLIER, None, 3),
        ("30–40 min", 3 * SLOT_NS, 1),
        ("40–50 min", 4 * SLOT_NS, 1),
    ]


@drawn(4, 12, seed=some.integers(0, 10**9))
def test_percentiles_of_a_bucket_are_those_of_its_requests(seed: int) -> None:
    draw = Random(seed)
    script = Script().running(1, 2)
    took: dict[str, list[float]] = {}
    for number in range(5, 5 + draw.randint(1, 40)):
        header = f"team-{draw.randint(0, 4)}"
        since_ns = script.now_ns - draw.randint(0, 30) * MS
        script.arrive(number, since_ns, header=header)
        script.step({1: 1, 2: 1, number: 30}, draw.randint(1, 5), first=(number,))
        script.sent(number)
        script.finish(number)
        took.setdefault(header, []).append((script.now_ns + 100_000 - since_ns) / S)

    found = whole(broken_down(script, Window.FIVE_MINUTES, script.now_ns + S))

    for each in found.of(GroupBy.HEADER):
        expected, e2el_s = quantiles_of(took.pop(each.name)), each.e2el_s
        assert e2el_s is not None
        assert e2el_s.mean == pytest.approx(expected.mean)
        assert replaced(e2el_s, mean=0.0) == replaced(expected, mean=0.0)
    assert not took


def test_who_began_before_the_watch_is_left_out_and_said() -> None:
    script = some_requests(5)
    script.event(EventKind.FINISHED, 77, script.now_ns, front=False, reason="stop")
    script.event(EventKind.FINISHED, 77, script.now_ns, front=True, reason="stop")

    assert whole(broken_down(script)).left_out == 1


def test_the_queue_is_told_by_cause() -> None:
    script = Script().running(1, 2)
    script.arrive(9, script.now_ns + MS)
    script.decode(1, 2, steps=1)
    for _ in range(8):
        script.step({1: 1, 2: 1}, waiting=1, bound_by="kv")
    script.step({1: 1, 2: 1, 9: 30}, first=(9,))
    script.sent(9)
    script.finish(9)

    found = whole(broken_down(script))

    taken = {each.cause: each.total_ns for each in found.causes}
    assert taken[Cause.QUEUE_KV] == 40 * MS
