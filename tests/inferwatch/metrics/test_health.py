"""The verdict names the trouble, and since when."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from collectors.contract.readings import (
    AnyReading,
    BoundBy,
    EngineInfo,
    EventKind,
    HostInfo,
    HostSample,
    LoadEvent,
    LoadKind,
    Note,
    NoteKind,
    ProcessUsage,
    Step,
    Tick,
    Totals,
)
from inferwatch.metrics.findings.every import DIAGNOSES
from inferwatch.metrics.findings.tracker import explains_queue
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.requests.request_row import RequestState
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.metrics.steps.health import Health, Problem, Verdict
from tests.inferwatch.metrics.findings.planted import moment

See = Callable[..., Snapshot]
Make = Callable[..., Any]
ENGINE = "engine-1"
MS = 1_000_000


def note(t_ms: float, kind: NoteKind, text: str = "", source: str = ENGINE) -> Note:
    return Note(source=source, t_ns=round(t_ms * MS), kind=kind, text=text)


def info(t_ms: float = 0, **fields: Any) -> EngineInfo:
    facts: dict[str, Any] = {
        "source": ENGINE,
        "pid": 1,
        "model": "tiny",
        "vllm_version": "0.32.0",
        "max_num_seqs": 16,
        "max_num_batched_tokens": 512,
        "num_kv_blocks": 100,
    }
    return EngineInfo(t_ns=round(t_ms * MS), **{**facts, **fields})


def test_nothing_heard_is_starting(see: See) -> None:
    verdict = see([]).verdict

    assert (verdict.health, verdict.sentence) == (
        Health.STARTING,
        "waiting for an engine",
    )
    assert verdict.since_ns is None


def test_a_load_on_a_server_that_is_not_watched_waits_for_no_engine(see: See) -> None:
    began = LoadEvent(t_ns=700 * MS, kind=LoadKind.STARTED)

    verdict = see([began]).verdict

    assert verdict.health is Health.IDLE
    assert verdict.sentence == "no engine is watched, only a load"
    assert verdict.since_ns == 700 * MS


def test_hardware_elsewhere_waits_for_no_engine(see: See) -> None:
    ours = HostInfo(t_ns=0, name="here")
    host = HostInfo(t_ns=300 * MS, name="gpu1", source="gpu1")

    assert see([ours]).verdict.health is Health.STARTING
    verdict = see([ours, host]).verdict

    assert verdict.health is Health.IDLE
    assert verdict.sentence == "no engine is watched, only hardware"
    assert verdict.since_ns == 300 * MS


def test_starting_tells_the_latest_stage(see: See) -> None:
    stages = [note(100, NoteKind.STAGE, "model made"), note(900, NoteKind.STAGE, "up")]

    verdict = see(stages).verdict

    assert (verdict.health, verdict.sentence) == (Health.STARTING, "up")
    assert verdict.since_ns == 900 * MS


def test_an_engine_without_work_is_idle_since_it_came_up(see: See) -> None:
    verdict = see([note(100, NoteKind.STAGE, "up"), info(500)]).verdict

    assert verdict.health is Health.IDLE
    assert verdict.since_ns == 500 * MS


def test_after_the_last_request_it_is_idle_since_then(
    see: See, make_life: Make
) -> None:
    front, engine = make_life(100, ordinal=0, tokens=3)

    snapshot = see([info(), *engine, *front])

    assert snapshot.verdict.health is Health.IDLE
    assert snapshot.verdict.since_ns == 131 * MS
    assert (snapshot.flow.running, snapshot.flow.waiting) == (0, 0)


def test_work_that_is_done_is_called_idle_before_the_verdict_is(
    make_step: Make, make_life: Make
) -> None:
    front, engine = make_life(100, ordinal=0, tokens=3)
    ticks = [Tick(t_ns=t * MS) for t in (120, *range(1_000, 25_000, 1_000))]
    model, told = Model(), []
    for reading in sorted([info(), *engine, *front, *ticks], key=moment):
        model.fold(reading)
        if isinstance(reading, Tick) and reading.t_ns >= 1_000 * MS:
            query = SnapshotQuery(Window.MINUTE)
            told.append(model.snapshot(reading.t_ns, query).verdict)

    assert (told[2].health, told[2].now) == (Health.HEALTHY, Health.IDLE)
    assert told[2].sentence == "idle for 3 s, all well in the last minute"
    assert told[-1].health is Health.IDLE
    assert told[-1].sentence == "nothing running, nothing waiting"


def test_work_in_progress_is_healthy_since_it_came(see: See, make_life: Make) -> None:
    _, engine = make_life(100, ordinal=0, tokens=3)

    verdict = see([info(), *engine[:-1]], now_ms=1_200).verdict

    assert verdict.health is Health.HEALTHY
    assert verdict.sentence == "1 running, none waiting, 2 tok/s"
    assert verdict.since_ns == 101 * MS


def test_no_rate_is_told_in_the_first_second(see: See, make_life: Make) -> None:
    _, engine = make_life(100, ordinal=0, tokens=3)

    assert see(engine[:-1], now_ms=140).verdict.sentence == "1 running, none waiting"


def waiting_steps(make_step: Make, count: int, **fields: Any) -> list[Any]:
    """Steps of 100 ms, the first beginning at 1 s, with requests waiting."""
    return [
        make_step(1_100 + 100 * n, {0: 1}, duration_ms=100, **{"waiting": 3, **fields})
        for n in range(count)
    ]


def test_a_short_queue_is_still_healthy(see: See, make_step: Make) -> None:
    steps = waiting_steps(make_step, 9, bound_by=BoundBy.SEQS)

    verdict = see([info(), *steps], now_ms=1_990).verdict

    assert verdict.health is Health.HEALTHY
    assert verdict.sentence.startswith("1 running, 3 waiting")


@pytest.mark.parametrize(
    ("bound_by", "why"),
    [
        (BoundBy.KV, ", mostly KV blocks"),
        (BoundBy.SEQS, ", mostly max_num_seqs"),
        (BoundBy.TOKENS, ", mostly max_num_batched_tokens"),
        (BoundBy.DEFERRED, ", mostly deferred"),
        (BoundBy.OTHER, ", mostly the scheduler's own rules"),
        (BoundBy.NOTHING, ""),
    ],
)
def test_a_lasting_queue_tells_how_much_of_the_time_and_what_binds(
    see: See, make_step: Make, bound_by: BoundBy, why: str
) -> None:
    steps = waiting_steps(make_step, 31, bound_by=bound_by, kv_used_blocks=97)

    verdict = see([info(100), *steps], now_ms=4_100).verdict

    assert verdict.health is Health.QUEUEING
    assert verdict.now is Health.HEALTHY
    assert verdict.sentence == f"78% of the last 4 s{why}"
    assert verdict.since_ns == 1_000 * MS


def test_a_queue_of_deferred_requests_says_what_they_wait_for(
    see: See, make_step: Make
) -> None:
    deferred = {"bound_by": BoundBy.DEFERRED, "deferred_by": "held prefill"}
    steps = waiting_steps(make_step, 31, **deferred)

    verdict = see([info(100), *steps], now_ms=4_100).verdict

    assert verdict.sentence == "78% of the last 4 s, mostly deferred (held prefill)"


def test_many_that_wait_count_after_a_second(see: See, make_step: Make) -> None:
    steps = waiting_steps(make_step, 11, waiting=5, bound_by=BoundBy.SEQS)

    verdict = see([info(100), *steps], now_ms=2_100).verdict

    assert verdict.health is Health.QUEUEING
    assert verdict.sentence == "55% of the last 2 s, mostly max_num_seqs"


def test_what_binds_is_named_by_the_time_it_took(see: See, make_step: Make) -> None:
    early = waiting_steps(make_step, 40, bound_by=BoundBy.TOKENS)
    late = [
        make_step(5_200 + 100 * n, {0: 1}, duration_ms=100, waiting=1, bound_by=by)
        for n, by in enumerate([BoundBy.SEQS] * 20 + [BoundBy.KV] * 10)
    ]

    verdict = see([info(), *early, *late], now_ms=8_200).verdict

    told = "mostly max_num_batched_tokens, then max_num_seqs"
    assert verdict.sentence.endswith(told)


def test_limits_that_took_about_as_much_are_named_alike(make_step: Make) -> None:
    model, named = Model(), []
    model.fold(info())
    for second in range(1, 61):
        by = BoundBy.KV if second <= 16 else BoundBy.SEQS
        for n in range(10):
            end_ms = second * 1_000 - 900 + 100 * n
            step = make_step(end_ms, {0: 1}, duration_ms=100, waiting=9, bound_by=by)
            model.fold(step)
        model.fold(Tick(t_ns=second * 1_000 * MS))
        query = SnapshotQuery(Window.MINUTE)
        sentence = model.snapshot(second * 1_000 * MS, query).verdict.sentence
        named.append(sentence.partition(", ")[2])

    assert list(dict.fromkeys(named[1:])) == [
        "mostly KV blocks",
        "mostly KV blocks, then max_num_seqs",
        "by max_num_seqs and KV blocks alike",
        "mostly max_num_seqs, then KV blocks",
    ]


def test_a_queue_is_told_until_none_of_it_is_in_the_minute(make_step: Make) -> None:
    model, told = Model(), []
    model.fold(info())
    for tenth in range(1_000):
        queues = 100 <= tenth < 160
        step = make_step(
            100 * (tenth + 1),
            {0: 1},
            duration_ms=100,
            waiting=9 if queues else 0,
            bound_by=BoundBy.SEQS if queues else BoundBy.NOTHING,
        )
        model.fold(step)
        if tenth % 10 == 9:
            model.fold(Tick(t_ns=step.end_ns))
            shown = model.snapshot(step.end_ns, SnapshotQuery(Window.TEN_SECONDS))
            told.append(shown.verdict)

    words = [each.health for each in told]
    assert words[:10] == [Health.HEALTHY] * 10
    assert words[10:75] == [Health.QUEUEING] * 65  # the last of it was at 16 s
    assert words[75:] == [Health.HEALTHY] * 25
    assert told[40].sentence == "15% of the last 41 s, mostly max_num_seqs"
    assert told[40].now is Health.HEALTHY


def verdicts_with(
    monkeypatch: pytest.MonkeyPatch,
    problem: Problem,
    steps: Iterable[Step],
    seconds: int = 130,
    from_s: int = 0,
) -> list[Verdict]:
    """The verdict of each second while a finding is told, from a second on."""
    model, told = Model(), []
    judged_by = model._last_minute
    monkeypatch.setattr(
        model,
        "_last_minute",
        lambda now_ns, slow: replace(
            judged_by(now_ns, slow),
            problems=[problem] if now_ns >= from_s * 1_000 * MS else [],
        ),
    )
    ticks = [Tick(t_ns=second * 1_000 * MS) for second in range(1, seconds)]
    readings: list[AnyReading] = [info(), *steps, *ticks]
    for reading in sorted(readings, key=moment):
        model.fold(reading)
        if isinstance(reading, Tick):
            shown = model.snapshot(reading.t_ns, SnapshotQuery(Window.MINUTE))
            told.append(shown.verdict)
    return told


@pytest.mark.parametrize(
    ("word", "waiting", "gap"), [(Health.STALLED, 0, 60), (Health.QUEUEING, 9, 0)]
)
def test_what_outlasts_the_trouble_is_told_as_degraded(
    make_step: Make,
    monkeypatch: pytest.MonkeyPatch,
    word: Health,
    waiting: int,
    gap: int,
) -> None:
    problem = Problem(text="objectives missed", since_ns=10_000 * MS)
    steps = [
        make_step(
            100 * (tenth + 1),
            {0: 1},
            duration_ms=100,
            waiting=waiting if 100 <= tenth < 160 else 0,
            bound_by=BoundBy.SEQS if 100 <= tenth < 160 else BoundBy.NOTHING,
        )
        for tenth in range(1_300)
        if not 100 <= tenth < 100 + gap
    ]

    told = verdicts_with(monkeypatch, problem, steps)

    words = [each.health for each in told]
    assert words[15:75] == [word] * 60
    assert "objectives" not in " ".join(each.sentence for each in told[15:75])
    assert words[75:94] == [word] * 19  # for findings that end a little later
    ago_s = 65 if word is Health.STALLED else 66  # the step after it ended then
    assert told[80].sentence == f"ended {ago_s} s ago; left of it: objectives missed"
    assert words[96:] == [Health.DEGRADED] * len(words[96:])
    assert told[-1].sentence == "100% of the last 60 s, objectives missed"


def test_what_was_called_healthy_is_not_called_degraded_afterwards(
    make_step: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem(text="objectives missed", since_ns=5_000 * MS)
    steps = [
        make_step(100 * (tenth + 1), {0: 1}, duration_ms=100) for tenth in range(1_300)
    ]

    told = verdicts_with(monkeypatch, problem, steps, from_s=70)

    assert {each.health for each in told[:69]} == {Health.HEALTHY}
    assert {each.health for each in told[69:]} == {Health.DEGRADED}
    assert {each.since_ns for each in told[69:]} == {50_000 * MS}
    shares = [each.sentence.partition(" ")[0] for each in told[69:]]
    assert shares[:2] == ["33%", "35%"]
    assert set(shares[40:]) == {"100%"}


def test_a_trouble_is_not_dated_to_before_what_was_called_healthy(
    make_step: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It idled for ten seconds, and was healthy for five."""
    problem = Problem(text="objectives missed", since_ns=5_000 * MS)
    steps = [
        make_step(10_000 + 100 * (tenth + 1), {0: 1}, duration_ms=100)
        for tenth in range(200)
    ]

    told = verdicts_with(monkeypatch, problem, steps, seconds=30, from_s=16)

    healthy = [each for each in told if each.health is Health.HEALTHY]
    degraded = [each for each in told if each.health is Health.DEGRADED]
    assert healthy[-1].since_ns is not None
    assert healthy[-1].since_ns > problem.since_ns
    assert {each.since_ns for each in degraded} == {healthy[-1].since_ns}


@pytest.mark.parametrize(
    ("waiting", "word"), [(0, Health.DEGRADED), (3, Health.QUEUEING)]
)
def test_a_finding_of_a_queue_is_queueing_only_where_something_queued(
    make_step: Make, monkeypatch: pytest.MonkeyPatch, waiting: int, word: Health
) -> None:
    problem = Problem(text="preemptions", since_ns=5_000 * MS, queues=True)
    steps = [
        make_step(
            100 * (tenth + 1),
            {0: 1},
            duration_ms=100,
            waiting=waiting if tenth % 10 == 0 else 0,
            bound_by=BoundBy.KV if waiting and tenth % 10 == 0 else BoundBy.NOTHING,
        )
        for tenth in range(300)
    ]

    told = verdicts_with(monkeypatch, problem, steps, 30)

    assert {each.health for each in told[2:]} == {word}


def test_only_findings_that_explain_a_queue_do() -> None:
    names = {each.NAME for each in DIAGNOSES if explains_queue(each.NAME)}

    assert {"batch_too_small", "kv_bound", "preemptions", "slow_by_scheduler"} <= names
    assert names.isdisjoint({"stalls", "host_bound", "kv_waste", "slo_missed"})
    assert not explains_queue("imbalance")


def test_the_oldest_waiting_request_is_told(
    see: See, make_step: Make, make_event: Make
) -> None:
    queued = make_event(1_000, EventKind.ADDED, "r9", ordinal=9)
    steps = waiting_steps(make_step, 31, waiting=1)

    snapshot = see([queued, *steps], now_ms=4_100)

    assert snapshot.verdict.sentence.endswith("; the oldest waits for 3.10 s")
    assert snapshot.flow.oldest_wait_s == pytest.approx(3.1)


def test_a_queue_that_ends_is_healthy_since_then(see: See, make_step: Make) -> None:
    steps = [*waiting_steps(make_step, 11), make_step(2_300, {0: 1})]

    verdict = see(steps, now_ms=2_400).verdict

    assert verdict.health is Health.HEALTHY
    assert verdict.since_ns == 2_290 * MS


def test_work_without_steps_is_stalled(see: See, make_life: Make) -> None:
    _, engine = make_life(100, ordinal=0, tokens=3)

    verdict = see([info(), *engine[:-1]], now_ms=2_200).verdict

    assert verdict.health is Health.STALLED
    assert verdict.sentence == (
        "1 running, none waiting: no step for 2.1 s, while a step usually takes 10.0 ms"
    )
    assert verdict.since_ns == 130 * MS


def test_an_engine_asleep_says_so_and_is_not_stalled(see: See, make_life: Make) -> None:
    slept = note(5_000, NoteKind.ASLEEP, "asleep, level 0")
    _, engine = make_life(100, ordinal=0, tokens=3)
    life = [*engine[:-1], slept]
    stalled = see([info(), *engine[:-1]], now_ms=60_000).verdict

    asleep = see([info(), *life], now_ms=60_000).verdict
    ticked = see([info(), *life, Tick(t_ns=59_900 * MS)], now_ms=60_000).verdict
    woken = see(
        [info(), *life, note(60_500, NoteKind.AWAKE, "awake again")], now_ms=90_000
    ).verdict

    assert stalled.health is Health.STALLED
    assert (asleep.health, asleep.since_ns) == (Health.IDLE, 5_000 * MS)
    assert asleep.sentence == "asleep, level 0"
    assert ticked == asleep
    assert woken.health is Health.STALLED


@pytest.mark.parametrize("heard", ["a step", "started", "restarted", "configured"])
def test_an_engine_that_nobody_told_awake_is_so_by_what_is_heard_of_it(
    see: See, make_life: Make, make_step: Make, heard: str
) -> None:
    _, life = make_life(100, ordinal=0, tokens=3)
    slept = note(5_000, NoteKind.ASLEEP, "asleep, level 0")
    sign = {
        "a step": make_step(6_000, {0: 1}, index=9),
        "started": note(6_000, NoteKind.STARTED),
        "restarted": note(6_000, NoteKind.RESTARTED),
        "configured": info(6_000),
    }[heard]

    assert see([info(), *life, slept], now_ms=6_100).verdict.sentence == slept.text
    awake = see([info(), *life, slept, sign], now_ms=6_100).verdict
    assert awake.sentence != slept.text


def test_one_of_two_engines_asleep_does_not_hide_the_other(
    see: See, make_life: Make
) -> None:
    other = info(source="engine-2")
    slept = note(5_000, NoteKind.ASLEEP, "asleep, level 1", source="engine-2")

    _, engine = make_life(100, ordinal=0, tokens=3)
    verdict = see([info(), other, *engine[:-1], slept], now_ms=60_000).verdict

    assert verdict.health is Health.STALLED


def test_a_queue_no_step_ever_served_is_stalled(see: See, make_event: Make) -> None:
    queued = make_event(1_000, EventKind.ADDED, ordinal=0)

    verdict = see([info(), queued], now_ms=3_100).verdict

    assert verdict.health is Health.STALLED
    assert verdict.sentence == "0 running, 1 waiting: no step for 2.1 s"


def test_an_engine_that_takes_none_of_what_it_is_sent_is_stalled(
    see: See, make_life: Make, make_event: Make
) -> None:
    _, served = make_life(100, ordinal=0, tokens=3)
    sent = [
        make_event(1_000 + ms, EventKind.ARRIVED, request_id=f"sent-{ms}", ordinal=None)
        for ms in (0, 500, 2_900)
    ]

    waits = see([info(), *served, *sent], now_ms=2_990).verdict
    stalled = see([info(), *served, *sent], now_ms=3_600).verdict

    assert waits.at_present is Health.IDLE
    assert stalled.health is Health.STALLED
    assert stalled.sentence == (
        "2 sent to the engine, none taken: no step for 2.6 s, while a step usually "
        "takes 10.0 ms"
    )
    assert stalled.since_ns == 1_000 * MS


def test_a_prompt_that_took_long_to_prepare_is_no_stall(
    see: See, make_life: Make, make_event: Make
) -> None:
    _, served = make_life(100, ordinal=0, tokens=3)
    sent = make_event(
        1_000, EventKind.ARRIVED, request_id="sent", tokenised_ns=9_950 * MS
    )

    verdict = see([info(), *served, sent], now_ms=10_000).verdict

    assert verdict.at_present is Health.IDLE


def test_what_a_front_end_alone_tells_of_is_no_stall(
    see: See, make_event: Make
) -> None:
    sent = make_event(1_000, EventKind.ARRIVED, request_id="sent", ordinal=None)

    assert see([info(), sent], now_ms=9_000).verdict.health is not Health.STALLED


def test_what_a_probe_remembers_is_not_judged_until_the_present_is_reached(
    make_step: Make,
) -> None:
    model, told = Model(), []

    def fold(*readings: Step | Totals | Tick) -> Snapshot:
        for reading in readings:
            model.fold(reading)
        now_ns = max(each.t_ns for each in readings if isinstance(each, Tick))
        return model.snapshot(now_ns, SnapshotQuery(Window.MINUTE))

    fold(Tick(t_ns=0))
    for second in range(8):  # half an hour, four minutes in each second of ours
        began_ms = (second - 8) * 240_000
        past = [make_step(began_ms + 10_000 * n, {0: 1}) for n in range(24)]
        told.append(fold(*past, Tick(t_ns=second * 1_000 * MS + MS)))
    assert {each.verdict.health for each in told} == {Health.STARTING}
    assert "remembers" in told[0].verdict.sentence
    assert all(each.catching_up and not each.findings for each in told)

    live = [make_step(7_000 + 10 * n, {0: 1}) for n in range(200)]
    fold(*live[:100], Tick(t_ns=8_000 * MS))
    present = fold(*live[100:], Tick(t_ns=9_000 * MS))
    assert present.verdict.health is Health.HEALTHY
    assert not present.catching_up

    ticks = [Tick(t_ns=second * 1_000 * MS) for second in range(10, 16)]
    silent = [fold(tick) for tick in ticks][-1]
    assert silent.verdict.health is Health.STALLED
    assert [each.name for each in silent.findings] == ["stopped"]


def test_a_past_that_breaks_off_is_awaited_for_a_while(make_step: Make) -> None:
    model = Model()
    model.fold(Tick(t_ns=0))
    model.fold(make_step(-60_000, {0: 1}))

    healths = []
    for second in range(1, 13):
        model.fold(Tick(t_ns=second * 1_000 * MS))
        now = model.snapshot(second * 1_000 * MS, SnapshotQuery(Window.MINUTE))
        healths.append(now.verdict.health)

    assert healths == [Health.STARTING] * 9 + [Health.STALLED] * 3


def test_an_engine_that_is_lost_is_lost_while_its_past_is_read(
    see: See, make_step: Make
) -> None:
    past = make_step(-60_000, {0: 1})
    gone = note(900, NoteKind.LOST, "its process is gone")

    verdict = see([Tick(t_ns=0), past, gone], now_ms=1_000).verdict

    assert verdict.health is Health.LOST


def test_idle_time_before_the_work_came_is_no_stall(
    see: See, make_life: Make, make_event: Make
) -> None:
    front, engine = make_life(100, ordinal=0, tokens=3)
    queued = make_event(9_000, EventKind.ADDED, "r1", ordinal=1)

    verdict = see([info(), *front, *engine, queued], now_ms=9_500).verdict

    assert verdict.health is Health.HEALTHY


def test_slow_steps_have_longer_to_stall(see: See, make_step: Make) -> None:
    steps = [make_step(1_000 * n, {0: 1}, duration_ms=1_000) for n in range(1, 6)]

    assert see(steps, now_ms=14_900).verdict.health is Health.HEALTHY
    stalled = see(steps, now_ms=15_100).verdict
    assert stalled.health is Health.STALLED
    assert stalled.sentence.endswith("a step usually takes 1.0 s")


def test_a_lost_engine_is_lost_until_another_is_up(see: See, make_life: Make) -> None:
    _, engine = make_life(100, ordinal=0, tokens=3)
    lost = note(500, NoteKind.LOST, "EngineCore died: out of memory")
    again = note(900, NoteKind.RESTARTED, "restarted")
    up = info(1_500, source="engine-2")

    after_loss = see([info(), *engine[:-1], lost])
    restarting = see([info(), *engine[:-1], lost, again])
    back = see([info(), *engine[:-1], lost, again, up])

    assert after_loss.verdict.health is Health.LOST
    assert after_loss.verdict.sentence == "EngineCore died: out of memory"
    assert after_loss.verdict.since_ns == 500 * MS
    assert [each.source for each in after_loss.engines] == [ENGINE]
    assert restarting.verdict.health is Health.STARTING
    assert back.verdict.health is Health.IDLE
    assert [each.source for each in back.engines] == ["engine-2"]


def test_a_new_engine_ends_the_loss_without_a_note(see: See) -> None:
    lost = note(500, NoteKind.LOST, "gone", source="")

    assert see([lost, info(900)]).verdict.health is Health.IDLE


def test_requests_of_a_lost_engine_have_failed(see: See, make_life: Make) -> None:
    front, engine = make_life(100, ordinal=0, tokens=3)
    lost = note(500, NoteKind.LOST, "gone")

    snapshot = see([info(), *front[:-1], *engine[:-1], lost])

    (row,) = snapshot.requests
    assert (row.state, row.reason) == (RequestState.FAILED, "lost")
    assert (snapshot.flow.failed, snapshot.flow.running) == (1, None)


def test_of_a_lost_engine_nothing_present_is_known(see: See, make_step: Make) -> None:
    step = make_step(480, {0: 1}, kv_used_blocks=9, kv_cached_blocks=1, waiting=2)
    usage = [
        ProcessUsage(pid=pid, role=role, cpu_s=pid / 10, rss_bytes=1)
        for pid, role in enumerate(["api", "core", "worker", "inferwatch"])
    ]
    hosts = [HostSample(t_ns=t * MS, processes=usage) for t in (100, 400)]
    lost = note(500, NoteKind.LOST, "gone")

    snapshot = see([info(), *hosts, step, lost], now_ms=900)

    flow, kv = snapshot.flow, snapshot.kv
    assert flow.running is flow.waiting is flow.oldest_wait_s is flow.kv_usage is None
    assert flow.output_tokens_per_s_now is None
    assert kv.used_blocks is kv.cached_blocks is kv.free_blocks is None
    assert (kv.total_blocks, kv.peak_used_blocks) == (100, 9)
    assert snapshot.last_token_ns is None
    assert list(snapshot.cost.process_cpu_share) == ["inferwatch"]


def test_a_window_covers_no_time_after_a_loss(see: See, make_step: Make) -> None:
    steps = [make_step(t_ms, {0: 1}) for t_ms in range(1_000, 5_001, 1_000)]
    readings = [info(), *steps, note(5_000, NoteKind.LOST, "gone")]

    at_once, later = see(readings, 5_000), see(readings, 60_000)

    assert at_once.flow.output_tokens_per_s == later.flow.output_tokens_per_s == 1
    assert see(readings, 70_000).flow.output_tokens_per_s == 1


def test_the_verdict_tells_the_rate_of_the_last_two_seconds(
    see: See, make_step: Make
) -> None:
    slow = [make_step(t_ms, {0: 1}) for t_ms in range(1_000, 20_000, 1_000)]
    fast = [make_step(t_ms, {0: 1}) for t_ms in range(20_000, 22_001, 10)]

    snapshot = see([info(), *slow, *fast], now_ms=22_000)

    assert snapshot.verdict.sentence == "1 running, none waiting, 100 tok/s"
    assert snapshot.flow.output_tokens_per_s == pytest.approx(10)


def test_a_rate_is_not_told_while_a_step_is_longer_than_it_covers(
    see: See, make_step: Make
) -> None:
    steps = [make_step(3_000 * n, {0: 1}, duration_ms=3_000) for n in range(1, 6)]

    assert see(steps, now_ms=17_500).verdict.sentence == "1 running, none waiting"


def test_the_next_life_counts_its_ordinals_anew(
    see: See, make_life: Make, make_step: Make
) -> None:
    _, engine = make_life(100, ordinal=0, tokens=3)
    lost = note(500, NoteKind.LOST, "gone", source="")

    snapshot = see([*engine[:-1], lost, make_step(900, {0: 1})])

    (row,) = snapshot.requests
    assert row.output_tokens == 3
    assert snapshot.flow.running == 1


def test_steps_without_a_greeting_show_that_an_engine_is_up(
    see: See, make_step: Make
) -> None:
    assert see([make_step(100, {0: 1})], now_ms=150).verdict.health is Health.HEALTHY


def test_other_notes_change_no_verdict(see: See) -> None:
    readings = [info(500), note(600, NoteKind.BOOKMARK, "look here")]

    assert see(readings).verdict.health is Health.IDLE


# What the engine says at rest.


def test_totals_at_rest_end_what_ended_unseen(see: See, make_life: Make) -> None:
    _, engine = make_life(100, ordinal=0, tokens=3)
    hole = Note(source=ENGINE, t_ns=140 * MS, kind=NoteKind.DROPPED, text="")
    rest = Totals(source=ENGINE, t_ns=1_000 * MS, running=0, waiting=0)

    doubtful = see([info(), *engine[:-1], hole])
    certain = see([info(), *engine[:-1], hole, rest])

    assert doubtful.verdict.health is Health.IDLE
    assert len(doubtful.requests) == 1
    assert certain.requests == ()
    assert certain.requests_evicted == 1


def test_totals_know_the_queue_that_steps_have_not_told(see: See) -> None:
    totals = Totals(
        source=ENGINE, t_ns=1_000 * MS, running=2, waiting=5, kv_used_blocks=40
    )

    snapshot = see([info(), totals], now_ms=1_500)

    assert (snapshot.flow.running, snapshot.flow.waiting) == (2, 5)
    assert snapshot.flow.kv_usage == 0.4


def test_totals_may_know_blocks_alone(see: See, make_step: Make) -> None:
    step = make_step(900, {0: 1}, kv_used_blocks=9, kv_cached_blocks=1)
    same = Totals(source=ENGINE, t_ns=1_000 * MS, kv_used_blocks=9)
    fewer = Totals(source=ENGINE, t_ns=1_000 * MS, kv_used_blocks=3)

    assert see([info(), step, same]).kv.cached_blocks == 1
    assert see([info(), step, fewer]).kv.used_blocks == 3
    assert see([info(), step, fewer]).kv.cached_blocks is None


def test_a_step_is_newer_than_the_totals_before_it(see: See, make_step: Make) -> None:
    totals = Totals(source=ENGINE, t_ns=1_000 * MS, running=2, waiting=5)

    snapshot = see([info(), totals, make_step(1_010, {0: 1})], now_ms=1_500)

    assert (snapshot.flow.running, snapshot.flow.waiting) == (1, 0)


def test_totals_of_a_front_end_hold_nothing(see: See) -> None:
    snapshot = see([Totals(source=ENGINE, t_ns=0, requests_added=3)])

    assert snapshot.flow.running is None
    assert snapshot.verdict.health is Health.STARTING
