"""``inferwatch export`` and ``inferwatch import`` as people type them."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from collectors.contract.readings import RequestRecord, TokenTimes
from inferwatch.cli.export import PARTS
from inferwatch.cli.main import inferwatch
from inferwatch.errors import InferwatchError
from inferwatch.printing.export.recording import opened
from inferwatch.record.tables.table import SessionPart
from tests.inferwatch.printing.export.conftest import SAMPLES, Recorded

VLLM = SAMPLES / "vllm_bench.json"
SECRET = "sk-nobody-may-keep-this"
Run = Callable[..., Result]


@pytest.fixture
def run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """``run("export", "last", ...)`` in an empty folder, on the test's record."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("INFERWATCH_DB", str(path))

    def typed(*words: str | Path) -> Result:
        return CliRunner().invoke(inferwatch, [str(word) for word in words])

    return typed


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("--format", "html"), "inferwatch-s1.html"),
        (("--format", "perfetto"), "inferwatch-s1.perfetto.json"),
        (("--format", "jsonl"), "inferwatch-s1.jsonl"),
        (("--format", "csv"), "inferwatch-s1.zip"),
        (("--format", "csv", "--what", "steps"), "inferwatch-s1.csv"),
        (("--format", "csv", "--what", "steps", "--token-times"), "inferwatch-s1.zip"),
    ],
)
@pytest.mark.usefixtures("recorded")
def test_without_a_name_the_file_is_called_after_the_session(
    run: Run, words: tuple[str, ...], name: str
) -> None:
    done = run("export", "before", *words)

    assert done.exit_code == 0, done.output
    assert done.stderr == f"{name}\n"
    assert Path(name).stat().st_size > 1_000


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        (("--html", "page"), b"<!doctype html>"),
        (("-o", "page.html"), b"<!doctype html>"),
        (("-o", "steps.csv", "--what", "steps"), b"ordinal,"),
        (("-o", "causes.csv", "--what", "causes"), b"arrived_ns,"),
        (("-o", "all.zip"), b"PK"),
        (("-o", "all.jsonl"), b'{"table"'),
        (("-o", "trace.json.gz"), b"\x1f\x8b"),
    ],
)
@pytest.mark.usefixtures("recorded")
def test_the_file_says_the_format_and_without_a_session_it_is_the_latest(
    run: Run, words: tuple[str, ...], begins: bytes
) -> None:
    done = run("export", *words)

    assert done.exit_code == 0, done.output
    assert Path(words[1]).read_bytes().startswith(begins)


@pytest.mark.usefixtures("recorded")
def test_dash_is_stdout_and_nothing_else_is_on_it(run: Run) -> None:
    done = run("export", "last", "--format", "jsonl", "--what", "requests", "-o", "-")

    assert done.exit_code == 0
    assert done.stderr == ""
    tables = {json.loads(line)["table"] for line in done.stdout.splitlines()}
    assert tables == {"requests"}


@pytest.mark.usefixtures("recorded")
def test_nothing_is_overwritten_unasked(run: Run) -> None:
    Path("mine.html").write_text("mine")

    refused = run("export", "last", "--format", "html", "-o", "mine.html")
    kept = Path("mine.html").read_text()
    forced = run("export", "last", "--format", "html", "-o", "mine.html", "--force")

    assert isinstance(refused.exception, InferwatchError)
    assert "--force" in str(refused.exception)
    assert kept == "mine"
    assert forced.exit_code == 0
    assert Path("mine.html").read_text().startswith("<!doctype html>")


@pytest.mark.usefixtures("recorded")
def test_nothing_that_lies_in_the_way_is_written_through(run: Run) -> None:
    Path("victim").write_text("mine")
    Path(".mine.html.part").symlink_to("victim")

    done = run("export", "last", "--format", "html", "-o", "mine.html")

    assert done.exit_code == 0
    assert Path("victim").read_text() == "mine"
    names = {each.name for each in Path().iterdir()}
    assert names == {"victim", ".mine.html.part", "mine.html"}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("nobody", "--format", "html"), "No session 'nobody'"),
        (("last", "--format", "html", "--from", "1"), "leave out --from and --to"),
        (("last", "--format", "csv", "-o", "-"), "name a folder or a .zip"),
        (("last", "--format", "html", "-o", "no/where.html"), "No such file"),
        (("last",), "as what? give --html FILE, or --format csv"),
        (("last", "-o", "page.txt"), "-o page.txt does not tell"),
        (("last", "--html", "a.html", "-o", "b.html"), "leave out the others"),
        (("last", "--html", "a.html", "--format", "csv"), "leave out the others"),
        (("last", "--html", "a.html", "--no-profile-traces"), "html has no traces"),
    ],
)
@pytest.mark.usefixtures("recorded")
def test_what_cannot_be_is_a_usage_error_that_says_why(
    run: Run, words: tuple[str, ...], why: str
) -> None:
    done = run("export", *words)

    assert isinstance(done.exception, InferwatchError)
    assert done.exception.exit_status == 2
    assert why in str(done.exception)


def test_every_part_that_can_be_exported_can_be_asked_for() -> None:
    assert set(PARTS) == set(SessionPart)


@pytest.mark.process
@pytest.mark.parametrize("kind", ["csv", "jsonl", "perfetto", "html"])
def test_whoever_reads_may_stop_early(recorded: Recorded, kind: str) -> None:
    command = [sys.executable, "-P", "-m", "inferwatch.cli", "export", "last"]
    what = ["--what", "steps"] if kind in {"csv", "jsonl"} else []
    options = ["--format", kind, *what, "-o", "-", "--db", str(recorded[0])]

    with subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()

    assert said == b""
    fits_into_a_pipe = {0} if kind == "html" else set()
    assert process.returncode in {141} | fits_into_a_pipe


def test_imports_are_told_and_repeated_ones_are_warned_of(run: Run) -> None:
    first = run("import", VLLM, SAMPLES / "guidellm.json", "--name", "mine")
    again = run("import", VLLM, "--json")

    one, two = first.stdout.splitlines()
    assert one.startswith("s1: 6 requests of vllm bench serve, 10 requests/s, poisson,")
    assert two == (
        "s2: 4 requests of guidellm 0.8.1, 10 requests/s, constant, from guidellm.json"
    )
    assert first.stderr == ""
    assert "was already imported, as s1" in again.stderr
    (told,) = json.loads(again.stdout)
    assert told["session_id"] == "s3"
    assert told["requests"] == 6
    listed = json.loads(run("sessions", "--json").stdout)
    assert [row["name"] for row in listed] == ["vllm_bench", "mine-2", "mine-1"]


def test_one_bad_file_and_nothing_is_imported(run: Run, path: Path) -> None:
    Path("bad.json").write_text("{}")

    done = run("import", VLLM, "bad.json")

    assert isinstance(done.exception, InferwatchError)
    assert done.exception.exit_status == 2
    assert not path.exists()


def test_an_imported_session_can_be_exported(run: Run) -> None:
    run("import", VLLM)

    page = run("export", "last", "--format", "html", "-o", "-")
    trace = run("export", "last", "--format", "perfetto", "-o", "-")

    assert "imported from vllm bench serve" in page.stdout
    assert "cumulative distribution" in page.stdout
    events = json.loads(trace.stdout)["traceEvents"]
    slots = {event["tid"] for event in events if event["name"] == "thread_name"}
    assert sum("phase" in each["args"] for each in events if each["tid"] in slots) == 6


def test_what_load_writes_for_vllm_comes_back_with_the_same_latencies(
    run: Run, truth_url: str, path: Path
) -> None:
    load = run(
        *("load", truth_url, "--rate", "40", "--duration", "1", "--output-tokens", "6"),
        *("--format", "vllm-bench", "--name", "ours", "--allow-load"),
    )
    Path("ours.json").write_text(load.stdout)

    run("import", "ours.json", "--name", "imported")

    assert latencies(path, "imported") == latencies(path, "ours")


def test_keys_and_headers_and_prompts_are_in_no_export(
    run: Run, truth_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    load = ("load", truth_url, "--rate", "20", "--duration", "0.5", "--allow-load")
    run(*load, "--header", f"X-Team: {SECRET}", "--endpoint", "chat")

    pages = [
        run("export", "last", "--format", kind, "-o", "-").stdout
        for kind in ("jsonl", "perfetto", "html")
    ]

    log = httpx.get(f"{truth_url}/log", trust_env=False).json()
    assert SECRET in str(log[-1]["headers"])
    said = log[-1]["prompt"][0]["content"]
    assert len(said) > 20
    for page in pages:
        assert "load plan" in page or "LoadPlanned" in page
        assert SECRET not in page
        assert said not in page


def latencies(path: Path, session: str) -> list[Any]:
    """Send lag, TTFT, E2EL, gaps and counts of each request, in order of due time."""
    with opened(path, session) as recording:
        readings = list(recording.readings())
    gaps = {r.external_id: r.gaps_ns for r in readings if isinstance(r, TokenTimes)}
    records = [
        each
        for each in readings
        if isinstance(each, RequestRecord) and each.phase != "warmup"
    ]
    assert len(records) > 20
    return [
        (
            record.sent_ns - record.intended_ns,
            record.first_token_ns - record.intended_ns,
            record.last_token_ns - record.intended_ns,
            gaps[record.external_id],
            record.prompt_tokens,
            record.output_tokens,
        )
        for record in sorted(records, key=lambda each: each.intended_ns)
        if record.sent_ns and record.first_token_ns and record.last_token_ns
    ]
