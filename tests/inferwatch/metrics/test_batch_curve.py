"""What steps add up to by batch, graph mode and duration, held against single steps."""

from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from collectors.contract.readings import BoundBy, Step
from inferwatch.metrics.model.model import LATELY_NS, Model
from inferwatch.metrics.series.samples import BLOCK_ROWS
from inferwatch.metrics.series.timeline import begins_s, cell_of, merged
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.metrics.steps.batches import BATCHES, point_at
from inferwatch.metrics.steps.flow import LEAST_NS
from inferwatch.record.replay.player import Player
from inferwatch.sample import sample_file
from tests.inferwatch.metrics.test_saved import Keeps

Make = Callable[..., Any]
S = 1_000_000_000
MS = 1_000_000
GRAPHS = (None, "NONE", "FULL", "PIECEWISE")
NOW_NS = 400 * S


def many_steps(count: int = 5 * BLOCK_ROWS + 77) -> list[Step]:
    """Of all sizes, over more than the longest rolling window."""
    random, steps, end_ns = Random(3), [], 0
    for index in range(count):
        prefill = random.choice((0, 0, 0, 1, 3))
        decode = random.choice((0, 1, 2, 5, 7, 40, 300)) or int(not prefill)
        took_ns = random.randint(200_000, 130 * MS)
        end_ns += took_ns
        padded = random.choice((None, 0, 9))
        steps.append(
            Step(
                source="engine-1",
                index=index,
                start_ns=end_ns - took_ns,
                end_ns=end_ns,
                duration_ns=took_ns,
                prefill_requests=prefill,
                decode_requests=decode,
                prefill_tokens=50 * prefill,
                decode_tokens=decode,
                running=prefill + decode,
                graph_mode=random.choice(GRAPHS),
                padded_tokens=padded,
                bound_by=random.choice(tuple(BoundBy)),
                members=list(range(prefill + decode)),
                scheduled=[1] * (prefill + decode),
                produced=[1] * (prefill + decode),
            )
        )
    return steps


STEPS = many_steps()
LAST_NS = STEPS[-1].end_ns


@pytest.fixture(scope="module")
def model() -> Model:
    model = Model()
    for step in STEPS:
        model.fold(step)
    return model


def inside(window: Window, now_ns: int) -> list[Step]:
    since_ns = -1 if window.value is None else now_ns - window.value
    return [step for step in STEPS if step.end_ns > since_ns]


def begin_of(batch: int) -> int:
    return max(each for each in BATCHES if each <= batch)


def agrees(shown: Snapshot, steps: list[Step]) -> bool:
    """Each number of the curve and the shares, computed the long way round."""
    pure: dict[int, list[Step]] = defaultdict(list)
    for step in steps:
        if not step.prefill_requests:
            pure[begin_of(step.decode_requests)].append(step)
    curve = shown.batch_curve
    assert curve is not None
    assert [point.batch for point in curve.points] == sorted(pure)
    for point in curve.points:
        of_batch = pure[point.batch]
        spent_s = sum(step.duration_ns for step in of_batch) / S
        assert point.steps == len(of_batch)
        assert point.step_mean_s == pytest.approx(spent_s / len(of_batch))
        tokens = sum(step.output_tokens for step in of_batch)
        assert point.output_tokens_per_s == pytest.approx(tokens / spent_s)
    assert curve.prefill_steps == sum(bool(step.prefill_requests) for step in steps)
    by_graph: dict[str, int] = defaultdict(int)
    for step in steps:
        if step.graph_mode:
            by_graph[step.graph_mode] += step.duration_ns
    whole = sum(by_graph.values())
    shares = {name: spent / whole for name, spent in by_graph.items()}
    assert shown.steps.share_by_graph == pytest.approx(shares)
    told = [step for step in steps if step.padded_tokens is not None]
    padding = sum(step.padded_tokens or 0 for step in told)
    computed = sum(step.prefill_tokens + step.decode_tokens for step in told) + padding
    assert shown.steps.padded_share == pytest.approx(padding / computed)
    return True


@pytest.mark.parametrize("window", Window)
def test_the_curve_and_the_shares_are_those_of_the_single_steps(
    model: Model, window: Window
) -> None:
    shown = model.snapshot(LAST_NS, SnapshotQuery(window))

    steps = inside(window, LAST_NS)
    assert len(steps) > 20
    assert agrees(shown, steps)


def test_a_window_forgets_what_it_has_passed(model: Model) -> None:
    later_ns = LAST_NS + 4 * S

    shown = model.snapshot(later_ns, SnapshotQuery(Window.TEN_SECONDS))

    assert agrees(shown, inside(Window.TEN_SECONDS, later_ns))
    gone = model.snapshot(LAST_NS + 11 * S, SnapshotQuery(Window.TEN_SECONDS))
    assert gone.batch_curve is None
    assert gone.steps.share_by_graph == {}
    assert gone.steps.padded_share is None


def test_it_works_at_the_mean_batch_of_the_last_seconds(model: Model) -> None:
    lately = [step for step in STEPS if step.end_ns > LAST_NS - LATELY_NS]
    mean = sum(len(step.members) for step in lately) / len(lately)

    curve = model.snapshot(LAST_NS, SnapshotQuery(Window.MINUTE)).batch_curve

    assert curve is not None
    assert curve.now_batch == pytest.approx(mean)
    at = point_at(curve, mean)
    assert at is None or curve.points[at].batch == begin_of(int(mean))
    later = model.snapshot(
        LAST_NS + 2 * LEAST_NS, SnapshotQuery(Window.MINUTE)
    ).batch_curve
    assert later is not None
    assert later.now_batch is None


def test_restored_again_and_again_it_is_the_same(model: Model) -> None:
    other, keeps = Model(), Keeps()
    for number, step in enumerate(STEPS):
        other.fold(step)
        if number % 517 == 0:
            saved = other.saved()
            keeps.keep(saved)
            other = keeps.restored(saved)

    for window in Window:
        shown = other.snapshot(LAST_NS, SnapshotQuery(window))
        assert (
            shown.batch_curve
            == model.snapshot(LAST_NS, SnapshotQuery(window)).batch_curve
        )
        assert agrees(shown, inside(window, LAST_NS))


def test_the_spread_of_step_times_is_that_of_the_single_steps(model: Model) -> None:
    line = model.snapshot(LAST_NS, SnapshotQuery(Window.SESSION)).timeline

    counts = merged(each for each in line.step_heat if each)

    assert sum(counts.values()) == len(STEPS)
    for cell, count in counts.items():
        low, high = begins_s(cell), begins_s(cell + 1)
        within = [step for step in STEPS if low <= step.duration_ns / S < high]
        assert count == len(within)


def test_cells_are_two_for_each_doubling() -> None:
    assert cell_of(2 * MS) == cell_of(MS) + 2
    assert begins_s(cell_of(MS)) <= MS / S < begins_s(cell_of(MS) + 1)


def test_steps_without_a_graph_or_padding_tell_no_shares(
    see: Callable[..., Snapshot], make_step: Make
) -> None:
    steps = see([make_step(1_000, {0: 1})], 1_500).steps

    assert steps.share_by_graph == {}
    assert steps.padded_share is None


def test_more_graph_modes_than_there_can_be_are_one_in_the_end(
    see: Callable[..., Snapshot], make_step: Make
) -> None:
    shown = see(
        [
            make_step(10 * n, {0: 1}, graph_mode=f"mode {n}", index=n)
            for n in range(1, 41)
        ],
        1_500,
    )

    assert len(shown.steps.share_by_graph) == 15
    assert sum(shown.steps.share_by_graph.values()) == pytest.approx(1)


async def test_of_a_real_session_they_are_those_of_its_recorded_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with closing(Player.open(sample_file(), "last")) as player:
        end_ns = player.playback.span_ns[1]
        await player.playback.seek(end_ns)
        steps = list(await player.recall.steps(-1, end_ns))
        shown = player.snapshot(SnapshotQuery(Window.SESSION))

    assert shown.steps.count == len(steps) > 1_000
    curve = shown.batch_curve
    assert curve is not None
    pure = [step for step in steps if not step.prefill_requests]
    assert curve.prefill_steps == len(steps) - len(pure)
    assert sum(point.steps for point in curve.points) == len(pure)
    for point in curve.points:
        held = [each for each in pure if begin_of(len(each.members)) == point.batch]
        spent_s = sum(step.duration_ns for step in held) / S
        tokens = sum(step.output_tokens for step in held)
        assert point.steps == len(held)
        assert point.step_mean_s == pytest.approx(spent_s / len(held))
        assert point.output_tokens_per_s == pytest.approx(tokens / spent_s)
    whole = merged(each for each in shown.timeline.step_heat if each)
    assert sum(whole.values()) == len(steps)
