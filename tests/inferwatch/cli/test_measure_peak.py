"""What a host can do is measured once, kept, told and taken into sessions."""

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from collectors.contract.clock import monotonic_ns
from collectors.contract.readings import MeasuredPeak
from collectors.hardware import host as host_peak
from collectors.hardware.host import keep_peak, known_peaks
from embedded_engine import measure_peak as program
from inferwatch.cli.checks import host
from inferwatch.cli.checks.finding import CheckStatus
from inferwatch.cli.doctor import doctor
from inferwatch.cli.running import measure_peak
from inferwatch.cli.running.measure_peak import PeakError

PEAK = MeasuredPeak(
    t_ns=1,
    device="CPU",
    threads=2,
    bytes_per_s=2e10,
    read_bytes_per_s=1.5e10,
    cached_bytes_per_s={1 << 20: 9e10, 1 << 30: 1.5e10},
    flops={"bfloat16": 1.5e12},
    measured_wall_s=1.8e9,
)


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache" / "peaks.json"
    monkeypatch.setattr(host_peak, "peaks_file", lambda: path)
    return path


def test_what_was_measured_is_known_from_then_on_as_of_now() -> None:
    assert known_peaks() == []

    keep_peak(PEAK)

    [known] = known_peaks()
    assert monotonic_ns() - 10**9 < known.t_ns <= monotonic_ns()
    assert msgspec.structs.replace(known, t_ns=1) == PEAK


def test_it_is_of_this_processor_and_these_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keep_peak(PEAK)
    monkeypatch.setattr(host_peak, "usable_cores", lambda: 0.5)
    assert known_peaks() == []


def test_several_hosts_share_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_peak(PEAK)
    monkeypatch.setattr(host_peak, "cpu_name", lambda: "another")
    assert known_peaks() == []
    keep_peak(msgspec.structs.replace(PEAK, device="another"))
    assert known_peaks()[0].device == "another"
    monkeypatch.setattr(host_peak, "cpu_name", lambda: None)
    assert known_peaks() == []


def test_a_file_that_is_damaged_is_no_measurement(file: Path) -> None:
    file.parent.mkdir()
    file.write_bytes(b"{")

    assert known_peaks() == []


def test_the_doctor_tells_what_was_measured_or_how_to() -> None:
    [absent] = host._peak()
    assert absent.standing is CheckStatus.ABSENT
    assert "doctor --measure-peak" in absent.fix

    keep_peak(PEAK)

    [told] = host._peak()
    assert told.standing is CheckStatus.WORKS
    assert "bfloat16 1.50 TFLOP/s" in told.says
    assert "2 cores, 2027-01-15" in told.says
    assert told.facts["flops"] == {"bfloat16": 1.5e12}
    json.dumps(told.facts)


def test_a_set_is_not_read_faster_than_a_smaller_one() -> None:
    assert program.falling({1: 5.0, 2: 9.0, 4: 3.0}) == {1: 9.0, 2: 9.0, 4: 3.0}


@pytest.mark.process
def test_the_program_measures_this_host() -> None:
    peak = measure_peak.measure_peak(quick=True)

    assert peak.threads is not None
    assert peak.threads >= 1
    assert 1e8 < (peak.bytes_per_s or 0) < 1e13
    rates = [rate for _, rate in sorted(peak.cached_bytes_per_s.items())]
    assert len(rates) == 5
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == peak.read_bytes_per_s
    assert peak.flops["float32"] > 1e9
    assert known_peaks()[0].flops == peak.flops


@pytest.mark.process
def test_the_result_is_no_line_of_the_progress(tmp_path: Path) -> None:
    rates = {"bytes_per_s": 1.5e10, "read_bytes_per_s": 1e10}
    result = {"threads": 2, **rates, "cached_bytes_per_s": {}, "flops": {}}
    lines = (
        f"print('memory, 64 MiB at a time'); print({json.dumps(json.dumps(result))})"
    )
    (tmp_path / "measures.py").write_text(lines)
    reported: list[str] = []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure_peak, "PROGRAM", "measures")
        patch.setattr(measure_peak, "ONE_THREAD", {"PYTHONPATH": str(tmp_path)})
        measured = measure_peak._program_result([], reported.append)

    assert measured.threads == 2
    assert reported == ["memory, 64 MiB at a time"]


@pytest.mark.process
def test_a_program_that_fails_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_peak, "PROGRAM", "inferwatch.no_such_module")

    with pytest.raises(PeakError, match="did not end well"):
        measure_peak.measure_peak()
    measure_peak.measure_once()  # a demo goes on
    assert known_peaks() == []


def test_the_doctor_measures_before_it_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[MeasuredPeak]] = []

    def looks(_: object, *, as_json: bool) -> int:
        seen.append(known_peaks())
        return as_json

    monkeypatch.setattr(
        "inferwatch.cli.running.measure_peak.measure_peak", lambda: keep_peak(PEAK)
    )
    monkeypatch.setattr("inferwatch.cli.running.doctor.run_doctor", looks)
    for arguments in ([], ["--measure-peak"]):
        CliRunner().invoke(doctor, arguments)

    assert [len(each) for each in seen] == [0, 1]
