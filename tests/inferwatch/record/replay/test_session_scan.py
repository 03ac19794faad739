"""The marks and the shape of a session are found in its record."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from collectors.contract.readings import (
    AnyReading,
    EngineSample,
    Histogram,
    LoadEvent,
    LoadKind,
    LoadPlanned,
    Note,
    NoteKind,
    Phase,
    RequestRecord,
    Step,
)
from inferwatch.feed import Mark, MarkKind
from inferwatch.record.repair import recovery
from inferwatch.record.replay.marks import MOST_MARKS, keep_bookmark, ordered_marks
from inferwatch.record.replay.session_scan import SessionScan
from inferwatch.record.sessions.sessions import find
from inferwatch.record.writing.recorder import Recorder
from tests.inferwatch.metrics.scripted_live_limits import story

S = 1_000_000_000
NOBODY_NEW = "no step for 3.0 s, 2 decoding"
Put = Callable[[list[AnyReading]], SessionScan]


@pytest.fixture
def looked(record: Callable[..., Recorder], path: Path, stopped_clock: Any) -> Put:
    """Records readings and looks at them."""

    def look(readings: list[AnyReading]) -> SessionScan:
        recorder = record(clock=stopped_clock(600 * S))
        for numbered in enumerate(readings, 1):
            recorder.put(*numbered)
        recorder.close()
        scan = SessionScan(path, find(path, "last"))
        scan.look()
        return scan

    return look


def marked(scan: SessionScan) -> list[tuple[float, MarkKind]]:
    return [(mark.t_ns / S, mark.kind) for mark in scan.marks]


def test_loads_and_losses_are_marked_in_order_of_time(looked: Put) -> None:
    scan = looked(
        [
            LoadEvent(t_ns=2 * S, kind=LoadKind.STARTED, rate_per_s=3, text="demo"),
            LoadEvent(t_ns=4 * S, kind=LoadKind.WARMUP_ENDED),
            LoadEvent(t_ns=5 * S, kind=LoadKind.RATE, rate_per_s=6),
            Note(t_ns=8 * S, kind=NoteKind.LOST, text="killed"),
            Note(t_ns=9 * S, kind=NoteKind.STAGE, text="weights loaded"),
            Note(t_ns=10 * S, kind=NoteKind.RESTARTED, text="engine restarted"),
            Note(
                t_ns=12 * S,
                kind=NoteKind.COMPILATION,
                text="compiled while serving: torch.compile 0/1",
                duration_ns=S,
            ),
            LoadEvent(t_ns=7 * S, kind=LoadKind.STOPPED),
        ]
    )

    assert marked(scan) == [
        (2, MarkKind.LOAD),
        (5, MarkKind.LOAD),
        (7, MarkKind.LOAD),
        (8, MarkKind.LOST),
        (10, MarkKind.LOST),
        (12, MarkKind.COMPILATION),
    ]
    assert scan.marks[0].text == "load started at 3/s: demo"


def test_a_finding_that_comes_and_goes_makes_one_mark(looked: Put) -> None:
    def told(at_s: int, text: str) -> Note:
        return Note(t_ns=at_s * S, kind=NoteKind.FINDING, text=text)

    flaps = [
        told(at_s + off, f"{title}: {text}")
        for at_s in range(10, 200, 20)
        for off, title, text in (
            (0, "queue", "7 wait"),
            (1, "host busy", "97%"),
            (7, "queue", "no longer"),
        )
        if title == "queue" or at_s == 10
    ]
    scan = looked([*flaps, told(400, "queue: 9 wait"), told(409, "queue: no longer")])

    assert [(mark.t_ns / S, mark.text) for mark in scan.marks] == [
        (10, "queue: 7 wait (10 times in 3 min)"),
        (11, "host busy: 97%"),
        (197, "queue: no longer"),
        (400, "queue: 9 wait (for 9 s)"),
    ]


def test_each_change_of_limits_is_marked(looked: Put) -> None:
    """Ranks that are told the same at once are one mark."""
    both = [
        msgspec.structs.replace(each, rank=rank, t_ns=each.t_ns + rank * 1_000)
        for each in story()
        for rank in (0, 1)
    ]

    scan = looked([*both])

    assert [(mark.t_ns / S, mark.kind, mark.text) for mark in scan.marks] == [
        (2, MarkKind.LIMITS, "max_num_seqs 12 → 4, by ada (pid 4)"),
        (3, MarkKind.LIMITS, "max_num_batched_tokens 512 → 64, by ada (pid 4)"),
        (5, MarkKind.LIMITS, "start-up limits are back: the watcher is gone"),
    ]


def test_preemptions_are_marked_where_they_begin_after_a_while_without(
    looked: Put, make_step: Callable[..., Step]
) -> None:
    moments_s = (1, 2, 5, 11, 11.5, 30)
    steps = [make_step(t_s * 1000, {1: 1}, preempted=[1]) for t_s in moments_s]

    scan = looked([*steps])

    kinds = [t_s for t_s, kind in marked(scan) if kind is MarkKind.PREEMPTION]
    assert kinds == [1, 11, 30]
    texts = [each.text for each in scan.marks if each.kind is MarkKind.PREEMPTION]
    assert texts == ["3 preemptions in 4.0 s", "2 preemptions in 0.5 s", "1 preemption"]


def test_a_stall_is_marked_where_work_waited_and_no_step_ended(
    looked: Put, make_step: Callable[..., Step]
) -> None:
    scan = looked(
        [
            make_step(1_000, {1: 1}),
            make_step(5_000, {2: 1}, decode_requests=0),  # it came then: nobody waited
            make_step(6_000, {2: 1}, waiting=3),
            make_step(8_500, {2: 1, 3: 0}),
            make_step(11_500, {2: 1, 3: 1}),
        ]
    )

    assert scan.marks == (
        Mark(t_ns=6 * S, kind=MarkKind.STALL, text="no step for 2.5 s, 3 waiting"),
        Mark(t_ns=8_500_000_000, kind=MarkKind.STALL, text=NOBODY_NEW),
    )


def test_a_changed_load_says_its_rate_once_and_short(looked: Put) -> None:
    rate, text = 9.34992679911525, "poisson 9.35 requests/s"
    said = LoadEvent(t_ns=S, kind=LoadKind.RATE, rate_per_s=rate, text=text)
    bare = LoadEvent(t_ns=2 * S, kind=LoadKind.RATE, rate_per_s=rate)

    scan = looked([said, bare])

    assert [mark.text for mark in scan.marks] == [
        "load changed: poisson 9.35 requests/s",
        "load changed at 9.35/s",
    ]


def client(intended_s: float, ttft_s: float, failure: str | None = None) -> Any:
    return RequestRecord(
        source="load-1",
        index=round(intended_s * 10),
        external_id=f"r{intended_s}",
        phase=Phase.STEADY,
        intended_ns=round(intended_s * S),
        first_token_ns=round((intended_s + ttft_s) * S),
        last_token_ns=round((intended_s + ttft_s) * S),
        failure=failure,
    )


PLAN = '{"run_id":"load-1","slo":"ttft_s<0.5"}'
NOTED = Note(t_ns=0, kind=NoteKind.STARTED, text=f"load plan {PLAN}")


@pytest.mark.parametrize(
    "planned",
    [LoadPlanned(t_ns=0, plan=PLAN), NOTED],
    ids=["a reading", "a note of an earlier version"],
)
def test_the_first_of_the_minutes_that_missed_an_objective_is_marked(
    looked: Put, planned: LoadPlanned | Note
) -> None:
    minutes = [0.1, 0.9, 0.9, 0.1, 0.1, 0.9]
    requests = [
        client(60 * minute + second, ttft_s)
        for minute, ttft_s in enumerate(minutes)
        for second in (1, 2, 3)
    ]

    scan = looked([planned, *requests])

    assert marked(scan) == [(60, MarkKind.SLO), (300, MarkKind.SLO)]
    assert scan.marks[0].text == "SLO missed by 3 of 3 requests: ttft_s<0.5"


@pytest.mark.parametrize("plan", ["{", '{"slo":"nonsense<1"}', '{"slo":7}'])
def test_a_plan_that_cannot_be_read_marks_nothing(looked: Put, plan: str) -> None:
    planned = LoadPlanned(t_ns=0, plan=plan)

    assert looked([planned, client(1, 9)]).marks == ()


def test_too_many_marks_are_thinned_but_no_bookmark_goes() -> None:
    many = [Mark(t_ns=t, kind=MarkKind.STALL, text="") for t in range(3 * MOST_MARKS)]
    bookmark = Mark(t_ns=77, kind=MarkKind.BOOKMARK, text="here")

    kept = ordered_marks([*many, bookmark])

    assert len(kept) == MOST_MARKS
    assert bookmark in kept
    assert list(kept) == sorted(kept, key=lambda mark: mark.t_ns)


def test_a_bookmark_of_another_session_is_not_shown(looked: Put, path: Path) -> None:
    looked([])
    keep_bookmark(path, find(path, "s1"), 5, "of the first")

    assert looked([]).marks == ()


def test_the_shape_has_what_came_out_and_how_long_it_took(
    looked: Put, make_step: Callable[..., Step]
) -> None:
    scan = looked(
        [
            make_step(100, {1: 1}),
            make_step(3_000, {1: 1, 2: 1}, duration_ms=40),
            make_step(4_000, {1: 1}, waiting=2),
        ]
    )

    shape = scan.shape
    assert shape is not None
    assert shape.start_ns == 0
    assert len(shape.steps) <= 240
    assert shape.bin_ns * len(shape.steps) > 600 * S
    first, second = 0, 3 * S // shape.bin_ns
    assert sum(shape.steps) == 3
    assert sum(filter(None, shape.output_tokens)) == 4
    assert shape.output_tokens[first + 100] is None
    assert shape.step_max_s[second] == pytest.approx(0.04)
    assert max(filter(None, shape.waiting_max)) == 2


def counted(t_s: float, tokens: int, ttft_s: float = 0.0, n: int = 0) -> EngineSample:
    ttft = Histogram(bounds=[1.0], counts=[n, n], sum=ttft_s)
    return EngineSample(
        source="a:8000",
        t_ns=int(t_s * S),
        output_tokens=tokens,
        histograms={"ttft_s": ttft},
    )


def test_steps_that_servers_publish_leave_shape_and_marks_to_counters(
    looked: Put, make_step: Callable[..., Step]
) -> None:
    samples = [counted(second, 10 * second) for second in range(30)]
    steps = [make_step(at_ms, memberless=True, waiting=3) for at_ms in (1_000, 20_000)]

    scan = looked([*samples, *steps])

    assert scan.shape is not None
    assert max(filter(None, scan.shape.output_tokens)) > 0
    assert scan.marks == ()


def test_the_shape_of_a_scraped_session_is_made_of_its_counters(looked: Put) -> None:
    shape = looked(
        [
            counted(10.5, 1_000),
            counted(20.5, 1_100, 3.0, 2),
            counted(30.5, 20, 0.1, 1),  # began anew
            counted(40.5, 120, 0.6, 2),
            counted(500, 900, 9.0, 3),  # nobody looked meanwhile
            counted(510, 950, 9.0, 3),
        ]
    ).shape

    assert shape is not None
    bin_ns = shape.bin_ns
    assert sum(filter(None, shape.output_tokens)) == 250
    assert shape.output_tokens[5 * S // bin_ns] is None
    assert shape.output_tokens[15 * S // bin_ns] == pytest.approx(
        10 * bin_ns / S, abs=1
    )
    assert shape.output_tokens[25 * S // bin_ns] is None
    assert shape.output_tokens[300 * S // bin_ns] is None
    known = {round(each, 6) for each in shape.ttft_mean_s if each is not None}
    assert known == {1.5, 0.5}


def test_a_record_that_cannot_be_read_is_said_and_not_waited_for(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "CHECKED_UP_TO_BYTES", 0)  # as if it were large
    scan = SessionScan(recorded, find(recorded, "last"))
    sound = recorded.read_bytes()
    schema = 76 * 4096
    noise = Random(1).randbytes(len(sound) - schema)
    recorded.write_bytes(sound[:schema] + noise)

    scan.look()

    assert scan.shape is None
    assert scan.damage is not None
    assert scan.damage.startswith("inferwatch.db: it is damaged")


def test_who_gives_up_looking_has_found_no_damage(recorded: Path) -> None:
    scan = SessionScan(recorded, find(recorded, "last"))
    scan._give_up()

    scan.look()

    assert scan.damage is None


def test_a_session_of_a_load_alone_has_the_shape_of_its_answers(looked: Put) -> None:
    answered = msgspec.structs.replace(client(2, 0.5), output_tokens=7)
    warm_up = msgspec.structs.replace(answered, phase=Phase.WARMUP)

    shape = looked([answered, warm_up]).shape

    assert shape is not None
    assert sum(filter(None, shape.output_tokens)) == 7
    assert max(filter(None, shape.ttft_max_s)) == pytest.approx(0.5)


def test_the_shape_has_a_gap_where_an_answer_was_not_counted(looked: Put) -> None:
    counted = msgspec.structs.replace(client(2, 0.5), output_tokens=7)
    uncounted = msgspec.structs.replace(counted, external_id="x", output_tokens=None)

    shape = looked([counted, uncounted]).shape

    assert shape is not None
    assert not any(shape.output_tokens)
    assert 0 not in shape.output_tokens
