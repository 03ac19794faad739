"""What GPUs did, compared: together, over time that is known, else not at all."""

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from collectors.contract.readings import (
    AnyReading,
    EngineInfo,
    EngineSample,
    GpuInfo,
    GpuProcesses,
    GpuSample,
    RequestEvent,
    Step,
)
from inferwatch.record.connections import open_for_reading
from inferwatch.record.sessions.sessions import find
from inferwatch.studies.compare.comparison import ComparisonRules, SessionPair
from inferwatch.studies.compare.comparison import compare as compared
from inferwatch.studies.compare.reading.hardware import gpu_means
from inferwatch.studies.compare.reading.session_numbers import (
    ComparedSide,
    SessionNumbers,
)
from inferwatch.studies.compare.reading.session_reader import SessionQuery, read_session
from inferwatch.studies.compare.reading.span import SpanChoice
from inferwatch.studies.compare.verdicts import MetricVerdict
from inferwatch.ui.sessions.index import ListedSession, preview
from inferwatch.ui.sessions.preview import PreviewPanel
from tests.inferwatch.studies.compare.conftest import (
    ENGINE,
    MS,
    ORIGIN_NS,
    SECOND,
    TinyEngine,
    write,
)

Run = Callable[..., tuple[int, str, str]]
PEAK = 4e12
GPU_KEYS = ("hbm_gbps_mean", "sm_active_mean", "power_w_mean", "joules_per_token")


class TinyGpu:
    """Works at the engine's pace: every step moves bytes and takes energy."""

    def __init__(self, uuid: str, seed: int = 0, **facts: Any) -> None:
        self._uuid, self._random = uuid, np.random.default_rng(seed)
        self._watts = facts.pop("watts", 400.0)
        self._facts = facts

    def samples(self, seconds: float, every_ms: int = 1000) -> Iterator[GpuSample]:
        """A sample a second, with the averages and the counter as of its end."""
        energy_mj, t_ns = 5e6, ORIGIN_NS - 2 * SECOND
        while t_ns < ORIGIN_NS + (seconds + 2) * SECOND:
            share = 0.6 + 0.05 * float(self._random.standard_normal())
            yield GpuSample(
                source=self._uuid,
                t_ns=t_ns,
                **{
                    "span_ns": every_ms * MS,
                    "via": "gpm",
                    "dram_active": share,
                    "peak_bytes_per_s": PEAK,
                    "sm_active": share + 0.2,
                    "power_w": self._watts,
                    "power_limit_w": 700.0,
                    "energy_mj": round(energy_mj),
                }
                | self._facts,
            )
            energy_mj += self._watts * every_ms * (0.5 + share)
            t_ns += every_ms * MS


def known(uuid: str, name: str = "NVIDIA H200", **more: Any) -> GpuInfo:
    facts: dict[str, Any] = {"driver": "580.95", **more}
    return GpuInfo(source=uuid, t_ns=3, uuid=uuid, name=name, **facts)


def runs_on(*uuids: str) -> EngineInfo:
    return EngineInfo(
        source=ENGINE,
        t_ns=4,
        pid=7,
        model="tiny",
        vllm_version="0.32.0",
        num_kv_blocks=400,
        max_num_seqs=16,
        gpus=list(uuids),
    )


def recorded(
    tmp_path: Path, *more: AnyReading, seed: int = 1, seconds: float = 60
) -> SessionNumbers:
    """Of a session with an engine and these readings, from its load's begin to end."""
    return reread(tmp_path, "it", TinyEngine(seed).run(seconds), more)


def reread(
    tmp_path: Path,
    name: str,
    engine: Iterable[AnyReading],
    more: Iterable[AnyReading] = (),
) -> SessionNumbers:
    path = tmp_path / f"{name}.db"
    write(path, name, iter([*engine, *more]))
    with closing(open_for_reading(path)) as connection:
        whole = SessionQuery(choice=SpanChoice(warmup_s=0.0))
        return read_session(connection, find(path, name), whole)


def value(numbers: SessionNumbers, key: str) -> float:
    sums = numbers.sums[key]
    return float(sums.above.sum() / sums.below.sum())


def constant(uuid: str, **facts: Any) -> Iterator[GpuSample]:
    told = {"dram_active": 0.5, "sm_active": 0.8, **facts}
    return TinyGpu(uuid, **told).samples(60)


def pair_of(a: SessionNumbers, b: SessionNumbers) -> SessionPair:
    return compared(
        [ComparedSide.of(a), ComparedSide.of(b)], ComparisonRules(draws=500)
    ).pairs[0]


def verdicts(pair: SessionPair) -> dict[str, MetricVerdict]:
    each = {result.metric.key: result.verdict for result in pair.results}
    return {key: each[key] for key in GPU_KEYS if key in each}


def test_bandwidth_is_the_share_of_the_peak_over_time(tmp_path: Path) -> None:
    numbers = recorded(tmp_path, *constant("GPU-a"))

    assert value(numbers, "hbm_gbps_mean") == pytest.approx(2000)
    assert value(numbers, "sm_active_mean") == pytest.approx(0.8)
    assert numbers.sums["hbm_gbps_mean"].n == pytest.approx(60, abs=1)


def test_gpus_of_the_engine_count_together_and_others_not(tmp_path: Path) -> None:
    numbers = recorded(
        tmp_path,
        runs_on("GPU-a", "GPU-b"),
        *constant("GPU-a"),
        *constant("GPU-b", dram_active=0.25, sm_active=0.4),
        *constant("GPU-other", dram_active=1.0, sm_active=1.0),
    )

    assert value(numbers, "hbm_gbps_mean") == pytest.approx(3000)
    assert value(numbers, "sm_active_mean") == pytest.approx(0.6)


def test_whose_processes_are_on_a_gpu_tells_whose_it_is(tmp_path: Path) -> None:
    numbers = recorded(
        tmp_path,
        GpuProcesses(source="GPU-a", t_ns=5, memory_bytes={7: 66, 900: None}),
        GpuProcesses(source="GPU-other", t_ns=5, memory_bytes={901: 5}),
        *constant("GPU-a"),
        *constant("GPU-other", dram_active=1.0),
    )

    assert value(numbers, "hbm_gbps_mean") == pytest.approx(2000)


def test_a_gpu_of_the_engine_that_was_never_measured_makes_the_sum_unknown(
    tmp_path: Path,
) -> None:
    numbers = recorded(tmp_path, runs_on("GPU-a", "GPU-b"), *constant("GPU-a"))

    assert not set(GPU_KEYS) & numbers.sums.keys()


def test_energy_and_tokens_are_of_the_same_time(tmp_path: Path) -> None:
    """The GPU is heard for the first 30 of 60 s only: so many tokens count."""
    engine = list(TinyEngine(1).run(60))
    until_ns = ORIGIN_NS + 30 * SECOND
    samples = TinyGpu("GPU-a", dram_active=0.5).samples(60)
    heard = [each for each in samples if each.t_ns <= until_ns]

    numbers = reread(tmp_path, "it", engine, heard)

    steps = (each for each in engine if isinstance(each, Step))
    tokens = sum(sum(each.produced) for each in steps if each.end_ns <= until_ns)
    energy = {each.t_ns: each.energy_mj for each in heard}
    joules = (energy[until_ns] - energy[ORIGIN_NS]) / 1e3  # type: ignore[operator]
    assert value(numbers, "joules_per_token") == pytest.approx(
        joules / tokens, rel=0.02
    )


def test_without_steps_tokens_are_those_that_servers_count(tmp_path: Path) -> None:
    """A load on a server without a probe: 100 tokens a second, as it says itself."""
    engine = (
        each
        for each in TinyEngine(1).run(60)
        if not isinstance(each, Step | RequestEvent)
    )
    scrapes = [
        EngineSample(source="http://server", t_ns=t * SECOND, output_tokens=100 * t)
        for t in range(80)
    ]

    numbers = reread(tmp_path, "it", [*engine, *scrapes], constant("GPU-a"))

    joules = value(numbers, "power_w_mean") / 100
    assert value(numbers, "joules_per_token") == pytest.approx(joules, rel=0.01)


def test_a_counter_that_begins_anew_takes_no_energy_away(tmp_path: Path) -> None:
    samples = list(TinyGpu("GPU-a", dram_active=0.5).samples(60))
    drawn_w = (_mj(samples[-1]) - _mj(samples[0])) / 1e3 / (len(samples) - 1)
    reloaded = [
        replace(each, energy_mj=_mj(each) - (5_000_000 if place > 30 else 0))
        for place, each in enumerate(samples)
    ]

    numbers = recorded(tmp_path, *reloaded)

    assert value(numbers, "power_w_mean") == pytest.approx(drawn_w, rel=0.02)


def _mj(sample: GpuSample) -> int:
    assert sample.energy_mj is not None
    return sample.energy_mj


def test_without_the_counter_power_is_what_was_read_and_a_gap_is_no_time(
    tmp_path: Path,
) -> None:
    samples = TinyGpu("GPU-a", energy_mj=None, watts=300.0).samples(60)
    silent = range(ORIGIN_NS + 20 * SECOND, ORIGIN_NS + 40 * SECOND)

    numbers = recorded(tmp_path, *(each for each in samples if each.t_ns not in silent))

    power = numbers.sums["power_w_mean"]
    assert value(numbers, "power_w_mean") == pytest.approx(300)
    assert power.below.sum() == pytest.approx(40, abs=1.1)


def test_what_a_driver_does_not_tell_has_no_row(tmp_path: Path) -> None:
    """Before Hopper there is power, and time in which memory was busy at all."""
    old = TinyGpu(
        "GPU-a", dram_active=None, sm_active=None, span_ns=None, memory_busy=0.9
    )

    numbers = recorded(tmp_path, *old.samples(60))

    assert set(GPU_KEYS) & numbers.sums.keys() == {"power_w_mean", "joules_per_token"}


def test_a_few_seconds_say_nothing_of_energy_by_token(tmp_path: Path) -> None:
    heard = (
        each
        for each in TinyGpu("GPU-a").samples(60)
        if each.t_ns <= ORIGIN_NS + 4 * SECOND
    )

    assert "joules_per_token" not in recorded(tmp_path, *heard).sums


@pytest.mark.parametrize("seeds", [1, pytest.param(3, marks=pytest.mark.soak)])
def test_sessions_that_do_not_differ_show_no_difference(
    tmp_path: Path, seeds: int
) -> None:
    for seed in range(seeds):
        a, b = (
            reread(
                tmp_path,
                f"{name}{seed}",
                TinyEngine(10 * seed + place).run(120),
                TinyGpu("GPU-a", seed=10 * seed + place).samples(120),
            )
            for place, name in enumerate("ab")
        )

        shown = verdicts(pair_of(a, b))

        assert set(shown) == set(GPU_KEYS)
        assert set(shown.values()) <= {MetricVerdict.SAME, MetricVerdict.OPEN}


def test_less_energy_for_a_token_is_better_and_less_traffic_only_differs(
    tmp_path: Path,
) -> None:
    a, b = (
        reread(
            tmp_path,
            name,
            TinyEngine(seed).run(120),
            TinyGpu("GPU-a", seed, watts=watts, peak_bytes_per_s=peak).samples(120),
        )
        for name, seed, watts, peak in (("a", 1, 600.0, 4e12), ("b", 2, 300.0, 3e12))
    )

    shown = verdicts(pair_of(a, b))

    assert shown["joules_per_token"] is MetricVerdict.BETTER
    assert shown["hbm_gbps_mean"] is MetricVerdict.DIFFERS
    assert shown["sm_active_mean"] in {MetricVerdict.SAME, MetricVerdict.OPEN}


def test_the_command_has_rows_conditions_and_settings_of_gpus(
    tmp_path: Path, run_command: Run
) -> None:
    path = tmp_path / "it.db"
    for name, seed, watts, gpus in (("a", 1, 300.0, 1), ("b", 2, 600.0, 2)):
        uuids = [f"GPU-{number}" for number in range(gpus)]
        readings = [*TinyEngine(seed).run(60), runs_on(*uuids)]
        for uuid in uuids:
            limit_w = 700.0 - 100 * (gpus - 1)
            gpu = TinyGpu(uuid, seed, watts=watts, power_limit_w=limit_w)
            readings += [known(uuid), *gpu.samples(60)]
        write(path, name, iter(readings))

    arguments = ("--db", path, "a", "b", "--fail-if", "joules_per_token > +20%")
    status, text, _ = run_command("--text", *arguments)
    _, answer, _ = run_command("--json", *arguments)

    assert status == 1
    assert re.search(r"^  HBM GB/s +gpu ", text, re.MULTILINE)
    assert re.search(r"^  J/token +gpu ", text, re.MULTILINE)
    assert "gpu: a NVIDIA H200 · b 2 × NVIDIA H200" in text
    assert "gpu power limit: a 700 W · b 600 W" in text
    assert "gpu driver" not in text
    assert re.search(r"^  HBM share +gpu ", text, re.MULTILINE)
    assert "Not compared: cost (no prices: --gpu-hour or --kwh)." in text
    found = json.loads(answer)["pairs"][0]["metrics"]
    assert found["joules_per_token"]["verdict"] == "worse"
    assert found["sm_active_mean"]["vantage"] == "gpu"


def test_without_gpus_there_are_no_rows_of_them(
    run_command: Run, sessions: Path
) -> None:
    _, text, _ = run_command("--text", "--db", sessions, "before", "after")

    assert not re.search(r" gpu  ", text)
    assert "gpu" not in text.partition("Settings that differ")[2]


def test_a_whole_session_has_the_same_numbers(tmp_path: Path) -> None:
    """For the preview of a session: what a comparison would say, nothing cut."""
    numbers = recorded(tmp_path, *constant("GPU-a"), known("GPU-a"))
    path = tmp_path / "it.db"
    row = dataclasses.replace(find(path, "it"), duration_ns=ORIGIN_NS + 60 * SECOND)

    with closing(open_for_reading(path)) as connection:
        means = gpu_means(connection, row.session, row.duration_ns)
    seen = preview(path, row)

    assert means["hbm_gbps_mean"] == pytest.approx(2000)
    joules = value(numbers, "joules_per_token")
    assert means["joules_per_token"] == pytest.approx(joules, rel=0.05)
    assert seen.gpus == means
    panel = PreviewPanel()
    panel.show(ListedSession(row=row), seen, None)
    text = "\n".join("".join(run.text for run in line) for line in panel.draw(100, 40))
    assert "HBM ø GB/s 2,000" in text
    assert "SM active 80%" in text
    assert "GPU NVIDIA H200" in text
    assert "power limit 700 W" in text


def test_power_readings_are_in_order_of_time(tmp_path: Path) -> None:
    """Two collectors may tell of one GPU, each in its own order."""
    samples = sorted(TinyGpu("GPU-a").samples(60), key=attrgetter("t_ns"), reverse=True)

    assert value(recorded(tmp_path, *samples), "hbm_gbps_mean") > 0
