"""Does a client say when it was the bottleneck, and only then?"""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from statistics import mean
from time import monotonic, sleep
from typing import Any

import httpx
import psutil
import pytest

DENSE = ("--rate", "200", "--output-tokens", "20", "--model", "ttft=0.02,itl=0.004")
"""A send every 5 ms, so that every stop delays some."""
STOPPED_S = 0.08
"""Four times the TTFT: whatever is due or comes meanwhile waits."""
RUNS = 4
TTFT_S = 0.3


def test_a_client_without_a_core_says_it_is_the_bottleneck(
    server: str, environment: dict[str, str]
) -> None:
    """Stopped by force for most of the time: what it reports is not what was."""
    flags = (*DENSE, "--duration", "2", "--strict-client", "--json")
    command = [sys.executable, "-P", "-m", "inferwatch.cli", "load", server, *flags]

    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as running:
        stop_in_pulses(generator_of(running))
        told, _ = running.communicate(timeout=60)

    summary = json.loads(told)
    client = summary["client"]
    assert summary["ttft_s"]["mean"] > 1.1 * mean(truth_s(server, summary))
    assert client["verdict"] == "CLIENT-BOUND"
    assert client["reasons"][0].startswith("send lag p99 is")
    assert running.returncode == 1


def test_a_client_accuses_itself_of_late_sends_only_when_they_were_late(
    server: str, load: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """Whatever the machine does meanwhile: the server's log says who is right."""
    flags = ("--rate", "60", "--duration", "0.5", "--output-tokens", "6", "--json")

    for _ in range(RUNS):
        summary = json.loads(load(*flags, "--model", f"ttft={TTFT_S},itl=0.03").stdout)

        client = summary["client"]
        assert client["verdict"] in {"OK", "CLIENT-BOUND"}
        if any(each.startswith("send lag") for each in client["reasons"]):
            error_s = summary["ttft_s"]["mean"] - mean(truth_s(server, summary))
            assert error_s > 2 * TTFT_S / 10 / summary["requests"]["sent"], client


def truth_s(server: str, summary: dict[str, Any]) -> list[float]:
    """Every TTFT of a run as the server knows it."""
    return [
        (each["sent_ns"][0] - each["received_ns"]) / 1e9
        for each in httpx.get(f"{server}/log", trust_env=False).json()
        if each["request_id"].startswith(f"{summary['run_id']}-") and each["sent_ns"]
    ]


def generator_of(load: subprocess.Popen[bytes]) -> psutil.Process:
    """The process that sends, as soon as it is there."""
    while load.poll() is None:
        for child in psutil.Process(load.pid).children():
            with suppress(psutil.NoSuchProcess):
                if "inferwatch.loadgen" in child.cmdline():
                    return child
        sleep(0.005)
    pytest.fail("the load ended before it sent")


def stop_in_pulses(process: psutil.Process) -> None:
    """Until it ends: stopped for at least four fifths of the time."""
    with suppress(psutil.NoSuchProcess):
        while process.status() != psutil.STATUS_ZOMBIE:
            began_s = monotonic()
            process.suspend()
            sleep(STOPPED_S)
            stopped_s = monotonic() - began_s
            process.resume()
            sleep(stopped_s / 4)
