"""What is printed of servers, loads and checks, and what goes into files."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import msgspec
import numpy as np
import pytest

from collectors.contract.readings import LoadEvent
from inferwatch.cli.checks.finding import (
    Check,
    CheckResult,
    absent,
    broken,
    limited,
    works,
)
from inferwatch.cli.running import attach, baseline, calibrate, doctor, load
from inferwatch.cli.running import session as watching
from inferwatch.cli.running.load_progress import draw, progress_line
from inferwatch.cli.running.tune import TuneLog, stage_line
from inferwatch.live.attached.nearby import NearbyEngine
from inferwatch.live.load.baseline import BaselinePlan
from inferwatch.live.load.load_points import PointRun
from inferwatch.live.load.load_session import FollowedPlan, new_book
from inferwatch.live.outlets.endpoint import exposition
from inferwatch.live.outlets.exact import ExactNumbers
from inferwatch.live.outlets.exposed import exposed_points
from inferwatch.loadgen.plan.plan import objectives
from inferwatch.loadgen.rate_search import RateSearch
from inferwatch.loadgen.result_formats import request_lines
from inferwatch.loadgen.target_server import TargetServer
from inferwatch.loadgen.truth.calibration import Calibration, Deviation, Lag, beside
from inferwatch.metrics.configuration import Configuration
from inferwatch.metrics.load.baseline import LengthBaseline, Spread
from inferwatch.metrics.load.client_run import ClientView
from inferwatch.metrics.load.cross_check import CrossCheck
from inferwatch.metrics.load.result import LoadResult, load_result
from inferwatch.metrics.load.scenarios.evidence import ScenarioFinding
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.studies.compare.as_json import comparison_json
from inferwatch.studies.compare.comparison import Comparison
from inferwatch.studies.compare.page import comparison_page as compared_page
from inferwatch.studies.compare.printed import (
    comparison_markdown,
    comparison_text,
)
from inferwatch.studies.tune.plan import Goal
from inferwatch.studies.tune.progress import TuneProgress, TuneStage
from inferwatch.studies.tune.result.as_json import tune_json
from inferwatch.studies.tune.result.printed import tune_markdown, tune_page, tune_text
from inferwatch.studies.tune.search.race import NextTrial
from inferwatch.visible import strict_json
from tests.inferwatch.metrics.test_load_result import request
from tests.inferwatch.printed import recorded
from tests.inferwatch.printed.conftest import Printed
from tests.inferwatch.printed.golden import check, rows_form
from tests.inferwatch.studies.compare.placed_sessions import comparison
from tests.inferwatch.studies.tune.scripted_trials import space_of_seqs
from tests.inferwatch.studies.tune.test_outputs import tuned, wide

S = 1_000_000_000
OPENED: Any = SimpleNamespace(
    pipeline=SimpleNamespace(record=SimpleNamespace(session_id="s7", message=None)),
    target=TargetServer(url="http://gpu-1:8000"),
)
Captured = pytest.CaptureFixture[str]


# Files.


def test_tables_in_an_archive(own_copy: Path, printed: Printed) -> None:
    words = ("export", "small", "--format", "csv", "--token-times", "-o", "all.zip")
    told = printed(*words)
    with ZipFile(own_copy / "all.zip") as archive:
        for name in archive.namelist():
            told += f"== {name}\n{rows_form(archive.read(name).decode())}"

    check("export_all.txt", told)


def test_the_page_of_a_tune(tmp_path: Path, printed: Printed) -> None:
    file = tmp_path / "tune.html"

    printed("tune", "--show", "t1", "--db", "tunes.db", "--html", str(file))

    check("tune.html", file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("form", ["txt", "json"])
def test_imported_results(form: str, tmp_path: Path, printed: Printed) -> None:
    flags = ["--json"] if form == "json" else []

    told = printed(
        "import", *recorded.RESULTS, "--db", str(tmp_path / "new.db"), *flags
    )

    check(f"import.{form}", told)


# Tunes of all goals, and of long settings.


@pytest.mark.parametrize("goal", Goal)
def test_a_tune_of_each_goal(goal: Goal) -> None:
    result, plan, _ = tuned(goal)

    check(f"tune_{goal}.txt", tune_text(result, plan) + "\n")


def test_a_tune_in_other_forms() -> None:
    result, plan, trials = tuned()

    check("tune_goals.md", tune_markdown(result, plan) + "\n")
    check("tune_goals.json", strict_json(tune_json(result, plan, trials)) + "\n")
    check("tune_goals.html", "\n".join(tune_page(result, plan, trials)))
    check("tune_broad.txt", tune_text(result, plan, 140) + "\n")
    check("tune_long_settings.txt", tune_text(*wide()) + "\n")


def test_how_far_a_tune_is(capsys: Captured) -> None:
    result, _, trials = tuned()
    now = TuneProgress(
        tune_id="t1",
        model="tiny",
        goal=Goal.GOODPUT,
        slo="ttft_s<0.5",
        space=space_of_seqs(8, 16, present=8),
        trials=trials,
        now=NextTrial(point=trials[0].point, repeat=0, why="once more"),
        stage=TuneStage.LOADING,
        stage_s=12.0,
        stage_share=0.4,
        elapsed_s=125.0,
        left_s=600.0,
        budget_s=None,
        result=result,
        said=("the engine was started anew", "max-num-seqs 256 cannot win"),
        rate_per_s=12.0,
    )
    TuneLog(SimpleNamespace(progress=now)).tell()

    told = capsys.readouterr().err + stage_line(now)
    check("tune_progress.txt", told + "\n")


# Where and for whom it changed.


@pytest.fixture(scope="module")
def placed() -> Comparison:
    return comparison(0, lambda sent: np.where(sent.prompt_tokens > 1024, 2.0, 1.0))


def test_where_it_changed(placed: Comparison) -> None:
    check("compare_places.txt", comparison_text(placed) + "\n")
    check("compare_places.md", comparison_markdown(placed) + "\n")
    check("compare_places.json", strict_json(comparison_json(placed)) + "\n")
    check("compare_places.html", "\n".join(compared_page(placed)))


# Loads.


def followed(*, turns: bool = False) -> tuple[FollowedPlan, LoadResult]:
    """The load of the recorded session, in conversations or not."""
    plan = recorded.PLAN
    book = new_book(plan)
    for each in recorded.failing(turns=turns):
        book.fold(each)
    return FollowedPlan(plan=plan, book=book), load_result(book, *objectives(plan))


def options(**given: Any) -> Any:
    return SimpleNamespace(
        **{"as_json": False, "output_format": "inferwatch", "prints_json": False}
        | given
    )


def calibration() -> Calibration:
    deviation = Deviation(
        n=200,
        truth_mean=0.05,
        reported_mean=0.0501,
        truth_p99=0.09,
        reported_p99=0.0898,
    )
    lag = Lag(n=200, p50=0.0001, p99=0.0004, max=0.002)
    return Calibration(
        date="2026-09-21T14:13:20+00:00",
        host="node-1",
        load="20/s for 10 s",
        streams=4.0,
        tokens_per_s=60.0,
        transport="raw",
        requests=200,
        tokens=20_000,
        ttft=deviation,
        itl=deviation,
        stamp_lag=lag,
        send_lag=lag,
        verdict="OK",
    )


def print_load(options: Any, **more: Any) -> None:
    run, result = followed(turns=bool(more))
    found = load._summary(OPENED, run, result)
    found |= {"stopped": None, "server": None, **more}
    load._print(options, OPENED, run, result, found)


def test_a_load(capsys: Captured) -> None:
    print_load(options())
    check("load.txt", capsys.readouterr().out)
    print_load(options(as_json=True))
    check("load.json", capsys.readouterr().out)


def test_a_load_with_all_that_can_be_said_of_it(capsys: Captured) -> None:
    _, result = followed()
    crossed = CrossCheck(
        source="probe",
        n=79,
        parts={
            "send_lag_s": 0.001,
            "network_s": 0.0005,
            "api_s": None,
            "queue_s": 0.02,
            "prefill_s": 0.03,
        },
        ttft_s=0.058,
        unexplained_s=0.0065,
        disagreements=("6.5 ms (11%) are not accounted for",),
        hint="start the server with --enable-per-request-metrics",
    )
    scenario = ScenarioFinding(
        name="long-prompts",
        sentence="a prompt of 2,000 tokens makes others wait 80 ms (60 to 100) longer",
        numbers={"waits_s": 0.08},
    )
    more: dict[str, Any] = {
        "stopped": "interrupted",
        "cross_check": crossed.as_json(),
        "scenario": scenario.as_json(),
        "calibration": beside(calibration(), result),
    }

    print_load(options(), **more)
    check("load_everything.txt", capsys.readouterr().out)
    print_load(options(as_json=True), **more)
    check("load_everything.json", capsys.readouterr().out)


def test_a_load_as_other_tools_write_it(capsys: Captured) -> None:
    run, _ = followed()
    print_load(options(output_format="vllm-bench"))
    out = capsys.readouterr().out
    told = msgspec.json.decode(out) | {"date": "TODAY"}

    check("load_vllm_bench.json", strict_json(told) + "\n")
    check(
        "load_requests.rows", "".join(f"{each}\n" for each in request_lines(run.book))
    )


def points() -> tuple[list[PointRun], RateSearch]:
    """Three rates: held, held by a slow client, missed by most."""
    search, runs = RateSearch(5.0, 0.9), []
    for place, rate in enumerate((5.0, 10.0, 20.0)):
        name = f"load-{place}"
        plan = msgspec.structs.replace(recorded.PLAN, run_id=name, rate_per_s=rate)
        book = new_book(plan)
        for index in range(60):
            late_ns = place**3 * index * 1_000_000
            at_ns = index * 100_000_000 + 51_000_000 + late_ns // 8
            failed: dict[str, Any] = {"failure": "timeout", "detail": "after 5 s"}
            what = failed if place == 2 and index > 50 else {}
            told = request(index, first_token_ns=at_ns, source=name, **what)
            book.fold(told)
        book.fold(
            msgspec.structs.replace(
                recorded.client_sample(),
                source=name,
                sends=60,
                cpu_s=9.0 if place == 1 else 1.0,
            )
        )
        run = PointRun(plan=plan, result=load_result(book, *objectives(plan)))
        runs.append(run)
        search.add(run.point())
    return runs, search


def test_a_search_for_the_highest_rate(capsys: Captured) -> None:
    runs, search = points()
    many: Any = SimpleNamespace(runs=runs, fault=None)
    for form, asked in (
        ("txt", options(strict_client=False, share=0.9)),
        ("json", options(strict_client=False, prints_json=True, share=0.9)),
    ):
        load.print_points(asked, OPENED, recorded.PLAN, many, search)
        check(f"load_search.{form}", capsys.readouterr().out)
    curve = [row for columns in (80, 120) for row in draw(runs, columns)]
    check("load_curve.txt", "\n".join(curve) + "\n")


def test_how_far_a_load_is() -> None:
    model = Model()
    moments = []
    for each in recorded.failing():
        model.fold(each)
        if isinstance(each, LoadEvent):
            now = model.snapshot(
                each.t_ns, SnapshotQuery(Window.SESSION, client=True)
            ).client
            moments.append(progress_line(recorded.PLAN, now or ClientView(), 5.0))

    check("load_progress.txt", "\n".join(moments) + "\n")


def test_a_calibration(capsys: Captured) -> None:
    found = calibration()

    check("calibrate.txt", calibrate._table(found) + "\n")
    check("calibrate.json", strict_json(found.as_json()) + "\n")


# Servers.


def spread(median: float) -> Spread:
    return Spread(
        n=5,
        median=median,
        p25=0.95 * median,
        p75=1.1 * median,
        least=0.9 * median,
        most=1.4 * median,
    )


def measured(*, everything: bool) -> baseline.BaselineResult:
    lengths = [
        LengthBaseline(
            prompt_tokens=length,
            counted_tokens=length + 1,
            sent=5,
            failed=0,
            first_failure=None,
            ttft_s=spread(0.01 + length * 1e-5),
            tpot_s=spread(0.008),
            output_tokens_per_s=spread(120.0),
        )
        for length in (32, 512)
    ]
    lengths.append(
        LengthBaseline(
            prompt_tokens=2048,
            counted_tokens=None,
            sent=5,
            failed=5,
            first_failure="503 overloaded",
            ttft_s=None,
            tpot_s=None,
            output_tokens_per_s=None,
        )
    )
    configuration = Configuration(
        model="tiny",
        version="0.32.0",
        gpus=("NVIDIA H100 80GB HBM3",),
        settings={"max_num_seqs": 12},
    )
    tags = [configuration.exact_tag, configuration.model_tag]
    return baseline.BaselineResult(
        lengths=lengths,
        snapshot=snapshot_of_gpus()
        if everything
        else Model().snapshot(0, SnapshotQuery(Window.SESSION)),
        configuration=configuration if everything else None,
        session_id="s7" if everything else None,
        tags=tags if everything else (),
    )


def snapshot_of_gpus() -> Snapshot:
    model = Model()
    for each in recorded.with_gpus():
        model.fold(each)
    return model.snapshot(30 * S, SnapshotQuery(Window.SESSION))


@pytest.mark.parametrize("form", ["txt", "json"])
@pytest.mark.parametrize("everything", [True, False], ids=["known", "unknown"])
def test_a_baseline(form: str, capsys: Captured, *, everything: bool) -> None:
    plan = BaselinePlan(like=recorded.PLAN)
    asked = options(as_json=form == "json")

    found = measured(everything=everything)
    baseline._print(asked, OPENED.target, plan, found)

    name = "baseline" if everything else "baseline_unknown"
    check(f"{name}.{form}", capsys.readouterr().out)


ENGINES = (
    NearbyEngine(address="http://localhost:8000", models=("tiny", "tiny-lora")),
    NearbyEngine(address="/run/sglang.sock", family="sglang", answered=False),
)


@pytest.mark.parametrize(
    ("name", "engines"), [("find_none.txt", ()), ("find.txt", ENGINES)]
)
def test_what_runs_here(
    name: str,
    engines: Sequence[NearbyEngine],
    printed: Printed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def look() -> Sequence[NearbyEngine]:
        await asyncio.sleep(0)
        return engines

    monkeypatch.setattr(attach, "nearby_engines", look)

    check(name, printed())


FINDINGS: Sequence[CheckResult] = (
    works("driver", "575.57.08", version="575.57.08"),
    limited("HBM", "no counters", "run as root, or let others read counters"),
    absent("DCGM", "no exporter answers", "start one: docker run …"),
    broken("a name that is too long for its column", "it hangs; " * 12, "restart it"),
)


@pytest.mark.parametrize("form", ["txt", "json"])
def test_a_doctor(form: str, printed: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [
        Check(area="GPUs", name="NVML", find=lambda: FINDINGS[:2]),
        Check(area="Host", name="host", find=lambda: FINDINGS[2:]),
    ]
    nothing: Any = SimpleNamespace(CHECKS=(), platform_line=lambda: "Python on Linux")
    monkeypatch.setattr(doctor, "gpu_checks", lambda _: checks)
    for area in ("host", "record", "terminal", "engine"):
        monkeypatch.setattr(doctor, area, nothing)
    monkeypatch.setattr(doctor, "__version__", "1.2.3")

    told = printed("doctor", *(["--json"] if form == "json" else []))

    check(f"doctor.{form}", told)


# Of a watch without a screen.


@pytest.mark.parametrize("form", ["txt", "json"])
def test_a_watch_that_kept_its_record_in_memory(form: str, capsys: Captured) -> None:
    flight = SimpleNamespace(
        sessions={"s1": 1, "s2": 2},
        keep_s=60.0,
        kept_s=31.5,
        kept_bytes=1_000_000,
        cut_short=False,
    )
    watch: Any = SimpleNamespace(
        record=SimpleNamespace(session_id="", flight=flight), whole=snapshot_of_gpus
    )

    watching._print_summary(watch, as_json=form == "json")

    check(f"watch_in_memory.{form}", capsys.readouterr().out)


# For Prometheus.


def scrapes() -> Iterator[tuple[str, str]]:
    yield "metrics.txt", "text/plain;version=0.0.4"
    yield "open_metrics.txt", "application/openmetrics-text;version=1.0.0"


@pytest.mark.parametrize(("name", "accept"), scrapes())
def test_what_prometheus_scrapes(name: str, accept: str) -> None:
    numbers = ExactNumbers()
    for each in (*recorded.with_gpus(), *recorded.scraped()):
        numbers.fold(each)
    record: Any = SimpleNamespace(unrecorded=3, file_bytes=1_000_000)

    text, _ = exposition(exposed_points(numbers, 30 * S, record), accept)

    check(name, text.decode())
