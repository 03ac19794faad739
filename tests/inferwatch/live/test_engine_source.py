"""The engine that `serve` starts is set as the user said, and tells what it can."""

import pytest

from embedded_engine.probe_settings import ProbeSettings
from inferwatch.live import engine_source


@pytest.mark.parametrize(
    ("flags", "given"),
    [
        (("--max-num-seqs", "4"), ("--cudagraph-metrics", "--max-num-seqs", "4")),
        (("--no-cudagraph-metrics",), ("--no-cudagraph-metrics",)),
    ],
    ids=["unless told otherwise", "told otherwise"],
)
def test_an_engine_tells_of_its_cuda_graphs(
    flags: tuple[str, ...], given: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_source, "require_vllm", lambda: None)
    monkeypatch.setattr(engine_source, "check", lambda _: None)

    source = engine_source.serve_source(
        "m", flags, host="h", port=1, uds=None, hostage=False, probe=ProbeSettings()
    )

    assert source.configure().flags == given
