"""README and docs/: each command on a page is run, each link, key and name exists."""

import re
import shlex
import sqlite3
import tomllib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import walk_packages
from shutil import copyfile
from typing import Any

import click
import pytest
from click.testing import CliRunner
from textual.app import App
from textual.binding import Binding
from textual.dom import DOMNode

import inferwatch.ui
from inferwatch.cli.main import LazyCommand
from inferwatch.cli.main import inferwatch as program
from inferwatch.cli.running import measure_peak
from inferwatch.cli.running.tune_plan import tune_plan
from inferwatch.errors import InferwatchError
from inferwatch.loadgen import target_server as idle_server
from inferwatch.sample import sample_file
from inferwatch.ui.app import InferwatchApp
from tests.inferwatch.cli.test_tune_options import options_of as tune_options

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RESULTS = Path(__file__).parents[1] / "printing" / "export" / "samples"
SERVER = "localhost:8000"
FOREIGN = {"vllm", "guidellm", "aiperf", "python"}
"""Programs of others: their lines are not ours to test."""
FOREIGN_OPTIONS = {
    *("--silent", "--show-error", "--fail", "--retry", "--retry-delay", "--port"),
    *("--retry-all-errors", "--body-file"),
    *("--max-num-seqs", "--save-result", "--save-detailed", "--result-filename"),
    *("--max-concurrency", "--enable-per-request-metrics", "--output"),
    *("--tensor-parallel-size", "--user", "--model", "--metrics", "--enable-metrics"),
    *("--otlp-traces-endpoint", "--kv-events-config", "--custom-histogram-buckets"),
    *("--enable-forward-pass-metrics", "--forward-pass-metrics-ipc-name"),
    *("--model-path", "--output-details", "--output-file"),
    *("--enable-feature", "--cap-add", "--scheduler-cls", "--trace", "--type"),
    *("--long-prefill-token-threshold", "--prefill-schedule-interval"),
    *(
        "--profiler-config",
        "--watchdog-config",
        "--cudagraph-metrics",
        "--no-cudagraph-metrics",
    ),
}
WATCHERS = {"serve", "attach", "record", "agent", "keys", "profile"}
"""They need an engine, or go on until told to stop."""
JUDGES = {
    "--fail-if",
    "--slo",
    "--class",
    "--plan",
    "--measured-tpot",
    "--measured-curve",
}
"""Whatever the verdict, the command itself was right."""
KEYS = {
    "←": "left",
    "→": "right",
    "↑": "up",
    "↓": "down",
    "[": "left_square_bracket",
    "esc": "escape",
    "]": "right_square_bracket",
    ",": "comma",
    ".": "full_stop",
    "/": "slash",
    "-": "minus",
    "{": "left_curly_bracket",
    "}": "right_curly_bracket",
    "+": "plus",
    "?": "question_mark",
    "<": "less_than_sign",
    ">": "greater_than_sign",
}


@dataclass(frozen=True)
class Block:
    """A stretch of a page that is to be typed or read literally."""

    language: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    """Fenced ones and, as shell commands, indented ones."""
    text = page.read_text("utf-8")
    fence = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    yield from (Block(*found.groups()) for found in fence.finditer(text))
    indented = re.compile(r"(?<=\n\n)(?: {4}.*\n)+")
    for found in indented.finditer(fence.sub("", text)):
        yield Block("sh", found[0])


def commands(page: Path) -> list[list[str]]:
    """The words of each command, up to a pipe or a redirection."""
    lines = [
        line.strip()
        for block in blocks(page)
        if block.language == "sh"
        for line in block.text.replace("\\\n", " ").splitlines()
    ]
    words = (shlex.split(line, comments=True) for line in lines)
    return [list(_first(each)) for each in words if each]


def _first(words: list[str]) -> Iterator[str]:
    begun = False
    for word in words:
        if word in {"|", ">", "<", "&&"}:
            return
        begun |= "=" not in word or not word.partition("=")[0].isupper()
        if begun:
            yield word


def names(pages: list[Path]) -> list[str]:
    return [page.stem for page in pages]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with all sessions that the pages speak of."""
    path = Path(copyfile(sample_file(), tmp_path_factory.mktemp("records") / "all.db"))
    with closing(sqlite3.connect(path)) as record, record:
        for number, name in enumerate(("after", "search", "before2", "after2"), 2):
            copy_session(record, number)
            record.execute(
                "UPDATE sessions SET name = ? WHERE session = ?", (name, number)
            )
        record.execute("UPDATE sessions SET name = 'before' WHERE session = 1")
    return path


@pytest.fixture
def home(records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all that the pages speak of: records, files of others, a plan."""
    for name in ("CACHE", "STATE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    monkeypatch.setenv("INFERWATCH_DB", str(tmp_path / "inferwatch.db"))
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.chdir(tmp_path)
    for name in ("inferwatch.db", "yesterday.db", "damaged.db"):
        copyfile(records, name)
    copyfile(RESULTS / "vllm_bench.json", "a.json")
    copyfile(RESULTS / "guidellm.json", "b.json")
    copyfile(RESULTS / "sglang_bench.jsonl", "c.jsonl")
    Path("artifacts").mkdir()
    for path in RESULTS.glob("profile_export*"):
        copyfile(path, Path("artifacts", path.name))
    Path("prompts.jsonl").write_text('{"prompt": "Why is the sky blue?"}\n')
    Path("azure.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.680590,40,4\n2023-11-16 18:15:46.880590,80,3\n"
    )
    Path("demand.csv").write_text("hour,requests_per_hour\n0,100000\n1,700000\n")
    return tmp_path


def copy_session(record: sqlite3.Connection, number: int) -> None:
    """All rows of session 1 once more."""
    tables = record.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    for (table,) in tables.fetchall():
        info = record.execute(f"PRAGMA table_info({table})").fetchall()
        columns = [name for _, name, *_ in info]
        if "session" in columns:
            listed = ", ".join(columns)
            taken = ", ".join(str(number) if n == "session" else n for n in columns)
            rows = f"SELECT {taken} FROM {table} WHERE session = 1"  # noqa: S608
            record.execute(f"INSERT INTO {table} ({listed}) {rows}")


def run(words: list[str]) -> int:
    """The exit status of an inferwatch command; its output when it fails."""
    done = CliRunner().invoke(program, words, standalone_mode=False)
    if isinstance(done.exception, InferwatchError):
        pytest.fail(f"inferwatch {shlex.join(words)}: {done.exception}")
    if done.exception is not None:
        raise done.exception
    return int(done.return_value or 0)


def parse(words: list[str]) -> None:
    """Read a command line as the program would, and stop there."""
    _, command, rest = program.resolve_command(click.Context(program), words)
    assert command is not None, words[0]
    command.make_context(words[0], rest)


def keep_plans(page: Path) -> None:
    """Where the commands look for the plans that it shows."""
    for block in blocks(page):
        if block.language == "toml":
            Path("plan.toml").write_text(block.text)


def is_new_tune(words: list[str]) -> bool:
    """It would start an engine."""
    return words[:1] == ["tune"] and not {"--resume", "--show", "--list"} & {*words}


def try_it(words: list[str], url: str) -> None:
    """Run a command, or as much of it as there is without an engine."""
    starts_engine = not words or words[0] in WATCHERS
    starts_engine |= words[:1] == ["demo"] and "--sample" not in words
    starts_engine |= words[:1] == ["review"] and SERVER in words
    if is_new_tune(words):
        tune_plan(tune_options(*words[1:]))  # all but the engine
        return
    if starts_engine or {"--find-rate", "--resume", "--show"} & {*words}:
        if words:
            parse(words)
        return
    if words[0] == "load":
        words = [url if word == SERVER else word for word in words]
        words += ["--duration", "0.5"]
        words += ["--warmup", "0.3"] if "--scenario" in words else []
        lengths_of_their_own = {"--trace", "--like", "--class", "--plan", "--scenario"}
        if not lengths_of_their_own & {*words}:
            words += ["--output-tokens", "3"]
    if words[0] == "baseline":
        words = [url if word == SERVER else word for word in words]
        words += ["--output-tokens", "3", "--repeats", "2"]
    if words[0] == "calibrate":
        words = [*words, "--duration", "0.5"]
    assert run(words) == 0 or JUDGES & {*words}, words


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
@pytest.mark.usefixtures("home")
def test_every_command_of_a_page_is_understood(page: Path) -> None:
    keep_plans(page)

    for program_name, *words in commands(page):
        if program_name != "inferwatch" or not words:
            continue
        parse(words)
        if is_new_tune(words):
            tune_plan(tune_options(*words[1:]))


@pytest.mark.process
@pytest.mark.soak
@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
@pytest.mark.usefixtures("home")
def test_every_command_of_a_page_works(
    page: Path, truth_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_server, "TRAFFIC_LOOK_S", 0.01)
    if page is PAGES[0]:  # half a minute of all cores, which docs/hardware.md takes
        monkeypatch.setattr(measure_peak, "measure_peak", lambda: None)
    keep_plans(page)
    found = commands(page)

    for program_name, *words in found:
        if words == ["doctor"] and [program_name, *words, "--measure-peak"] in found:
            continue  # that looks at the same, afterwards
        if program_name == "inferwatch":
            try_it(words, truth_url)
        elif program_name == "make":
            assert f"\n{words[0]}:" in (ROOT / "Makefile").read_text("utf-8")
        elif program_name == "pip":
            project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
            extras = project["project"]["optional-dependencies"]
            assert words[-1] in {f"inferwatch[{each}]" for each in extras}
        else:
            assert program_name in FOREIGN, program_name


PROGRAMMED = [
    page
    for page in PAGES
    if not {"sql", "python"}.isdisjoint(each.language for each in blocks(page))
]


@pytest.mark.parametrize("page", PROGRAMMED, ids=names(PROGRAMMED))
@pytest.mark.usefixtures("home")
def test_every_query_and_program_of_a_page_works(page: Path) -> None:
    known: dict[str, Any] = {}
    for block in blocks(page):
        if block.language == "sql":
            with closing(sqlite3.connect("inferwatch.db")) as record:
                assert record.execute(block.text).fetchall(), block.text
        if block.language == "python":
            code = compile(block.text, page.name, "exec")
            imported = re.findall(r"^import (\w+)", block.text, re.MULTILINE)
            if all(map(find_spec, imported)):
                exec(code, known)  # noqa: S102 - ours
    assert "times" not in known or sum(map(len, known["times"].values())) > 1_000


def test_what_is_fenced_is_of_a_kind_that_is_tested() -> None:
    kinds = {block.language for page in PAGES for block in blocks(page)}

    assert kinds <= {"sh", "sql", "python", "toml", "yaml", "text"}


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text("utf-8")):
        if target.startswith("https://"):
            continue
        path, _, heading = target.partition("#")
        file = (page.parent / path) if path else page
        assert file.exists(), target
        assert not heading or heading in headings(file), target


def headings(page: Path) -> set[str]:
    """Its headings as links name them."""
    found = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in found}


def test_the_front_page_is_short_and_leads_to_all_others() -> None:
    front = PAGES[0].read_text("utf-8")

    assert len(front.splitlines()) <= 200
    assert [page.name for page in PAGES[1:] if f"docs/{page.name}" not in front] == []


def test_every_option_that_is_named_exists() -> None:
    said = {
        option
        for page in PAGES
        for option in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", page.read_text())
    }

    assert said - FOREIGN_OPTIONS - set(options_of(program)) == set()


def options_of(command: click.Command) -> Iterator[str]:
    if isinstance(command, LazyCommand):
        command = command.load()
    for parameter in command.get_params(click.Context(command)):
        yield from (*parameter.opts, *parameter.secondary_opts)
    if isinstance(command, click.Group):
        for each in command.commands.values():
            yield from options_of(each)
    yield "--help"


def test_every_variable_that_is_named_is_read() -> None:
    said = {
        name
        for page in PAGES
        for name in re.findall(r"INFERWATCH_[A-Z_]+", page.read_text("utf-8"))
    }
    packages = ("inferwatch", "collectors", "embedded_engine")
    code = "".join(
        path.read_text("utf-8")
        for package in packages
        for path in (ROOT / package).rglob("*.py")
    )

    assert [name for name in sorted(said) if f'"{name}"' not in code] == []


def test_every_table_of_the_record_is_described() -> None:
    page = (ROOT / "docs" / "record.md").read_text("utf-8")
    with closing(sqlite3.connect(sample_file())) as record:
        tables = record.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' "
            "AND name NOT LIKE 'sqlite_%' AND name NOT GLOB '_*' ORDER BY name"
        ).fetchall()

    assert [name for (name,) in tables if f"`{name}`" not in page] == []


def test_every_key_of_the_tables_is_bound() -> None:
    page = (ROOT / "docs" / "keys.md").read_text("utf-8")
    rows = [line.split("|")[1:-1] for line in page.splitlines() if "|" in line]
    typed = {
        key for row in rows for key in re.findall(r"`([^`]+)`", " ".join(row[:-1]))
    }
    if InferwatchApp.ENABLE_COMMAND_PALETTE:
        typed.discard(App.COMMAND_PALETTE_BINDING)

    assert sorted(key for key in typed if KEYS.get(key, key) not in bound_keys()) == []


def bound_keys() -> set[str]:
    """Of all screens, panels and the app."""
    keys: set[str] = set()
    for module in walk_packages(inferwatch.ui.__path__, "inferwatch.ui."):
        for each in vars(import_module(module.name)).values():
            if isinstance(each, type) and issubclass(each, DOMNode):
                for binding in getattr(each, "BINDINGS", ()):
                    known = (
                        binding if isinstance(binding, Binding) else Binding(*binding)
                    )
                    keys |= {key.strip() for key in known.key.split(",")}
    return keys
