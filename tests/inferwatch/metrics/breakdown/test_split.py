"""The E2EL of a request is split to the nanosecond, each part as it was planted."""

from collections.abc import Iterable

import pytest

from collectors.contract.readings import AnyReading, EventKind, Note, NoteKind
from inferwatch.metrics.breakdown.split import e2el_spent, span_of
from inferwatch.metrics.causes.cause import E2EL_CAUSES, Cause
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.requests.request import Request
from tests.inferwatch.metrics.causes.scripted_engine import MS, Script

Spent = dict[Cause, int]


def folded(readings: Iterable[AnyReading], number: int) -> Request:
    model = Model()
    for reading in readings:
        model.fold(reading)
    every = model._requests.every()
    return next(each for each in every if each.request_id == f"r0-{number}")


def spent(readings: Iterable[AnyReading], number: int) -> Spent:
    request = folded(readings, number)
    span = span_of(request)
    assert span is not None
    parts = e2el_spent(request, *span)
    assert sum(parts) == span[1] - span[0]
    pairs = zip(E2EL_CAUSES, parts, strict=True)
    return {cause: ns for cause, ns in pairs if ns}


def decoding(number: int = 9, **more: int) -> Script:
    """One comes to two that decode; its first token is there."""
    script = Script().running(1, 2)
    script.arrive(number, script.now_ns - 1_000, **more)
    script.step({1: 1, 2: 1, number: 30}, 20, first=(number,))
    script.sent(number)
    return script


def test_all_of_a_quiet_request_is_prefill_decode_and_sending() -> None:
    script = decoding()
    script.decode(1, 2, 9, steps=10)
    script.finish(9)

    parts = spent(script, 9)

    assert parts.pop(Cause.DECODE) == 50 * MS
    assert parts.pop(Cause.SEND) == 100_000
    assert parts.pop(Cause.PREFILL) + parts.pop(Cause.PREFILL_SHARED) == 20 * MS
    assert parts == {Cause.API: 1_000}


def test_prompts_of_others_are_told_apart_from_decode() -> None:
    script = decoding()
    script.decode(1, 2, 9, steps=20)
    script.arrive(10, script.now_ns - 1_000)
    script.step({1: 1, 2: 1, 9: 1, 10: 500}, 65, first=(10,))
    script.decode(1, 2, 9, 10, steps=3)
    script.finish(9)

    parts = spent(script, 9)

    assert parts[Cause.DECODE_PROMPTS] == 60 * MS
    assert parts[Cause.DECODE] == 24 * 5 * MS


def test_a_host_that_was_late_is_a_stall() -> None:
    script = decoding()
    script.decode(1, 2, 9, steps=3)
    script.now_ns += 70 * MS
    script.decode(1, 2, 9, steps=3)
    script.finish(9)

    assert spent(script, 9)[Cause.HOST_STALL] == 70 * MS


def test_steps_without_it_are_left_out() -> None:
    script = decoding()
    script.decode(1, 2, 9, steps=3)
    script.decode(1, 2, steps=4)
    script.decode(1, 2, 9, steps=3)
    script.finish(9)

    parts = spent(script, 9)

    assert parts[Cause.DECODE_LEFT_OUT] == 20 * MS
    assert parts[Cause.DECODE] == 30 * MS


def test_from_the_last_token_before_a_preemption_to_the_next_it_is_preempted() -> None:
    script = decoding()
    script.decode(1, 2, 9, steps=3)
    script.step({1: 1, 2: 1}, preempted=(9,), waiting=1)
    script.decode(1, 2, steps=4)
    script.step({1: 1, 2: 1, 9: 33}, 20, recomputed_tokens=33)
    script.decode(1, 2, 9, steps=3)
    script.finish(9)

    parts = spent(script, 9)

    assert parts[Cause.RECOMPUTE] == (5 + 20 + 20) * MS
    assert parts[Cause.DECODE] == 30 * MS
    assert Cause.UNKNOWN not in parts


def test_who_is_aborted_while_preempted_was_preempted_to_the_end() -> None:
    script = decoding()
    script.step({1: 1, 2: 1}, preempted=(9,), waiting=1)
    script.decode(1, 2, steps=4)
    script.finish(9, "abort")

    assert spent(script, 9)[Cause.RECOMPUTE] == 25 * MS + 100_000


def test_who_never_had_a_token_queued_to_the_end() -> None:
    script = Script().running(1, 2)
    script.arrive(9, script.now_ns - 1_000)
    script.decode(1, 2, steps=4)
    script.finish(9, "abort")

    parts = spent(script, 9)

    assert parts.pop(Cause.API) == 1_000
    assert parts.pop(Cause.UNKNOWN) == 20 * MS + 100_000  # nothing bound these steps
    assert parts == {}


def test_tokens_after_a_stop_string_are_cut_off() -> None:
    script = decoding()
    script.decode(1, 2, 9, steps=10)
    stopped_ns = script.now_ns - 2 * MS  # the front end saw the stop a step before
    script.event(EventKind.FINISHED, 9, stopped_ns, front=True, reason="stop")
    script.event(EventKind.FINISHED, 9, script.now_ns, front=False, reason="abort")

    parts = spent(script, 9)

    assert parts[Cause.DECODE] == 48 * MS
    assert Cause.SEND not in parts


def test_tokenising_is_told_apart_from_handing_over() -> None:
    script = Script().running(1, 2)
    arrived_ns = script.now_ns
    script.arrive(9, arrived_ns, api_ns=9 * MS, tokenised_ns=arrived_ns + 6 * MS)
    script.now_ns += 9 * MS
    script.step({1: 1, 2: 1, 9: 30}, 20, first=(9,))
    script.sent(9)
    script.finish(9)

    parts = spent(script, 9)

    assert parts[Cause.TOKENISE] == 6 * MS
    assert parts[Cause.API] == 3 * MS


def test_steps_that_were_not_seen_are_unknown() -> None:
    script = decoding()
    script.decode(1, 2, 9, steps=3)
    seen = len(script.told)
    script.decode(1, 2, 9, steps=4)
    del script.told[seen:]
    script.told.append(
        Note(t_ns=script.now_ns, kind=NoteKind.DROPPED, text="lost", count=4)
    )
    script.decode(1, 2, 9, steps=3)
    script.finish(9)

    parts = spent(script, 9)

    assert parts[Cause.UNKNOWN] == pytest.approx(20 * MS, abs=5 * MS)
    assert parts[Cause.DECODE] <= 35 * MS


def test_blocks_are_held_by_tokens_and_time() -> None:
    script = decoding()
    script.decode(1, 2, 9, steps=3)
    script.finish(9)

    request = folded(script, 9)

    prefill = 30 * 20 * MS
    assert request.kv_token_ns == prefill + (31 + 32 + 33) * 5 * MS


def test_who_is_preempted_holds_nothing() -> None:
    script = decoding()
    script.step({1: 1, 2: 1}, preempted=(9,), waiting=1)
    script.decode(1, 2, steps=40)
    script.step({1: 1, 2: 1, 9: 31}, 20, recomputed_tokens=31)
    script.finish(9)

    request = folded(script, 9)

    assert request.kv_token_ns == 30 * 20 * MS + 31 * 20 * MS


def test_what_the_prefix_cache_gives_back_is_held_again() -> None:
    """Of 31 tokens 16 are there still, and two steps compute the others."""
    script = Script().running(1, 2)
    script.arrive(9, script.now_ns - 1_000, prompt_tokens=30)
    script.step({1: 1, 2: 1, 9: 30}, 20, first=(9,))
    script.sent(9)
    script.step({1: 1, 2: 1}, preempted=(9,), waiting=1)
    script.decode(1, 2, steps=40)
    script.step({1: 1, 2: 1, 9: 5}, 20, produced={9: 0}, recomputed_tokens=5)
    script.step({1: 1, 2: 1, 9: 10}, 20, recomputed_tokens=10)
    script.decode(1, 2, 9, steps=2)
    script.finish(9)

    request = folded(script, 9)

    resumed = (16 + 5) * 20 * MS + 31 * 20 * MS
    assert request.kv_token_ns == 30 * 20 * MS + resumed + (32 + 33) * 5 * MS
