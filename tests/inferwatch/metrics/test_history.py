"""Steps are gathered before they are counted; an odd one never breaks later ones."""

import pytest

from collectors.contract.readings import Step
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.history import STEPS_AT_ONCE
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery

MS = 1_000_000


def step(index: int, end_ns: int, **changed: object) -> Step:
    told = {"decode_requests": 1, "decode_tokens": 1, "produced": [1]}
    return Step(
        source="engine",
        index=index,
        start_ns=end_ns - MS,
        end_ns=end_ns,
        duration_ns=MS,
        **{"members": [7], "scheduled": [1], **told, **changed},  # type: ignore[arg-type]
    )


def shown(model: Model, now_ns: int) -> Snapshot:
    return model.snapshot(now_ns, SnapshotQuery(Window.MINUTE))


def test_tokens_that_cancel_out_break_neither_this_step_nor_later_ones() -> None:
    model = Model()
    model.fold(step(1, 10 * MS, prefill_tokens=1, decode_tokens=-1))
    for index in range(2, 300):
        model.fold(step(index, index * 10 * MS))

    assert shown(model, 3_000 * MS).steps.count == 299
    assert sum(shown(model, 3_000 * MS).timeline.steps) == 299


def test_more_tokens_than_can_be_counted_are_refused_once() -> None:
    model = Model()
    with pytest.raises(OverflowError, match="output tokens"):
        model.fold(step(1, 10 * MS, members=[7, 8], produced=[1 << 61, 1 << 61]))
    model.fold(step(2, 20 * MS))

    assert shown(model, 30 * MS).steps.output_tokens == 1
    model.saved()


def test_steps_that_all_end_at_one_moment_are_not_kept() -> None:
    model = Model()
    for index in range(1_000):
        model.fold(step(index, 10 * MS))

    assert len(model._history._ended) < STEPS_AT_ONCE
    assert sum(shown(model, 20 * MS).timeline.steps) == 1_000
