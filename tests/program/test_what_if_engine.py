"""From one run of real vLLM, what another setting would make of it.

How near predictions come to what vllm then does depends on the machine, which is never
the same twice: ``benchmarks/what_if.py`` measures that.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.readings import BoundBy
from inferwatch.whatif.outcome import measured
from inferwatch.whatif.prediction import what_if
from inferwatch.whatif.recorded import RecordedRun
from inferwatch.whatif.setting import Change
from tests.program.what_if_runs import served

pytestmark = [pytest.mark.engine, pytest.mark.process]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordedRun]:
    """The plan as the demo's engine serves it: 32 requests at once, 255 blocks."""
    path: Path = tmp_path_factory.mktemp("what-if")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("INFERWATCH_RUNTIME_DIR", str(path / "run"))
        environment.setenv("XDG_STATE_HOME", str(path / "state"))
        yield asyncio.run(served())


def test_every_request_that_vllm_served_is_predicted(recorded: RecordedRun) -> None:
    told = what_if(recorded, [Change(max_num_seqs=4)])

    (predicted,) = told.predictions
    assert predicted.outcome is not None, predicted.cannot
    assert predicted.outcome.requests == measured(recorded).requests
    assert predicted.outcome.binds is BoundBy.SEQS


def test_more_at_once_than_were_ever_seen_are_not_guessed(
    recorded: RecordedRun,
) -> None:
    told = what_if(recorded, [Change(max_num_seqs=64, rate=40.0)])

    (predicted,) = told.predictions
    assert predicted.outcome is None
    assert predicted.cannot is not None
    assert predicted.cannot.startswith("no step with more than")
