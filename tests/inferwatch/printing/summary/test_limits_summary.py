"""What a summary says of limits."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from inferwatch.metrics.snapshot import Snapshot
from inferwatch.printing.summary.session import summarise, summary_text
from tests.inferwatch.metrics.floor.scripted_limits import (
    BANDWIDTH,
    Script,
    bytes_read,
    started,
)

See = Callable[..., Snapshot]


def told(see: See, took_ms: float) -> dict[str, Any]:
    script = Script()
    readings = [*started(), *script.prompt(0, 100)]
    readings.append(script.step({0: 1}, took_ms=took_ms))
    return summarise(see(readings), None)


def test_limits_are_a_section_of_json(see: See) -> None:
    summary = json.loads(json.dumps(told(see, 1.0)))

    limits = summary["limits"]
    floor_s = bytes_read(1, 100) / BANDWIDTH
    assert limits["decode"]["floor_s"] == pytest.approx(floor_s, rel=1e-3)
    assert limits["decode"]["bound"] == "overhead"
    assert limits["peak"]["ridge"] == pytest.approx(295, rel=0.01)
    assert limits["shape"]["layers"] == 4
    assert limits["savings"][0]["name"] == "FP8 weights"
    assert limits["impossible"] is None


def test_people_read_a_line_for_each_kind_of_step(see: See) -> None:
    text = summary_text(told(see, 1.0))

    assert (
        "decode       1.00 ms a step, floor 0.056 ms, overhead-bound, MBU 5.6%" in text
    )
    assert "prefill" in text
    assert "impossible" not in text


def test_what_cannot_be_is_not_celebrated(see: See) -> None:
    text = summary_text(told(see, 0.01))

    assert "1 step faster than possible, 5.6" in text
    assert "check clocks, dtype, speculative decoding or the measurement" in text


def test_nothing_is_said_without_an_engine(see: See) -> None:
    assert summarise(see([]), None)["limits"] is None
