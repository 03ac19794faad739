"""A finding begins and ends once, live as in a replay; of several servers, together."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from heapq import merge
from itertools import pairwise

import msgspec
import pytest

from collectors.contract.readings import AnyReading, Note, NoteKind, Tick
from inferwatch.live.pipeline import Pipeline
from inferwatch.metrics.findings.diagnosis import Lasting
from inferwatch.metrics.findings.finding import Evidence, Finding, PastFinding
from inferwatch.metrics.findings.tracker import Watched
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.record.replay.marks import finding_marks
from tests.inferwatch.metrics.findings.simulated_engine import Engine, S
from tests.inferwatch.metrics.test_saved import Keeps

BUSY = Engine(max_num_seqs=4, rate_per_s=lambda t_s: 8 if 5 < t_s < 30 else 0.1)
LASTING = Lasting(least_s=10, of_s=15, gone_s=15)


def after(readings: Iterable[AnyReading]) -> Model:
    model = Model()
    for reading in readings:
        model.fold(reading)
    return model


def spans(model: Model) -> list[tuple[str, bool]]:
    return [(each.name, True) for each in model.findings] + [
        (each.name, False) for each in model.past_findings
    ]


def moved(readings: Iterable[AnyReading], by_ns: int) -> Iterator[AnyReading]:
    """The same, in a session that began earlier."""
    for each in readings:
        at = {name: getattr(each, name) for name in type(each).INSTANTS}
        later = {name: t + by_ns for name, t in at.items() if t is not None}
        yield msgspec.structs.replace(each, **later)


def without_ticks(readings: Iterable[AnyReading]) -> list[AnyReading]:
    return [each for each in readings if not isinstance(each, Tick)]


def beside(*engines: Engine, seconds: float = 30) -> Iterator[AnyReading]:
    """Several servers in one session, in the order of time, with ticks of its own."""

    def at(reading: AnyReading) -> int:
        return max(getattr(reading, name) or 0 for name in type(reading).INSTANTS)

    told = [without_ticks(each.run(seconds)) for each in engines]
    for each in told:
        each.sort(key=at)
    ticks = [Tick(t_ns=n * S) for n in range(1, round(seconds) + 1)]
    return merge(*told, ticks, key=at)


def test_what_holds_now_and_then_never_begins() -> None:
    watched = Watched()

    for second in range(60):
        watched.take(second * S, S, LASTING, holds=second % 2 == 0)
        assert not watched.lasts(LASTING)


def test_what_holds_for_most_of_the_time_begins_and_is_dated_back() -> None:
    watched = Watched()
    began = None

    for second in range(1, 30):
        watched.take(second * S, S, LASTING, holds=second % 4 != 0)
        if began is None and watched.lasts(LASTING):
            began = second
            assert watched.since_ns == 0

    assert began == 13


def test_it_does_not_flicker_and_its_span_is_told_when_it_is_over() -> None:
    seen, model = [], Model()
    for reading in replace(BUSY).run(200):
        model.fold(reading)
        if isinstance(reading, Tick):
            seen.append(bool(model.findings))

    changes = sum(one != other for one, other in pairwise(seen))
    assert changes == 2  # it began once, and ended once
    (past,) = model.past_findings
    assert past.name == "batch_too_small"
    assert 5 * S < past.since_ns < 12 * S


def test_it_is_the_same_whenever_the_session_began() -> None:
    one = after(replace(BUSY).run(40))
    other = after(moved(replace(BUSY).run(40), 1_000_000 * S))

    def undated(found: tuple[Finding, ...], by_ns: int) -> list[Finding]:
        return [
            replace(
                each,
                since_ns=each.since_ns - by_ns,
                evidence=tuple(
                    replace(e, t_ns=e.t_ns - by_ns if e.t_ns is not None else None)
                    for e in each.evidence
                ),
            )
            for each in found
        ]

    assert one.findings
    assert undated(other.findings, 1_000_000 * S) == list(one.findings)


@pytest.mark.parametrize(
    "at_s", [20, *(pytest.param(at_s, marks=pytest.mark.soak) for at_s in (8, 33, 48))]
)
def test_from_a_checkpoint_it_goes_on_as_it_would_have(at_s: int) -> None:
    readings = list(replace(BUSY).run(60))
    whole, halfway, keeps = Model(), Model(), Keeps()
    for reading in readings:
        whole.fold(reading)
    cut = next(
        i
        for i, each in enumerate(readings)
        if isinstance(each, Tick) and each.t_ns >= at_s * S
    )
    for reading in readings[:cut]:
        halfway.fold(reading)
    saved = halfway.saved()
    keeps.keep(saved)
    restored = keeps.restored(saved)

    for reading in readings[cut:]:
        restored.fold(reading)
        restored.snapshot(reading.t_ns, SnapshotQuery(Window.MINUTE)) if isinstance(
            reading, Tick
        ) else None

    assert whole.findings or whole.past_findings
    assert restored.findings == whole.findings
    assert restored.past_findings == whole.past_findings


def test_equal_findings_of_several_servers_are_one() -> None:
    small = {"max_num_seqs": 2, "rate_per_s": 5.0}
    model = after(
        beside(
            Engine(source="a", seed=1, **small),  # type: ignore[arg-type]
            Engine(source="b", seed=2, **small),  # type: ignore[arg-type]
            Engine(source="c", seed=3, rate_per_s=4.0),
        )
    )

    found = {each.name: each for each in model.findings}["batch_too_small"]

    assert found.sources == ("a", "b")
    assert found.sentence.startswith("2 of 3 servers let requests wait")
    alone = model.snapshot(30 * S, SnapshotQuery(Window.MINUTE, source="b")).findings
    assert [each.name for each in alone] == ["batch_too_small"]
    assert alone[0].sources == ()
    assert (
        model.snapshot(30 * S, SnapshotQuery(Window.MINUTE, source="c")).findings == ()
    )


def test_of_one_server_among_others_its_name_is_told() -> None:
    model = after(
        beside(Engine(source="a", gap_s=0.03, rate_per_s=6), Engine(source="b"))
    )

    found = model.findings[0]

    assert (found.name, found.sources) == ("host_bound", ("a",))
    assert found.sentence.startswith("a: ")


def test_waiting_at_one_server_while_another_has_room_is_imbalance() -> None:
    full = Engine(source="a", max_num_seqs=8, rate_per_s=12.0)
    model = after(beside(full, Engine(source="b", rate_per_s=0.2)))

    assert "imbalance" in {each.name for each in model.findings}
    even = Engine(source="a", rate_per_s=2.0), Engine(source="b", rate_per_s=2.0)
    assert after(beside(*even)).findings == ()


def test_a_live_session_notes_what_begins_and_ends_once() -> None:
    pipeline = Pipeline(model := Model())
    for reading in replace(BUSY).run(80):
        if isinstance(reading, Tick):
            pipeline.tick(reading.t_ns)
        else:
            pipeline.take([reading])

    told = [each.text for each in model.notes if each.kind is NoteKind.FINDING]
    assert [text.split(":")[0] for text in told] == ["batch too small"] * 2
    assert told[1] == "batch too small: no longer"
    (past,) = model.past_findings
    note = next(each for each in model.notes if each.kind is NoteKind.FINDING)
    assert note.t_ns == past.since_ns  # its mark is where it began to hold


def test_what_comes_and_goes_is_one_finding_and_one_mark() -> None:
    flapping = replace(BUSY, rate_per_s=lambda t_s: 8 if t_s % 55 < 16 else 0.1)
    pipeline, seen = Pipeline(model := Model()), []
    for reading in flapping.run(290):
        if isinstance(reading, Tick):
            pipeline.tick(reading.t_ns)
            seen.append("batch_too_small" in {each.name for each in model.findings})
        else:
            pipeline.take([reading])

    assert sum(one < other for one, other in pairwise(seen)) >= 3  # it began so often
    told = [each for each in model.notes if each.kind is NoteKind.FINDING]
    texts = [each.text for each in told]
    assert {text.split(":")[0] for text in texts} == {"batch too small"}
    ends = [text.endswith(": no longer") for text in texts]
    assert ends == [False, True] * (len(texts) // 2)
    assert len(ends) >= 6
    begins, end = finding_marks((each.t_ns, each.text) for each in told)
    assert " times in " in begins.text
    assert end.t_ns == told[-1].t_ns
    (past,) = [e for e in model.past_findings if e.name == "batch_too_small"]
    assert past.since_ns < 20 * S
    assert past.until_ns > 200 * S


class Finds(Model):
    """A Model with findings of its own."""

    found: tuple[Finding, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.found


def finding(name: str, title: str) -> Finding:
    return Finding(
        name=name,
        title=title,
        sentence="so",
        since_ns=5 * S,
        cost=0.5,
        cost_text="much",
        evidence=(Evidence(text="seen"),),
    )


def test_no_end_is_noted_while_another_finding_tells_the_same() -> None:
    slow = finding("slow_by_max_num_seqs", "queued for max_num_seqs")
    batch = finding("batch_too_small", "batch too small")
    pipeline = Pipeline(model := Finds())

    for second, found in enumerate(((), (slow,), (batch,), (batch,), ()), 10):
        model.found = found
        pipeline.tick(second * S)

    assert [each.text for each in model.notes] == [
        "queued for max_num_seqs: so",
        "batch too small: so",
        "batch too small: no longer",
    ]


def test_an_end_without_another_finding_is_noted() -> None:
    pipeline = Pipeline(model := Finds())
    slow = finding("slow_by_max_num_seqs", "queued for max_num_seqs")

    for second, found in enumerate(((slow,), (), (slow,), (slow,), ()), 10):
        model.found = found
        pipeline.tick(second * S)

    told = [each.text.partition(": ")[2] for each in model.notes]
    assert told == ["so", "no longer"] * 2


def test_a_replay_folds_the_notes_and_makes_none() -> None:
    record: list[AnyReading] = []
    pipeline = Pipeline(live := Model(), listener=record.append)
    for reading in replace(BUSY).run(60):
        if isinstance(reading, Tick):
            pipeline.tick(reading.t_ns)
        else:
            pipeline.take([reading])

    replayed = after(record)

    assert replayed.findings == live.findings
    assert replayed.past_findings == live.past_findings
    assert replayed.notes == live.notes
    assert sum(isinstance(each, Note) for each in record) == len(live.notes)


def test_a_past_finding_is_a_plain_fact() -> None:
    past = PastFinding(
        name="x", title="x", sentence="x", since_ns=1, until_ns=2, cost=0.1
    )
    kept = msgspec.msgpack.decode(msgspec.msgpack.encode(past), type=PastFinding)
    assert kept == past
