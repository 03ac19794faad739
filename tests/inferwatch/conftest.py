"""Builders of readings, a small engine that makes them, a recorder, a truth server."""

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from collectors.contract.readings import (
    AnyReading,
    BoundBy,
    ClockAnchor,
    Endpoint,
    EngineInfo,
    EventKind,
    GpuInfo,
    HostSample,
    LoadEvent,
    LoadKind,
    Note,
    NoteKind,
    Phase,
    ProcessUsage,
    RequestEvent,
    RequestRecord,
    Step,
    Tick,
    TokenTimes,
    Totals,
    Vantage,
)
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.record.writing.recorder import Recorder

ENGINE = "engine-1"
MS = 1_000_000
LOAD = "load-1"

Record = Callable[..., Recorder]
PATIENCE_S = 60.0


@pytest.fixture
def make_step() -> Callable[..., Step]:
    """``make_step(end_ms, {ordinal: produced}, **fields)``: a step of 10 ms.

    Members decode one token each unless ``scheduled`` says otherwise.
    """

    def make(
        end_ms: float,
        produced: dict[int, int] | None = None,
        *,
        scheduled: Sequence[int] | None = None,
        **fields: Any,
    ) -> Step:
        members = produced or {}
        end_ns = round(end_ms * MS)
        duration_ns = round(fields.pop("duration_ms", 10) * MS)
        return Step(
            **{
                "source": ENGINE,
                "index": 0,
                "start_ns": end_ns - duration_ns,
                "end_ns": end_ns,
                "duration_ns": duration_ns,
                "decode_requests": len(members),
                "decode_tokens": len(members),
                "running": len(members),
                "members": list(members),
                "scheduled": list(scheduled or [1] * len(members)),
                "produced": list(members.values()),
                **fields,
            }
        )

    return make


@pytest.fixture
def make_event() -> Callable[..., RequestEvent]:
    """``make_event(t_ms, kind, request_id, **fields)``; the vantage follows the kind.

    Arrived and first_token are the front end's, the others the engine's unless said.
    """

    def make(
        t_ms: float, kind: EventKind, request_id: str = "r0", **fields: Any
    ) -> RequestEvent:
        front = kind in {EventKind.ARRIVED, EventKind.FIRST_TOKEN}
        return RequestEvent(
            **{
                "source": ENGINE,
                "t_ns": round(t_ms * MS),
                "kind": kind,
                "vantage": Vantage.FRONTEND if front else Vantage.ENGINE,
                "request_id": request_id,
                **fields,
            }
        )

    return make


Readings = list[Any]


@pytest.fixture
def make_life(
    make_step: Callable[..., Step], make_event: Callable[..., RequestEvent]
) -> Callable[..., tuple[Readings, Readings]]:
    """``make_life(start_ms, ordinal, tokens)``: one request, alone in its steps.

    Two streams, front end and engine: arrived +0 ms, added +1, scheduled +3, a first
    token at +10 and one every 10 ms (in the engine), the front end 1 ms behind.
    """

    def make(
        start_ms: float, ordinal: int, tokens: int = 3, reason: str = "stop"
    ) -> tuple[Readings, Readings]:
        name = f"r{ordinal}"
        last_ms = start_ms + 10 * tokens
        facts: dict[str, Any] = {"ordinal": ordinal, "prompt_tokens": 20}
        done: dict[str, Any] = {"reason": reason, "output_tokens": tokens}
        front = [
            make_event(start_ms, EventKind.ARRIVED, name, prompt_tokens=20),
            make_event(start_ms + 11, EventKind.FIRST_TOKEN, name),
            make_event(
                last_ms + 1,
                EventKind.FINISHED,
                name,
                vantage=Vantage.FRONTEND,
                **done,
            ),
        ]
        engine: Readings = [
            make_event(start_ms + 1, EventKind.ADDED, name, **facts),
            make_event(
                start_ms + 3, EventKind.SCHEDULED, name, cached_tokens=0, **facts
            ),
        ]
        engine += [
            make_step(
                start_ms + 10 * n,
                {ordinal: 1},
                scheduled=[20 if n == 1 else 1],
                start_ns=round((start_ms + (3 if n == 1 else 10 * n - 10)) * MS),
            )
            for n in range(1, tokens + 1)
        ]
        engine.append(make_event(last_ms, EventKind.FINISHED, name, **facts, **done))
        return front, engine

    return make


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "inferwatch.db"


@pytest.fixture
def record(path: Path) -> Iterator[Record]:
    """Opens recorders that are closed at the end of the test."""
    opened: list[Recorder] = []

    def open_one(**options: Any) -> Recorder:
        opened.append(Recorder.open(path, **{"floor_bytes": 0, **options}))
        return opened[-1]

    yield open_one
    for recorder in opened:
        recorder.close()


@pytest.fixture
def eventually() -> Callable[[Callable[[], object]], None]:
    """Waits until something holds, for as long as a busy machine may take."""

    def wait(holds: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline_s, "it never came to hold"
            time.sleep(0.02)

    return wait


@contextmanager
def truth_server(*options: str) -> Iterator[Any]:
    """The server that knows the truth, in a process of its own; what it tells first."""
    command = [sys.executable, "-P", "-m", "inferwatch.loadgen.truth.server"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        try:
            yield json.loads(server.stdout.readline())
        finally:
            server.kill()


@pytest.fixture(scope="session")
def truth_url() -> Iterator[str]:
    """Where one listens; tests share it, since their runs have names of their own."""
    with truth_server() as (host, port):
        yield f"http://{host}:{port}"


@pytest.fixture(scope="session")
def truth_uds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("truth") / "truth.sock"
    with truth_server("--uds", str(path)):
        yield str(path)


class Traffic:
    """A small engine: requests come, are prefilled, decode, sometimes wait."""

    def __init__(self, seed: int = 1, slots: int = 12, step_ms: float = 5.0) -> None:
        self._random = random.Random(seed)
        self._slots = slots
        self._step_ns = int(step_ms * MS)
        self._now_ns = 0
        self._steps = 0
        self._ended_ns = 0
        self._requests = 0
        self._left: dict[int, int] = {}
        self._got: dict[int, int] = {}
        self._waiting: list[int] = []
        self._tokens = 0

    def start(self) -> Iterator[AnyReading]:
        """What a session begins with."""
        yield ClockAnchor(
            t_ns=0, wall_ns=1_790_000_000 * 10**9, uncertainty_ns=90, boot_id="b"
        )
        yield GpuInfo(t_ns=0, absent_because="no NVIDIA driver")
        yield Note(t_ns=1, kind=NoteKind.STAGE, text="model made", source=ENGINE)
        yield EngineInfo(
            t_ns=2,
            pid=7,
            model="tiny",
            vllm_version="0.32.0",
            num_kv_blocks=300,
            kv_block_tokens=16,
            max_num_seqs=self._slots,
            max_num_batched_tokens=512,
            prefix_caching=True,
            async_scheduling=False,
            source=ENGINE,
        )
        yield Endpoint(t_ns=3, pid=6, model="tiny", url="http://h:1", source=ENGINE)
        yield LoadEvent(t_ns=4, kind=LoadKind.STARTED, rate_per_s=3, source=LOAD)

    def run(self, seconds: float) -> Iterator[AnyReading]:
        """Readings in order of receipt, with a Tick a second."""
        end_ns = self._now_ns + int(seconds * 1e9)
        while self._now_ns < end_ns:
            second = self._now_ns // 10**9
            if self._random.random() < 0.15:
                yield from self._arrive()
            yield from self._step()
            if self._now_ns // 10**9 > second:
                yield from self._tick()

    def _arrive(self) -> Iterator[AnyReading]:
        member = self._requests = self._requests + 1
        prompt, limit = self._random.randint(8, 90), self._random.randint(1, 80)
        known: dict[str, Any] = {
            "prompt_tokens": prompt,
            "max_tokens": limit,
            "temperature": 0.7,
        }
        yield self._event(
            EventKind.ARRIVED,
            member,
            tokenised_ns=self._now_ns + 1_000,
            external_id=f"cmpl-{member}",
            **known,
        )
        self._now_ns += 20_000
        yield self._event(EventKind.ADDED, member, ordinal=member, prompt_tokens=prompt)
        self._waiting.append(member)
        self._left[member] = limit
        self._got[member] = 0

    def _step(self) -> Iterator[AnyReading]:
        start_ns, self._now_ns = self._now_ns, self._now_ns + self._step_ns
        new = self._waiting[: self._slots - len(self._decoding())]
        self._waiting = self._waiting[len(new) :]
        members = [*self._decoding(new), *new]
        if not members:
            return
        for member in new:
            yield self._event(
                EventKind.SCHEDULED,
                member,
                at=start_ns,
                ordinal=member,
                cached_tokens=0,
            )
        yield self._step_of(members, new, start_ns)
        for member in members:
            yield from self._token(member)

    def _step_of(self, members: list[int], new: list[int], start_ns: int) -> Step:
        duration_ns = self._now_ns - max(start_ns, self._ended_ns)
        self._ended_ns = self._now_ns
        self._steps += 1
        self._tokens += len(members)
        scheduled = [30 if member in new else 1 for member in members]
        used = 4 * len(members)
        return Step(
            source=ENGINE,
            index=self._steps,
            start_ns=start_ns,
            end_ns=self._now_ns,
            duration_ns=duration_ns,
            prefill_requests=len(new),
            decode_requests=len(members) - len(new),
            prefill_tokens=30 * len(new),
            decode_tokens=len(members) - len(new),
            running=len(members),
            waiting=len(self._waiting),
            bound_by=BoundBy.SEQS if self._waiting else BoundBy.NOTHING,
            kv_used_blocks=used,
            kv_cached_blocks=10,
            kv_free_blocks=290 - used,
            preempted=members[-1:] if self._random.random() < 0.01 else [],
            prefix_queries=30 * len(new),
            prefix_hits=0,
            members=members,
            scheduled=scheduled,
            produced=[1] * len(members),
        )

    def _token(self, member: int) -> Iterator[AnyReading]:
        self._got[member] += 1
        self._left[member] -= 1
        late_ns = self._now_ns + 100_000
        if self._got[member] == 1:
            yield self._event(EventKind.FIRST_TOKEN, member, at=late_ns)
        if self._left[member] > 0:
            return
        ended: dict[str, Any] = {
            "output_tokens": self._got.pop(member),
            "reason": "length",
        }
        del self._left[member]
        yield self._event(
            EventKind.FINISHED,
            member,
            ordinal=member,
            engine=True,
            preemptions=0,
            **ended,
        )
        yield self._event(EventKind.FINISHED, member, at=late_ns, **ended)
        yield from self._client(member, ended["output_tokens"], late_ns)

    def _client(self, member: int, count: int, end_ns: int) -> Iterator[AnyReading]:
        first_ns = end_ns - (count - 1) * self._step_ns
        external_id = f"cmpl-{member}"
        yield TokenTimes(
            external_id=external_id,
            first_ns=first_ns,
            gaps_ns=[self._step_ns] * (count - 1),
            source=LOAD,
        )
        yield RequestRecord(
            index=member,
            external_id=external_id,
            phase=Phase.STEADY,
            intended_ns=first_ns - 9 * MS,
            sent_ns=first_ns - 8 * MS,
            first_token_ns=first_ns,
            last_token_ns=end_ns,
            end_ns=end_ns + 1,
            output_tokens=count,
            turn=member % 3 + 1,
            first_content_ns=first_ns + 1,
            first_chunk_tokens=1,
            server_queue_ns=2 * MS,
            server_prefill_ns=3 * MS,
            server_decode_ns=end_ns - first_ns,
            source=LOAD,
        )

    def _tick(self) -> Iterator[AnyReading]:
        usage = ProcessUsage(pid=7, role="core", cpu_s=self._now_ns / 2e9, rss_bytes=9)
        yield HostSample(t_ns=self._now_ns, processes=[usage], loop_lag_s=0.001)
        yield Totals(
            t_ns=self._now_ns,
            steps=self._steps,
            output_tokens=self._tokens,
            source=ENGINE,
        )
        yield Tick(t_ns=self._now_ns)

    def _decoding(self, without: list[int] | None = None) -> list[int]:
        new = {*self._waiting, *(without or [])}
        return [member for member in self._left if member not in new]

    def _event(
        self,
        kind: EventKind,
        member: int,
        *,
        at: int | None = None,
        engine: bool = False,
        **fields: Any,
    ) -> RequestEvent:
        engine = engine or kind in {EventKind.ADDED, EventKind.SCHEDULED}
        return RequestEvent(
            source=ENGINE,
            t_ns=self._now_ns if at is None else at,
            kind=kind,
            vantage=Vantage.ENGINE if engine else Vantage.FRONTEND,
            request_id=f"cmpl-{member}-0-{member:08x}",
            **fields,
        )


@pytest.fixture(scope="session")
def traffic_of() -> Callable[..., Traffic]:
    """Small engines, made to measure."""
    return Traffic


@pytest.fixture
def traffic() -> Traffic:
    """A fresh small engine."""
    return Traffic()


@pytest.fixture
def see() -> Callable[..., Snapshot]:
    """``see(readings, now_ms, window)``: fold them all, then look."""

    def look(
        readings: Iterable[AnyReading],
        now_ms: float = 10_000,
        window: Window = Window.MINUTE,
    ) -> Snapshot:
        model = Model()
        for reading in readings:
            model.fold(reading)
        query = SnapshotQuery(window, latest=True)
        return model.snapshot(round(now_ms * 1_000_000), query)

    return look
