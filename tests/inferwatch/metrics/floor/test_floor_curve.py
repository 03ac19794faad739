"""The floor by batch size: that of steps worked out by hand, and its two bends."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from inferwatch.metrics.floor.curve import FloorCurve
from inferwatch.metrics.snapshot import Snapshot
from tests.inferwatch.metrics.floor.scripted_limits import (
    BANDWIDTH,
    KV,
    LINEAR,
    NORMS,
    TABLE,
    Script,
    bytes_read,
    flops_of,
    started,
)

See = Callable[..., Snapshot]


def decoding(see: See) -> FloorCurve | None:
    """Of two requests that decode after prompts of 400 tokens."""
    script = Script()
    told = [*started(), *script.prompt(0, 400), *script.prompt(1, 400)]
    limits = see([*told, script.step({0: 1, 1: 1})]).limits
    assert limits is not None
    return limits.curve


def test_at_the_batch_of_now_it_is_the_floor_of_such_a_step(see: See) -> None:
    curve = decoding(see)

    assert curve is not None
    assert curve.floor_s(2) == pytest.approx(bytes_read(2, 800) / BANDWIDTH)
    assert curve.work(2).flops == pytest.approx(flops_of(2, 2, 802))


def test_its_knee_is_where_kv_outgrows_weights(see: See) -> None:
    curve = decoding(see)

    assert curve is not None
    weights = 2 * (LINEAR + NORMS + TABLE)
    each = 2 * 1024 + KV * curve.tokens_per_request
    assert curve.knee == pytest.approx(weights / each, abs=1)


def test_compute_binds_from_where_its_time_is_the_longer() -> None:
    short = FloorCurve(
        tokens_per_request=1,
        fixed_bytes=1e9,
        expert_bytes=0,
        untouched=1,
        request_bytes=1e3,
        request_flops=1e9,
        bytes_per_s=1e12,
        flops=1e14,
    )

    assert short.compute_bound_from == 101  # 1 ms of memory, 10 us of compute each
    assert short.knee == 101
    assert replace(short, flops=None).knee == 1_000_000


def test_without_steps_that_decode_there_is_no_curve(see: See) -> None:
    limits = see(started()).limits

    assert limits is not None
    assert limits.curve is None
