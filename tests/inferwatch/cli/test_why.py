"""``inferwatch why`` names what made requests slow, in text and as JSON."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec import structs
from rich.cells import cell_len

from collectors.contract.readings import (
    ELSEWHERE,
    AnyReading,
    EngineInfo,
    Refusal,
    RefusalReason,
    Refusals,
    Tick,
)
from inferwatch.cli.main import inferwatch
from inferwatch.cli.running.why import QUESTIONS
from inferwatch.errors import InferwatchError
from inferwatch.record.writing.recorder import Recorder
from inferwatch.sample import sample_file

Run = Callable[..., Result]
SLOWEST = "SELECT external_id, request_id FROM requests ORDER BY ttft_s DESC LIMIT 1"
PREEMPTED = (
    "SELECT external_id FROM requests WHERE preemptions > 0 AND queue_s > 0.1 "
    "ORDER BY ttft_s DESC LIMIT 1"
)
OF_A_PROBE = ("requests", "steps", "step_members")
WIDE = "長" * 100 + "\x1b[31m" + "x" * 100


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sample session in a file of this test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Path(shutil.copy(sample_file(), tmp_path / "s.db"))


@pytest.fixture
def run(sample: Path) -> Run:
    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(inferwatch, ["why", str(sample), *arguments])

    return invoke


def found(sample: Path, query: str) -> tuple[str, ...]:
    with closing(sqlite3.connect(sample)) as file:
        row: tuple[str, ...] = file.execute(query).fetchone()
    return row


def told(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What is told of all of the sample."""
    path = shutil.copy(sample_file(), tmp_path_factory.mktemp("whole") / "s.db")
    return told(CliRunner().invoke(inferwatch, ["why", str(path), "--json"]))


def test_the_slowest_requests_of_a_session_are_those_with_the_longest_ttft(
    run: Run, sample: Path
) -> None:
    with closing(sqlite3.connect(sample)) as file:
        rows = file.execute("SELECT ttft_s FROM requests ORDER BY ttft_s DESC LIMIT 3")
        slowest = [ttft_s for (ttft_s,) in rows]

    worst = told(run("--json", "--most", "3"))["worst"]

    assert [each["row"]["ttft_s"] for each in worst] == slowest
    for each in worst:
        parts = each["ttft_parts_s"]
        assert sum(parts.values()) == pytest.approx(each["row"]["ttft_s"], abs=1e-6)
        assert max(parts, key=lambda cause: parts[cause]).startswith("queue: ")


@pytest.mark.parametrize("which", ["its", "part", "own"])
def test_a_request_is_found_by_its_ids_or_a_part_of_one(
    run: Run, sample: Path, which: str
) -> None:
    external_id, own = found(sample, SLOWEST)
    wanted = {
        "its": external_id,
        "part": external_id.removeprefix("cmpl-").removesuffix("-0"),
        "own": own.rpartition("load-")[2],
    }

    story = told(run(wanted[which], "--json"))["request"]

    assert story["row"]["external_id"] == external_id
    assert story["row"]["cause"] == "queue: KV blocks"
    assert story["steps_total"] >= len(story["token_ns"]) > 1


def test_the_story_of_a_request_fits_a_terminal(run: Run, sample: Path) -> None:
    (wanted,) = found(sample, PREEMPTED)

    result = run(wanted)

    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(cell_len, lines)) <= 80
    for word in ("queue: ", "preempted", "recompute", "send"):
        assert any(word in line for line in lines), word


@pytest.mark.parametrize("at", ["100%", "40%"], ids=["p99", "the slowest tenth"])
def test_the_slowest_are_told_in_lines_that_fit_too(run: Run, at: str) -> None:
    lines = run("--most", "9", "--at", at).stdout.splitlines()

    assert max(map(cell_len, lines)) <= 80
    assert sum(" prompt tokens" in line for line in lines) == 9


def test_the_slowest_are_grouped_by_what_took_their_time(run: Run, whole: Any) -> None:
    slowest = whole["slowest"]

    assert slowest["groups"][0]["cause"] == "queue: KV blocks"
    assert sum(each["share"] for each in slowest["groups"]) == pytest.approx(1)
    assert sum(each["requests"] for each in slowest["groups"]) == slowest["n"]
    assert slowest["sentence"] in run().stdout


def test_as_of_a_moment_only_what_had_come_is_told(run: Run, whole: Any) -> None:
    early = told(run("--at", "20s", "--json"))

    assert early["now_ns"] == 20_000_000_000
    assert early["worst"][0]["row"]["ttft_s"] < whole["worst"][0]["row"]["ttft_s"]
    assert all(each["row"]["arrived_ns"] < 20e9 for each in early["worst"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nobody"], "has no request nobody"),
        (["22"], "may be any of"),
        (["the slowest", "--at", "2s"], "had not come by then"),
        ([WIDE], "has no request 長"),
    ],
    ids=["unknown", "ambiguous", "too early", "hostile"],
)
def test_what_cannot_be_told_of_is_said(
    run: Run, sample: Path, arguments: list[str], said: str
) -> None:
    _, slowest = found(sample, SLOWEST)
    words = [slowest if each == "the slowest" else each for each in arguments]

    error = run(*words).exception

    assert isinstance(error, InferwatchError)
    assert error.exit_status == 2
    assert said in str(error)
    assert "\x1b" not in str(error)


def test_ids_as_long_and_wide_as_they_come_fit_and_obey_nobody(
    run: Run, sample: Path
) -> None:
    with closing(sqlite3.connect(sample)) as file, file:
        file.execute(
            "UPDATE requests SET external_id = ? || external_id WHERE ttft_s > 1",
            (WIDE,),
        )

    _, own = found(sample, SLOWEST)
    whole, one = run("--most", "4").stdout, run(own).stdout

    for text in (whole, one):
        assert "長長" in text
        assert "\x1b" not in text
        assert max(map(cell_len, text.splitlines())) <= 80


def test_before_any_request_there_is_nothing_to_tell(run: Run) -> None:
    result = run("--at", "0s")

    assert result.exit_code == 0
    assert "No request has had its first token" in result.stdout


def test_of_a_server_without_a_probe_it_is_said_what_it_takes(
    run: Run, sample: Path
) -> None:
    with closing(sqlite3.connect(sample)) as file, file:
        for table in ("engines", *OF_A_PROBE):
            file.execute(f"DELETE FROM {table}")  # noqa: S608 - our own names
        file.execute("UPDATE sessions SET requests = 0, steps = 0")

    result = run()

    assert result.exit_code == 0, result.output
    assert "it takes a probe" in result.stdout


def test_of_requests_that_were_all_refused_it_is_said_how(
    run: Run, sample: Path
) -> None:
    """The engine has a probe, and heard of none of them."""
    with closing(sqlite3.connect(sample)) as file, file:
        for table in OF_A_PROBE:
            file.execute(f"DELETE FROM {table}")  # noqa: S608 - our own names
        file.execute("UPDATE sessions SET requests = 0, steps = 0")
        count = file.execute(
            "UPDATE client_requests SET first_token_ns = NULL, failure = 'http_4xx', "
            """detail = '404 {"error":{"message":"There is no model x."}}' """
        ).rowcount

    said = " ".join(run().stdout.split())

    assert said.endswith(
        f"No request of our load was answered by then: {count} failed as http_4xx, "
        "the first of them: 404 There is no model x."
    )


def test_of_a_session_whose_requests_the_server_refused_it_is_said_why(
    tmp_path: Path,
) -> None:
    long, n = (
        Refusal(
            route="/v1/completions",
            method="POST",
            status=400,
            reason=reason,
            parameter=parameter,
            count=count,
            new=count,
        )
        for reason, parameter, count in (
            (RefusalReason.TOO_LONG, None, 7),
            (RefusalReason.INVALID, "n", 30),
        )
    )
    recorder = Recorder.open(tmp_path / "refused.db", name="refused", floor_bytes=0)
    other = structs.replace(n, route=ELSEWHERE, count=4, new=4)
    told = Refusals(source="e", t_ns=2, pid=1, refused=[long, n, other])
    engine = EngineInfo(source="e", t_ns=1, pid=7, model="m", vllm_version="0.32.0")
    readings: tuple[AnyReading, ...] = (engine, told, Tick(t_ns=3))
    for ordinal, reading in enumerate(readings):
        recorder.put(ordinal, reading)
    recorder.close()

    result = CliRunner().invoke(inferwatch, ["why", str(tmp_path / "refused.db")])

    assert result.exit_code == 0, result.output
    assert result.stdout.endswith(
        "\n37 requests were refused: 30 invalid parameter n, 7 too long.\n"
    )


@pytest.mark.parametrize(
    "end",
    ["failure = 'aborted', first_token_ns = NULL", "failure = 'http_5xx'"],
    ids=["ended by us", "answered in part"],
)
def test_requests_that_we_ended_or_that_began_to_be_answered_were_not_refused(
    run: Run, sample: Path, end: str
) -> None:
    with closing(sqlite3.connect(sample)) as file, file:
        for table in OF_A_PROBE:
            file.execute(f"DELETE FROM {table}")  # noqa: S608 - our own names
        file.execute("UPDATE sessions SET requests = 0, steps = 0")
        file.execute(f"UPDATE client_requests SET {end}")  # noqa: S608 - our own words

    assert "was answered by then" not in run().stdout


def test_an_engine_with_a_probe_that_nobody_asked_anything_needs_none(
    run: Run, sample: Path
) -> None:
    with closing(sqlite3.connect(sample)) as file, file:
        for table in (*OF_A_PROBE, "client_requests"):
            file.execute(f"DELETE FROM {table}")  # noqa: S608 - our own names
        file.execute("UPDATE sessions SET requests = 0, steps = 0")

    assert "No request has had its first token by then" in run().stdout


def test_of_several_answers_each_can_be_asked_for_by_its_number(
    run: Run, sample: Path
) -> None:
    with closing(sqlite3.connect(sample)) as file, file:
        rows = file.execute("SELECT ordinal FROM requests ORDER BY ttft_s DESC LIMIT 3")
        for number, (ordinal,) in enumerate(rows.fetchall()):
            file.execute(
                "UPDATE requests SET request_id = ?, external_id = ? WHERE ordinal = ?",
                (f"{number}_cmpl-n3-0-9b1c", "cmpl-n3-0", ordinal),
            )

    with pytest.raises(InferwatchError) as raised:
        CliRunner().invoke(
            inferwatch, ["why", str(sample), "cmpl-n3-0"], catch_exceptions=False
        )
    story = told(run("cmpl-n3-0[1]", "--json"))["request"]

    for number in range(3):
        assert f"cmpl-n3-0[{number}]" in str(raised.value)
    assert story["row"]["sequence"] == 1


def test_the_phases_of_all_requests_add_up_to_the_time_that_they_took(
    run: Run, sample: Path
) -> None:
    took_ns, requests = map(
        int,
        found(
            sample,
            "SELECT sum(finished_ns - arrived_ns), count(*) FROM requests "
            "WHERE finished_ns IS NOT NULL",
        ),
    )

    breakdown = told(run("--all", "--json"))["breakdown"]

    assert (breakdown["requests"], breakdown["total_ns"]) == (requests, took_ns)
    assert breakdown["left_out"] == 0
    assert breakdown["detokenised_s"] is None
    assert sum(each["total_ns"] for each in breakdown["phases"]) == took_ns
    assert sum(each["share"] for each in breakdown["phases"]) == pytest.approx(1)
    by_dimension: dict[str, int] = {}
    for bucket in breakdown["buckets"]:
        assert sum(bucket["parts"].values()) == bucket["total_ns"]
        of = bucket["dimension"]
        by_dimension[of] = by_dimension.get(of, 0) + bucket["total_ns"]
    assert {*by_dimension} >= {"prompt length", "output length", "model/LoRA", "time"}
    assert {*by_dimension.values()} == {took_ns}


def test_where_the_time_of_all_went_is_said_in_a_sentence_and_lines_that_fit(
    run: Run,
) -> None:
    breakdown = told(run("--all", "--json"))["breakdown"]

    text = run("--all").stdout

    assert breakdown["sentence"] in " ".join(text.split())
    assert max(map(cell_len, text.splitlines())) <= 80
    for word in ("queue", "  queue: KV blocks", "decode", "by prompt length"):
        assert f"\n{word}" in text, word
    assert "by model/LoRA" not in text  # there is one


def test_where_the_time_of_all_went_is_told_as_of_a_moment(run: Run) -> None:
    early = told(run("--all", "--at", "20s", "--json"))
    whole = told(run("--all", "--json"))

    assert early["now_ns"] == 20_000_000_000
    assert 0 < early["breakdown"]["requests"] < whole["breakdown"]["requests"]


def test_before_any_request_ended_there_is_nothing_to_add_up(run: Run) -> None:
    assert "No request had ended by then." in run("--all", "--at", "0s").stdout
    assert told(run("--all", "--at", "0s", "--json"))["breakdown"] is None


def test_what_all_requests_took_needs_a_probe(run: Run, sample: Path) -> None:
    with closing(sqlite3.connect(sample)) as file, file:
        for table in ("engines", *OF_A_PROBE):
            file.execute(f"DELETE FROM {table}")  # noqa: S608 - our own names
        file.execute("UPDATE sessions SET requests = 0, steps = 0")

    assert "it takes a probe" in run("--all").stdout


def test_all_requests_and_one_of_them_are_not_asked_for_at_once(run: Run) -> None:
    error = run("--all", "cmpl").exception

    assert isinstance(error, InferwatchError)
    assert error.exit_status == 2
    assert "--all tells of all requests" in str(error)


def test_why_prompts_missed_is_told_of_all_of_the_session(
    run: Run, sample: Path
) -> None:
    answer = told(run("--prefix", "--json"))["prefix"]

    total = answer["total"]
    query = (
        "SELECT sum(prompt_tokens), sum(cached_tokens), count(*) FROM requests "
        "WHERE scheduled_ns IS NOT NULL AND coalesce(engine_finished_ns, finished_ns) "
        "IS NOT NULL AND cached_tokens IS NOT NULL"
    )
    counted = total["prompt_tokens"], total["hit_tokens"], answer["prompts"]
    assert counted == found(sample, query)
    missed = sum(each["tokens"] for each in total["missed"])
    assert missed == total["prompt_tokens"] - total["hit_tokens"]
    assert run("--prefix").stdout.splitlines()[2].startswith("Of 72,780 prompt tokens")


def test_only_prompts_that_had_ended_by_then_are_told_of(run: Run) -> None:
    early = told(run("--prefix", "--json", "--at", "30%"))["prefix"]

    assert 0 < early["prompts"] < told(run("--prefix", "--json"))["prefix"]["prompts"]


def test_before_a_prompt_had_ended_no_probe_is_said_to_be_missing(run: Run) -> None:
    assert told(run("--prefix", "--json", "--at", "0s"))["prefix"] is None
    assert run("--prefix", "--at", "0s").stdout.splitlines()[2] == (
        "No prompt had ended by then."
    )


def test_what_nobody_told_of_blocks_is_said(run: Run, sample: Path) -> None:
    with closing(sqlite3.connect(sample)) as file, file:
        file.execute("DELETE FROM prompt_blocks")
        file.execute("DELETE FROM block_maps")

    assert told(run("--prefix", "--json"))["prefix"] is None
    assert "Nobody told of the blocks of prompts" in run("--prefix").stdout


def test_what_decides_the_length_of_answers_is_told_exactly(
    run: Run, sample: Path
) -> None:
    answer = told(run("--sampling", "--json"))

    query = (
        "SELECT count(*), sum(coalesce(engine_reason, reason) = 'length') "
        "FROM requests WHERE coalesce(engine_finished_ns, finished_ns) IS NOT NULL "
        "AND coalesce(engine_reason, reason) NOT IN ('abort', 'error')"
    )
    groups = answer["sampling"]["groups"]
    ended = sum(each["answers"] for each in groups), sum(each["cut"] for each in groups)
    assert ended == found(sample, query)
    assert "temp 0, max 129–256" in run("--sampling").stdout


@pytest.mark.parametrize(
    ("which", "said"),
    [
        ("1", "By the front end, of the"),
        ("ordinal % 2", "by the front end, of the"),
        ("0", "By the engine, of the"),
    ],
    ids=["all", "some", "none"],
)
def test_who_counted_the_answers_is_said(
    run: Run, sample: Path, which: str, said: str
) -> None:
    with closing(sqlite3.connect(sample)) as file, file:
        file.execute(
            "UPDATE requests SET output_tokens = coalesce(output_tokens, 1), "  # noqa: S608
            f"engine_output_tokens = CASE WHEN {which} THEN NULL "
            "ELSE coalesce(engine_output_tokens, 1) END"
        )

    assert said in " ".join(run("--sampling").stdout.split())


def test_max_tokens_far_above_what_answers_take_costs_vllm_nothing(
    run: Run, sample: Path
) -> None:
    with closing(sqlite3.connect(sample)) as file, file:
        file.execute("UPDATE requests SET max_tokens = 1500, prompt_tokens = 100")
        file.execute(
            "UPDATE requests SET engine_reason = 'stop' WHERE reason = 'length'"
        )

    text = " ".join(run("--sampling").stdout.split())

    assert "Max_tokens is 1,500, 99% end by 2" in text
    assert "in vLLM that reserves no KV block" in text


@pytest.mark.parametrize(
    "arguments",
    [
        ("--prefix", "--sampling"),
        ("x", "--prefix"),
        *((flag, "--most", "3") for flag in QUESTIONS),
    ],
)
def test_one_question_at_a_time(run: Run, arguments: tuple[str, ...]) -> None:
    error = run(*arguments).exception

    assert isinstance(error, InferwatchError)
    assert error.exit_status == 2
