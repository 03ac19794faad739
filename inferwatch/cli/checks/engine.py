"""Checks of vLLM, of our probe in it, and of engines that run here."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import psutil

from collectors.contract.collector import CollectorError
from collectors.probe.discover import probe_at
from collectors.servers.discover import listening
from collectors.stacks.frames import StacksError
from collectors.stacks.py_spy import OLDEST, read_by_py_spy, tool
from embedded_engine.engine.config import bfloat16_is_slow
from inferwatch.cli.checks.child import ChildError, ask_child
from inferwatch.cli.checks.finding import (
    Check,
    CheckResult,
    absent,
    broken,
    limited,
    works,
)
from inferwatch.live.attached.nearby import NearbyEngine, nearby_engines

AREA = "Engine"
IMPORT_S = 90.0
"""vLLM imports torch, which takes long from a cold disk."""
MEET = "INFERWATCH_RUNTIME_DIR"
SLEEPS = "import time; print(end='.', flush=True); time.sleep(60)"
SWITCH, PLUGINS = "INFERWATCH_PROBE", "VLLM_PLUGINS"
GROUP, NAME = "vllm.general_plugins", "inferwatch"


def _vllm() -> Sequence[CheckResult]:
    if find_spec("vllm") is None:
        return [_no_vllm(), *_another_vllm()]
    quiet = {SWITCH: "0", "VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}
    try:
        report = ask_child(
            "-m", "embedded_engine.probe.check", limit_s=IMPORT_S, more=quiet
        )
    except ChildError as error:
        fix = f"{Path(sys.executable).name} -c 'import vllm' shows where it fails"
        return [broken("vLLM", f"cannot be imported: {error}", fix), *_another_vllm()]
    has = f"{report['version']}: has all {report['hooks']} methods that the probe wraps"
    if not report["missing"]:
        return [works("vLLM", has, **report), *_another_vllm()]
    lacks = "; ".join(report["missing"])
    says = f"{report['version']}: the probe cannot see {lacks}"
    fix = "update inferwatch, or use a vLLM from 0.26 on"
    return [limited("vLLM", says, fix, **report), *_another_vllm()]


def _no_vllm() -> CheckResult:
    return absent(
        "vLLM",
        "not installed beside inferwatch: running servers can be watched, `demo` and "
        "`serve` cannot start one",
        "pip install 'inferwatch[engine]'",
    )


def _bfloat16() -> Sequence[CheckResult]:
    """Check whether vLLM computes slowly here in what most models are stored in."""
    if find_spec("vllm") is None or not bfloat16_is_slow():
        return []
    return [
        limited(
            "bfloat16",
            "this processor has no instructions for it, and most models are stored in "
            "it: vLLM computes several times as long as in float32",
            "`inferwatch serve MODEL -- --dtype float32`, as `demo` does",
        )
    ]


def _another_vllm() -> Sequence[CheckResult]:
    """Check whether the user's ``vllm`` command belongs to another Python."""
    command = shutil.which("vllm")
    if command is None or Path(command).parent == Path(sys.executable).parent:
        return []
    return [
        limited(
            "`vllm` command",
            f"{command} belongs to another Python, which does not see this inferwatch",
            "for its probe, install inferwatch in that environment too",
            command=command,
        )
    ]


def _entry_point() -> Sequence[CheckResult]:
    if not any(each.name == NAME for each in entry_points(group=GROUP)):
        says = f"vLLM would not load it: no {GROUP} entry point is installed"
        return [broken("probe", says, "install inferwatch with pip or uv")]
    plugins = os.environ.get(PLUGINS)
    if plugins is not None and NAME not in plugins.split(","):
        says = f"{PLUGINS}={plugins} keeps vLLM from loading it"
        return [limited("probe", says, f"{PLUGINS}={NAME}, or unset it")]
    return [
        works("probe", f"every vLLM started with {SWITCH}=1 loads it", switch=SWITCH)
    ]


def _stacks() -> Sequence[CheckResult]:
    """Check whether a process that is no child of py-spy's can be read by it."""
    command = tool()
    if command is None:
        says = (
            f"no py-spy {OLDEST} or newer: engines that are stopped, or have no probe, "
            "cannot be read"
        )
        return [absent("stacks", says, "pip install 'inferwatch[stacks]'")]
    with subprocess.Popen(
        (sys.executable, "-c", SLEEPS), stdout=subprocess.PIPE
    ) as one:
        try:
            if one.stdout is not None:
                one.stdout.read(1)  # it has begun
            read_by_py_spy(command, one.pid)
        except StacksError as error:
            says = f"{error}; engines with our probe write their stacks down themselves"
            return [limited("stacks", says, command=str(command))]
        finally:
            one.kill()
    says = f"{command} may read what a stalled engine executes"
    return [works("stacks", says, command=str(command))]


def _engines() -> Sequence[CheckResult]:
    try:
        engines = asyncio.run(nearby_engines())
    except OSError as error:
        return [broken("engines", f"cannot be looked for: {error}")]
    if not engines:
        return [
            absent(
                "engines",
                "none listens here",
                "`inferwatch demo` starts one, `inferwatch attach URL` watches another "
                "host's",
            )
        ]
    return [
        _engine(each) if each.orphan_pid is None else _orphan(each) for each in engines
    ]


def _orphan(engine: NearbyEngine) -> CheckResult:
    says = f"{engine.family}, {engine.what}"
    fix = f"kill {engine.orphan_pid}"
    return limited(engine.place, says, fix, address=engine.address)


def _engine(engine: NearbyEngine) -> CheckResult:
    """Check whether everything in an engine can be seen, through its probe."""
    models = ", ".join(engine.models) or "no model told"
    what = f"{engine.family}, {models}"
    facts = {"address": engine.address, "family": engine.family}
    if engine.in_application:
        what += ", in an application"
    if engine.family != "vllm":
        says = f"{what}: can be watched from outside (the probe is for vLLM)"
        return works(engine.place, says, **facts, probe=False)
    uds = engine.address if engine.address.startswith("/") else None
    try:
        probe = engine.in_application or probe_at(engine.address, uds)
    except CollectorError as error:
        return limited(engine.place, f"{what}: {error}", **facts)
    if probe or engine.engine_id:
        says = f"{what}: our probe answers, every step is seen"
        return works(engine.place, says, **facts, probe=True)
    its = _environment(engine)
    elsewhere = its.get(MEET)
    if its.get(SWITCH, "0") not in {"", "0"} and elsewhere != os.environ.get(MEET):
        return limited(
            engine.place,
            f"{what}: its probe meets others elsewhere",
            f"{MEET}={elsewhere}" if elsewhere else f"unset {MEET}",
            **facts,
            probe=False,
        )
    if its.get(SWITCH, "0") not in {"", "0"}:
        return broken(
            engine.place,
            f"{what}: {SWITCH} is set, but no probe answers",
            f"see what its log says of the probe; in a container, share {MEET} with it",
            **facts,
            probe=False,
        )
    return limited(
        engine.place,
        f"{what}: no probe, so only its metrics are seen",
        f"restart it with {SWITCH}=1 in its environment, inferwatch installed beside "
        "it",
        **facts,
        probe=False,
    )


def _environment(engine: NearbyEngine) -> Mapping[str, str]:
    """Return the environment of the engine's process; empty if it cannot be read."""
    with suppress(psutil.Error, OSError):
        here = engine.address.rpartition(":")[2]
        for each in listening():
            if each.pid and str(each.port) == here:
                return psutil.Process(each.pid).environ()
    return {}


CHECKS = (
    Check(area=AREA, name="engines", find=_engines, limit_s=15),
    Check(area=AREA, name="probe", find=_entry_point),
    Check(area=AREA, name="stacks", find=_stacks, limit_s=12),
    Check(area=AREA, name="bfloat16", find=_bfloat16),
    Check(
        area=AREA,
        name="vLLM",
        find=_vllm,
        limit_s=IMPORT_S + 5,
        too_long="is the disk slow, or the host short of memory?",
    ),
)
