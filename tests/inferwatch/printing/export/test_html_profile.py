"""The page of a session with profiles tells where the time of their steps went."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from collectors.contract.readings import ProfileState
from inferwatch.printing.destination import Destination
from inferwatch.printing.export.html.page import write_html
from inferwatch.printing.export.recording import opened
from inferwatch.profiles.report import (
    ClassTime,
    ExecutedOn,
    KernelClass,
    KernelTime,
    PhaseTimes,
    ProfiledStep,
    ProfileReport,
    RankProfile,
    StepPhase,
)
from inferwatch.record.file.trace_folder import REPORT_END, traces_folder
from inferwatch.record.profiles.shelf import KeptReport
from tests.inferwatch.metrics.scripted_profiles import S, ended, profile
from tests.inferwatch.printing.export.conftest import Recorded
from tests.inferwatch.printing.export.parsed_page import Page

MS = S // 1_000
FIRST, SECOND = "inferwatch-one-0-1", "inferwatch-one-0-2"
EVIL = '<script>alert("x")</script>'
PageOf = Callable[[list[Any], dict[str, ProfileReport]], tuple[Path, Page]]


def report(*, attention_ns: int = 3 * MS, kernel: str = "aten::mm") -> ProfileReport:
    """One decode step of a GPU with a class far from its floor."""
    whole_ns = 4 * MS + attention_ns + 3 * MS
    times = PhaseTimes(
        phase=StepPhase.DECODE,
        steps=1,
        duration_ns=whole_ns,
        host_ns=3 * MS,
        classes=[
            ClassTime(
                kernel_class=KernelClass.GEMM, time_ns=4 * MS, count=9, floor_ns=3 * MS
            ),
            ClassTime(
                kernel_class=KernelClass.ATTENTION,
                time_ns=attention_ns,
                count=4,
                floor_ns=MS // 2,
            ),
        ],
        farthest=KernelClass.ATTENTION,
    )
    step = ProfiledStep(
        index=7,
        phase=StepPhase.DECODE,
        begin_ns=3 * S,
        duration_ns=whole_ns,
        times_ns={KernelClass.GEMM: 4 * MS, KernelClass.ATTENTION: attention_ns},
        host_ns=3 * MS,
    )
    most = KernelTime(
        name=kernel,
        kernel_class=KernelClass.GEMM,
        count=9,
        time_ns=4 * MS,
        shortest_ns=MS // 10,
        longest_ns=MS,
        decode_ns=4 * MS,
    )
    rank = RankProfile(
        rank=0,
        device=ExecutedOn.GPU,
        file="rank0.json",
        trace_bytes=1,
        events=1,
        steps=[step],
        phases=[times],
        kernels=[most],
        occurrences=[],
        gaps=[],
    )
    return ProfileReport(ranks=[rank])


@pytest.fixture
def page_of(
    keep_session: Callable[..., Recorded], traffic: Any, tmp_path: Path
) -> PageOf:
    """``page_of(readings, reports)``: the page's file, and what it shows."""

    def make(
        readings: list[Any], reports: dict[str, ProfileReport]
    ) -> tuple[Path, Page]:
        path, _ = keep_session([*traffic.start(), *traffic.run(6), *readings])
        out = tmp_path / "page.html"
        with opened(path, "last") as recording:
            folder = traces_folder(path, recording.session.id)
            folder.mkdir(parents=True, exist_ok=True)
            for key, told in reports.items():
                place = folder / f"{key}{REPORT_END}"
                place.write_bytes(msgspec.json.encode(KeptReport({}, told)))
            write_html(recording, Destination(path=out))
        return out, Page(out.read_text("utf-8"))

    return make


def row_of(page: Page, name: str) -> list[str]:
    """The words from a class on, in the section of the profile."""
    words = [each.strip() for each in page.words if each.strip()]
    words = words[words.index("Profile of steps") :]
    return words[words.index(name) :]


def test_the_mean_step_is_there_by_class_with_its_floors(page_of: PageOf) -> None:
    _, page = page_of([profile(2 * S), ended(4 * S)], {FIRST: report()})

    assert row_of(page, "attention")[1:5] == ["3.00 ms", "30%", "~0.500 ms", "×6.00"]
    assert row_of(page, "host")[1:3] == ["3.00 ms", "30%"]
    assert row_of(page, "step")[1] == "10.0 ms"
    assert "by the engine's own profiler" in page.text
    assert "attention is farthest from its floor" in page.text


def test_the_latest_profile_is_shown_and_how_to_see_those_before(
    page_of: PageOf,
) -> None:
    readings = [
        *(profile(2 * S), ended(3 * S)),
        *(profile(4 * S, number=2), ended(5 * S, number=2)),
    ]
    reports = {FIRST: report(), SECOND: report(attention_ns=13 * MS)}

    _, page = page_of(readings, reports)

    assert row_of(page, "step")[1] == "20.0 ms"
    assert "1 earlier profile; the last of them: inferwatch profile s1" in page.text
    assert "--number 1" in page.text


def test_of_a_profile_whose_traces_are_gone_it_says_so(page_of: PageOf) -> None:
    directory = "/var/no/such/traces"
    readings = [profile(2 * S, directory=directory), ended(4 * S, directory=directory)]

    _, page = page_of(readings, {})

    assert "Profile 1 cannot be read: its traces are neither" in page.text
    assert directory in page.text


@pytest.mark.parametrize(
    "readings",
    [[], [profile(2 * S)], [profile(2 * S), profile(4 * S, ProfileState.FAILED)]],
    ids=["none", "on still", "failed"],
)
def test_without_a_profile_there_is_no_section(
    page_of: PageOf, readings: list[Any]
) -> None:
    _, page = page_of(readings, {})

    assert "Profile of steps" not in page.text


def test_names_of_kernels_are_shown_and_never_obeyed(page_of: PageOf) -> None:
    out, _ = page_of([profile(2 * S), ended(4 * S)], {FIRST: report(kernel=EVIL)})

    assert "<script" not in out.read_text("utf-8")
    assert "&lt;script&gt;" in out.read_text("utf-8")
