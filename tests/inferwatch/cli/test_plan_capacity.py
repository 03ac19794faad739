"""``inferwatch plan --slo --rate``: how many GPUs it takes, asked as people ask."""

import re
from pathlib import Path

import pytest

from collectors.contract.clock import NS_PER_S, SessionClock, monotonic_ns
from collectors.contract.readings import Stage, StartupStage
from inferwatch.record.writing.recorder import Recorder
from inferwatch.sample import sample_file
from tests.inferwatch.cli.test_plan import asked, run
from tests.inferwatch.studies.capacity.setups import few_requests
from tests.inferwatch.studies.capacity.test_calibration import recorded

__all__ = ["few_requests"]

QUICK = ("8b", "--gpu", "H100", "--tp", "1", "--prompt", "1k", "--output", "50")
DAY = "hour,requests_per_hour\n0,100000\n1,700000\n2,400000\n"


def test_one_command_says_how_many_gpus_and_what_fp8_would_save() -> None:
    """By hand in test_search: 6.5 H100 at their peaks, 3.3 in FP8."""
    status, text = run(
        *("70b", "--gpu", "H100", "--rate", "20", "--prompt", "2k", "--output", "256"),
        *("--slo", "tpot_s<40ms"),
    )

    assert status == 0
    lead = text.split("\n\n", 1)[0].replace("\n  ", " ")
    assert lead == (
        "Of TP 1, 2, 4 and 8, at best 8 H100 SXM (1 × TP 8) hold TPOT < 40 ms at 20 "
        "requests/s; with FP8 weights 4 (1 × TP 4), half the GPUs."
    )


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--rate", "5", "--batch", "4"], "--batch beside --slo"),
        (["--rate", "5", "--measured-tpot", "4ms"], "--measured-tpot beside --slo"),
        (["--rate", "0"], "--rate '0': give requests such as 20"),
        (["--rate", "-3"], "--rate '-3'"),
        (["--rate", "nan"], "--rate 'nan'"),
        (["--rate", "2e9"], "--rate '2e9'"),
        (["--slo", "tpot<fast"], "cannot read 'tpot<fast'"),
        (["--slo-target", "0.9"], "--slo-target: give --slo or --rate as well"),
        (["--rate", "5", "--slo-target", "0.9"], "--slo-target is the target of --slo"),
        (["--efficiency", "0.5"], "--efficiency: give --slo or --rate"),
        (["--rate", "5", "--efficiency", "2"], "above 0, at most 1"),
        (["--rate", "5", "--efficiency", "1", "--calibrate", "x"], "give one of both"),
        (["--rate", "5", "--start-time", "3min"], "is the lag of --demand"),
        (["--rate", "5", "--gpu-hour", "H200=3"], "--gpu does not name it"),
        (["--gpu", "A100", "--rate", "5", "--gpu-hour", "H100=3"], "no price of A100"),
        (["--rate", "5", "--gpu-hour", "3,H100=3"], "name every GPU, or none"),
        (["--rate", "5", "--output", "200k", "--context", "300k"], "at most 10,000"),
        (["--rate", "5", "--efficiency", "1e-9"], "at least 0.01 of the peaks"),
        (["--output", "1", "--slo", "itl_s<1us"], "--output 1 has no ITL"),
        (["--demand", "/dev/zero"], "more than 8,784 hours"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(flags: list[str], said: str) -> None:
    kept = QUICK[:5] if "--context" in flags else QUICK
    try:
        status, text = run(*kept, *flags)
    except Exception as error:  # noqa: BLE001 - click's own
        status, text = 2, str(error)

    assert status == 2
    assert said in text


def test_ways_that_divide_the_heads_are_tried_unasked() -> None:
    found = asked("qwen2.5-7b", "--gpu", "H100", "--slo", "tpot_s<20ms")

    ways = {each["tensor_parallel"] for each in found["set_ups"]}
    assert ways == {1, 2, 4}  # of 28 heads


def test_formats_that_are_asked_for_have_no_others_beside_them() -> None:
    found = asked(*QUICK, "--slo", "tpot_s<20ms", "--quantization", "none,fp8")

    assert [each["formats"] for each in found["set_ups"]] == ["16-bit", "FP8 weights"]
    assert all(each["asked_for"] for each in found["set_ups"])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--slo", "tpot_s<2ms"], "nearest is H100 SXM TP 1 in FP8 both, TPOT 2."),
        (["--slo", "ttft_s<1ms", "--rate", "3"], "TTFT 7.2 ms at best"),
    ],
)
def test_where_nothing_holds_the_nearest_is_named(flags: list[str], said: str) -> None:
    status, text = run(*QUICK, *flags)

    assert status == 1
    assert text.startswith("Nothing here holds")
    assert said in text


def test_a_model_that_does_not_fit_is_told_so() -> None:
    status, text = run("405b", *QUICK[1:], "--rate", "3")

    assert status == 1
    assert text.startswith("The model does not fit: on H100 SXM TP 1 in FP8")
    assert "It would fit with:\n  6 × H100 SXM" in text


def test_it_can_be_read_at_80_columns() -> None:
    status, text = run(
        *("8b", "--gpu", "H100,A100", "--tp", "1", "--prompt", "1k", "--output", "50"),
        *("--rate", "10", "--slo", "tpot_s<30ms ttft_s<1", "--gpu-hour", "2.5"),
        env={"COLUMNS": "80", "NO_COLOR": "1"},
    )

    assert status == 0
    assert max(map(len, text.splitlines())) <= 80
    for head in ("GPUs", "TPOT p95", "binds", "a million"):
        assert head in text
    assert "req/s" not in text  # nor is what it means


def test_set_ups_are_sorted_by_the_price_of_their_gpus() -> None:
    words = ("8b", "--gpu", "H100,A100", "--tp", "1", "--output", "50", "--rate", "2")
    slo = ("--slo", "tpot_s<40ms", "--quantization", "none")
    dear = asked(*words, *slo, "--gpu-hour", "H100=9,A100=1")
    cheap = asked(*words, *slo, "--gpu-hour", "H100=1,A100=9")

    for found, gpu in ((dear, "A100 SXM 80GB"), (cheap, "H100 SXM")):
        best = found["set_ups"][found["best"]]
        assert best["gpu"] == gpu
        assert best["price_per_hour"] == best["gpus"]


def test_an_efficiency_makes_estimates_that_take_more() -> None:
    words = (*QUICK, "--rate", "60", "--slo", "tpot_s<30ms", "--quantization", "fp8")
    best, half = asked(*words), asked(*words, "--efficiency", "0.4")

    assert [each["claim"] for each in best["set_ups"]] == ["floor"]
    assert [each["claim"] for each in half["set_ups"]] == ["estimate"]
    assert half["set_ups"][0]["gpus"] > best["set_ups"][0]["gpus"]
    assert half["conclusion"].startswith("About ")


def test_a_demand_takes_replicas_by_the_hour(tmp_path: Path) -> None:
    file = tmp_path / "day.csv"
    file.write_text(DAY, "utf-8")
    found = asked(*QUICK, "--slo", "tpot_s<30ms", "--demand", str(file))

    demand, best = found["demand"], found["set_ups"][found["best"]]
    assert found["requests_per_s"] == pytest.approx(700_000 / 3_600)
    assert max(demand["replicas"]) == best["replicas"] == demand["replicas"][1]
    assert demand["replicas"][0] < demand["replicas"][2] < demand["replicas"][1]
    assert demand["start_told"] == "load, at least"


@pytest.fixture
def recording(tmp_path: Path) -> str:
    """A session of steps of 20 ms and more on an H100, whose start took 90 s."""
    file = tmp_path / "h100.db"
    clock = SessionClock(monotonic_ns() - 30 * NS_PER_S)
    recorder = Recorder.open(file, floor_bytes=0, capacity=1 << 20, clock=clock)
    start = StartupStage(
        source="e", t_ns=0, duration_ns=90 * NS_PER_S, stage=Stage.LOAD_WEIGHTS
    )
    for ordinal, each in enumerate([start, *recorded()], 1):
        recorder.put(ordinal, each)
    recorder.close()
    return str(file)


def test_a_recording_calibrates_what_steps_and_starts_take(
    recording: str, tmp_path: Path
) -> None:
    file = tmp_path / "day.csv"
    file.write_text(DAY.replace("00000", "000"), "utf-8")
    words = ("8b", "--gpu", "H100", "--tp", "1", "--prompt", "300", "--output", "40")
    slo = ("--slo", "tpot_s<60ms", "--calibrate", recording)
    found = asked(*words, *slo, "--demand", str(file), "--quantization", "none")
    _, text = run(*words, *slo, "--rate", "1")

    best = found["set_ups"][found["best"]]
    assert best["claim"] == "calibrated"
    assert best["tpot_s"] > 0.02  # of which 5 ms are the floor
    assert found["demand"]["start_s"] == pytest.approx(90)
    assert found["demand"]["start_told"] == "as recorded"
    assert text.startswith("By the recording, 1 H100 SXM (1 × TP 1) holds")
    assert "(scripted on H100 SXM, TP 1) took beyond theirs" in text.replace("\n", " ")
    assert "The recorded start took 90.0 s: load weights 90.0 s." in text
    assert re.search(r"~2\d\.\d ms", text)


def test_a_recording_of_a_cpu_calibrates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    status, text = run(*QUICK, "--rate", "1", "--calibrate", str(sample_file()))

    assert status == 2
    assert "what the GPUs of its engine can do is not known" in text
