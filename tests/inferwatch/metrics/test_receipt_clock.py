"""Each reading is there at a moment of its own, in order of receipt."""

from collections.abc import Callable
from enum import Enum
from typing import Any, get_args, get_origin

import msgspec
import pytest

from collectors.contract.readings import (
    AnyReading,
    CanaryRequest,
    EventKind,
    Phase,
    RequestEvent,
    RequestRecord,
    RequestSpan,
    Step,
    Tick,
    TokenTimes,
)
from inferwatch.metrics.load.receipt_clock import ReceiptClock
from inferwatch.metrics.series.saving import LONGEST_NS, MOST_EFFORT, CheckpointPace


def test_a_reading_is_there_when_it_happened() -> None:
    receipts = ReceiptClock()

    assert [receipts.take(Tick(t_ns=t)) for t in (5, 9)] == [5, 9]


def test_what_comes_late_is_there_after_what_came_before_it(
    make_step: Callable[..., Step], make_event: Callable[..., RequestEvent]
) -> None:
    receipts = ReceiptClock()
    step = make_step(10, {1: 1})
    readings: list[AnyReading] = [
        step,
        make_event(8, EventKind.ARRIVED),
        step,
        make_step(11, {1: 1}),
    ]

    moments = [receipts.take(each) for each in readings]

    assert moments == [step.end_ns, step.end_ns + 1, step.end_ns + 2, 11_000_000]


def test_what_tells_of_a_while_is_there_at_its_end() -> None:
    times = TokenTimes(external_id="a", first_ns=5, gaps_ns=[1, 2])
    record = RequestRecord(
        index=1, external_id="a", phase=Phase.STEADY, intended_ns=1, end_ns=9
    )

    span = RequestSpan(request_id="a", arrived_ns=1, end_ns=7)
    canary = CanaryRequest(sent_ns=1, first_token_ns=5, gaps_ns=[1, 2])

    assert ReceiptClock().take(span) == 7
    assert ReceiptClock().take(canary) == 8
    assert ReceiptClock().take(CanaryRequest(sent_ns=1, failure="refused")) == 1
    assert ReceiptClock().take(times) == 8
    assert ReceiptClock().take(record) == 9


def smallest(kind: type[AnyReading]) -> AnyReading:
    """A reading that says no more than it must."""

    def value(annotation: Any) -> Any:
        made = get_origin(annotation) or annotation
        return next(iter(made)) if issubclass(made, Enum) else made()

    return kind(
        **{
            field.name: value(field.type)
            for field in msgspec.structs.fields(kind)
            if field.required
        }
    )


@pytest.mark.parametrize("kind", get_args(AnyReading))
def test_a_reading_of_every_kind_has_its_moment(kind: type[AnyReading]) -> None:
    assert ReceiptClock().take(smallest(kind)) == 0


def test_asking_what_would_be_next_takes_nothing() -> None:
    receipts = ReceiptClock(latest_ns=7)

    assert receipts.after(Tick(t_ns=3)) == receipts.after(Tick(t_ns=3)) == 8


def test_a_checkpoint_is_due_after_some_effort_or_some_time(
    make_step: Callable[..., Step],
) -> None:
    pace, step = CheckpointPace(), make_step(10, dict.fromkeys(range(12), 1))
    steps = MOST_EFFORT // 6 + 1  # four for a step, two for twelve members

    due = [pace.due(step, 0) for _ in range(2 * steps)]

    assert [at for at, is_due in enumerate(due, 1) if is_due] == [steps, 2 * steps]
    assert not pace.due(Tick(t_ns=1), 1)
    assert pace.due(Tick(t_ns=1), LONGEST_NS)
