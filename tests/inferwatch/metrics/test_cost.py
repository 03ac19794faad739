"""What watching costs, from host samples and the probe's own totals."""

from collections.abc import Callable

import pytest

from collectors.contract.readings import HostSample, ProcessUsage, Totals
from inferwatch.metrics.hardware.own_cost import CostTracker
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery

See = Callable[..., Snapshot]
S = 1_000_000_000


def sample(t_s: float, **cpu_s: float) -> HostSample:
    """One process a role; ``worker2`` is a second worker."""
    usage = [
        ProcessUsage(
            pid=sum(map(ord, role)), role=role.rstrip("2"), cpu_s=used, rss_bytes=1
        )
        for role, used in cpu_s.items()
    ]
    return HostSample(t_ns=round(t_s * S), processes=usage)


def test_shares_are_of_one_core_by_role(see: See) -> None:
    samples = [
        sample(0, inferwatch=1.0, core=5.0, worker=0.0, worker2=0.0),
        sample(2, inferwatch=1.1, core=6.0, worker=1.0, worker2=2.0),
    ]

    cost = see(samples).cost

    assert cost.self_cpu_s == 1.1
    assert cost.self_cpu_share == pytest.approx(0.05)
    assert cost.process_cpu_share == {
        "inferwatch": pytest.approx(0.05),
        "core": pytest.approx(0.5),
        "worker": pytest.approx(1.5),
    }


def test_shares_are_over_the_last_five_seconds(see: See) -> None:
    samples = [sample(t, core=10.0 if t > 5 else 0.0) for t in range(21)]
    busy = [sample(21, core=12.5)]

    assert see(samples).cost.process_cpu_share == {"core": 0.0}
    assert see([*samples, *busy]).cost.process_cpu_share == {"core": 0.5}


def test_old_samples_are_let_go() -> None:
    ledger = CostTracker()
    for t_s in range(1_000):
        ledger.host(sample(t_s, core=1.0))

    assert len(ledger._hosts.samples) <= 22


def test_our_own_share_is_over_the_last_twenty_seconds(see: See) -> None:
    samples = [sample(t, inferwatch=1.0 if t > 25 else 0.0) for t in range(41)]

    assert see(samples).cost.self_cpu_share == 0.05
    assert see([*samples, *[sample(46, inferwatch=1.0)]]).cost.self_cpu_share == 0.0


def test_a_process_that_came_or_went_has_no_share(see: See) -> None:
    samples = [sample(0, core=5.0), sample(1, worker=1.0)]

    assert see(samples).cost.process_cpu_share == {}


def test_one_sample_tells_no_share(see: See) -> None:
    cost = see([sample(0, core=5.0)]).cost

    assert cost.process_cpu_share == {}
    assert cost.self_cpu_s is cost.self_cpu_share is None


def test_two_samples_of_one_moment_tell_no_share(see: See) -> None:
    samples = [sample(0, core=5.0), sample(0, core=6.0)]

    assert see(samples).cost.process_cpu_share == {}


def test_the_probe_costs_its_time_over_its_steps(see: See) -> None:
    totals = [
        Totals(source="e", t_ns=1, steps=10, probe_cost_ns=90_000),
        Totals(source="e", t_ns=2, steps=20, probe_cost_ns=140_000),
        Totals(source="e", t_ns=2, rank=1, steps=20, probe_cost_ns=180_000),
        Totals(source="e", t_ns=3, steps=0, probe_cost_ns=500),
    ]

    assert see(totals).cost.probe_us_per_step == 8
    assert see([]).cost.probe_us_per_step is None


def test_what_was_not_recorded_is_passed_in() -> None:
    model = Model()
    model.unrecorded_readings = 7
    snapshot = model.snapshot(0, SnapshotQuery(Window.MINUTE))

    assert snapshot.cost.unrecorded_readings == 7
