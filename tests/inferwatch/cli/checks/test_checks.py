"""What each check says of a host that is well, and of one that is not."""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from collectors.contract.readings import GpuInfo
from inferwatch.cli.checks import engine, gpu, host, record, terminal
from inferwatch.cli.checks.child import ChildError, ask_child
from inferwatch.cli.checks.finding import Check, CheckResult, CheckStatus
from inferwatch.live.attached.nearby import NearbyEngine
from tests.collectors.hardware.truth_exporter import (
    ALL_OF_PROFILING,
    TruthExporter,
    TruthGpu,
)
from tests.collectors.http_server import serving, whole

Patch = pytest.MonkeyPatch
READ_ONLY = Path("/proc")
"""Where nobody can write, root neither."""


def find(checks: Sequence[Check], name: str) -> Sequence[CheckResult]:
    (check,) = [each for each in checks if each.name == name]
    return check.find()


def one(checks: Sequence[Check], name: str) -> CheckResult:
    (finding,) = find(checks, name)
    return finding


# The host.


@pytest.mark.parametrize(
    ("usable", "standing"), [(8.0, "works"), (2.0, "works"), (1.5, "limited")]
)
def test_a_host_of_one_core_makes_a_load_wait(
    usable: float, standing: str, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(host, "usable_cores", lambda: usable)

    found = one(host.CHECKS, "cores")

    assert found.standing == standing
    assert f"{usable:g} of" in found.says


def test_a_quota_is_named(monkeypatch: Patch) -> None:
    monkeypatch.setattr(host, "usable_cores", lambda: 0.5)

    assert "CPU quota" in one(host.CHECKS, "cores").says


def test_parts_of_proc_that_are_missing_are_named_with_what_they_tell(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    for name in (*host.PROC_FILES, "1/stat"):
        tmp_path.joinpath(name).parent.mkdir(parents=True, exist_ok=True)
        tmp_path.joinpath(name).write_text("1 2 3")
    monkeypatch.setattr(host, "PROC", tmp_path)
    assert one(host.CHECKS, "load and memory").standing is CheckStatus.WORKS

    tmp_path.joinpath("stat").unlink()
    found = one(host.CHECKS, "load and memory")

    assert found.standing is CheckStatus.LIMITED
    assert found.says == "not told: how busy its cores are"
    assert found.fix.endswith("whole: stat cannot be read")

    tmp_path.joinpath("stat").write_text("")  # as some containers mask it
    assert one(host.CHECKS, "load and memory") == found


def test_other_users_processes_may_be_hidden(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    for name in host.PROC_FILES:
        tmp_path.joinpath(name).parent.mkdir(parents=True, exist_ok=True)
        tmp_path.joinpath(name).write_text("1 2 3")
    monkeypatch.setattr(host, "PROC", tmp_path)

    assert "hidepid" in one(host.CHECKS, "load and memory").fix


def test_a_slow_clock_is_told(tmp_path: Path, monkeypatch: Patch) -> None:
    tmp_path.joinpath("source").write_text("hpet\n")
    monkeypatch.setattr(host, "CLOCK_SOURCE", tmp_path / "source")

    found = one(host.CHECKS, "monotonic clock")

    assert (found.standing, found.facts["source"]) == (CheckStatus.LIMITED, "hpet")


def test_a_clock_source_that_is_not_told_is_no_fault(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(host, "CLOCK_SOURCE", tmp_path / "none")

    assert one(host.CHECKS, "monotonic clock").standing is CheckStatus.WORKS


def test_the_wall_clock_is_kept_or_not_or_nobody_tells() -> None:
    found = one(host.CHECKS, "wall clock")

    told = {
        True: CheckStatus.WORKS,
        False: CheckStatus.LIMITED,
        None: CheckStatus.ABSENT,
    }
    synchronised = found.facts.get("synchronised")
    assert synchronised in {True, False, None}
    assert found.standing is told[synchronised]


def test_a_kernel_that_stamps_no_packets_is_told(monkeypatch: Patch) -> None:
    assert one(host.CHECKS, "receive stamps").standing is CheckStatus.WORKS

    monkeypatch.setattr(host, "ask_for_stamps", lambda _socket: None)
    found = one(host.CHECKS, "receive stamps")

    assert (found.standing, found.facts["by_kernel"]) == (CheckStatus.LIMITED, 0)


def test_a_host_without_loopback_is_broken(monkeypatch: Patch) -> None:
    def refused(*_: object, **__: object) -> socket.socket:
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(socket, "create_server", refused)

    found = one(host.CHECKS, "receive stamps")
    assert (found.standing, "interface lo" in found.fix) == (CheckStatus.BROKEN, True)


def test_few_open_files_are_told_with_the_command(monkeypatch: Patch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 8192))

    found = one(host.CHECKS, "open files")

    assert (found.standing, found.fix) == (CheckStatus.LIMITED, "ulimit -n 8192")


# The record.


def test_a_directory_that_cannot_be_written_is_broken(monkeypatch: Patch) -> None:
    monkeypatch.setenv("INFERWATCH_DB", str(READ_ONLY / "deep" / "sessions.db"))

    (found,) = find(record.CHECKS, "directory")

    assert found.standing is CheckStatus.BROKEN
    assert "INFERWATCH_DB" in found.fix


def test_a_directory_is_not_made_by_looking_at_it(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("INFERWATCH_DB", str(tmp_path / "new" / "sessions.db"))

    assert find(record.CHECKS, "directory")[0].standing is CheckStatus.WORKS
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_broken(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("INFERWATCH_DB", str(tmp_path / "sessions.db"))
    monkeypatch.setenv("INFERWATCH_MIN_FREE_MB", "999999999999")

    assert find(record.CHECKS, "directory")[0].standing is CheckStatus.BROKEN


def test_a_network_file_system_is_told(tmp_path: Path, monkeypatch: Patch) -> None:
    tmp_path.joinpath("mounts").write_text(
        f"/dev/a / ext4 rw 0 0\nhome:/ {tmp_path.resolve()} nfs4 rw 0 0\nodd\n"
    )
    monkeypatch.setattr(record, "MOUNTS", tmp_path / "mounts")
    monkeypatch.setenv("INFERWATCH_DB", str(tmp_path / "sessions.db"))

    _, found = find(record.CHECKS, "directory")

    assert (found.standing, found.facts["kind"]) == (CheckStatus.LIMITED, "nfs4")


def test_a_record_that_is_none_is_broken(tmp_path: Path, monkeypatch: Patch) -> None:
    path = tmp_path / "sessions.db"
    monkeypatch.setenv("INFERWATCH_DB", str(path))
    assert one(record.CHECKS, "sessions").standing is CheckStatus.ABSENT

    path.write_text("this is not an SQLite file, and longer than its header is" * 10)
    assert one(record.CHECKS, "sessions").standing is CheckStatus.BROKEN


def test_a_runtime_directory_that_cannot_be_is_broken(monkeypatch: Patch) -> None:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(READ_ONLY / "inferwatch"))

    found = one(record.CHECKS, "runtime directory")

    assert found.standing is CheckStatus.BROKEN
    assert "INFERWATCH_RUNTIME_DIR" in found.fix


def test_a_settings_file_that_makes_no_sense_is_broken(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    path = tmp_path / "config.toml"
    monkeypatch.setattr(record, "default_fleet_file", lambda: path)
    assert one(record.CHECKS, "settings").standing is CheckStatus.ABSENT

    path.write_text('[[server]]\nurl = "gpu1"\n')
    assert one(record.CHECKS, "settings").facts["servers"] == 1
    path.write_text("[[server]]\nurll = 3\n")
    assert one(record.CHECKS, "settings").standing is CheckStatus.BROKEN


# The terminal.


def test_output_into_a_file_is_no_fault() -> None:
    assert one(terminal.CHECKS, "screen").standing is CheckStatus.ABSENT


@pytest.mark.parametrize(
    ("columns", "encoding", "standing"),
    [(120, "utf-8", "works"), (40, "utf-8", "limited"), (120, "ascii", "limited")],
)
def test_a_terminal_that_is_small_or_cannot_draw_is_told(
    columns: int, encoding: str, standing: str, monkeypatch: Patch
) -> None:
    class Screen:
        def __init__(self) -> None:
            self.encoding = encoding

        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdout", Screen())
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", "40")

    assert one(terminal.CHECKS, "screen").standing == standing


def test_a_host_without_ssh_is_no_fault(monkeypatch: Patch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)

    assert one(terminal.CHECKS, "ssh").standing is CheckStatus.ABSENT


# The engine.

Child = Callable[..., object]


def says(answer: object) -> Child:
    def child(*_: object, **__: object) -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return child


def test_a_vllm_that_has_every_method_works(monkeypatch: Patch) -> None:
    monkeypatch.setattr(engine, "find_spec", lambda _: object())
    monkeypatch.setattr("shutil.which", lambda _: None)
    told = {"version": "0.32.0", "hooks": 15, "missing": []}
    monkeypatch.setattr(engine, "ask_child", says(told))

    assert "0.32.0" in one(engine.CHECKS, "vLLM").says


def test_a_method_that_vllm_moved_is_named_with_what_it_costs(
    monkeypatch: Patch,
) -> None:
    monkeypatch.setattr(engine, "find_spec", lambda _: object())
    monkeypatch.setattr("shutil.which", lambda _: None)
    told = {"version": "9.0", "hooks": 15, "missing": ["Scheduler.schedule: steps"]}
    monkeypatch.setattr(engine, "ask_child", says(told))

    found = one(engine.CHECKS, "vLLM")

    assert found.standing is CheckStatus.LIMITED
    assert "Scheduler.schedule: steps" in found.says


def test_a_vllm_that_cannot_be_imported_is_broken(monkeypatch: Patch) -> None:
    monkeypatch.setattr(engine, "find_spec", lambda _: object())
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr(engine, "ask_child", says(ChildError("libcudart.so.12")))

    found = one(engine.CHECKS, "vLLM")

    assert found.standing is CheckStatus.BROKEN
    assert "libcudart.so.12" in found.says


def test_a_processor_that_is_slow_in_bfloat16_is_told_with_what_helps(
    monkeypatch: Patch,
) -> None:
    monkeypatch.setattr(engine, "find_spec", lambda _: object())
    monkeypatch.setattr(engine, "bfloat16_is_slow", lambda: True)
    found = one(engine.CHECKS, "bfloat16")
    assert (found.standing, "--dtype float32" in found.fix) == ("limited", True)

    monkeypatch.setattr(engine, "bfloat16_is_slow", lambda: False)
    assert not find(engine.CHECKS, "bfloat16")

    monkeypatch.setattr(engine, "bfloat16_is_slow", lambda: True)
    monkeypatch.setattr(engine, "find_spec", lambda _: None)
    assert not find(engine.CHECKS, "bfloat16"), "no engine can be started here"


def test_no_vllm_is_no_fault_but_another_pythons_is_told(monkeypatch: Patch) -> None:
    monkeypatch.setattr(engine, "find_spec", lambda _: None)
    monkeypatch.setattr("shutil.which", lambda _: "/opt/venv/bin/vllm")

    none, other = find(engine.CHECKS, "vLLM")

    assert none.standing is CheckStatus.ABSENT
    assert "/opt/venv/bin/vllm" in other.says


def test_the_probe_is_loaded_unless_plugins_are_chosen_without_it(
    monkeypatch: Patch,
) -> None:
    ours = EntryPoint("inferwatch", "embedded_engine.probe.install:install", "group")
    monkeypatch.setattr(engine, "entry_points", lambda **_: [ours])
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    assert one(engine.CHECKS, "probe").standing is CheckStatus.WORKS

    monkeypatch.setenv("VLLM_PLUGINS", "")
    assert one(engine.CHECKS, "probe").standing is CheckStatus.LIMITED
    monkeypatch.setenv("VLLM_PLUGINS", "other,inferwatch")
    assert one(engine.CHECKS, "probe").standing is CheckStatus.WORKS

    monkeypatch.setattr(engine, "entry_points", lambda **_: [])
    assert one(engine.CHECKS, "probe").standing is CheckStatus.BROKEN


@pytest.mark.parametrize(
    ("environment", "probe", "standing", "hint"),
    [
        ({}, object(), "works", "every step"),
        ({}, None, "limited", "INFERWATCH_PROBE=1"),
        ({"INFERWATCH_PROBE": "1"}, None, "broken", "its log"),
        (
            {"INFERWATCH_PROBE": "1", "INFERWATCH_RUNTIME_DIR": "/else"},
            None,
            "limited",
            "INFERWATCH_RUNTIME_DIR=/else",
        ),
    ],
    ids=["probe", "no probe", "silent probe", "another directory"],
)
def test_an_engine_says_whether_it_has_our_probe(
    environment: dict[str, str],
    probe: object,
    standing: str,
    hint: str,
    monkeypatch: Patch,
) -> None:
    found_engine = NearbyEngine(address="http://localhost:8000", models=("m",))

    async def nearby() -> list[NearbyEngine]:
        return [found_engine]

    monkeypatch.delenv("INFERWATCH_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(engine, "nearby_engines", nearby)
    monkeypatch.setattr(engine, "probe_at", lambda *_: probe)
    monkeypatch.setattr(engine, "_environment", lambda _: environment)

    found = one(engine.CHECKS, "engines")

    assert (found.name, found.standing) == ("localhost:8000", standing)
    assert hint in f"{found.says} {found.fix}"


def test_an_engine_whose_api_process_is_gone_is_an_orphan(monkeypatch: Patch) -> None:
    left = NearbyEngine(address="probe:nightly", in_application=True, orphan_pid=4711)

    async def nearby() -> list[NearbyEngine]:
        return [left]

    monkeypatch.setattr(engine, "nearby_engines", nearby)

    found = one(engine.CHECKS, "engines")

    assert found.standing == "limited"
    assert "an orphan: its API process is gone" in found.says
    assert found.fix == "kill 4711"


# GPUs.


def nvml(*gpus: GpuInfo, **more: object) -> dict[str, object]:
    facts = [
        {
            name: value
            for name in GpuInfo.__struct_fields__
            if (value := getattr(each, name)) not in (None, "", {})
        }
        for each in gpus
    ]
    return {"gpus": [{"type": "GpuInfo", **each} for each in facts], **more}


@pytest.mark.parametrize(
    ("info", "standing"),
    [
        (GpuInfo(t_ns=0, absent_because="no NVIDIA driver"), "absent"),
        (GpuInfo(t_ns=0, absent_because="no NVIDIA GPU"), "absent"),
        (GpuInfo(t_ns=0, absent_because="the driver is not loaded"), "broken"),
        (GpuInfo(t_ns=0, uuid="GPU-1", index=0, name="NVIDIA H200"), "works"),
        (GpuInfo(t_ns=0, uuid="GPU-1", index=0, lost_because="fell off"), "broken"),
        (
            GpuInfo(t_ns=0, uuid="GPU-1", index=0, missing={"dram_active": "Ada"}),
            "limited",
        ),
    ],
    ids=["no driver", "no GPU", "not loaded", "H200", "lost", "no GPM"],
)
def test_a_gpu_says_what_is_measured_of_it(
    info: GpuInfo, standing: str, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(gpu, "ask_child", says(nvml(info)))

    assert one(gpu.gpu_checks(), "NVML").standing == standing


def test_a_driver_that_does_not_answer_is_broken(monkeypatch: Patch) -> None:
    for answer in (ChildError("it took longer than 20 s"), {"odd": 1}, 7):
        monkeypatch.setattr(gpu, "ask_child", says(answer))

        assert one(gpu.gpu_checks(), "NVML").standing is CheckStatus.BROKEN


async def test_an_exporter_says_which_fields_it_lacks_and_their_lines() -> None:
    exporter = TruthExporter(gpus=(TruthGpu(), TruthGpu("GPU-2", 1)))
    async with serving({"/metrics": exporter.page()}) as server:
        found = await asyncio.to_thread(one, gpu.gpu_checks([server.url]), "DCGM")
        exporter.instead = dict(ALL_OF_PROFILING)
        server.answers["/metrics"] = exporter.page()
        whole_page = await asyncio.to_thread(one, gpu.gpu_checks([server.url]), "DCGM")

    assert found.standing is CheckStatus.LIMITED
    assert found.says.endswith(" tells 2 GPUs, without sm active")
    assert "DCGM_FI_PROF_SM_ACTIVE, gauge" in found.fix
    assert whole_page.standing is CheckStatus.WORKS


async def test_an_exporter_that_was_named_and_is_none_is_broken() -> None:
    page = whole("<html>hello</html>", kind="text/html")
    async with serving({"/metrics": page}) as server:
        found = await asyncio.to_thread(one, gpu.gpu_checks([server.url]), "DCGM")

    assert found.standing is CheckStatus.BROKEN


def test_no_exporter_here_is_no_fault(monkeypatch: Patch) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        monkeypatch.setattr(gpu, "PORTS", (bound.getsockname()[1],))

        found = one(gpu.gpu_checks(), "DCGM")

    assert found.standing is CheckStatus.ABSENT


# Processes that are asked.


@pytest.mark.process
@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import time; time.sleep(60)", "longer than 1 s"),
        ("import os; os.abort()", "signal 6"),
        ("raise ValueError('it is sick')", "it is sick"),
        ("print('no JSON')", "exit status 0"),
    ],
    ids=["hangs", "crashes", "fails", "says something else"],
)
def test_a_process_that_does_not_answer_says_why(code: str, why: str) -> None:
    with pytest.raises(ChildError, match=why):
        ask_child("-c", code, limit_s=1 if "sleep" in code else 20)


@pytest.mark.process
def test_a_process_may_chatter_before_it_answers() -> None:
    code = "import os; print('INFO hello'); print('[' + os.environ['X'] + ']')"

    assert ask_child("-c", code, limit_s=20, more={"X": "7"}) == [7]
    assert "X" not in os.environ
