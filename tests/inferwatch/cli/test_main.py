"""The command line teaches, and fails in words."""

import os
import re
import socket
import sqlite3
import subprocess
import sys
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

import click
import pytest
from click.testing import CliRunner

from inferwatch import __version__, cli
from inferwatch.cli.main import (
    COMMANDS,
    SECTIONS,
    inferwatch,
    main,
)
from inferwatch.errors import SourceError, UsageError
from inferwatch.record.writing.recorder import Recorder


def run(*arguments: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """The real command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "inferwatch.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=env,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "command", [[], ["demo"], ["serve"], ["load"], ["calibrate"], ["sessions"]]
)
def test_help_shows_what_to_type(command: list[str]) -> None:
    result = CliRunner().invoke(inferwatch, [*command, "--help"])

    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_the_version_is_told() -> None:
    result = CliRunner().invoke(inferwatch, ["--version"])

    assert __version__ in result.output


def test_a_sqlite_that_is_too_old_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 37, 2))

    with pytest.raises(SystemExit) as ended:
        main(["sessions"])

    assert ended.value.code == 2
    assert "needs SQLite 3.38.2 or newer" in capsys.readouterr().err


@pytest.mark.process
def test_an_unknown_command_is_a_usage_error_without_a_traceback() -> None:
    status, _, err = run("dmeo")

    assert status == 2
    assert "No such command 'dmeo'. Did you mean 'demo'?" in err
    assert "Traceback" not in err


@pytest.mark.process
def test_a_duration_of_nothing_is_a_usage_error() -> None:
    status, _, err = run("demo", "--duration", "0")

    assert status == 2
    assert "--duration" in err


@pytest.mark.process
def test_a_port_in_use_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])

        status, _, err = run("serve", "m", "--no-record", "--port", port, env=env)

    assert status == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in err


@pytest.mark.process
@pytest.mark.parametrize("module", ["inferwatch", "inferwatch.cli"])
def test_the_package_is_the_command(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--version"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert __version__ in done.stdout


@pytest.mark.process
@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["sessions", "--json"], ["sessions"]]
)
def test_a_full_disk_under_stdout_is_said_and_no_failed_check(
    arguments: list[str], tmp_path: Path
) -> None:
    record = tmp_path / "sessions.db"
    Recorder.open(record).close()

    done = _printing_into(Path("/dev/full"), arguments, record)

    assert done.returncode == 2
    assert done.stderr == (
        "inferwatch: the output cannot be written: No space left on device\n"
    )


@pytest.mark.process
def test_who_reads_no_further_ends_it_quietly(tmp_path: Path) -> None:
    record = tmp_path / "sessions.db"
    Recorder.open(record).close()
    ours, theirs = os.pipe()
    os.close(ours)

    done = subprocess.run(
        [sys.executable, "-m", "inferwatch", "sessions", "--db", str(record)],
        stdout=theirs,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(theirs)

    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.process
def test_a_terminal_without_our_letters_gets_others(tmp_path: Path) -> None:
    record = tmp_path / "sessions.db"
    Recorder.open(record, name="größer – 你").close()
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}

    status, out, err = run("sessions", "--db", str(record), env=env)

    assert (status, err) == (0, "")
    assert "gr??er ? ?" in out


def _printing_into(
    out: Path, arguments: list[str], record: Path
) -> subprocess.CompletedProcess[str]:
    with out.open("w") as stdout:
        return subprocess.run(
            [sys.executable, "-m", "inferwatch", *arguments],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "INFERWATCH_DB": str(record)},
            check=False,
        )


@pytest.fixture
def unforeseen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A fault in a command, and where reports go; what it says."""
    words = "nobody thought of this\nsecond line"

    def fail(**_: object) -> None:
        raise RuntimeError(words)

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("inferwatch.cli.running.attach.find_engines", fail)
    return words


def test_a_fault_of_ours_is_a_sentence_a_report_and_a_status_of_its_own(
    unforeseen: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("INFERWATCH_TRACEBACK")

    with pytest.raises(SystemExit) as ended:
        main([])

    (report,) = tmp_path.rglob("fault-*.txt")
    said = capsys.readouterr().err
    assert ended.value.code == 70
    assert "RuntimeError: nobody thought of this" in said
    assert str(report) in said
    assert len(said.splitlines()) == 1
    assert "Traceback" in report.read_text()
    assert unforeseen in report.read_text()
    assert report.stat().st_mode & 0o077 == 0


def test_where_no_report_can_be_kept_the_fault_is_said_all_the_same(
    unforeseen: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("INFERWATCH_TRACEBACK")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))

    with pytest.raises(SystemExit) as ended:
        main([])

    assert ended.value.code == 70
    assert unforeseen.partition("\n")[0] in capsys.readouterr().err


def test_tests_see_a_fault_of_ours_itself(unforeseen: str) -> None:
    with pytest.raises(RuntimeError, match=unforeseen.partition("\n")[0]):
        main([])


@pytest.mark.parametrize(
    "command",
    [["demo"], ["serve", "some/model"], ["load", "localhost:1"], ["import", "a.json"]],
)
@pytest.mark.parametrize("name", ["last", "s3", "x" * 81, "a\x1b]52;c;eA==\x07"])
def test_a_name_that_none_can_have_is_refused_by_every_command(
    command: list[str], name: str
) -> None:
    result = CliRunner().invoke(inferwatch, [*command, "--name", name])

    assert result.exit_code == 2
    assert "Invalid value for '--name'" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("replay last --speed 2 --json", "--speed is for the screen"),
        ("serve m --uds /run/x.sock --port 8000", "--uds replaces"),
        ("serve m --uds /run/x.sock --host 0.0.0.0", "--uds replaces"),
        ("demo --name x --no-record", "--no-record makes none"),
    ],
)
def test_options_of_which_one_would_be_ignored_are_refused(
    arguments: str, said: str
) -> None:
    result = CliRunner().invoke(inferwatch, arguments.split())

    assert result.exit_code == 2
    assert said in result.output


@pytest.mark.parametrize("kind", ["html", "perfetto"])
@pytest.mark.parametrize("flag", ["--token-times", "--what=steps"])
def test_what_is_of_tables_is_refused_where_there_are_none(
    kind: str, flag: str
) -> None:
    with pytest.raises(UsageError, match="tables of csv and jsonl"):
        inferwatch.main(
            ["export", "last", "--format", kind, flag], standalone_mode=False
        )


@pytest.mark.parametrize(
    "arguments",
    [
        ["export", "last", "--format", "csv", "--from", "nan"],
        ["export", "last", "--format", "csv", "--to", "1e308"],
        ["compare", "a", "b", "--a-from", "inf"],
        ["demo", "--duration", "nan"],
        ["load", "localhost:1", "--rate", "1", "--timeout", "inf"],
    ],
)
def test_what_is_no_finite_number_is_a_usage_error(arguments: list[str]) -> None:
    assert CliRunner().invoke(inferwatch, arguments).exit_code == 2


def test_without_an_engine_it_says_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path))

    with pytest.raises(SystemExit) as ended:
        main([])

    assert ended.value.code == 3
    assert "inferwatch demo" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_runtime_directory_of_another_user_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("INFERWATCH_TRACEBACK", raising=False)
    tmp_path.chmod(0o1777)
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path))
    theirs = tmp_path / f"inferwatch-{os.getuid()}"
    theirs.mkdir()
    os.chown(theirs, 12_345, 12_345)

    with pytest.raises(SystemExit) as ended:
        main([])

    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"inferwatch: {theirs} belongs to another user: INFERWATCH_")


@pytest.mark.process
def test_a_model_path_that_does_not_exist_is_said_before_anything_starts(
    tmp_path: Path,
) -> None:
    record = tmp_path / "sessions.db"
    (tmp_path / "vllm").mkdir()  # found where no real one is; nobody starts it
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}

    status, out, err = run("serve", "./no/model", "--db", str(record), env=env)

    assert (status, out) == (2, "")
    assert err.startswith("inferwatch: no model at no/model: ")
    assert not record.exists()


@pytest.mark.parametrize("command", [["demo"], ["serve", "some/model"]])
def test_a_missing_vllm_is_said_before_a_session_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setattr("inferwatch.live.engine_source.find_spec", lambda _: None)
    record = tmp_path / "sessions.db"

    with pytest.raises(SourceError, match=r"pip install 'inferwatch\[engine\]'"):
        inferwatch.main([*command, "--db", str(record)], standalone_mode=False)

    assert not record.exists()


HELP_OF_EACH_COMMAND = """
import os, sys
from inferwatch.cli.main import COMMANDS, inferwatch

heavy = {"httpx", "numpy", "rich", "sqlite_utils", "textual", "torch", "transformers"}
heavy |= {"vllm", "zmq"}
for command in ((), *((each.name,) for each in COMMANDS)):
    if os.fork() == 0:  # as fresh as a new process, and much cheaper
        inferwatch.main([*command, "--help"], standalone_mode=False)
        if loaded := sorted(heavy & set(sys.modules)):
            print(*command, "loads", *loaded, file=sys.stderr)
        sys.exit()
    os.wait()
"""


@pytest.mark.process
def test_help_loads_no_engine_no_screen_and_no_arithmetic() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HELP_OF_EACH_COMMAND],
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stderr == ""
    assert done.stdout.count("Usage: ") == 1 + len(COMMANDS)


@pytest.mark.process
def test_to_list_and_to_complete_commands_imports_none_of_them() -> None:
    script = (
        "import sys; from click.shell_completion import BashComplete\n"
        "from inferwatch.cli.main import COMMANDS, inferwatch\n"
        "inferwatch.main(['--help'], standalone_mode=False)\n"
        "complete = BashComplete(inferwatch, {}, 'inferwatch', '').get_completions\n"
        "names = {each.value for each in complete([], '')}\n"
        "assert names == {each.name for each in COMMANDS}, names\n"
        "imported = {each.module for each in COMMANDS} & set(sys.modules)\n"
        "print(imported, file=sys.stderr)"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert done.stderr.strip() == "set()"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_help_lists_commands_by_what_they_are_for(width: int) -> None:
    text = CliRunner().invoke(inferwatch, ["--help"], terminal_width=width).output

    headings = [*SECTIONS, "Options"]
    places = [text.index(f"\n{heading}:\n") for heading in headings]
    assert places == sorted(places)
    assert len({each.name for each in COMMANDS}) == len(COMMANDS)
    for heading, after in pairwise(headings):
        listed = text[text.index(f"\n{heading}:") : text.index(f"\n{after}:")]
        names = re.findall(r"^  ([a-z-]+) ", listed, re.MULTILINE)
        assert names == [each.name for each in SECTIONS[heading]]
    if width >= 80:
        assert all(f"{each.short_help}\n" in text for each in COMMANDS)


def test_each_command_that_a_module_declares_is_listed() -> None:
    declared = {
        (module.__name__, name)
        for module in map(import_module, modules())
        for name, command in vars(module).items()
        if isinstance(command, click.Command) and declares(module, command)
    }

    assert declared == {(each.module, each.attribute) for each in COMMANDS}


def modules() -> list[str]:
    """Those of the command line, without the one that runs it when imported."""
    names = [each.name for each in iter_modules(cli.__path__, f"{cli.__name__}.")]
    return [name for name in names if not name.endswith("__main__")]


def declares(module: ModuleType, command: click.Command) -> bool:
    """Whether it is the module's own, and a command of the program itself."""
    groups = [each for each in vars(module).values() if isinstance(each, click.Group)]
    below = [each for group in groups for each in group.commands.values()]
    own = command.callback is not None and command.callback.__module__
    return own == module.__name__ and command not in [*below, inferwatch]


@pytest.mark.process
@pytest.mark.parametrize(
    "module",
    [
        "inferwatch.live.engine.engine_session",
        "inferwatch.record.lookup.recorded_readings",
        "inferwatch.live.load.load_session",
    ],
)
def test_watching_and_replaying_load_no_engine_and_no_screen(module: str) -> None:
    # httpx brings rich along for its own command line; that costs us nothing.
    script = (
        f"import sys, {module}\n"
        "print({'vllm', 'torch', 'transformers', 'textual'} & set(sys.modules))"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "set()"
