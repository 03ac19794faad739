"""From one run of real vLLM, what another setting would make of it.

How near predictions come to what vllm then does depends on the machine, which is never
the same twice: ``benchmarks/what_if.py`` measures that.
"""

import asyncio
from pathlib import Path

import pytest

from collectors.contract.readings import BoundBy
from embedded_engine.engine.launch import Engine
from inferwatch.studies.what_if.outcome import measured_outcome
from inferwatch.studies.what_if.prediction import predict
from inferwatch.studies.what_if.recorded import RecordedRun
from inferwatch.studies.what_if.setting import SettingChange
from tests.conftest import living_in
from tests.program.what_if_runs import served_by

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("shared engine")]
SECONDS = 7.0
"""With a burst."""


@pytest.fixture(scope="module")
def recorded(shared_engine: Engine, shared_home: Path) -> RecordedRun:
    """A few seconds as the demo's engine serves them: 32 at once, 255 blocks."""
    with living_in(shared_home):
        return asyncio.run(served_by(shared_engine, SECONDS))


def test_every_request_that_vllm_served_is_predicted(recorded: RecordedRun) -> None:
    told = predict(recorded, [SettingChange(max_num_seqs=4)])

    (predicted,) = told.predictions
    assert predicted.outcome is not None, predicted.cannot
    assert predicted.outcome.requests == measured_outcome(recorded).requests
    assert predicted.outcome.binds is BoundBy.SEQS


def test_more_than_twice_what_was_seen_at_once_is_not_guessed(
    recorded: RecordedRun,
) -> None:
    more = SettingChange(max_num_seqs=256, kv_blocks=4_000, rate=40.0)
    told = predict(recorded, [more])

    (predicted,) = told.predictions
    assert predicted.outcome is None
    assert predicted.cannot is not None
    assert predicted.cannot.startswith("no step with more than")
