"""``inferwatch doctor``: every check ends, and says a value or a reason."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from inferwatch.cli.checks.finding import (
    Check,
    CheckResult,
    absent,
    broken,
    limited,
    works,
)
from inferwatch.cli.main import main
from inferwatch.cli.running import doctor as doctor_command
from inferwatch.cli.running.doctor import DoctorReport, run_checks, run_doctor
from tests.fake_nvml import NoCompilerError, environment

ALL = (
    works("cores", "8 of 8 cores can be used"),
    limited("wall clock", "no time service keeps it", "start chrony"),
    absent("ssh", "not installed"),
    broken("a name that is long", "it " + "does not answer " * 8, "load it anew"),
)


def check(*findings: CheckResult, name: str = "one") -> Check:
    return Check(area="Host", name=name, find=lambda: findings)


def only(monkeypatch: pytest.MonkeyPatch, *checks: Check) -> None:
    """Look at these alone."""
    for area in ("engine", "host", "record", "terminal"):
        monkeypatch.setattr(getattr(doctor_command, area), "CHECKS", ())
    monkeypatch.setattr(doctor_command, "gpu_checks", lambda _dcgm: checks)


# How checks run.


def test_a_check_that_hangs_is_left_behind_and_said_to_be_broken() -> None:
    over = threading.Event()

    def hangs() -> Sequence[CheckResult]:
        over.wait(60)
        return []

    hanging = Check(
        area="Host", name="driver", find=hangs, limit_s=0.2, too_long="is it loaded?"
    )
    began_s = time.monotonic()
    (found, sound) = run_checks([hanging, check(ALL[0])], progress=False)
    over.set()

    assert time.monotonic() - began_s < 20
    assert found[1] == [broken("driver", "no answer within 0.2 s: is it loaded?")]
    assert sound[1] == (ALL[0],)


def test_a_check_that_fails_is_a_finding_and_others_go_on() -> None:
    def fails() -> Sequence[CheckResult]:
        raise ZeroDivisionError("by zero")

    failing = Check(area="Host", name="cores", find=fails)
    (found, sound) = run_checks([failing, check(ALL[0])], progress=False)

    says = "the check itself failed: ZeroDivisionError: by zero"
    assert found[1] == [broken("cores", says)]
    assert sound[1] == (ALL[0],)


def test_checks_are_told_in_their_order_whichever_ends_first() -> None:
    first_may_end = threading.Event()

    def waits() -> Sequence[CheckResult]:
        first_may_end.wait(20)
        return [ALL[0]]

    def ends() -> Sequence[CheckResult]:
        first_may_end.set()
        return [ALL[1]]

    slow = Check(area="Host", name="slow", find=waits, limit_s=20)
    quick = Check(area="Host", name="quick", find=ends)

    assert [each.name for each, _ in run_checks([slow, quick], progress=False)] == [
        "slow",
        "quick",
    ]


# What is printed.


def test_the_exit_status_is_1_only_where_something_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    only(monkeypatch, check(*ALL[:3]))
    assert run_doctor((), as_json=False) == 0

    only(monkeypatch, check(*ALL))
    assert run_doctor((), as_json=False) == 1
    printed = capsys.readouterr().out
    assert "✓ 1 works   ! 1 works in part   – 1 not here   ✗ 1 broken" in printed
    assert "→ start chrony" in printed


def test_json_has_every_finding_with_its_facts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    only(monkeypatch, check(works("cores", "8 can be used", usable=8), ALL[3]))

    assert run_doctor((), as_json=True) == 1

    (line,) = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    assert told["sound"] is False
    assert told["findings"][0] == {
        "area": "Host",
        "name": "cores",
        "standing": "works",
        "says": "8 can be used",
        "fix": "",
        "facts": {"usable": 8},
    }


@pytest.mark.parametrize("columns", [24, 40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    page = DoctorReport()

    lines = [*page.head(), *page.findings(ALL), *page.legend(dict.fromkeys(MARKS, 3))]

    assert max(map(len, lines)) <= min(columns, 100)
    assert not any("\x1b" in line for line in lines)


MARKS = doctor_command.MARKS


def test_colours_are_for_terminals_that_want_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b" not in DoctorReport().findings(ALL)[0]

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "\x1b[32m✓\x1b[0m" in DoctorReport().findings(ALL)[0]


def test_without_utf_8_the_marks_are_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ascii:
        encoding = "ascii"

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr(sys, "stdout", Ascii())

    page = DoctorReport()

    lines = [*page.findings(ALL), *page.legend(dict.fromkeys(MARKS, 1))]
    assert "\n".join(lines).isascii()


def test_what_others_named_is_shown_and_not_obeyed() -> None:
    evil = works("model \x1b[2J", "says \x1b]0;title\x07 and\nmore")

    printed = "\n".join(DoctorReport().findings([evil]))

    assert "\x1b" not in printed
    assert "␛[2J" in printed


# The whole program.


def doctor(env: dict[str, str]) -> tuple[int, dict[str, dict[str, object]]]:
    """Its exit status and findings, without the import of vLLM that takes so long."""
    without_vllm = (
        "import sys\n"
        "from inferwatch.cli.checks import engine\n"
        "engine.CHECKS = engine.CHECKS[:2]\n"
        "from inferwatch.cli.main import main\n"
        "main(['doctor', '--json'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", without_vllm],
        capture_output=True,
        text=True,
        timeout=100,
        env={**env, "INFERWATCH_PORTS": ""},
        check=False,
    )
    assert not done.stderr
    told = json.loads(done.stdout)
    return done.returncode, {each["name"]: each for each in told["findings"]}


def fake_driver(commands: str) -> dict[str, str]:
    """Where our handling of a driver is to be proved, without any."""
    try:
        return environment(commands)
    except NoCompilerError as error:
        pytest.skip(f"the fake driver cannot be compiled: it {error}")


@pytest.mark.process
def test_simulated_gpus_with_counters_work() -> None:
    status, found = doctor(fake_driver("gpus 2"))

    assert found["GPU 0"]["standing"] == found["GPU 1"]["standing"] == "works"
    assert "simulated" in str(found["GPU 1"]["says"])
    assert status == 0, found


@pytest.mark.process
def test_a_simulated_gpu_without_counters_says_what_would_help() -> None:
    status, found = doctor(fake_driver("gpus 1; model 0 a100"))

    assert found["GPU 0"]["standing"] == "limited"
    assert "DCGM" in str(found["GPU 0"]["fix"])
    assert status == 0, found


@pytest.mark.process
@pytest.mark.parametrize(
    ("commands", "why"),
    [
        ("return nvmlInitWithFlags * 18", "driver was updated"),
        ("nonsense that ends the process", "ended by signal"),
    ],
    ids=["mismatch", "crash"],
)
def test_a_simulated_driver_that_fails_is_broken(commands: str, why: str) -> None:
    status, found = doctor(fake_driver(commands))

    assert found["NVML"]["standing"] == "broken"
    assert why in str(found["NVML"]["says"])
    assert status == 1


@pytest.mark.process
def test_a_library_that_is_none_is_broken(tmp_path: Path) -> None:
    tmp_path.joinpath("libnvidia-ml.so.1").write_text("not a library")
    own = fake_driver("")

    status, found = doctor({**own, "LD_LIBRARY_PATH": str(tmp_path)})

    assert found["NVML"]["standing"] == "broken"
    assert "cannot be loaded" in str(found["NVML"]["says"])
    assert status == 1


@pytest.mark.process
def test_the_checks_load_neither_vllm_nor_torch_into_our_process() -> None:
    code = (
        "import sys; import inferwatch.cli.running.doctor; "
        "print({'vllm', 'torch', 'transformers', 'textual'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_an_address_that_is_none_is_wrong_usage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--dcgm", "ftp://gpu1"])

    assert ended.value.code == 2
    assert "not an address of a server" in capsys.readouterr().err
