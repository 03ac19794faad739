"""What a server is set up as, told apart by settings that somebody sends."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from collectors.contract.readings import EngineInfo, EngineSettings, ServerInfo, Step
from collectors.servers.families import FAMILIES, llamacpp, sglang, vllm
from embedded_engine.probe import vllm_names
from inferwatch.metrics import findings
from inferwatch.metrics.configuration import (
    OF_ENGINE,
    OF_SETTINGS,
    PASSING,
    Configuration,
    configuration_of,
)
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.studies.what_if.heard import CannotTellError, RunReadings
from inferwatch.studies.what_if.recorded import run_of
from inferwatch.studies.what_if.setting import setting_of
from inferwatch.studies.what_if.step_cost import FEWEST_STEPS

S = 1_000_000_000
ENGINE = EngineInfo(
    t_ns=0,
    source="e",
    pid=1,
    model="tiny",
    vllm_version="0",
    max_num_seqs=8,
    max_num_batched_tokens=64,
)
SENT = vllm_names.SETTING_PATHS.keys() | vllm_names.SOMETIMES_SET.keys()
"""By the probe: vLLM's flags."""
SAID = {*sglang.SETTINGS, *vllm.SETTINGS, *llamacpp.SETTINGS, "clock"}
"""By servers, of themselves."""
READERS = {"flag", "setting", "limit_text"}
"""Of Facts: the first argument is the key."""


def configured(**settings: str | float | None) -> Configuration:
    model = Model()
    model.fold(ENGINE)
    model.fold(EngineSettings(t_ns=0, source="e", settings=settings))
    found = configuration_of(model.snapshot(S, SnapshotQuery(Window.SESSION)))
    assert found is not None
    return found


USUAL = {"speculative_method": None, "cudagraph_mode": "FULL"}
DRAFTS = {"speculative_method": "ngram", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("settings", "before"),
    [
        (DRAFTS, {}),
        (DRAFTS | {"num_speculative_tokens": 4}, DRAFTS),
        ({"cudagraph_mode": "NONE"}, {}),
    ],
    ids=["speculation", "how far", "graphs"],
)
def test_another_setting_is_another_configuration(
    settings: dict[str, Any], before: dict[str, Any]
) -> None:
    with_it, without = configured(**(USUAL | settings)), configured(**(USUAL | before))

    assert with_it.exact_tag != without.exact_tag
    assert with_it.model_tag == without.model_tag


def test_a_setting_that_is_off_is_as_good_as_one_that_is_not_told() -> None:
    assert configured(speculative_method=None).exact_tag == configured().exact_tag


def test_what_differs_at_each_start_of_a_server_is_not_its_configuration() -> None:
    def tag(**settings: str) -> str:
        model = Model()
        told = ServerInfo(
            t_ns=0, source="a", name="a", family="vllm", models=["m"], settings=settings
        )
        model.fold(told)
        found = configuration_of(model.snapshot(S, SnapshotQuery(Window.SESSION)))
        assert found is not None
        return found.exact_tag

    first = tag(block_size="16", kv_cache_size_tokens="1024", clock="5 s behind ours")
    again = tag(block_size="16", kv_cache_size_tokens="1008", clock="6 s behind ours")

    assert first == again
    assert first != tag(block_size="32", kv_cache_size_tokens="1024")


class KeysRead(dict[str, Any]):
    """Settings that remember what they were asked for."""

    def __init__(self) -> None:
        super().__init__(is_told=True)  # else it is taken for nothing told
        self.keys_read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.keys_read.add(key)
        return default


def what_if_reads() -> set[str]:
    """What a prediction asks of the settings of an engine."""
    read = KeysRead()
    settings = EngineSettings(t_ns=0, source="e", settings=read)
    setting_of(ENGINE, read)
    usual = Step(source="e", index=0, start_ns=0, end_ns=9, duration_ns=9)
    steps = [
        replace(usual, end_ns=n * S, members=[0], scheduled=[1], produced=[1])
        for n in range(FEWEST_STEPS)
    ]
    heard = RunReadings(engines=[ENGINE], settings=[settings])
    heard.steps["e", 0].extend(steps)
    with pytest.raises(CannotTellError, match="no request"):
        run_of(heard)
    return read.keys_read


def findings_read() -> Iterator[str]:
    """The keys that diagnoses name."""
    for path in Path(*findings.__path__).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr=name),
                    args=[ast.Constant(value=str(key)), *_],
                ) if name in READERS:
                    yield key


def test_every_setting_that_is_read_is_one_that_is_sent() -> None:
    by_findings, by_what_if = set(findings_read()), what_if_reads()

    assert by_findings | by_what_if | {*OF_SETTINGS} <= SENT
    assert {"max_num_seqs", "enforce_eager", "speculative_method"} <= by_findings
    assert {"kv_connector", "watermark"} <= by_what_if
    assert {*OF_ENGINE} <= {*EngineInfo.__struct_fields__}
    assert {*PASSING} <= SAID


def test_a_server_sends_its_flags_by_the_names_that_the_probe_has() -> None:
    flags = {flag for each in FAMILIES for flag in flags_of(each)}

    assert "kv_cache_dtype" in flags
    assert flags <= SENT


def flags_of(family: Any) -> set[str]:
    """What it tells of its flags where it tells all that it can."""
    models = {"data": [{"id": "m", "max_model_len": 64}]}
    labels = {**dict.fromkeys(vllm.SETTINGS, "1"), **dict.fromkeys(vllm.FLAGS, "1")}
    return {*family.describe({"/v1/models": models}, labels).flags}
