"""The entry point in processes that did not ask for a probe."""

import os
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

pytestmark = pytest.mark.process

PROGRAM = """
import sys
from embedded_engine.probe.install import install
install()
heavy = {"zmq", "msgspec", "vllm", "torch", "embedded_engine.probe.probe"}
print(*sorted(heavy & sys.modules.keys()))
"""


def test_vllm_finds_it() -> None:
    (found,) = entry_points(group="vllm.general_plugins", name="inferwatch")

    assert found.value == "embedded_engine.probe.install:install"


@pytest.mark.parametrize("asked", [None, "", "0"], ids=["unset", "empty", "zero"])
def test_unless_asked_it_does_nothing(asked: str | None) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "INFERWATCH_PROBE"}
    if asked is not None:
        environment["INFERWATCH_PROBE"] = asked

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == ""
