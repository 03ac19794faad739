"""Kinds of requests as they are read: lengths, classes and turns, of both vantages."""

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from collectors.contract.readings import (
    AnyReading,
    EventKind,
    RequestEvent,
    RequestRecord,
    Vantage,
)
from inferwatch.record.connections import open_for_reading
from inferwatch.record.sessions.sessions import find
from inferwatch.studies.compare.reading.request_kinds import (
    Cut,
    KindCounts,
    most_tokens,
    prompt_label,
)
from inferwatch.studies.compare.reading.session_reader import SessionQuery, read_session
from inferwatch.studies.compare.reading.span import SpanChoice
from tests.inferwatch.studies.compare.conftest import (
    MS,
    ORIGIN_NS,
    SECOND,
    TinyEngine,
    write,
)

LENGTHS = (60, 200, 700, 3000)
CLASSES = (None, "batch", "chat")
LATE_NS = 400 * MS


def mixed(
    seed: int, *, late_over: int = 1 << 30, late_from_s: float = 90
) -> Iterator[AnyReading]:
    """Four lengths, three classes, turns; clients wait longer for some."""
    late_from_ns = ORIGIN_NS + round(late_from_s * SECOND)
    for reading in TinyEngine(seed).run(90):
        if isinstance(reading, RequestEvent) and _is_lost(reading):
            continue
        if isinstance(reading, RequestEvent) and reading.kind is EventKind.ARRIVED:
            number = int(reading.request_id[1:])
            yield msgspec.structs.replace(
                reading,
                prompt_tokens=_tokens(number),
                # As vLLM calls the first prompt of a completion.
                external_id=f"{reading.external_id}-0",
            )
        elif isinstance(reading, RequestRecord):
            is_late = _tokens(reading.index) > late_over
            is_late |= reading.intended_ns >= late_from_ns
            late_ns = LATE_NS if is_late else 0
            assert reading.first_token_ns is not None
            yield msgspec.structs.replace(
                reading,
                prompt_tokens=_tokens(reading.index),
                class_name=CLASSES[reading.index % 3],
                turn=1 + reading.index % 5 or None,
                first_token_ns=reading.first_token_ns + late_ns,
            )
        else:
            yield reading


def _is_lost(event: RequestEvent) -> bool:
    """That the engine ended it was never heard, so later ones stand at other rows."""
    ended = event.kind is EventKind.FINISHED and event.vantage is Vantage.ENGINE
    return ended and event.request_id in {"r3", "r50"}


def _tokens(number: int) -> int:
    return LENGTHS[number % 4]


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kinds") / "kinds.db"
    write(path, "as-it-was", mixed(1))
    write(path, "late", mixed(1, late_over=1024))
    write(path, "later", mixed(1, late_from_s=60))
    return path


def read_kinds(path: Path) -> dict[str, KindCounts]:
    ask = SessionQuery(choice=SpanChoice(warmup_s=0.0))
    with closing(open_for_reading(path)) as connection:
        return dict(read_session(connection, find(path, "as-it-was"), ask).kinds)


def test_prompts_are_told_apart_by_powers_of_two() -> None:
    labels = prompt_label(np.array([0, 1, 2, 3, 4, 5, 1024, 1025]))

    assert labels.tolist() == [0, 1, 2, 3, 3, 4, 11, 12]
    assert most_tokens(11) == 1024


@pytest.mark.parametrize(
    ("latency", "wanted"),
    [
        ("ttft_s", "r.first_token_ns IS NOT NULL"),
        ("queue_s", "r.scheduled_ns IS NOT NULL"),
        ("e2el_s", "r.finished_ns IS NOT NULL"),
        ("tpot_s", "r.engine_finished_ns IS NOT NULL"),
        ("client.ttft_s", "c.first_token_ns IS NOT NULL"),
        ("client.e2el_s", "c.last_token_ns IS NOT NULL"),
    ],
)
def test_every_value_is_of_its_request(kinds: Path, latency: str, wanted: str) -> None:
    found = read_kinds(kinds)[latency]

    with closing(sqlite3.connect(kinds)) as connection:
        rows = connection.execute(
            "SELECT r.prompt_tokens, coalesce(c.class_name, ''), "  # noqa: S608  our own
            "coalesce(c.turn, 0) FROM requests r "
            "LEFT JOIN client_requests c ON c.session = r.session AND "
            "r.external_id = 'cmpl-' || c.external_id || '-0' "
            f"WHERE r.session = 1 AND {wanted}"
        ).fetchall()
    expected = Counter(
        (int(prompt_label(np.array([tokens]))[0]), name, turn)
        for tokens, name, turn in rows
    )
    assert len(rows) > 400
    assert _by_kind(found) == expected


def _by_kind(found: KindCounts) -> Counter[tuple[int, str, int]]:
    labels = (found.labels[cut].tolist() for cut in (Cut.PROMPT, Cut.CLASS, Cut.TURN))
    counted: Counter[tuple[int, str, int]] = Counter()
    for prompt, name, turn, count in zip(*labels, found.counts.tolist(), strict=True):
        counted[prompt, found.classes[name], turn] += count
    return counted


def test_pieces_and_sizes_are_those_of_the_latency(kinds: Path) -> None:
    ask = SessionQuery(choice=SpanChoice(warmup_s=0.0))
    with closing(open_for_reading(kinds)) as connection:
        numbers = read_session(connection, find(kinds, "as-it-was"), ask)

    for name, found in numbers.kinds.items():
        by_piece = np.bincount(found.pieces, found.counts, minlength=60)
        assert by_piece.tolist() == numbers.counted[name].counts.sum(axis=1).tolist()


def test_the_command_names_whose_requests_were_late(
    kinds: Path, run_command: Callable[..., Any]
) -> None:
    status, output, _ = run_command(
        "as-it-was", "late", "--db", kinds, "--warmup", "none", "--json"
    )

    (pair,) = json.loads(output)["pairs"]
    places = {each["metric"]: each for each in pair["places"]}
    mean = places["client.ttft_mean_s"]
    assert status == 0
    assert pair["metrics"]["client.ttft_mean_s"]["verdict"] == "worse"
    assert mean["cut"] == "prompt tokens"
    assert mean["part"] == "over 1k"
    assert mean["all_of_it"]
    assert mean["b"] - mean["a"] == pytest.approx(0.4, rel=0.02)
    assert mean["sentence"].startswith("all of it in prompts over 1k (")
    assert "ttft_mean_s" not in places


def test_a_change_on_the_way_is_told_where_the_whole_cannot(
    kinds: Path, run_command: Callable[..., Any]
) -> None:
    arguments = ("as-it-was", "later", "--db", kinds, "--warmup", "none")

    _, text, _ = run_command(*arguments)
    _, output, _ = run_command(*arguments, "--json")

    (pair,) = json.loads(output)["pairs"]
    mean = next(e for e in pair["places"] if e["metric"] == "client.ttft_mean_s")
    assert pair["metrics"]["client.ttft_mean_s"]["verdict"] == "cannot tell"
    assert mean["part"] == "from 01:00"
    assert mean["b"] - mean["a"] == pytest.approx(0.4, rel=0.05)
    assert "\n  client TTFT p50: all of it from 01:00 (×" in text
