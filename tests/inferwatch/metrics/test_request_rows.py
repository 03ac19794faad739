"""A row never contradicts itself, however far apart its two streams are."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import strategies as some

from collectors.contract.readings import EventKind, Note, NoteKind, Vantage
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.requests.request_row import RequestRow, RequestState
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from tests.inferwatch.metrics.drawn import drawn

See = Callable[..., Snapshot]
Make = Callable[..., Any]
Streams = tuple[list[Any], list[Any]]
ENGINE = "engine-1"
MS = 1_000_000
QUEUED = {RequestState.ARRIVED, RequestState.QUEUED}
TOKENLESS = {*QUEUED, RequestState.PREFILL}


def contradictions(row: RequestRow) -> list[str]:
    """What a row says that cannot be true together."""
    state, tokens, again = row.state, row.output_tokens or 0, row.preemptions > 0
    finished = state is RequestState.FINISHED
    measured = {row.ttft_s, row.tpot_s, row.decode_s, row.prefill_s, row.itl_last_s}
    complete = {row.ttft_s, row.e2el_s, row.queue_s, row.prefill_s, row.decode_s}
    claims = {
        "it has tokens before its first one": (
            state in TOKENLESS and not again and (tokens or measured != {None})
        ),
        "it is queued, and has left the queue": (
            state in QUEUED and row.queue_s is not None
        ),
        "it was scheduled, and nobody knows how long it queued": (
            state not in {*QUEUED, RequestState.ABORTED} and row.queue_s is None
        ),
        "it decodes, and has no token": state is RequestState.DECODE and not tokens,
        "it is preempted, and never was": (
            state is RequestState.PREEMPTED and not again
        ),
        "it lives, and has ended": (
            state.live and (row.e2el_s, row.reason) != (None, None)
        ),
        "it ended for no reason": not state.live and row.reason is None,
        "it finished, and not all is known of it": (
            finished and (None in complete or (row.tpot_s is None) == (tokens > 1))
        ),
        "it ended before its first token": (
            finished and (row.e2el_s or 0) < (row.ttft_s or 0)
        ),
        "its first token came, and it has none": row.ttft_s is not None and not tokens,
        "it has a time between tokens, and not two of them": (
            row.tpot_s is not None and tokens < 2
        ),
    }
    return [claim for claim, made in claims.items() if made]


@some.composite
def lives(draw: Any, make_life: Make, make_event: Make, make_step: Make) -> Streams:
    """The streams of front end and engine of a few requests, each in its order."""
    front, engine = [], []
    for ordinal in range(1, draw(some.integers(2, 4))):
        tokens = draw(some.integers(1, 4))
        own_front, own_engine = make_life(50 * ordinal, ordinal, tokens)
        name, end_ms = f"r{ordinal}", 50 * ordinal + 10 * tokens
        match draw(some.sampled_from(["stop", "stop string", "gone", "preempted"])):
            case "stop string":  # the front end ends it, and the engine goes on
                more = make_step(end_ms + 10, {ordinal: 1})
                abort = make_event(
                    end_ms + 11,
                    EventKind.FINISHED,
                    name,
                    ordinal=ordinal,
                    reason="abort",
                    output_tokens=tokens + 1,
                )
                own_engine = [*own_engine[:-1], more, abort]
            case "gone":  # its client, wherever the engine is
                abort = make_event(
                    end_ms,
                    EventKind.FINISHED,
                    name,
                    vantage=Vantage.FRONTEND,
                    reason="abort",
                    output_tokens=draw(some.integers(0, tokens)),
                )
                own_front = [*own_front[: draw(some.integers(1, 2))], abort]
            case "preempted":
                put_back = make_step(end_ms + 5, preempted=[ordinal], waiting=1)
                last = make_step(end_ms + 15, {ordinal: 1})
                done = make_event(
                    end_ms + 15,
                    EventKind.FINISHED,
                    name,
                    ordinal=ordinal,
                    reason="stop",
                    preemptions=1,
                    output_tokens=tokens + 1,
                )
                own_engine = [*own_engine[:-1], put_back, last, done]
        front += own_front
        engine += own_engine
    return front, engine


@drawn(25, 150, data=some.data())
def test_no_row_contradicts_itself_whichever_stream_is_behind(
    make_life: Make, make_event: Make, make_step: Make, data: Any
) -> None:
    front, engine = data.draw(lives(make_life, make_event, make_step))
    model, ended = Model(), dict[str, RequestState]()
    known_front, known_engine = make_life(0, ordinal=0)
    for reading in (*known_front, *known_engine):  # both are known to tell
        model.fold(reading)
    while front or engine:
        stream = data.draw(
            some.sampled_from([each for each in (front, engine) if each])
        )
        model.fold(stream.pop(0))
        for row in model.snapshot(500 * MS, SnapshotQuery(Window.MINUTE)).requests:
            assert not contradictions(row), row
            assert ended.get(row.key, row.state) is row.state, "it came back to life"
            if not row.state.live:
                ended[row.key] = row.state

    assert not model._requests.live
    assert len(ended) == len(
        model.snapshot(500 * MS, SnapshotQuery(Window.MINUTE)).requests
    )


@pytest.mark.parametrize("alone", [0, 1], ids=["front end", "engine"])
def test_where_one_alone_tells_nothing_is_waited_for(
    see: See, make_life: Make, alone: int
) -> None:
    stream = make_life(100, ordinal=0)[alone]

    states = [see(stream[:heard]).requests[0].state for heard in range(1, 4)]
    (row,) = see(stream).requests

    assert all(b == a or a.live for a, b in pairwise(states))
    assert row.state is RequestState.FINISHED
    assert row.output_tokens == 3


def test_tokens_that_nobody_counts_are_unknown(see: See, make_life: Make) -> None:
    front, _ = make_life(100, ordinal=0)

    (row,) = see(front[:2]).requests

    assert (row.state, row.output_tokens) == (RequestState.DECODE, None)


@pytest.mark.parametrize("behind", [0, 1], ids=["front end", "engine"])
@pytest.mark.parametrize("kind", [NoteKind.DROPPED, NoteKind.LOST])
def test_after_a_loss_nobody_waits_for_a_word_that_may_be_lost(
    see: See, make_life: Make, behind: int, kind: NoteKind
) -> None:
    first, second = make_life(0, ordinal=0), make_life(100, ordinal=1)
    note = Note(source=ENGINE, t_ns=300 * MS, kind=kind, text="gone")
    readings = [*first[0], *first[1], *second[1 - behind], second[behind][0]]

    waits, told = see(readings), see([*readings, note])

    assert waits.requests[0].state.live
    assert told.requests[0].state is RequestState.FINISHED
