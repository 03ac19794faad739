"""What a doctor is told of the vLLM that is installed."""

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.embedded_engine.loaded_vllm import loaded_vllm


@pytest.mark.engine
@pytest.mark.xdist_group("loaded vLLM")
async def test_this_vllm_has_every_method_that_the_probe_wraps(tmp_path: Path) -> None:
    program = loaded_vllm().run(tmp_path / "log", "embedded_engine.probe.check")
    with closing(program) as check:
        told = await check.told()
    assert told["missing"] == []
    assert told["hooks"] > 10


@pytest.mark.process
def test_methods_that_a_vllm_lacks_are_named(tmp_path: Path) -> None:
    package = tmp_path / "vllm"
    package.mkdir()
    package.joinpath("__init__.py").write_text("__version__ = '9.9'\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
        "from embedded_engine.probe.check import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    told = json.loads(done.stdout)
    assert told["version"] == "9.9"
    assert "Scheduler.schedule: steps" in told["missing"]
    of_others = 1  # refused requests are seen in the web framework
    assert len(told["missing"]) == told["hooks"] - of_others
