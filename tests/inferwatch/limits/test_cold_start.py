"""How long loading takes at least, by stage."""

from dataclasses import replace

import pytest

from inferwatch.limits.cold_start import cold_start_floor_s, load_stages
from inferwatch.limits.devices import GEN5
from tests.inferwatch.studies.capacity.setups import option


def test_each_stage_takes_its_share_of_the_weights() -> None:
    """70B in 16 bits: 141.1 GB from storage, a quarter of them to each of 4 GPUs."""
    plan = option("llama-3-70b", ways=(4, 1)).plan
    plan = replace(plan, load_storage_s=plan.total_weight_bytes / 5e9)
    seconds = {each.name: each.seconds for each in load_stages(plan)}

    assert seconds["storage"] == pytest.approx(28.2, rel=0.01)
    assert seconds["deserialisation"] == pytest.approx(3.53, rel=0.01)
    assert seconds["PCIe"] == pytest.approx(35.28e9 / GEN5, rel=0.01)
    assert cold_start_floor_s(plan) == seconds["storage"]


def test_an_estimate_is_no_floor() -> None:
    plan = replace(option().plan, load_pcie_s=None)

    assert cold_start_floor_s(plan) is None
