"""Simulates faults, and measures which finding comes first and after how many seconds.

Run it with ``python benchmarks/findings.py``. Faults are simulated, so the cause is
known; those on real vLLM are tests, marked engine, in
``tests/program/test_planted_findings_engine.py``. The last line is the CPU time of a
tick while an engine makes three hundred steps a second with 256 requests.
"""

from collections.abc import Iterable
from statistics import median
from time import process_time

from collectors.contract.readings import AnyReading, Tick
from inferwatch.metrics.model.model import Model
from tests.inferwatch.metrics.findings.planted import NEARLY, PLANTED
from tests.inferwatch.metrics.findings.simulated_engine import Engine, S

WITHIN_S = 60
LEAST_NAMED = 27
LOADED_S = 20


def first_named(readings: Iterable[AnyReading], wanted: str) -> tuple[float, list[str]]:
    """Return the seconds until the finding, and all findings at that tick by rank."""
    model, begins_s = Model(), None
    for reading in readings:
        model.fold(reading)
        if not isinstance(reading, Tick):
            continue
        if begins_s is None:
            begins_s = reading.t_ns / S - 1
        names = [each.name for each in model.findings]
        if wanted in names:
            return reading.t_ns / S - begins_s, names
    return float("inf"), [each.name for each in model.findings]


def is_ever_found(readings: Iterable[AnyReading], name: str) -> bool:
    """Return whether it was a finding at any tick."""
    return first_named(readings, name)[0] < float("inf")


def tick_cost_ms() -> list[float]:
    """Return the CPU time of each tick under a large load."""
    loaded = Engine(
        max_num_seqs=256,
        max_num_batched_tokens=8_192,
        kv_blocks=40_000,
        step_s=0.0025,
        token_s=1e-6,
        rate_per_s=128,
        output=lambda r: r.randint(300, 500),
    )
    model, spent = Model(), []
    for reading in loaded.run(LOADED_S):
        began_s = process_time()
        model.fold(reading)
        if isinstance(reading, Tick):
            spent.append(1e3 * (process_time() - began_s))
    return spent


def main() -> None:
    """Print a line for each fault, and how many are found."""
    named = 0
    for fault in PLANTED:
        after_s, names = first_named(fault.told(), fault.finding)
        after_s -= fault.from_s
        good = names[:1] == [fault.finding]
        named += good and after_s <= WITHIN_S
        beside = ", ".join(name for name in names if name != fault.finding)
        mark = "ok " if good and after_s <= WITHIN_S else "NOT"
        print(f"{mark} {fault.finding:<22} {after_s:5.0f} s  {fault.what}  {beside}")
    wrong = [each.what for each in NEARLY if is_ever_found(each.told(), each.finding)]
    print(f"{named} of {len(PLANTED)} named first, {LEAST_NAMED} wanted of 30")
    print(f"{len(wrong)} of {len(NEARLY)} near misses named: {wrong}")
    spent = tick_cost_ms()
    worst = sorted(spent)[-2]
    print(f"a tick takes {median(spent):.2f} ms, at worst but one {worst:.2f} ms")


if __name__ == "__main__":
    main()
