"""Searches as people run them: watched, interrupted, killed, gone on with."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from subprocess import CompletedProcess
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import httpx
import pexpect
import psutil
import pytest

from collectors.contract.readings import Phase, RequestRecord
from inferwatch.cli.running.load import (
    SearchRuns,
    client_sentence,
    record_text,
)
from inferwatch.cli.running.load_progress import draw
from inferwatch.feed import RecordState
from inferwatch.live.load.load_points import PointRun
from inferwatch.live.load.load_session import FollowedPlan
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.loadgen.rate_search import RatePoint, RateSearch
from inferwatch.metrics.load.book import LoadBook
from inferwatch.metrics.load.client_verdict import ClientState, ClientVerdict
from inferwatch.record.sessions.sessions import list_sessions
from inferwatch.record.tables.session_state import SessionState

COMMAND = [sys.executable, "-P", "-m", "inferwatch.cli", "load"]
Load = Callable[..., CompletedProcess[str]]
Found = Callable[..., dict[str, Any]]
SEARCH = (
    *("--find-rate", "--rate", "18", "--arrival", "constant", "--duration", "1"),
    *("--slo", "ttft_s<150ms", "--share", "0.8"),
    *("--model", "ttft=0.05,itl=0.001,slots=2", "--output-tokens", "2"),
)


def runs_of(server: str) -> set[str]:
    """Every run that the server was asked by."""
    told = httpx.get(f"{server}/log", trust_env=False).json()
    return {each["request_id"].rpartition("-")[0] for each in told}


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.soak), signal.SIGKILL]
)
def test_a_search_that_was_cut_off_goes_on_where_it_was(
    tmp_path: Path,
    server: str,
    environment: dict[str, str],
    found: Found,
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("inferwatch.loadgen.rate_search.CLOSE_ENOUGH", 1.5)
    with subprocess.Popen(
        [*COMMAND, server, *SEARCH],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    ) as process:
        assert process.stderr is not None
        for _ in range(3):  # the columns, then points
            process.stderr.readline()
        process.send_signal(number)
        process.communicate(timeout=30)
    (row,) = list_sessions(tmp_path / "sessions.db")
    killed = number is signal.SIGKILL
    wanted = SessionState.INTERRUPTED if killed else SessionState.COMPLETE
    assert row.state is wanted
    before = runs_of(server)

    summary = found(*SEARCH, "--resume", row.id)

    points = summary["points"]
    assert [point["rate_per_s"] for point in points[:2]] == [18, 36]
    assert [point["resumed"] for point in points[:2]] == [True, True]
    assert sum(point["resumed"] for point in points) == 2
    new = {point["run_id"] for point in points if not point["resumed"]}
    assert runs_of(server) - before == new
    assert summary["find_rate"]["ended"]


def test_on_a_terminal_the_curve_is_drawn_as_it_goes(
    server: str, environment: dict[str, str]
) -> None:
    sweep = ("--sweep", "rate=10,20", "--duration", "0.5", "--output-tokens", "2")
    command, *arguments = [*COMMAND, server, *sweep, "--no-record"]

    with pexpect.spawn(
        command,
        arguments,
        env={**environment, "TERM": "xterm"},
        dimensions=(40, 90),
        encoding="utf-8",
        timeout=30,
    ) as terminal:
        terminal.expect("TTFT p99, ms")
        terminal.expect("requests/s asked")
        terminal.expect(pexpect.EOF)


def point(rate: float, good_per_s: float, p99_s: float | None) -> PointRun:
    """As much of a run as a curve shows."""
    quantiles = SimpleNamespace(p99=p99_s)
    result = SimpleNamespace(
        goodput=SimpleNamespace(good_per_s=good_per_s),
        latencies={"ttft_s": SimpleNamespace(quantiles=quantiles)},
    )
    plan = SimpleNamespace(rate_per_s=rate, concurrency=1)
    run: Any = SimpleNamespace(plan=plan, result=result)
    found: PointRun = run
    return found


CURVE = [point(4, 4, 0.2), point(1, 1, 0.1), point(2, 2, 0.1), point(8, 3, 3.1)]


def test_a_curve_shows_what_comes_of_a_rate() -> None:
    rows = draw(CURVE, 60)

    assert len(rows) == 12
    assert max(map(len, rows)) <= 60
    assert "\x1b" not in "".join(rows)
    text = "\n".join(rows)
    assert "good requests/s (left)" in text
    assert "TTFT p99, ms (right)" in text
    assert rows[-1].strip() == "requests/s asked"
    tops = {mark: next(n for n in count() if mark in rows[n][8:50]) for mark in "ox"}
    assert tops["o"] <= tops["x"]


class UncountedRuns:
    """A session whose every run has an answer, without a count of its tokens."""

    def __init__(self) -> None:
        self.rates: list[float | None] = []

    async def follow(self, plan: LoadPlan, _: asyncio.Event) -> FollowedPlan:
        self.rates.append(plan.rate_per_s)
        book = LoadBook(plan.run_id)
        answer = RequestRecord(
            source=plan.run_id,
            index=0,
            external_id="a",
            phase=Phase.STEADY,
            intended_ns=1,
            first_token_ns=10**8,
            last_token_ns=10**9,
            end_ns=10**9,
        )
        book.fold(answer)
        return FollowedPlan(plan=plan, book=book)


async def test_a_search_ends_where_nobody_can_tell_what_is_good() -> None:
    session: Any = UncountedRuns()
    plan = LoadPlan(run_id="r", model="m", rate_per_s=4.0, slo="tpot_s<10ms")
    runs = SearchRuns(session, plan, asyncio.Event())
    options: Any = SimpleNamespace(share=0.95, resume=None)

    search = await runs.find(options)

    assert session.rates == [4.0]
    assert not search.points
    assert runs.fault is not None
    assert "1 request cannot be judged" in str(runs.fault)


@pytest.mark.parametrize("columns", [20, 49])
def test_where_there_is_no_room_there_is_no_curve(columns: int) -> None:
    assert draw(CURVE, columns) == []


def test_one_point_is_no_curve() -> None:
    assert draw(CURVE[:1], 80) == []


def test_a_plan_file_may_hold_the_objectives(tmp_path: Path, load: Load) -> None:
    path = tmp_path / "plan.toml"
    path.write_text('rate_per_s = 20\nduration_s = 0.5\nslo = "ttft_s<1ms"\n')

    done = load("--plan", str(path), "--json", "--no-record")

    assert json.loads(done.stdout)["slo"]["share"] == 0
    assert done.returncode == 1


def test_progress_counts_the_run_that_goes_on(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of a second are over before a line is due: these are not."""
    monkeypatch.setattr("inferwatch.cli.running.load_progress.LINES_S", 0.5)

    done = load(
        *("--sweep", "concurrency=1,2", "--requests", "2000", "--duration", "3"),
        *("--output-tokens", "2", "--model", "ttft=0.05,itl=0.001", "--no-record"),
    )

    head, *told = done.stderr.splitlines()
    assert "TTFT p50" in head
    told = [line for line in told if " done  " in line]
    last = {line[:8]: line for line in told}
    assert [*last] == ["1 of 2  ", "2 of 2  "]
    first, second = (
        int(line.partition(" done")[0].split()[-1].replace(",", ""))
        for line in last.values()
    )
    assert 0 < first < second < 2.6 * first
    assert all("TTFT p50 5" in line and "0 failed" in line for line in last.values())
    assert "1 user " in done.stdout


class Tiring(ThreadingHTTPServer):
    """Answers so many requests; then it keeps all waiting, or is gone."""

    def __init__(self, answers: int, *, leaves: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), Asked)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.ended = Event()
        self._left = count(answers, -1)
        self._leaves = leaves

    def answers(self) -> bool:
        """Whether it still does."""
        if (left := next(self._left)) > 0:
            return True
        if left == 0 and self._leaves:
            self.socket.close()
        elif not self._leaves:
            self.ended.wait()
        return False


class Asked(BaseHTTPRequestHandler):
    server: Tiring

    def do_GET(self) -> None:
        self.send_error(404)

    def do_POST(self) -> None:
        if self.path != "/v1/completions":
            self.send_error(404)
            return
        self.rfile.read(int(self.headers["Content-Length"]))
        answers = self.server.answers()
        body = b'data: {"choices":[{"text":"a","finish_reason":"stop"}]}\n\n'
        if answers:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """To nobody."""


@contextmanager
def tiring(answers: int, *, leaves: bool = False) -> Iterator[str]:
    server = Tiring(answers, leaves=leaves)
    serving = Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield server.url
    finally:
        server.ended.set()
        server.shutdown()
        server.server_close()


POINTS = ("--sweep", "concurrency=1,2,3", "--requests", "3", "--duration", "0.5")


def test_a_point_that_nobody_answers_is_a_point(load: Load, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text("request_timeout_s = 1.0\n")

    with tiring(answers=3) as url:
        done = load(*POINTS, "--plan", str(plan), "--model", "m", "--json", url=url)

    points = json.loads(done.stdout)["points"]
    assert [each["concurrency"] for each in points] == [1, 2, 3]
    # On a busy machine one of the answers may come too late for its point.
    assert sum(each["succeeded"] for each in points) <= 3
    assert points[-1]["succeeded"] == 0
    assert all(each["failures"]["timeout"]["n"] for each in points[1:])
    assert all(
        each["sent"] == each["succeeded"] + each["failed"] + each["aborted"]
        for each in points
    )
    assert done.returncode == 0


def test_people_are_told_why_a_point_failed(load: Load, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text("request_timeout_s = 1.0\n")

    with tiring(answers=1) as url:
        sweep = ("--sweep", "concurrency=1,2", "--requests", "1", "--duration", "1")
        done = load(*sweep, "--plan", str(plan), "--model", "m", url=url)

    (why,) = (line for line in done.stdout.splitlines() if "×" in line)
    assert why.startswith("  1 × timeout: after 1 s")
    assert len(why) <= 80


RATES = (
    *("--find-rate", "--rate", "3", "--duration", "1", "--slo", "ttft_s<10"),
    *("--arrival", "constant"),
)


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(POINTS, id="sweep"),
        pytest.param(RATES, id="find-rate", marks=pytest.mark.soak),
    ],
)
def test_what_was_measured_before_the_server_left_is_told(
    load: Load, flags: tuple[str, ...]
) -> None:
    with tiring(answers=4, leaves=True) as url:
        done = load(*flags, "--model", "m", "--json", "--warmup", "0", url=url)

    points = json.loads(done.stdout)["points"]
    assert points[0]["succeeded"] == points[0]["sent"] > 0
    assert set(points[-1]["failures"]) == {"refused"}
    assert done.returncode == 3
    assert "the server never answered: Connection refused" in done.stderr


def test_what_a_generator_that_died_had_measured_is_told(
    server: str, environment: dict[str, str]
) -> None:
    flags = ("--rate", "50", "--duration", "60", "--output-tokens", "2", "--json")
    with subprocess.Popen(
        [*COMMAND, server, *flags, "--warmup", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    ) as process:
        assert process.stderr is not None
        process.stderr.readline()  # it goes on: some are answered
        (generator,) = (
            each
            for each in psutil.Process(process.pid).children()
            if "inferwatch.loadgen" in each.cmdline()
        )
        generator.kill()
        printed, told = process.communicate(timeout=30)

    summary = json.loads(printed)
    assert summary["requests"]["succeeded"] > 0
    assert summary["stopped"] == "failed"
    assert process.returncode == 3
    assert "the load generator failed with status -9" in told


def ended_search() -> RateSearch:
    search = RateSearch(1.0, 0.95)
    for rate, good in ((1.0, 1_000), (1.05, 0)):
        search.add(RatePoint(rate_per_s=rate, n=1_000, good=good, certain=500.0))
    return search


def test_an_interrupted_search_says_how_it_goes_on() -> None:
    record = RecordState(session_id="s7")

    cut = RateSearch(1.0, 0.95)
    assert record_text(cut, record) == "session s7; continue with --resume s7"
    assert record_text(ended_search(), record) == "session s7"
    assert record_text(None, record) == "session s7"
    assert record_text(cut, None) == "not recorded"


def judged_run(*reasons: str, cause: str | None = None) -> PointRun:
    """As much of a run as is said of its client."""
    state = ClientState.CLIENT_BOUND if reasons else ClientState.OK
    verdict = ClientVerdict(state=state, reasons=reasons, cause=cause)
    result = SimpleNamespace(verdict=verdict, client_bound=bool(reasons))
    run: Any = SimpleNamespace(result=result)
    found: PointRun = run
    return found


def test_a_search_with_a_starved_client_says_so_and_why() -> None:
    late = judged_run("send lag p99 is 2.5 s", cause="this host: 2.0 of 2 cores busy")

    assert client_sentence([judged_run(), judged_run()]) == ""
    assert client_sentence([late, late]).startswith("Every point was CLIENT-BOUND:")
    assert client_sentence([judged_run(), late]) == (
        "1 of 2 was CLIENT-BOUND: those numbers describe the client, not the server. "
        "The last of them: send lag p99 is 2.5 s; this host: 2.0 of 2 cores busy."
    )
