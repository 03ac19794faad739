"""The time up to a first token is told to the nanosecond, part by part."""

from typing import Any

import pytest

from collectors.contract.readings import BoundBy, Deferral, Step
from inferwatch.metrics.causes.cause import TTFT_CAUSES, Cause
from inferwatch.metrics.causes.first_token import Wait, parts_of, ttft_spent
from inferwatch.metrics.causes.queue import QueueAccount, largest

Spent = dict[Cause, int]


def step(index: int, start: int, end: int, **fields: Any) -> Step:
    """One that took all of its time, with 10 tokens of others unless said."""
    known = {"duration_ns": end - start, "decode_tokens": 10}
    return Step(index=index, start_ns=start, end_ns=end, **{**known, **fields})


def spent(wait: Wait) -> Spent:
    assert sum(wait.spent_ns) == wait.upto_ns - wait.added_ns
    pairs = zip(TTFT_CAUSES, wait.spent_ns, strict=True)
    return {cause: ns for cause, ns in pairs if ns}


def queued(added_ns: int, *steps: Step, account: QueueAccount | None = None) -> Wait:
    """A request that all of these pass over but the last."""
    wait, account = Wait.since(added_ns), account or QueueAccount()
    for each in steps:
        account.take(each)
        if each is steps[-1]:
            wait.taken(account, cached_tokens=0)
        elif each.start_ns >= added_ns and wait.account is None:
            wait.passed_over(account)
    return wait


def test_who_is_taken_at_once_waited_for_the_running_step() -> None:
    wait = queued(30, step(0, 0, 100), step(1, 100, 200))

    assert spent(wait) == {Cause.QUEUE_STEP: 70}


@pytest.mark.parametrize(
    ("bound", "cause"),
    [
        (BoundBy.SEQS, Cause.QUEUE_SEQS),
        (BoundBy.KV, Cause.QUEUE_KV),
        (BoundBy.TOKENS, Cause.QUEUE_TOKENS),
        (BoundBy.DEFERRED, Cause.QUEUE_DEFERRED),
        (BoundBy.OTHER, Cause.QUEUE_OTHER),
        (BoundBy.NOTHING, Cause.UNKNOWN),
    ],
)
def test_who_is_passed_over_waits_for_what_bound_the_step(
    bound: BoundBy, cause: Cause
) -> None:
    wait = queued(
        30,
        step(0, 0, 100, bound_by=BoundBy.TOKENS),
        step(1, 100, 200, bound_by=bound),
        step(2, 210, 300, bound_by=BoundBy.KV),
        step(3, 300, 400, bound_by=BoundBy.OTHER),
    )

    expected = {Cause.QUEUE_STEP: 70}
    for each, ns in ((cause, 110), (Cause.QUEUE_KV, 90)):
        expected[each] = expected.get(each, 0) + ns
    assert spent(wait) == expected


def test_while_nothing_else_is_to_do_it_waits_for_why_it_is_deferred() -> None:
    wait = queued(
        30, step(0, 0, 100), step(1, 500, 600, deferred_before=Deferral.GRAMMAR)
    )

    assert spent(wait) == {Cause.QUEUE_STEP: 70, Cause.QUEUE_GRAMMAR: 400}


def test_after_a_step_passed_it_over_idle_time_has_a_reason_of_its_own() -> None:
    wait = queued(
        30,
        step(0, 0, 100),
        step(1, 100, 200, bound_by=BoundBy.SEQS),
        step(2, 900, 950, deferred_before=Deferral.ADAPTER),
    )

    assert spent(wait) == {
        Cause.QUEUE_STEP: 70,
        Cause.QUEUE_SEQS: 100,
        Cause.QUEUE_ADAPTER: 700,
    }


def test_where_steps_are_missing_nobody_knows_why_it_waited() -> None:
    wait = queued(
        30,
        step(0, 0, 100),
        step(1, 100, 200, bound_by=BoundBy.KV),
        step(4, 400, 500, bound_by=BoundBy.SEQS),
        step(5, 500, 600),
    )

    unknown = {Cause.UNKNOWN: 300, Cause.QUEUE_SEQS: 100, Cause.QUEUE_STEP: 70}
    assert spent(wait) == unknown


def test_who_waited_before_we_looked_did_so_for_unknown_reasons() -> None:
    assert spent(queued(30, step(7, 5_000, 5_100))) == {Cause.UNKNOWN: 4_970}
    assert spent(queued(30, step(0, 5_000, 5_100))) == {Cause.QUEUE_STEP: 4_970}


def test_after_a_loss_the_next_step_explains_nothing_before_it() -> None:
    account = QueueAccount()
    account.take(step(0, 0, 100))
    account.forget()

    assert spent(queued(30, step(1, 100, 200), account=account)) == {Cause.UNKNOWN: 70}


def test_a_prompt_has_its_share_of_each_step_and_waits_between() -> None:
    wait = queued(0, step(0, 0, 100))
    wait.chunk(step(0, 0, 100, prefill_tokens=30), 30)
    wait.chunk(step(1, 104, 200, prefill_tokens=90), 90)
    wait.chunk(step(3, 300, 400, prefill_tokens=10, decode_tokens=0), 10)

    assert spent(wait) == {
        Cause.PREFILL: 75 + 90 + 100,
        Cause.PREFILL_SHARED: 25 + 10,
        Cause.PREFILL_DELAYED: 100,
    }


def test_the_step_before_its_first_is_not_its_own() -> None:
    wait = queued(50, step(0, 0, 100), step(1, 50, 200))
    wait.chunk(step(1, 50, 200, duration_ns=100, prefill_tokens=40), 40)

    assert spent(wait) == {Cause.PREFILL: 80, Cause.PREFILL_SHARED: 70}


def test_a_preempted_prompt_is_computed_again() -> None:
    wait = queued(0, step(0, 0, 100))
    wait.chunk(step(0, 0, 100, prefill_tokens=10, decode_tokens=0), 10)
    wait.preempted(step(2, 200, 300))
    wait.chunk(
        step(4, 400, 500, prefill_tokens=20, decode_tokens=20, recomputed_tokens=10),
        20,
    )
    wait.chunk(step(5, 500, 600, prefill_tokens=5, decode_tokens=5), 5)

    assert spent(wait) == {
        Cause.PREFILL: 100 + 25 + 50,
        Cause.PREFILL_DELAYED: 100,
        Cause.RECOMPUTE: 200 + 50,
        Cause.PREFILL_SHARED: 25 + 50,
    }


def test_what_the_cache_still_has_is_not_computed_again() -> None:
    wait = queued(0, step(0, 0, 100))
    wait.chunk(step(0, 0, 100, prefill_tokens=10, decode_tokens=0), 10)
    wait.preempted(step(1, 100, 200))
    wait.chunk(step(2, 200, 300, prefill_tokens=10, decode_tokens=0), 10)

    assert spent(wait) == {Cause.PREFILL: 200, Cause.RECOMPUTE: 100}


def test_a_wait_is_told_while_it_lasts() -> None:
    wait, account = Wait.since(30), QueueAccount()
    account.take(step(0, 0, 100))
    account.take(step(1, 100, 200, bound_by=BoundBy.KV))
    wait.passed_over(account)

    assert largest(wait.so_far(account.up_to_now())) is Cause.QUEUE_KV
    assert largest(wait.spent_ns) is Cause.QUEUE_STEP
    assert largest([0] * len(TTFT_CAUSES)) is None


def test_a_ttft_is_that_of_front_end_and_engine_together() -> None:
    wait = queued(30, step(0, 0, 100), step(1, 100, 200))
    wait.chunk(step(1, 100, 200, prefill_tokens=10, decode_tokens=0), 10)

    told = parts_of(ttft_spent(wait, arrived_ns=10, ttft_ns=205, first_ns=200))
    lost = parts_of(ttft_spent(wait, arrived_ns=10, ttft_ns=205, first_ns=None))

    assert told == (
        (Cause.API, 20e-9),
        (Cause.QUEUE_STEP, 70e-9),
        (Cause.PREFILL, 100e-9),
        (Cause.SEND, 15e-9),
    )
    assert lost == (*told[:3], (Cause.UNKNOWN, 15e-9))


@pytest.mark.parametrize(
    ("tokenised_ns", "held_ns"), [(None, 0), (15, 75), (60, 40), (105, 0)]
)
def test_a_step_that_keeps_the_engine_from_taking_it_is_no_time_of_the_api(
    tokenised_ns: int | None, held_ns: int
) -> None:
    wait = queued(110, step(0, 0, 15), step(1, 25, 100), step(2, 120, 200))
    wait.chunk(step(2, 120, 200, prefill_tokens=10, decode_tokens=0), 10)

    told = dict(parts_of(ttft_spent(wait, 10, 200, 200, tokenised_ns)))

    assert told[Cause.API] == pytest.approx((100 - held_ns) * 1e-9)
    assert told[Cause.QUEUE_STEP] == pytest.approx((10 + held_ns) * 1e-9)
    assert sum(told.values()) == pytest.approx(200e-9)


def test_what_contradicts_the_front_end_explains_nothing() -> None:
    wait = queued(30, step(0, 0, 100), step(1, 100, 200))
    unknown = ((Cause.UNKNOWN, 100e-9),)

    assert parts_of(ttft_spent(wait, 40, 100, None)) == unknown
    assert parts_of(ttft_spent(wait, 10, 100, 200)) == unknown
    assert parts_of(ttft_spent(None, 10, 100, None)) == unknown
