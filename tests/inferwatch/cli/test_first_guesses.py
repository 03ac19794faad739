"""What people type first is understood, or told what to type instead."""

import asyncio
import doctest
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from embedded_engine.engine.config import DEMO_FLAGS
from inferwatch.cli import words
from inferwatch.cli.main import COMMANDS, inferwatch, main
from inferwatch.cli.running import target
from inferwatch.errors import NoSuchSessionError, SourceError, UsageError
from inferwatch.live.attached.nearby import NearbyEngine
from inferwatch.live.engine import demo
from inferwatch.metrics.requests.slo import parse_slo
from inferwatch.printing import command as module
from inferwatch.printing.command import command
from inferwatch.record.lookup.recorded_load import RecordedLoad
from inferwatch.sample import sample_file
from inferwatch.studies.compare.fail_if import parse_condition
from inferwatch.studies.tune.flags import KnownFlags, known_flags, refuse_unknown

HERE = NearbyEngine(address="http://127.0.0.1:8000", models=("m",))
SOCKET = NearbyEngine(address="/run/x.sock", family="sglang")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(inferwatch, arguments)


@pytest.mark.parametrize(
    "behind", ["", ":s1", ":1"], ids=["file", "one of its sessions", "its number"]
)
def test_the_file_of_a_record_is_replayed(
    behind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sample_file().parent)

    result = run(f"{sample_file().name}{behind}", "--json")

    assert result.exit_code == 0
    assert '"session_id": "s1"' in result.output


def test_the_id_of_a_session_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERWATCH_DB", str(sample_file()))

    for word in ("s1", "last"):
        assert '"session_id": "s1"' in run(word, "--json").output
    assert isinstance(run("s9").exception, NoSuchSessionError)


def test_the_unit_of_a_metric_may_be_left_out() -> None:
    assert str(parse_slo("ttft<500ms tpot<0.05")) == str(
        parse_slo("ttft_s<500ms tpot_s<0.05")
    )
    assert parse_condition("ttft_p99 > +5%").metric == (
        parse_condition("ttft_p99_s > +5%").metric
    )


def test_an_address_is_attached_to(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        "inferwatch.cli.running.attach.run_attach",
        lambda servers, options: asked.append((servers.urls, options.once)),
    )
    for address in ("http://gpu1:8000", "gpu1:8000", "ssh://gpu1/8000"):
        assert run(address, "--once").exit_code == 0, address

    assert asked == [
        (("http://gpu1:8000",), True),
        (("gpu1:8000",), True),
        (("ssh://gpu1/8000",), True),
    ]


def test_what_a_word_is_is_told_by_examples() -> None:
    for each in (words, module):
        outcome = doctest.testmod(each)
        assert outcome.attempted
        assert not outcome.failed


def test_a_printed_command_can_be_typed_again(tmp_path: Path) -> None:
    names = ["t5b8a6a #5 max 8, x", "it's", "", "-n"]
    database = tmp_path / "a record #2.db"

    printed = command("load", "--like", *names, database=database)

    typed = shlex.split(printed, comments=True)
    assert typed == ["inferwatch", "load", "--like", *names, "--db", str(database)]


def found(monkeypatch: pytest.MonkeyPatch, engines: Sequence[NearbyEngine]) -> Any:
    async def nearby(*, hostages: bool) -> Sequence[NearbyEngine]:
        assert hostages
        return engines

    monkeypatch.setattr(target, "nearby_engines", nearby)
    return asyncio.run(target.target_of("load", None, None, {}, verify_tls=True))


def test_without_an_address_the_only_engine_of_the_node_is_meant(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert found(monkeypatch, [HERE]).url == HERE.address
    assert found(monkeypatch, [SOCKET]).uds == SOCKET.address

    assert capsys.readouterr().err == (
        "inferwatch: the engine here: 127.0.0.1:8000, m\n"
        "inferwatch: the engine here: /run/x.sock\n"
    )


def test_of_several_engines_one_is_to_be_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UsageError) as told:
        found(monkeypatch, [HERE, SOCKET])
    assert str(told.value).splitlines() == [
        "which server? 2 run on this node:",
        "  inferwatch load http://127.0.0.1:8000    m",
        "  inferwatch load --uds /run/x.sock    sglang",
    ]

    with pytest.raises(UsageError, match="None runs on this node: inferwatch load"):
        found(monkeypatch, [])


def test_no_load_goes_to_an_application_that_speaks_no_api_of_a_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = NearbyEngine(address="http://localhost:9000", in_application=True)

    assert found(monkeypatch, [own, HERE]).url == HERE.address


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "require_vllm", lambda: None)


@pytest.mark.usefixtures("vllm")
def test_flags_of_a_demo_come_after_its_own() -> None:
    source = demo.demo_source(flags=("--max-num-seqs", "4"))

    flags = source.configure().flags
    assert flags[: len(DEMO_FLAGS)] == DEMO_FLAGS
    assert flags[-2:] == ("--max-num-seqs", "4")


@pytest.mark.usefixtures("vllm")
def test_a_demo_with_flags_says_whose_load_it_gets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    plan = demo.demo_plan(run_id="r", model="m", kv_tokens=9_600)
    load = RecordedLoad(session="s7", plan=plan, rate_per_s=1.9223)
    at = "inferwatch.cli.running"
    monkeypatch.setattr(f"{at}.session.run_engine_watch", lambda *e: asked.append(e))
    monkeypatch.setattr(f"{at}.measure_peak.measure_once", lambda: None)
    monkeypatch.setattr(demo, "earlier_demo", lambda _, seed: None if seed else load)

    run("demo", "--", "--max-num-seqs", "4")
    run("demo", "--seed", "1", "--", "--max-num-seqs", "4")
    run("demo")

    assert [stage for *_, stage in asked] == [
        "load of s7: 1.92 requests/s",
        None,
        None,
    ]


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize(
    ("flag", "name", "is_served"),
    [
        ("--port=8000", "--port", False),
        ("--po", "--port", False),
        ("--mod", "--model", False),
        ("--served_model_name", "--served-model-name", False),
        ("-tp=2", "-tp", True),
        ("--tensor-par=2", "--tensor-parallel-size", True),
    ],
)
def test_a_flag_without_which_there_is_no_demo_is_refused(
    flag: str, name: str, *, is_served: bool
) -> None:
    with pytest.raises(UsageError, match=f"^{name} is fixed in the demo") as told:
        demo.demo_source(flags=("--max-num-seqs", "4", flag, "x"))

    assert (f"`inferwatch serve MODEL -- {name} …`" in str(told.value)) is is_served


def test_no_flag_of_vllm_begins_a_fixed_one() -> None:
    names = {f"--{each}" for each in known_flags().names} - demo.FIXED_FLAGS

    assert not {n for n in names for each in demo.FIXED_FLAGS if each.startswith(n)}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("demo", "--max-num-seqs", "4"), "go behind --, as in: -- --max-num-seqs 4"),
        (("demo", "llama"), "'llama' is no flag of `vllm serve`"),
        (("demo", "--sample", "--", "--max-num-seqs", "4"), "--sample starts no"),
    ],
)
def test_how_a_flag_is_given_to_a_demo_is_told(
    arguments: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_flag_that_vllm_lacks_is_told_before_it_starts() -> None:
    known = KnownFlags(names=frozenset({"max-num-seqs", "enforce-eager"}))
    refuse_unknown(("--max-num-seqs=4", "--no-enforce-eager", "--max-num", "4"), known)
    refuse_unknown(("-x", "--any"), KnownFlags())

    with pytest.raises(UsageError, match="no --max-seqs; did you mean --max-num-seqs"):
        refuse_unknown(("--max-seqs", "4"), known)


@pytest.mark.parametrize("command", ["", "why", "sessions"])
def test_help_is_a_word_too(command: str) -> None:
    words = command.split()

    asked = run("help", *words)

    assert asked.exit_code == 0
    assert asked.output == run(*words, "--help").output


def test_help_may_come_behind_options() -> None:
    asked = run("--slo", "ttft<1s", "help")

    assert asked.exit_code == 0
    assert asked.output == run("--help").output


@pytest.mark.parametrize("command", ["demo", "serve", "attach", "record"])
def test_help_of_a_watch_has_headings_with_every_option_once(command: str) -> None:
    text = run(command, "--help").output

    _, _, options = text.partition("\nOptions:\n")
    flags = re.findall(r"^  (?:-\w, )?(--[a-z-]+)", options, re.MULTILINE)
    made = COMMANDS_BY_NAME[command].load()
    assert sorted(flags) == sorted(
        ["--help", *(each.opts[-1] for each in flags_of(made))]
    )
    assert options.index("\nWatch:") < options.index("\nGPUs:")


COMMANDS_BY_NAME = {each.name: each for each in COMMANDS}


def flags_of(command: click.Command) -> list[click.Option]:
    return [each for each in command.params if isinstance(each, click.Option)]


@pytest.mark.parametrize("session", ["s1", "s9"])
def test_a_load_is_like_a_session_of_any_file(session: str) -> None:
    like = f"{sample_file()}:{session}"

    failed = run("load", "localhost:1", "--like", like, "--no-record").exception

    assert isinstance(failed, NoSuchSessionError) == (session == "s9")
    assert isinstance(failed, SourceError) == (session == "s1")
