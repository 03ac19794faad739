"""``inferwatch load`` as people type it, against the server that knows the truth."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import mean, median
from threading import Thread
from typing import Any

import httpx
import pytest

from collectors.contract.clock import boot_id
from collectors.contract.liveness import birth
from embedded_engine.engine.engine_file import EngineFile
from inferwatch.record.sessions.sessions import list_sessions

COMMAND = [sys.executable, "-P", "-m", "inferwatch.cli", "load"]
Done = subprocess.CompletedProcess[str]
SHORT = ("--rate", "80", "--duration", "0.5", "--output-tokens", "5", "--seed", "7")
GOOD = "ttft=0.05,itl=0.02"
KEY = "sk-nobody-may-keep-this"


def answers(server: str, run_id: str) -> list[dict[str, Any]]:
    """What the server knows of a run."""
    told = httpx.get(f"{server}/log", trust_env=False).json()
    return [each for each in told if each["request_id"].startswith(f"{run_id}-")]


@pytest.mark.timing
def test_the_summary_is_what_the_server_knows(
    server: str, found: Callable[..., dict[str, Any]]
) -> None:
    summary = found(*SHORT, "--prompt-tokens", "32")

    truth = answers(server, summary["run_id"])
    requests = summary["requests"]
    assert requests["sent"] == requests["succeeded"] == len(truth) > 20
    assert summary["tokens"]["output"] == sum(len(each["sent_ns"]) for each in truth)
    assert {len(each["prompt"]) for each in truth} == {32}
    ttfts = [(each["sent_ns"][0] - each["received_ns"]) / 1e9 for each in truth]
    assert summary["ttft_from_send_s"]["mean"] >= mean(ttfts)
    assert summary["ttft_from_send_s"]["p50"] < median(ttfts) + 0.020
    assert summary["ttft_s"]["mean"] >= summary["ttft_from_send_s"]["mean"]
    assert summary["itl_s"]["n"] == 4 * len(truth)
    assert summary["target"]["model"] == GOOD
    assert summary["rate"]["asked"] == 80


def test_equal_seeds_send_equal_loads(found: Callable[..., dict[str, Any]]) -> None:
    first, second = found(*SHORT), found(*SHORT)

    assert first["requests"]["sent"] == second["requests"]["sent"] > 20
    assert first["tokens"]["prompt"] == second["tokens"]["prompt"]


def test_a_run_is_recorded_as_a_session(
    tmp_path: Path, found: Callable[..., dict[str, Any]]
) -> None:
    summary = found(*SHORT, "--name", "tuesday")

    (row,) = list_sessions(tmp_path / "sessions.db")
    assert (row.id, row.name, row.command) == (
        summary["session_id"],
        "tuesday",
        "load",
    )
    assert row.state == "complete"


def test_nothing_is_recorded_when_asked(
    tmp_path: Path, found: Callable[..., dict[str, Any]]
) -> None:
    summary = found(*SHORT, "--no-record")

    assert summary["session_id"] is None
    assert not (tmp_path / "sessions.db").exists()


def test_a_key_is_sent_and_kept_nowhere(
    tmp_path: Path, server: str, load: Callable[..., Done]
) -> None:
    done = load(*SHORT, "--json", "--header", "X-Team: blue", INFERWATCH_API_KEY=KEY)

    summary = json.loads(done.stdout)
    sent = answers(server, summary["run_id"])[0]["headers"]
    assert sent["authorization"] == f"Bearer {KEY}"
    assert sent["x-team"] == "blue"
    assert KEY not in done.stdout + done.stderr
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert written
    assert not any(KEY.encode() in data for data in written)


def test_people_get_a_table(load: Callable[..., Done]) -> None:
    done = load(*SHORT)

    assert done.returncode == 0
    assert "from the send" in done.stdout
    assert "asked 80.0/s" in done.stdout


def test_users_of_a_closed_loop_wait_for_their_answers(
    server: str, found: Callable[..., dict[str, Any]]
) -> None:
    summary = found("--concurrency", "3", "--requests", "12", "--output-tokens", "5")

    truth = answers(server, summary["run_id"])
    assert len(truth) == 12
    assert summary["load"] == "closed loop of 3"
    assert summary["rate"]["asked"] is None
    moments = [(each["received_ns"], 1) for each in truth]
    moments += [(each["sent_ns"][-1], -1) for each in truth]
    at_once = most = 0
    for _, change in sorted(moments):
        at_once += change
        most = max(most, at_once)
    assert most == 3


def test_a_plan_file_says_it_all_and_flags_win(
    tmp_path: Path, found: Callable[..., dict[str, Any]]
) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("rate_per_s = 1\nduration_s = 1\noutput_tokens = 4\nseed = 3\n")

    summary = found("--plan", str(path), "--rate", "40")

    assert summary["rate"]["asked"] == 40
    assert summary["plan"]["seed"] == 3
    assert summary["tokens"]["output"] == 4 * summary["requests"]["sent"]


def test_each_request_is_saved_as_a_line(
    tmp_path: Path, found: Callable[..., dict[str, Any]]
) -> None:
    path = tmp_path / "requests.jsonl"

    summary = found(*SHORT, "--save-requests", str(path))

    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["index"] for line in lines] == list(range(len(lines)))
    assert len(lines) == summary["requests"]["sent"]
    first = lines[0]
    assert first["intended_s"] <= first["sent_s"] < first["first_token_s"]
    assert len(first["chunk_gaps_s"]) == 4


def test_where_requests_cannot_be_saved_nothing_is_sent(
    server: str, load: Callable[..., Done], tmp_path: Path
) -> None:
    before = httpx.get(f"{server}/log", trust_env=False).json()

    done = load(*SHORT, "--save-requests", str(tmp_path / "none" / "requests.jsonl"))

    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert httpx.get(f"{server}/log", trust_env=False).json() == before


def test_a_record_that_cannot_be_opened_is_said(
    load: Callable[..., Done],
) -> None:
    done = load(*SHORT, "--db", "/proc/nowhere.db")

    assert done.returncode == 0
    assert "/proc/nowhere.db" in done.stderr


def test_vllms_own_format_is_written_too(load: Callable[..., Done]) -> None:
    done = load(*SHORT, "--format", "vllm-bench")

    result = json.loads(done.stdout)
    assert result["completed"] == len(result["ttfts"]) == result["num_prompts"]
    assert result["mean_ttft_ms"] == pytest.approx(1000 * mean(result["ttfts"]))
    assert result["total_output_tokens"] == 5 * result["completed"]
    assert {len(gaps) for gaps in result["itls"]} == {4}


@pytest.mark.parametrize("hostage", [False, True], ids=["served", "watched"])
def test_without_an_address_the_engine_that_inferwatch_runs_here_is_loaded(
    here: Callable[..., Done],
    environment: dict[str, str],
    server: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    hostage: bool,
) -> None:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", environment["INFERWATCH_RUNTIME_DIR"])
    EngineFile(
        engine_id="here",
        pid=os.getpid(),
        birth=birth(os.getpid()) or 0,
        boot_id=boot_id(),
        model="m",
        url=server,
        log_path="log",
        hostage=hostage,
    ).write()

    done = here("load", *SHORT, "--json")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["target"]["url"] == server
    where = server.removeprefix("http://")
    assert f"inferwatch: the engine here: {where}, m\n" in done.stderr


@pytest.mark.parametrize(
    ("limits", "status"),
    [("ttft_s<5 tpot_s<5", 0), ("ttft_s<5 tpot_s<10ms", 1)],
)
def test_objectives_decide_the_exit_status(
    load: Callable[..., Done], limits: str, status: int
) -> None:
    done = load(*SHORT, "--slo", limits, "--json")

    assert done.returncode == status
    assert json.loads(done.stdout)["slo"]["share"] == 1 - status


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--slo", "tfft_s<1", "--rate", "1"), "ttft_s"),
        (("--rate", "1", "--concurrency", "2"), "choose one"),
        ((), "--rate 5"),
        (("--rate", "1", "--prompt-tokens", "x"), "--prompt-tokens"),
        (("--rate", "1", "--header", "nothing"), "--header"),
        (("--find-rate",), "needs --slo"),
        (("--sweep", "speed=1,2"), "rate=1,2,4,8"),
        (("--sweep", "rate=1,0"), "above 0"),
        (("--sweep", "concurrency=1,99999999"), "from 1 to 65,535"),
        (("--rate", "nan"), "not a usable number"),
        (("--rate", "1", "--name", "s3"), "reserved for session ids"),
        (("--rate", "1", "--body", '{"top_p": NaN}'), "JSON has no NaN"),
        (("--rate", "1", "--body", '{"user": "\\ud800"}'), "extra_body is not text"),
        (("--rate", "1", "--resume", "s1"), "--find-rate"),
    ],
)
def test_what_cannot_be_is_a_usage_error_before_anything_is_asked(
    refused: Callable[..., str], flags: tuple[str, ...], said: str
) -> None:
    told = refused(*flags)

    assert said in told
    assert "Traceback" not in told


def test_a_server_that_never_answers_is_exit_3(load: Callable[..., Done]) -> None:
    done = load(*SHORT, url="http://127.0.0.1:9")

    assert done.returncode == 3
    assert "nothing answers at http://127.0.0.1:9" in done.stderr


def test_a_server_that_refuses_everything_is_no_success(
    load: Callable[..., Done],
) -> None:
    done = load(*SHORT, "--model", "variant=http_429", "--json")

    summary = json.loads(done.stdout)
    assert done.returncode == 1
    assert summary["failures"]["http_4xx"]["n"] == summary["requests"]["sent"]
    assert "slow down" in summary["failures"]["http_4xx"]["first"]


def test_a_busy_server_is_not_loaded_unless_allowed(
    server: str, load: Callable[..., Done]
) -> None:
    with traffic(server):
        refused = load(*SHORT)
        allowed = load(*SHORT, "--allow-load", "--json")

    assert refused.returncode == 2
    assert "--allow-load" in refused.stderr
    assert json.loads(allowed.stdout)["requests"]["succeeded"] > 20


class BetweenTwo(BaseHTTPRequestHandler):
    """A server that has just answered whenever somebody looks."""

    looks = 0

    def do_GET(self) -> None:
        type(self).looks += 1
        body = b'{"data": [{"id": "tiny"}]}'
        if self.path == "/metrics":
            running, tokens = b"vllm:num_requests_running 0.0", self.looks * 7
            body = running + b"\nvllm:generation_tokens_total %d\n" % tokens
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.mark.process
def test_a_server_that_is_idle_between_requests_is_busy_all_the_same(
    environment: dict[str, str],
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BetweenTwo) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        refused = subprocess.run(
            [*COMMAND, f"127.0.0.1:{server.server_port}", *SHORT],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
            check=False,
        )
        server.shutdown()

    assert refused.returncode == 2
    assert (
        "is serving other traffic: it is producing tokens right now" in refused.stderr
    )


@contextmanager
def traffic(server: str) -> Iterator[None]:
    """Someone else's long answer."""
    body = {"model": "itl=0.05", "prompt": [1], "max_tokens": 10_000}
    with httpx.Client(trust_env=False) as client:
        with client.stream("POST", f"{server}/v1/completions", json=body) as answer:
            coming = answer.iter_raw()
            next(coming)
            yield
            del coming


def test_ctrl_c_aborts_what_is_in_flight_and_still_tells(
    server: str, environment: dict[str, str]
) -> None:
    flags = ["--rate", "40", "--duration", "60", "--model", "itl=0.05", "--json"]
    flags += ["--output-tokens", "2000"]
    with subprocess.Popen(
        [*COMMAND, server, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    ) as process:
        wait_for_requests(server)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)

    summary = json.loads(out)
    assert process.returncode == 0, err
    assert summary["stopped"] == "interrupted"
    assert summary["requests"]["aborted"] >= 5
    assert summary["failures"] == {}
    cut = answers(server, summary["run_id"])
    assert not any(each["finished"] for each in cut)


def wait_for_requests(server: str) -> None:
    deadline_s = time.monotonic() + 30
    while "running 5" not in httpx.get(f"{server}/metrics", trust_env=False).text:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_calibration_tells_the_error_and_later_results_carry_it(
    environment: dict[str, str], found: Callable[..., dict[str, Any]]
) -> None:
    command = [sys.executable, "-P", "-m", "inferwatch.cli", "calibrate"]
    flags = ["--rate", "10", "--duration", "1", "--json"]
    done = subprocess.run(
        [*command, *flags],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr

    measured = json.loads(done.stdout)

    assert measured["requests"] > 3
    assert measured["tokens"] == 100 * measured["requests"]
    ttft = measured["ttft_s"]
    assert ttft["truth_mean"] >= 0.05
    assert ttft["error_mean"] > 0
    assert ttft["reported_mean"] - ttft["truth_mean"] == pytest.approx(
        ttft["error_mean"]
    )
    assert measured["stamp_lag_s"]["p50"] > 0
    carried = found(*SHORT)["calibration"]
    told = carried.pop("run")
    assert carried == measured
    assert measured["host"] == socket.gethostname()
    assert told["times_calibrated"] == pytest.approx(
        max(
            told["streams_mean"] / measured["streams_mean"],
            told["tokens_per_s"] / measured["tokens_per_s"],
        )
    )


SLOTS = "ttft=0.05,itl=0.001,slots=2"
"""Two at a time, 51 ms each: at most 39 a second."""
SEARCH = (
    *("--find-rate", "--rate", "32", "--arrival", "constant", "--duration", "1"),
    *("--slo", "ttft_s<150ms", "--share", "0.8"),
    *("--model", SLOTS, "--output-tokens", "2"),
)


@pytest.mark.timing
def test_the_knee_is_found_and_the_search_can_be_resumed(
    tmp_path: Path,
    found: Callable[..., dict[str, Any]],
    load: Callable[..., Done],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("inferwatch.loadgen.rate_search.CLOSE_ENOUGH", 1.5)

    summary = found(*SEARCH)

    search = summary["find_rate"]
    assert search["ended"]
    assert 30 <= search["highest_held_per_s"] < search["lowest_failed_per_s"] <= 64
    (row,) = list_sessions(tmp_path / "sessions.db")
    sent = sum(point["sent"] for point in summary["points"])
    assert row.requests == 0  # no probe saw them
    assert sent == sum(rate["n"] for rate in search["rates"])

    resumed = found(*SEARCH, "--resume", row.id)

    assert resumed["find_rate"] == search
    assert all(point["resumed"] for point in resumed["points"])

    other = load(*SEARCH, "--resume", row.id, "--output-tokens", "3")

    assert other.returncode == 2
    assert "that session had output_tokens" in other.stderr


def test_a_sweep_is_a_run_for_each_value(
    found: Callable[..., dict[str, Any]],
) -> None:
    flags = ("--duration", "0.5", "--model", SLOTS, "--output-tokens", "2")

    summary = found("--sweep", "concurrency=1,4", *flags)

    one, four = summary["points"]
    assert (one["concurrency"], four["concurrency"]) == (1, 4)
    assert four["ttft_s"]["p50"] > 1.5 * one["ttft_s"]["p50"]
    assert summary["find_rate"] is None


def test_a_unix_socket_is_loaded_like_any_server(
    tmp_path: Path, found: Callable[..., dict[str, Any]]
) -> None:
    path = str(tmp_path / "truth.sock")
    command = [sys.executable, "-P", "-m", "inferwatch.loadgen.truth.server"]
    with subprocess.Popen([*command, "--uds", path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        summary = found(*SHORT, "--uds", path)
        process.kill()

    assert summary["target"]["uds"] == path
    assert summary["requests"]["succeeded"] == summary["requests"]["sent"] > 20
