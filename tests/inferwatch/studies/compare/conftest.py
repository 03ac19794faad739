"""Recorded sessions of a simulated engine, and the simulations of the benchmark."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from collectors.contract.readings import (
    AnyReading,
    EngineInfo,
    EventKind,
    LoadEvent,
    LoadKind,
    LoadPlanned,
    Note,
    NoteKind,
    Phase,
    RequestEvent,
    RequestRecord,
    Step,
    TokenTimes,
    Vantage,
)
from inferwatch.cli.compare import compare
from inferwatch.errors import InferwatchError
from inferwatch.record.writing.recorder import Recorder
from inferwatch.studies.compare.comparison import Comparison
from inferwatch.studies.compare.reading.session_reader import ProgressListener
from inferwatch.studies.compare.runs.selection import ComparisonRequest, run_comparison

ROOT = Path(__file__).parents[4]
ENGINE, LOAD = "engine-1", "load-1"
MS, SECOND = 1_000_000, 1_000_000_000
ORIGIN_NS = 2 * SECOND
PLAN = '{"run_id":"load-1","model":"tiny","rate_per_s":%g,"seed":%d,"warmup_s":0.0}'


class TinyEngine:
    """Requests come at random, wait for a slot, get a token a step."""

    def __init__(
        self, seed: int, *, per_s: float = 8.0, slots: int = 16, step_ms: float = 12.0
    ) -> None:
        self._random = np.random.default_rng(seed)
        self._seed, self._per_s, self._slots = seed, per_s, slots
        self._step_ns = step_ms * MS

    def run(
        self, seconds: float, *, load_s: float | None = None
    ) -> Iterator[AnyReading]:
        """All readings of a session; requests come as long as the load lasts."""
        yield EngineInfo(
            t_ns=1,
            pid=7,
            model="tiny",
            vllm_version="0.32.0",
            num_kv_blocks=400,
            max_num_seqs=self._slots,
            source=ENGINE,
        )
        plan = PLAN % (self._per_s, self._seed)
        yield LoadPlanned(t_ns=2, plan=plan)
        yield LoadEvent(t_ns=ORIGIN_NS, kind=LoadKind.STARTED, source=LOAD)
        end_ns = ORIGIN_NS + int(seconds * SECOND)
        last_ns = end_ns if load_s is None else ORIGIN_NS + int(load_s * SECOND)
        yield from self._serve(end_ns, last_ns)
        yield LoadEvent(t_ns=end_ns, kind=LoadKind.STOPPED, source=LOAD)

    def _serve(self, end_ns: int, last_ns: int) -> Iterator[AnyReading]:
        gaps = self._random.exponential(SECOND / self._per_s, 20_000)
        due = (ORIGIN_NS + np.cumsum(gaps)).astype(int)
        come = [*due[due < last_ns].tolist(), end_ns]
        now_ns, born, index = ORIGIN_NS, 0, 0
        waiting: list[int] = []
        left: dict[int, int] = {}
        times: dict[int, list[int]] = {}
        while now_ns < end_ns:
            while come[born] <= now_ns:
                yield from _came(born, come[born])
                waiting.append(born)
                born += 1
            new = waiting[: self._slots - len(left)]
            waiting = waiting[len(new) :]
            for number in new:
                left[number] = int(self._random.integers(8, 40))
                times[number] = []
                yield _event(EventKind.SCHEDULED, number, now_ns)
            if not left:
                now_ns = come[born]
                continue
            noise = float(np.exp(0.2 * self._random.standard_normal()))
            took_ns = int(self._step_ns * (1 + 0.03 * len(left)) * noise)
            now_ns += took_ns
            yield _step(index, now_ns, took_ns, list(left), len(new), len(waiting))
            index += 1
            for number in list(left):
                left[number] -= 1
                times[number].append(now_ns)
                if not left[number]:
                    del left[number]
                    yield from _went(number, come[number], times.pop(number))


def _event(
    kind: EventKind,
    number: int,
    t_ns: int,
    vantage: Vantage = Vantage.ENGINE,
    **more: Any,
) -> RequestEvent:
    return RequestEvent(
        source=ENGINE,
        t_ns=t_ns,
        kind=kind,
        vantage=vantage,
        request_id=f"r{number}",
        ordinal=number if vantage is Vantage.ENGINE else None,
        **more,
    )


def _came(number: int, t_ns: int) -> Iterator[AnyReading]:
    front = {"external_id": f"cmpl-{LOAD}-{number}", "prompt_tokens": 20 + number % 50}
    yield _event(EventKind.ARRIVED, number, t_ns, Vantage.FRONTEND, **front)
    yield _event(EventKind.ADDED, number, t_ns + MS // 5)


def _step(
    index: int, end_ns: int, took_ns: int, members: list[int], new: int, waiting: int
) -> Step:
    return Step(
        source=ENGINE,
        index=index,
        start_ns=end_ns - took_ns,
        end_ns=end_ns,
        duration_ns=took_ns,
        prefill_requests=new,
        decode_requests=len(members) - new,
        running=len(members),
        waiting=waiting,
        kv_used_blocks=4 * len(members),
        members=members,
        scheduled=[1] * len(members),
        produced=[1] * len(members),
    )


def _went(number: int, came_ns: int, times_ns: list[int]) -> Iterator[AnyReading]:
    """It ended: the engine says so, the front end a moment later, then the client."""
    first_ns, last_ns = times_ns[0] + MS // 2, times_ns[-1] + MS // 2
    done: dict[str, Any] = {"reason": "length", "output_tokens": len(times_ns)}
    yield _event(EventKind.FINISHED, number, times_ns[-1], **done)
    yield _event(EventKind.FIRST_TOKEN, number, first_ns, Vantage.FRONTEND)
    yield _event(EventKind.FINISHED, number, last_ns, Vantage.FRONTEND, **done)
    yield RequestRecord(
        source=LOAD,
        index=number,
        external_id=f"{LOAD}-{number}",
        phase=Phase.STEADY,
        intended_ns=came_ns,
        sent_ns=came_ns,
        first_token_ns=first_ns + MS,
        last_token_ns=last_ns + MS,
        end_ns=last_ns + MS,
        prompt_tokens=20 + number % 50,
        output_tokens=len(times_ns),
    )
    gaps_ns = np.diff(times_ns).tolist()
    yield TokenTimes(
        source=LOAD,
        external_id=f"{LOAD}-{number}",
        first_ns=first_ns + MS,
        gaps_ns=gaps_ns,
    )


def write(path: Path, name: str, readings: Iterator[AnyReading]) -> None:
    """A session in that file."""
    recorder = Recorder.open(path, name=name, command="load", floor_bytes=0)
    for ordinal, reading in enumerate(readings):
        recorder.put(ordinal, reading)
    recorder.close()


@pytest.fixture(scope="session")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``before`` and ``after`` differ in the seed, ``slow`` in its engine, too."""
    path = tmp_path_factory.mktemp("compare") / "sessions.db"
    write(path, "before", TinyEngine(1).run(90))
    write(path, "after", TinyEngine(2).run(90))
    write(path, "slow", TinyEngine(3, slots=8, step_ms=20).run(90))
    write(path, "short", TinyEngine(4).run(3))
    write(path, "empty", iter([Note(t_ns=1, kind=NoteKind.STARTED, text="hello")]))
    return path


@pytest.fixture(scope="session")
def overloaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``flooded``: a load of 10 s for which the engine takes far longer."""
    path = tmp_path_factory.mktemp("overloaded") / "sessions.db"
    engine = TinyEngine(5, per_s=30.0, slots=4, step_ms=15)
    write(path, "flooded", engine.run(60, load_s=10))
    return path


@pytest.fixture(autouse=True)
def by_default(sessions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the default file, so commands that are printed need not name it."""
    monkeypatch.setenv("INFERWATCH_DB", str(sessions))


@pytest.fixture(scope="session")
def computed() -> dict[object, Comparison]:
    """Comparisons by what was wanted, and of which file."""
    return {}


@pytest.fixture(autouse=True)
def compared_once(
    computed: dict[object, Comparison], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same sessions it is always the same, and nothing in it can be changed."""

    def run(
        wanted: ComparisonRequest, tell: ProgressListener = lambda _: None
    ) -> Comparison:
        of_files = any("/" in each or "." in each for each in wanted.sessions)
        if of_files or not wanted.database.exists():
            return run_comparison(wanted, tell)
        file = wanted.database.stat()
        what = repr(replace(wanted, results=None))
        key = what, file.st_ino, file.st_size, file.st_mtime_ns
        if key not in computed:
            computed[key] = run_comparison(wanted, tell)
        return computed[key]

    for module in ("inferwatch.ui.compare.screen", "inferwatch.cli.running.compare"):
        monkeypatch.setattr(f"{module}.run_comparison", run)


@pytest.fixture(scope="session")
def honesty() -> ModuleType:
    """The simulations of ``benchmarks/compare_honesty.py``."""
    name = "compare_honesty"
    spec = importlib.util.spec_from_file_location(name, ROOT / f"benchmarks/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run_command() -> Callable[..., Any]:
    """``run_command(*arguments)``: ``inferwatch compare``; status, output, errors."""

    def run(*arguments: object) -> tuple[int, str, str]:
        texts = [str(argument) for argument in arguments]
        done = CliRunner().invoke(compare, texts, standalone_mode=False)
        if isinstance(done.exception, InferwatchError):
            return done.exception.exit_status, done.stdout, str(done.exception)
        if done.exception is not None:
            raise done.exception
        return int(done.return_value), done.stdout, done.stderr

    return run
