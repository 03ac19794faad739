"""Sides are paired where they were sent the same; where not, it is said why."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from collectors.contract.readings import AnyReading, LoadPlanned, RequestRecord
from inferwatch.studies.compare.comparison import Comparison, ComparisonRules
from inferwatch.studies.compare.reading.span import SpanChoice
from inferwatch.studies.compare.runs.selection import ComparisonRequest, run_comparison
from tests.inferwatch.studies.compare.conftest import LOAD, TinyEngine, write

CLOSED = '{"run_id":"load-1","model":"tiny","arrivals":"closed","concurrency":4}'


def readings(seed: int, *, slots: int = 16) -> Iterator[AnyReading]:
    return TinyEngine(seed, slots=slots).run(20)


def closed(readings: Iterator[AnyReading]) -> Iterator[AnyReading]:
    """The same, said to be of a closed loop."""
    for each in readings:
        if isinstance(each, LoadPlanned):
            yield LoadPlanned(t_ns=each.t_ns, plan=CLOSED)
        else:
            yield each


def unsent(readings: Iterator[AnyReading]) -> Iterator[AnyReading]:
    """The same as a server's probe saw it, without a load generator of ours."""
    return (each for each in readings if not isinstance(each, RequestRecord))


def two_loads(readings: Iterator[AnyReading]) -> Iterator[AnyReading]:
    """The same, the second half sent by another generator."""
    for each in readings:
        if isinstance(each, RequestRecord) and each.index > 60:
            yield msgspec.structs.replace(each, source=f"{LOAD}-b")
        else:
            yield each


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``a``, ``b`` and ``c`` were sent the same; the others are named after why not."""
    path = tmp_path_factory.mktemp("matching") / "sessions.db"
    sessions: Mapping[str, Iterator[AnyReading]] = {
        "a": readings(1),
        "b": readings(1, slots=12),
        "c": readings(1, slots=14),
        "other": readings(2),
        "closed": closed(readings(1)),
        "unsent": unsent(readings(1)),
        "two": two_loads(readings(1)),
        "short": TinyEngine(1).run(10),
    }
    for name, each in sessions.items():
        write(path, name, each)
    return path


def compared(record: Path, *words: str, **more: object) -> Comparison:
    rules = ComparisonRules(draws=200)
    wanted = ComparisonRequest(database=record, sessions=words, rules=rules)
    return run_comparison(replace(wanted, **more))  # type: ignore[arg-type]


def test_sides_sent_the_same_are_paired(record: Path) -> None:
    (pair,) = compared(record, "a", "b").pairs

    assert pair.pairing is not None
    assert pair.pairing.requests > 100
    assert pair.unpaired_because is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("other", "they were not sent the same requests at the same times"),
        ("closed", "closed was loaded in a closed loop"),
        ("unsent", "no load generator told what unsent was sent"),
        ("two", "two holds 2 load runs"),
        ("short", "of one load a was sent"),
    ],
)
def test_a_side_that_is_not_paired_says_why_and_leaves_others_paired(
    record: Path, name: str, why: str
) -> None:
    with_it, paired = compared(record, "a", name, "b").pairs

    assert with_it.pairing is None
    assert with_it.unpaired_because is not None
    assert why in with_it.unpaired_because
    assert paired.pairing is not None
    assert paired.unpaired_because is None


def test_other_parts_are_not_paired(record: Path) -> None:
    choices = (SpanChoice(from_s=2), SpanChoice(from_s=3))

    (pair,) = compared(record, "a", "b", choices=choices).pairs

    assert pair.pairing is None
    assert pair.unpaired_because == "other parts of each were asked for"


def test_all_runs_of_both_sides_must_be_alike(record: Path) -> None:
    (paired,) = compared(record, "a", "b", "--", "c").pairs
    (one_differs,) = compared(record, "a", "b", "--", "other").pairs
    (first_differs,) = compared(record, "a", "other", "--", "b").pairs

    runs = (*paired.a.runs, *paired.b.runs)
    assert len({run.pairing for run in runs}) == 1
    assert runs[0].pairing is not None
    for pair in (one_differs, first_differs):
        assert {run.pairing for run in (*pair.a.runs, *pair.b.runs)} == {None}
        assert pair.unpaired_because is not None
