"""Each fault that is planted is named first, soon, and what is nearly one is not."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from collectors.readings import AnyReading, Tick
from inferwatch.metrics.findings.finding import Effort, Finding
from inferwatch.metrics.model import Model
from tests.inferwatch.metrics.findings.simulated_engine import Engine, S

WITHIN_S = 60
PLANTED = {
    "batch_too_small": Engine(max_num_seqs=2, rate_per_s=5),
    "kv_bound": Engine(kv_blocks=60, rate_per_s=5),
    "host_bound": Engine(gap_s=0.02),
    "stopped": Engine(stands_still=lambda t_s: t_s > 20),
    "aborts": Engine(patience_s=lambda r: 1 if r.random() < 0.5 else 99),
    "front_end": Engine(api_s=0.2),
    "prefix_caching_off": Engine(
        prompt=lambda _: 1_000, token_s=0.0003, rate_per_s=1, prefix_caching=False
    ),
}
NEARLY = {
    "batch_too_small": Engine(max_num_seqs=24, rate_per_s=5),
    "kv_bound": Engine(kv_blocks=2_000, rate_per_s=5),
    "host_bound": Engine(gap_s=0.002),
    "stopped": Engine(stands_still=lambda t_s: 20 < t_s < 21),
    "aborts": Engine(patience_s=lambda r: 1 if r.random() < 0.05 else 99),
    "front_end": Engine(api_s=0.008),
    "prefix_caching_off": Engine(prompt=lambda _: 100, prefix_caching=False),
}


def after(readings: Iterable[AnyReading], model: Model | None = None) -> Model:
    """A Model that was told all of them."""
    model = model or Model()
    for reading in readings:
        model.fold(reading)
    return model


def held(engine: Engine, seconds: float = WITHIN_S) -> dict[str, Finding]:
    """What was ever a finding, as it was when it began."""
    model, found = Model(), dict[str, Finding]()
    for reading in replace(engine).run(seconds):
        model.fold(reading)
        if isinstance(reading, Tick):
            found = {each.name: each for each in model.findings} | found
    return found


@pytest.mark.parametrize("name", PLANTED)
def test_a_fault_is_named_first_within_a_minute(name: str) -> None:
    model = after(replace(PLANTED[name]).run(WITHIN_S))

    first = model.findings[0]

    assert first.name == name
    assert first.since_ns < 40 * S
    assert 0 < first.cost <= 1
    assert first.evidence
    assert all(each.page or each.key for each in first.evidence)
    assert first.knobs[0].effort == (Effort.NOW,) or name == "prefix_caching_off"


@pytest.mark.parametrize("name", NEARLY)
def test_what_is_nearly_a_fault_is_none(name: str) -> None:
    assert name not in held(NEARLY[name])


def test_a_present_value_is_what_the_engine_told() -> None:
    engine = Engine(max_num_seqs=2, rate_per_s=5, settings={"max_num_seqs": 3})

    told = after(engine.run(30)).findings[0]

    flags = {each.flag: each.present for each in told.knobs if each.flag}
    assert flags == {"--max-num-seqs": "3"}


def test_a_value_that_was_not_told_is_unknown() -> None:
    told = after(replace(PLANTED["kv_bound"]).run(30)).findings[0]

    flags = {each.flag: each.present for each in told.knobs if each.flag}
    assert flags["--kv-cache-dtype fp8"] is None
