"""Error of this client on this machine at a given load: reported versus true times."""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import platformdirs

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import RequestRecord
from collectors.http.bounded_get import get
from collectors.http.http_client import http_client
from inferwatch.metrics.load.book import LoadBook
from inferwatch.metrics.load.result import LoadResult
from inferwatch.metrics.series.quantiles import of_weighted
from inferwatch.metrics.series.window import Quantiles

READY_S = 20.0
LOG_TIMEOUT_S = 60.0
MOST_LOG_BYTES = 1 << 30
"""The server is our own child, and logs every token."""


@asynccontextmanager
async def truth_server() -> AsyncIterator[str]:
    """The URL of a truth server in a child process, which ends with the context."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "inferwatch.loadgen.truth.server",
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # leaves Ctrl-C to us
    )
    try:
        if process.stdout is None:
            raise RuntimeError("a pipe was asked for")
        line = await asyncio.wait_for(process.stdout.readline(), READY_S)
        host, port = json.loads(line)
        yield f"http://{host}:{port}"
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def truth_log(url: str, run_id: str) -> dict[str, dict[str, Any]]:
    """The truth server's log of a run's requests, by their ids."""
    async with http_client(url, timeout_s=LOG_TIMEOUT_S, proxies=False) as client:
        log = await get(
            client, "/log", timeout_s=LOG_TIMEOUT_S, most_bytes=MOST_LOG_BYTES
        )
    answers = json.loads(log.body)
    named = ((str(each["request_id"]), each) for each in answers)
    return {name: each for name, each in named if name.startswith(f"{run_id}-")}


class Deviation(msgspec.Struct, frozen=True, kw_only=True):
    """True and reported values of a latency in seconds."""

    n: int
    truth_mean: float | None
    truth_p99: float | None
    reported_mean: float | None
    reported_p99: float | None

    @property
    def error_mean(self) -> float | None:
        return _minus(self.reported_mean, self.truth_mean)

    @property
    def error_p99(self) -> float | None:
        return _minus(self.reported_p99, self.truth_p99)


class Lag(msgspec.Struct, frozen=True, kw_only=True):
    """Delay between an event and the client's timestamp of it, in seconds."""

    n: int
    p50: float | None
    p99: float | None
    max: float | None


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of the client against the truth server."""

    date: str
    host: str
    load: str
    streams: float | None
    """Mean number of requests in flight."""
    tokens_per_s: float | None
    transport: str | None
    requests: int
    tokens: int
    ttft: Deviation
    """Reported from the due time; the truth is from arrival to first send."""
    itl: Deviation
    stamp_lag: Lag
    """From the server's send of a token to our timestamp of it."""
    send_lag: Lag
    """From the due time to the arrival of the request."""
    verdict: str

    def as_json(self) -> dict[str, Any]:
        return {
            "date": self.date,
            "host": self.host,
            "load": self.load,
            "streams_mean": self.streams,
            "tokens_per_s": self.tokens_per_s,
            "transport": self.transport,
            "requests": self.requests,
            "tokens": self.tokens,
            "ttft_s": _deviation(self.ttft),
            "itl_s": _deviation(self.itl),
            "stamp_lag_s": msgspec.to_builtins(self.stamp_lag),
            "send_lag_s": msgspec.to_builtins(self.send_lag),
            "verdict": self.verdict,
        }


Truth = Mapping[str, Mapping[str, Any]]
"""The truth server's log by request id."""


class StampComparison:
    """Timestamps of client and server compared, request by request, in ns."""

    def __init__(self, book: LoadBook, truth: Truth, start_ns: int) -> None:
        self.ttft: tuple[list[int], list[int]] = ([], [])
        self.itl: tuple[list[int], list[int]] = ([], [])
        self.stamp_lags: list[int] = []
        self.send_lags: list[int] = []
        for record in book.succeeded:
            answer = truth[record.external_id]
            there = [at - start_ns for at in answer["sent_ns"]]
            arrived_ns = answer["arrived_ns"] - start_ns
            self._add(record, book.gaps_of(record), there, arrived_ns)

    def _add(
        self,
        record: RequestRecord,
        gaps_ns: list[int],
        there: list[int],
        arrived_ns: int,
    ) -> None:
        first_ns = record.first_token_ns
        if first_ns is None or len(gaps_ns) + 1 != len(there):
            return  # chunks merged by the server have no timestamps of their own
        here = list(accumulate(gaps_ns, initial=first_ns))
        self.ttft[0].append(there[0] - arrived_ns)
        self.ttft[1].append(first_ns - record.intended_ns)
        self.itl[0].extend(later - earlier for earlier, later in pairwise(there))
        self.itl[1].extend(gaps_ns)
        self.stamp_lags.extend(a - b for a, b in zip(here, there, strict=True))
        self.send_lags.append(arrived_ns - record.intended_ns)


def calibration(
    compared: StampComparison, result: LoadResult, *, date: str, load: str
) -> Calibration:
    return Calibration(
        date=date,
        host=socket.gethostname(),
        load=load,
        streams=result.streams,
        tokens_per_s=result.tokens_per_s,
        transport=result.sample.transport if result.sample else None,
        verdict=result.verdict.state,
        requests=len(compared.send_lags),
        tokens=len(compared.stamp_lags),
        ttft=_compare(*compared.ttft),
        itl=_compare(*compared.itl),
        stamp_lag=_lag(compared.stamp_lags),
        send_lag=_lag(compared.send_lags),
    )


def store(result: Calibration) -> Path:
    """Store a calibration by host and transport, for later results.

    A home directory may be shared by many hosts.
    """
    path = _path()
    path.parent.mkdir(parents=True, exist_ok=True)
    results = {**_stored(), _key(result.host, result.transport): result}
    path.write_bytes(msgspec.json.encode(results))
    return path


def stored(transport: str | None) -> Calibration | None:
    """This host's latest calibration of a transport; None without a readable one."""
    return _stored().get(_key(socket.gethostname(), transport))


def beside(measurement: Calibration, result: LoadResult) -> dict[str, Any]:
    """A calibration as part of a later result, with the ratio of their loads."""
    streams = _times(result.streams, measurement.streams)
    tokens = _times(result.tokens_per_s, measurement.tokens_per_s)
    far = max(streams or 0.0, tokens or 0.0)
    return {
        **measurement.as_json(),
        "run": {
            "streams_mean": result.streams,
            "tokens_per_s": result.tokens_per_s,
            "times_calibrated": far or None,
        },
    }


def _times(value: float | None, other: float | None) -> float | None:
    return value / other if value is not None and other else None


def _key(host: str, transport: str | None) -> str:
    return f"{host} {transport or 'unknown'}"


def _stored() -> dict[str, Calibration]:
    try:
        return msgspec.json.decode(_path().read_bytes(), type=dict[str, Calibration])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}


def _path() -> Path:
    return platformdirs.user_data_path("inferwatch") / "calibration.json"


def _compare(truth: Sequence[int], reported: Sequence[int]) -> Deviation:
    true_quantiles, reported_quantiles = _quantiles(truth), _quantiles(reported)
    return Deviation(
        n=true_quantiles.n,
        truth_mean=true_quantiles.mean,
        truth_p99=true_quantiles.p99,
        reported_mean=reported_quantiles.mean,
        reported_p99=reported_quantiles.p99,
    )


def _lag(values: Sequence[int]) -> Lag:
    quantiles = _quantiles(values)
    return Lag(n=quantiles.n, p50=quantiles.p50, p99=quantiles.p99, max=quantiles.max)


def _quantiles(values: Sequence[int]) -> Quantiles:
    ns = np.array(values, np.int64)
    return of_weighted(ns, np.ones(len(ns), np.int64), NS_PER_S)


def _deviation(deviation: Deviation) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(deviation)
    errors = {"error_mean": deviation.error_mean, "error_p99": deviation.error_p99}
    return {**plain, **errors}


def _minus(value: float | None, other: float | None) -> float | None:
    return None if value is None or other is None else value - other
