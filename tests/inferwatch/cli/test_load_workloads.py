"""What ``inferwatch load`` can send: traces, sessions, rates by time, mixes."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import httpx
import pytest

from inferwatch.record.tables.load_plans import load_plans
from inferwatch.studies.compare.runs.selection import ComparisonRequest, run_comparison

Load = Callable[..., CompletedProcess[str]]
Refused = Callable[..., str]
Found = Callable[..., dict[str, Any]]
MOONCAKE = """\
{"timestamp": 0, "input_length": 700, "output_length": 3, "hash_ids": [4, 5]}
{"timestamp": 600, "input_length": 600, "output_length": 4, "hash_ids": [4, 6]}
{"timestamp": 1000, "input_length": 30, "output_length": 5, "hash_ids": [7]}
"""


def asked(server: str, summary: dict[str, Any]) -> list[dict[str, Any]]:
    """What the server was asked in a run, in order."""
    told = httpx.get(f"{server}/log", trust_env=False).json()
    return [e for e in told if e["request_id"].startswith(f"{summary['run_id']}-")]


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "mooncake.jsonl"
    path.write_text(MOONCAKE)
    return str(path)


def test_a_trace_is_sent_as_it_was_seen_at_another_speed(
    server: str, found: Found, trace: str
) -> None:
    summary = found("--trace", trace, "--speed", "2", "--no-record")

    sent = asked(server, summary)
    assert [len(each["prompt"]) for each in sent] == [700, 600, 30]
    assert [each["max_tokens"] for each in sent] == [3, 4, 5]
    assert sent[0]["prompt"][:512] == sent[1]["prompt"][:512]
    gaps = [(b["arrived_ns"] - a["arrived_ns"]) / 1e9 for a, b in pairwise(sent)]
    assert gaps == pytest.approx([0.3, 0.2], abs=0.1)
    assert summary["load"] == "trace mooncake.jsonl, 3 requests at 2× speed"


@pytest.mark.parametrize(
    ("flags", "count"),
    [(("--requests", "2"), 2), (("--duration", "0.7"), 2), (("--speed", "10"), 3)],
)
def test_a_trace_can_be_cut(
    found: Found, trace: str, flags: tuple[str, ...], count: int
) -> None:
    summary = found("--trace", trace, *flags, "--no-record")

    assert summary["requests"]["sent"] == count


def test_a_plan_file_names_its_trace_beside_it(
    tmp_path: Path, found: Found, trace: str
) -> None:
    (tmp_path / "plan.toml").write_text('trace_file = "mooncake.jsonl"\nspeed = 10\n')

    summary = found("--plan", str(tmp_path / "plan.toml"), "--no-record")

    assert summary["requests"]["sent"] == 3


def test_the_record_names_the_trace_and_holds_no_copy_of_it(
    tmp_path: Path, found: Found, trace: str
) -> None:
    summary = found("--trace", trace, "--speed", "10")

    assert summary["plan"]["trace_of"] == "mooncake.jsonl"
    assert "trace" not in summary["plan"]
    with closing(sqlite3.connect(tmp_path / "sessions.db")) as record:
        (planned,) = load_plans(record, 1)
    assert '"trace_of":"mooncake.jsonl"' in planned.plan
    assert "blocks" not in planned.plan


def test_a_recorded_session_is_sent_again(
    server: str, found: Found, trace: str
) -> None:
    found("--trace", trace, "--name", "tuesday")

    again = found("--like", "tues", "--speed", "4", "--no-record")

    sent = asked(server, again)
    assert [len(each["prompt"]) for each in sent] == [700, 600, 30]
    assert [each["max_tokens"] for each in sent] == [3, 4, 5]
    gaps = [(b["arrived_ns"] - a["arrived_ns"]) / 1e9 for a, b in pairwise(sent)]
    assert gaps == pytest.approx([0.15, 0.1], abs=0.05)
    assert again["load"] == "trace s1 (tuesday), 3 requests at 4× speed"


def test_what_repeats_a_load_is_paired_with_it(tmp_path: Path, found: Found) -> None:
    when = ("--rate", "30", "--warmup", "1", "--duration", "4")
    found(*when, "--output-tokens", "3", "--name", "first")
    found("--like", "first", "--name", "again")

    both = ComparisonRequest(
        database=tmp_path / "sessions.db", sessions=("first", "again")
    )
    (pair,) = run_comparison(both).pairs

    assert pair.pairing is not None
    assert pair.pairing.requests == pair.pairing.of > 40


def test_rates_by_time_say_their_mean_and_their_range(
    server: str, found: Found
) -> None:
    flags = ("--rates", "steps:1,10,40", "--duration", "2", "--arrival", "constant")

    summary = found(*flags, "--output-tokens", "1", "--no-record")

    sent = asked(server, summary)
    moments = [(each["arrived_ns"] - sent[0]["arrived_ns"]) / 1e9 for each in sent]
    assert len(sent) == pytest.approx(50, abs=1)
    assert sum(moment < 0.85 for moment in moments) == pytest.approx(9, abs=1)
    assert summary["rate"]["asked"] == pytest.approx(25, rel=0.15)
    assert summary["rate"]["asked_range"] == [10, 40]


def test_bursts_come_and_go(server: str, found: Found) -> None:
    flags = ("--rates", "onoff:40,0.5,0.5", "--duration", "2", "--arrival", "constant")

    summary = found(*flags, "--output-tokens", "1", "--no-record")

    sent = asked(server, summary)
    gaps = [(b["arrived_ns"] - a["arrived_ns"]) / 1e9 for a, b in pairwise(sent)]
    assert len(sent) == pytest.approx(40, abs=1)
    assert sum(gap > 0.4 for gap in gaps) == 1
    assert max(gaps) == pytest.approx(0.525, abs=0.05)


MIX = (
    *("--class", 'name=chat share=0.8 prompt=20-40 output=3 slo="ttft_s<5"'),
    *("--class", 'name=huge share=0.2 prompt=3000 output=5 slo="ttft_s<10ms"'),
)


def test_each_class_is_told_apart_and_held_to_its_own_objectives(
    load: Load,
) -> None:
    flags = ("--rate", "40", "--duration", "1", "--share", "0.5", "--no-record")

    done = load(*flags, *MIX, "--json")

    summary = json.loads(done.stdout)
    chat, huge = summary["classes"]["chat"], summary["classes"]["huge"]
    assert chat["requests"]["sent"] > huge["requests"]["sent"] > 0
    both = chat["requests"]["sent"] + huge["requests"]["sent"]
    assert both == summary["requests"]["sent"]
    assert huge["tokens"]["prompt"] == 3000 * huge["requests"]["sent"]
    assert huge["ttft_s"]["n"] == huge["requests"]["sent"]
    assert chat["slo"]["share"] == 1
    assert huge["slo"] == {**huge["slo"], "asked": "ttft_s<0.01", "share": 0}
    assert summary["slo"]["share"] > 0.5
    assert done.returncode == 1  # all together are good enough, the huge are not
    assert "huge" in load(*flags, *MIX).stdout


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--trace", "/nowhere/a.csv"), "No such file"),
        (("--trace", __file__), "not a known trace format"),
        (("--like", "s99"), "Nothing is recorded in"),
        (("--trace", __file__, "--rate", "3"), "--rate and --trace"),
        (("--rates", "ramp:1"), "--rates: cannot read 'ramp:1'"),
        (("--rates", "ramp:1,2,3", "--rate", "3"), "choose one"),
        (("--rate", "3", "--speed", "2"), "speed applies to a trace only"),
        (("--rate", "3", "--class", "name=a"), "--class: 'name=a'"),
        (
            ("--rate", "3", "--class", "name=a share=1 prompt=5 output=5 slo=x"),
            "--slo: cannot read 'x'",
        ),
        (("--sweep", "rate=1,2", "--rates", "ramp:1,2,3"), "leave out --rates"),
    ],
)
def test_what_cannot_be_sent_is_a_usage_error(
    refused: Refused, flags: tuple[str, ...], said: str
) -> None:
    told = refused(*flags)

    assert said in told
    assert "Traceback" not in told


def test_a_session_without_requests_cannot_be_sent_again(
    load: Load, found: Found
) -> None:
    load("--rate", "20", "--duration", "0.3", "--model", "variant=http_429")

    done = load("--like", "last")

    assert done.returncode == 2
    assert "s1 has no request that was answered" in done.stderr


def test_conversations_are_told_turn_by_turn(
    server: str, found: Found, load: Load
) -> None:
    flags = ("--concurrency", "2", "--requests", "3", "--turns", "3", "--think", "0.05")
    lengths = ("--prompt-tokens", "50", "--turn-tokens", "10", "--output-tokens", "4")

    summary = found(*flags, *lengths, "--no-record")

    assert summary["requests"]["sent"] == 9
    assert list(summary["turns"]) == ["1", "2", "3"]
    prompts = [turn["tokens"]["prompt"] for turn in summary["turns"].values()]
    assert prompts == [3 * 50, 3 * 64, 3 * 78]
    assert "turn" in load(*flags, *lengths, "--no-record").stdout


def test_prompts_of_a_file_are_asked_and_recorded_nowhere(
    tmp_path: Path, server: str, found: Found
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "A secret", "output_tokens": 3}\n')

    summary = found("--rate", "20", "--requests", "4", "--dataset", str(path))

    sent = asked(server, summary)
    assert {each["prompt"] for each in sent} == {"A secret"}
    assert {each["max_tokens"] for each in sent} == {3}
    assert b"A secret" not in (tmp_path / "sessions.db").read_bytes()


def test_a_request_can_say_more(server: str, found: Found) -> None:
    more = ("--body", '{"top_p": 0.5}', "--temperature", "0.7", "--heed-eos")
    prefix = ("--shared-prefix", "1x20", "--prompt-tokens", "30")

    summary = found("--rate", "40", "--requests", "3", *more, *prefix, "--no-record")

    sent = asked(server, summary)
    assert sent[0]["body"]["top_p"] == 0.5
    assert sent[0]["body"]["temperature"] == 0.7
    assert "ignore_eos" not in sent[0]["body"]
    assert len({tuple(each["prompt"][:20]) for each in sent}) == 1
    assert len({tuple(each["prompt"]) for each in sent}) == 3


def test_a_chat_is_asked_in_words(server: str, found: Found) -> None:
    flags = ("--endpoint", "chat", "--rate", "20", "--requests", "3")

    summary = found(*flags, "--prompt-tokens", "12", "--no-record")

    (message,) = asked(server, summary)[0]["prompt"]
    assert len(message["content"].split()) == 12


def test_httpx_carries_what_it_is_asked_to(found: Found) -> None:
    flags = ("--transport", "httpx", "--rate", "20", "--requests", "3")

    summary = found(*flags, "--no-record")

    assert summary["client"]["transport"] == "httpx"
    assert summary["requests"]["succeeded"] == 3


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--dataset", "/nowhere"), "--dataset: /nowhere: No such file"),
        (("--dataset", __file__), "line 1: "),
        (("--body", "[1]"), "--body: '[1]' is not a JSON object"),
        (("--body", "{"), "--body: "),
        (("--shared-prefix", "4"), "--shared-prefix: '4' is not GROUPSxTOKENS"),
        (("--shared-prefix", "4x900"), "shorter than the shortest prompt"),
        (("--turns", "x"), "--turns: 'x' is not N"),
    ],
)
def test_prompts_that_cannot_be_are_a_usage_error(
    refused: Refused, flags: tuple[str, ...], said: str
) -> None:
    told = refused("--rate", "3", *flags)

    assert said in told
    assert "Traceback" not in told


def test_chats_of_a_file_want_the_chat_endpoint(
    tmp_path: Path, refused: Refused
) -> None:
    path = tmp_path / "chats.jsonl"
    said = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Why?"},
    ]
    path.write_text(json.dumps({"messages": said}))

    assert "--endpoint chat" in refused("--rate", "3", "--dataset", str(path))
