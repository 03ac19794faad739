"""A watch without a screen says what came of it, and no more than that."""

import json
from typing import Any

import pytest

from collectors.clock import SessionClock
from embedded_engine.errors import EngineError
from inferwatch.cli.headless import watch_headless
from inferwatch.cli.options import WatchOptions
from inferwatch.errors import SourceError
from inferwatch.metrics.model import Model
from inferwatch.session.engine_session import EngineSession
from inferwatch.session.pipeline import Pipeline


class NoEngine:
    """A source whose engine never comes up."""

    served = False
    can_restart = False
    log_path = None

    def prepare(self) -> str:
        return "engine-1"

    async def open(self, on_stage: object) -> Any:  # noqa: ARG002 - it never gets so far
        raise EngineError("no room on the GPU")


async def start_that_fails(*, as_json: bool) -> None:
    watch = EngineSession(SessionClock(), Pipeline(Model()), NoEngine())
    with pytest.raises(SourceError, match="no room on the GPU"):
        await watch_headless(watch, WatchOptions(headless=True, as_json=as_json))


async def test_a_start_that_fails_is_told_by_its_cause_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    await start_that_fails(as_json=False)

    assert capsys.readouterr().out == ""


async def test_a_start_that_fails_is_one_valid_object_for_programs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    await start_that_fails(as_json=True)

    found = json.loads(capsys.readouterr().out)
    assert found["engine"] is None
