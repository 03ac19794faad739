"""The help explains each number by the word that the screen has for it."""

from collections.abc import Sequence

import pytest

from inferwatch.metrics.floor.view import TimeSplit
from inferwatch.metrics.number import FlowFact, Number, numbers_in
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.counter import StepTotals
from inferwatch.metrics.steps.flow import Flow
from inferwatch.metrics.steps.health import Health, Verdict
from inferwatch.ui.hardware.gpu_panel import _bars, _facts, _memory
from inferwatch.ui.hardware.host_panel import _lags, _scheduler
from inferwatch.ui.hardware.screen import HardwareScreen
from inferwatch.ui.kv.facts import HolderTable, facts_of
from inferwatch.ui.kv.screen import KvScreen
from inferwatch.ui.limits.memory_budget import b_max
from inferwatch.ui.limits.roofline import numbers_of
from inferwatch.ui.limits.screen import LimitsScreen, parts_of
from inferwatch.ui.overview.screen import NOW_MARK, FlowPanel, OverviewScreen
from inferwatch.ui.requests.screen import RequestsScreen
from inferwatch.ui.requests.table import RequestTable
from inferwatch.ui.steps.facts import total_facts
from inferwatch.ui.steps.screen import StepsScreen
from tests.inferwatch.ui import hardware_sessions
from tests.inferwatch.ui.conftest import snapshot
from tests.inferwatch.ui.limits_sessions import LIMITS

NOTHING = Snapshot(
    now_ns=1,
    window=Window.MINUTE,
    covered_ns=1,
    verdict=Verdict(health=Health.IDLE, sentence=""),
)


def of_overview() -> set[str]:
    panel = FlowPanel()
    panel.show(NOTHING)
    rows = panel.draw(150, 9)[1:]
    return {run.text for row in rows for run in row if run.ink == "muted"}


def of_kv() -> set[str]:
    table = {each.title.strip() for each in HolderTable().columns}
    facts = {label for row in facts_of(NOTHING) for label, _, _ in row}
    return facts | table - {"held by", "parts"}


def of_steps() -> set[str]:
    first, *others = total_facts(StepTotals())
    return {label for label, _, _ in (*first, *(row[0] for row in others))}


def of_requests() -> set[str]:
    by_itself = {"id, by arrival", "phases"}
    titles = {each.title.strip() for each in RequestTable().columns}
    return {title.removesuffix(" ms") for title in titles} - by_itself


def of_hardware() -> set[str]:
    """Labels of bars and facts; words between numbers are none."""
    gpu, made = hardware_sessions.h100(), snapshot()
    shown = hardware_sessions.shown_with(made, gpu)
    lines = [*_bars(gpu, 60), *_memory(gpu, shown, 60)]
    lines += [line for facts in _facts(gpu, shown, 90) for line in facts]
    host = hardware_sessions.host()
    lines += [*_scheduler(host), *_lags(host, shown)]
    told = {line[0].text.strip() for line in lines if line and line[0].ink == "muted"}
    by_itself = {"GPU", "mem", "PCIe", "NVLink", "of 60 s", "worst of 60 s"}
    return {each for each in told if each and not each.startswith("ø")} - by_itself


def of_limits() -> set[str]:
    rows = [*numbers_of(LIMITS, 20)[1:], b_max(snapshot(), LIMITS, 120)]
    told = {line[0].text.strip().removesuffix(" derived") for line in rows}
    parts = {each.name for each in parts_of(TimeSplit())}
    return (told | parts) - {"of possible", "measured"}


@pytest.mark.parametrize(
    ("shown", "explained"),
    [
        (of_limits(), LimitsScreen.EXPLAINS),
        (of_hardware(), HardwareScreen.EXPLAINS),
        (of_overview(), OverviewScreen.EXPLAINS),
        (of_kv(), KvScreen.EXPLAINS),
        (of_steps(), StepsScreen.EXPLAINS),
        (of_requests(), RequestsScreen.EXPLAINS),
    ],
    ids=["limits", "hardware", "overview", "kv", "steps", "requests"],
)
def test_every_label_is_one_that_the_help_explains(
    shown: set[str], explained: Sequence[Number]
) -> None:
    labels = {each.label for each in explained}

    assert {each.removesuffix(" p99").removesuffix(" time") for each in shown} <= labels


def test_what_is_now_is_told_apart_from_what_is_of_the_window() -> None:
    panel = FlowPanel()
    panel.show(NOTHING)
    head, *rows = panel.draw(150, 9)
    runs = [run.text for row in rows for run in row]
    marked = {runs[i - 1] for i, text in enumerate(runs) if text == NOW_MARK}

    assert marked == {"waiting", "oldest", "KV used", "running"}
    assert "".join(run.text for run in head).endswith("• now, else 60 s ")


def test_every_number_that_has_its_place_in_the_flow_is_drawn() -> None:
    placed = {
        each.label
        for each in numbers_in(Flow)
        if isinstance(each.place, FlowFact) and not each.place.beside
    }

    assert placed | {"step p99"} == of_overview()
