"""Which engines the probes of this host belong to."""

from pathlib import Path

import pytest

from collectors.contract.clock import anchor
from collectors.contract.readings import EngineInfo, Totals
from collectors.contract.runtime_dir import ProbeSocket
from collectors.probe import discover
from collectors.probe.hello import Hello, Role


def hello(role: Role, pid: int, *, orphaned: bool = False) -> Hello:
    info = EngineInfo(t_ns=1, source="app", model="m", pid=pid, vllm_version="0.32.0")
    return Hello(
        source="app",
        stream=f"{pid}",
        seq=0,
        ring_seq=0,
        ring_bytes=0,
        ring_accounted=0,
        accounted=0,
        role=role,
        pid=pid,
        engine=info if role is Role.CORE else None,
        orphaned=orphaned,
        anchor=anchor(),
        totals=Totals(t_ns=1),
        standing=[],
    )


@pytest.mark.parametrize(
    ("hellos", "pid"),
    [
        ((hello(Role.API, 7), hello(Role.CORE, 8)), None),
        ((hello(Role.CORE, 8),), None),
        ((hello(Role.CORE, 8, orphaned=True),), 8),
        ((hello(Role.API, 7), hello(Role.CORE, 8, orphaned=True)), None),
    ],
    ids=["with its API process", "in one process", "orphan", "one that forked"],
)
def test_an_engine_without_its_api_process_is_an_orphan(
    hellos: tuple[Hello, ...], pid: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sockets = [ProbeSocket(engine_id="app", pid=e.pid, path=Path("p")) for e in hellos]
    told = list(zip(sockets, hellos, strict=True))
    monkeypatch.setattr(discover, "greetings", lambda _: told)

    (engine,) = discover.probed_engines(sockets)

    assert engine.orphan_pid == pid
