"""What tokens cost, counted by hand: hours, electricity, energy by kind of step."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from collectors.contract.readings import Prices, Vantage, WatchedSlo
from inferwatch.metrics.hardware.view import Hardware
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.model.spending import spending
from inferwatch.metrics.objectives.view import SloState
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.metrics.steps.flow import Flow
from inferwatch.metrics.steps.health import Health, Verdict
from tests.inferwatch.metrics.test_saved import Keeps

Make = Callable[..., Any]
S = 1_000_000_000


def shown(**fields: Any) -> Snapshot:
    """100 s with 1,000 output tokens a second on two GPUs of 350 W each."""
    usual: dict[str, Any] = {
        "now_ns": 100 * S,
        "window": Window.SESSION,
        "covered_ns": 100 * S,
        "verdict": Verdict(health=Health.HEALTHY, sentence=""),
        "flow": Flow(output_tokens_per_s=1_000.0),
        "hardware": Hardware(gpus=2, power_w_mean=700.0),
    }
    return Snapshot(**(usual | fields))


def good(tokens: int) -> SloState:
    return SloState(
        slo="ttft_s<1",
        target=0.95,
        vantage=Vantage.FRONTEND,
        judged=10,
        good=5,
        good_tokens=tokens,
        ended_tokens=100_000,
    )


def test_gpu_hours_are_of_all_gpus() -> None:
    found = spending(shown(), Prices(t_ns=0, gpu_hour=2.5))

    assert found is not None
    assert (found.per_hour, found.read_from) == (5.0, "GPU hours")
    assert found.per_mtok == pytest.approx(5 / 3.6)  # 3.6 million tokens an hour
    assert found.per_mtok_good is None


def test_only_tokens_of_good_requests_earn_it() -> None:
    found = spending(shown(slo=good(25_000)), Prices(t_ns=0, gpu_hour=2.5))

    assert found is not None
    assert found.per_mtok_good == pytest.approx(4 * 5 / 3.6)  # a quarter of the tokens


def test_where_no_request_was_good_no_price_would_do() -> None:
    found = spending(shown(slo=good(0)), Prices(t_ns=0, gpu_hour=2.5))

    assert found is not None
    assert found.per_mtok_good is None


def test_without_a_gpu_it_is_the_host_that_is_paid() -> None:
    found = spending(shown(hardware=Hardware()), Prices(t_ns=0, gpu_hour=0.36))

    assert found is not None
    assert (found.per_hour, found.read_from) == (0.36, "hours of the host")
    assert found.per_mtok == pytest.approx(0.1)


def test_electricity_is_by_what_boards_took() -> None:
    found = spending(shown(), Prices(t_ns=0, kwh=0.30, currency="€"))

    assert found is not None
    assert (found.currency, found.read_from) == ("€", "electricity of the GPUs")
    assert found.per_hour == pytest.approx(0.21)
    assert found.per_mtok == pytest.approx(0.21 / 3.6)


def test_without_energy_electricity_has_no_price() -> None:
    found = spending(shown(hardware=Hardware()), Prices(t_ns=0, kwh=0.30))

    assert found is not None
    assert found.per_hour is found.per_mtok is None


def test_without_price_and_energy_nothing_is_said() -> None:
    assert spending(shown(), None) is None


def columns(**fields: Any) -> Timeline:
    usual: dict[str, Any] = {
        "bin_ns": 2 * S,
        "power_w": (400.0,) * 3 + (600.0,) * 3 + (100.0, None),
        "prefill_share": (0.0,) * 3 + (0.5,) * 3 + (None, 1.0),
        "prefill_tokens": (0,) * 3 + (3_000,) * 3 + (None, 5_000),
        "decode_tokens": (200,) * 3 + (100,) * 3 + (None, 0),
    }
    return Timeline(**(usual | fields))


def test_energy_is_split_by_the_time_of_steps() -> None:
    found = spending(shown(timeline=columns()), None)

    assert found is not None
    # Prefill: half of 600 W for 6 s. Decode: 400 W for 6 s, and the other half.
    assert found.joules_per_prefill_token == pytest.approx(1_800 / 9_000)
    assert found.joules_per_decode_token == pytest.approx((2_400 + 1_800) / 900)


def test_a_few_columns_say_nothing_of_energy() -> None:
    few = columns(power_w=(400.0,) * 4 + (None,) * 4)

    assert spending(shown(timeline=few), None) is None


def test_the_share_of_prefill_is_by_time_and_by_tokens(make_step: Make) -> None:
    """In one column: 10 ms decode, 20 ms prefill, 8 ms with 30 of 40 tokens prefill."""
    steps = [
        make_step(110, {0: 1}),
        make_step(
            130,
            {1: 1},
            scheduled=[50],
            duration_ms=20,
            prefill_requests=1,
            decode_requests=0,
            prefill_tokens=50,
            decode_tokens=0,
        ),
        make_step(
            138,
            {0: 1, 2: 0},
            scheduled=[10, 30],
            duration_ms=8,
            prefill_requests=1,
            decode_requests=1,
            prefill_tokens=30,
            decode_tokens=10,
        ),
    ]
    model = Model()
    for step in steps:
        model.fold(step)

    line = model.snapshot(S, SnapshotQuery(Window.TEN_SECONDS)).timeline
    at = line.index_at(120_000_000)

    assert at is not None
    assert line.prefill_share[at] == pytest.approx((20 + 6) / 38)
    assert (line.prefill_tokens[at], line.decode_tokens[at]) == (80, 11)


def test_tokens_of_good_requests_are_counted(make_life: Make) -> None:
    model = Model()
    model.fold(WatchedSlo(t_ns=0, slo="e2el_s<50ms"))
    model.fold(Prices(t_ns=0, gpu_hour=3.6))
    for ordinal, tokens in enumerate((3, 4, 9)):
        front, engine = make_life(100 + 200 * ordinal, ordinal, tokens=tokens)
        for each in [*front, *engine]:
            model.fold(each)

    for each in (model, _restored(model)):
        now = each.snapshot(S + 100_000_000, SnapshotQuery(Window.SESSION))
        assert now.slo is not None
        assert now.slo.good_tokens == 7
        assert now.spending is not None
        assert now.spending.per_mtok_good == pytest.approx(0.001 / 7 * 1e6)


def _restored(model: Model) -> Model:
    keeps, saved = Keeps(), model.saved()
    keeps.keep(saved)
    return keeps.restored(saved)


def test_good_tokens_are_no_cheaper_than_tokens(make_life: Make) -> None:
    """Most of what ends in the window was made before it."""
    model = Model()
    model.fold(WatchedSlo(t_ns=0, slo="e2el_s<60"))
    model.fold(Prices(t_ns=0, gpu_hour=3.6))
    front, engine = make_life(100, ordinal=0, tokens=1_400)
    for each in [*front, *engine]:
        model.fold(each)

    told = model.snapshot(15 * S, SnapshotQuery(Window.TEN_SECONDS)).spending

    assert told is not None
    assert told.per_mtok is not None
    assert told.per_mtok_good == pytest.approx(told.per_mtok)


def test_a_chosen_price_holds_whatever_was_recorded() -> None:
    model = Model(prices=Prices(t_ns=0, gpu_hour=1.0))
    model.fold(Prices(t_ns=0, gpu_hour=9.0))

    told = model.snapshot(S, SnapshotQuery(Window.SESSION)).spending

    assert told is not None
    assert told.per_hour == 1.0
    assert replace(told, per_hour=None).per_mtok is None
