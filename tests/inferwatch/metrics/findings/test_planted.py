"""Each fault that is planted is named first, soon, and what is nearly one is not."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
from msgspec.structs import replace as replace_fields

from collectors.contract.readings import (
    AnyReading,
    EngineInfo,
    HostSample,
    LimitChange,
    LiveLimits,
    NamedProcesses,
    OtherProcesses,
    ProcessUsage,
    Tick,
)
from inferwatch.metrics.findings.every import DIAGNOSES, EXPLAINED_OTHERWISE, OF_ALL
from inferwatch.metrics.findings.finding import Effort, Finding, Subject
from inferwatch.metrics.findings.watch import Imbalance
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.metrics.steps.health import Health
from tests.inferwatch.metrics.findings.planted import (
    HEALTHY,
    NEARLY,
    PLANTED,
    SECONDS,
    SMALL_BATCH,
    Fault,
    together,
)
from tests.inferwatch.metrics.findings.simulated_engine import Engine, S


def after(readings: Iterable[AnyReading]) -> Model:
    """A Model that was told all of them."""
    model = Model()
    for reading in readings:
        model.fold(reading)
    return model


def held(
    readings: Iterable[AnyReading], until: str = ""
) -> dict[str, tuple[int, Finding]]:
    """What was ever a finding, up to that one: its rank and itself, as it began."""
    model, found = Model(), dict[str, tuple[int, Finding]]()
    for reading in readings:
        model.fold(reading)
        if isinstance(reading, Tick):
            ranked = enumerate(model.findings)
            found = {each.name: (rank, each) for rank, each in ranked} | found
            if until in found:
                break
    return found


@pytest.mark.parametrize("fault", PLANTED, ids=lambda each: each.what)
def test_a_fault_is_named_first(fault: Fault) -> None:
    found = held(fault.told(), until=fault.finding)

    rank, finding = found[fault.finding]
    assert rank == 0, {name: each.sentence for name, (_, each) in found.items()}
    assert 0 < finding.cost <= 1
    assert finding.sentence
    assert "Traceback" not in finding.sentence
    assert finding.cost_text
    assert finding.evidence
    assert all(each.page or each.key for each in finding.evidence)
    efforts = [each.effort == (Effort.NOW,) for each in finding.knobs]
    assert efforts == sorted(efforts, reverse=True)  # what needs no restart first


ALWAYS = {
    "a burst of three seconds",
    "a KV cache with room",
    "the same flood, first come, first served",
    "priorities with room for all",
    "two tenants that ask for alike",
    "long prompts of the only tenant",
    "prompts that fit into a step",
    "a pause of a second",
    "drafts accepted in half",
    "a client that gives up now and then",
    "prefix caching off, short prompts",
    "random prompts of one length",
    "a few deferred requests",
    "a refusal now and then",
    "a compilation of a second",
    "a compilation that four workers tell of",
    "a host that the engine keeps busy",
    "a host with some memory left",
    "clocks a little below their best",
    "a load generator with time to spare",
    "one death",
    "two servers that share the load",
}
"""Of what is nearly a fault, at least one of each family; a soak has the others."""


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(each, marks=() if each.what in ALWAYS else pytest.mark.soak)
        for each in NEARLY
    ],
    ids=lambda each: each.what,
)
def test_what_is_nearly_a_fault_is_none(fault: Fault) -> None:
    assert fault.finding not in held(fault.told())


def test_every_diagnosis_is_planted_or_says_why_not() -> None:
    planted = {each.finding for each in PLANTED}

    rest = {each.NAME for each in (*DIAGNOSES, *OF_ALL)} - planted

    assert rest == {
        "kv_waste",  # by maps of blocks: test_single
        "prefix_evicted",
        "prefix_missed",  # by hashes of blocks: test_single
        "cut_off",  # likewise
        "memory_bound",
        "compute_bound",
        "tensor_parallel_too_high",
        "speculation_at_full_batch",  # the queue costs more: test_single
        "impossible",
        "warm_up",
        "slo_missed",
        "slow_storage",  # of a start: test_startup
        "compile_cache_missed",
        *EXPLAINED_OTHERWISE,  # by an hour of traffic: test_contradictions
    }


def test_every_diagnosis_says_whose_trouble_it_finds() -> None:
    subjects = {each.NAME: each.SUBJECT for each in (*DIAGNOSES, Imbalance({}))}

    about = {name for name, each in subjects.items() if each is Subject.MEASURING}
    assert about == {"client_bound", "dropped", "impossible", "late", "warm_up"}
    about = {name for name, each in subjects.items() if each is Subject.TRAFFIC}
    assert about == {
        *("aborts", "cut_off", "imbalance", "prefix_missed", "refused", "slo_missed"),
        *("starved_priority", "noisy_tenant"),
    }


def test_a_host_that_a_load_generator_shares_is_in_doubt_and_not_in_trouble() -> None:
    busy = next(each for each in PLANTED if each.finding == "host_busy")
    loads = [
        replace_fields(
            each,
            processes=[
                *each.processes,
                ProcessUsage(pid=7, role="load", cpu_s=each.t_ns / 1e9, rss_bytes=1),
            ],
        )
        if isinstance(each, HostSample)
        else each
        for each in busy.told()
    ]

    (alone,), (beside,) = after(busy.told()).findings, after(loads).findings

    assert (alone.name, alone.subject) == ("host_busy", Subject.ENGINE)
    assert (beside.name, beside.subject) == ("host_busy", Subject.MEASURING)


def test_a_present_value_is_what_the_engine_told() -> None:
    engine = replace(SMALL_BATCH, settings={"max_num_seqs": 3})

    told = after(engine.run(30)).findings[0]

    flags = {each.flag: each.present for each in told.knobs if each.flag}
    (flag,) = flags
    assert flag.startswith("--max-num-seqs ")
    assert flags[flag] == "3"


def test_a_busy_host_says_who_uses_it_and_what_that_does_to_steps() -> None:
    slow = replace(HEALTHY, step_s=0.06, starts_s=20, seed=9)
    used = [0.5 * n if n < 20 else 10 + 8 * (n - 20) for n in range(SECONDS)]
    core = ProcessUsage(pid=100, role="core", cpu_s=0, rss_bytes=1)
    yes = NamedProcesses(name="yes", cores=6.4, count=6, pid=31)
    backup = NamedProcesses(name="back\x1bup", cores=0.8, count=1, pid=32)
    told: list[AnyReading] = [
        HostSample(t_ns=n * S, cores=8, busy_s=busy, processes=[core])
        for n, busy in enumerate(used)
    ]
    told += [
        OtherProcesses(t_ns=n * S, largest=[yes, backup]) for n in range(25, 40, 5)
    ]
    readings = together(
        lambda: replace(HEALTHY, rate_per_s=6).run(20),
        lambda: replace(slow, rate_per_s=2).run(20),
        lambda: told,
    )

    model = after(readings())

    (found,) = (each for each in model.findings if each.name == "host_busy")
    assert found.sentence.endswith(": yes ×6 6.4, back␛up 0.8 cores")
    harm = re.fullmatch(
        r"decode steps of \d+: (\d+).* ms instead of (\d+).* ms", found.cost_text
    )
    assert harm is not None, found.cost_text
    now_ms, before_ms = map(int, harm.groups())
    assert now_ms > 3 * before_ms
    facts = model.watch.facts
    assert facts is not None
    assert max(facts.decode_steps(0, 20 * S).values()) < 0.02
    assert min(facts.decode_steps(21 * S, 40 * S).values()) > 0.05
    readings_later = [OtherProcesses(t_ns=1, largest=[yes])]
    alone = after(
        [
            *readings_later,
            *(each for each in readings() if not isinstance(each, OtherProcesses)),
        ]
    )
    (found,) = (each for each in alone.findings if each.name == "host_busy")
    assert found.sentence.endswith("that are not the engine's")  # long ago


def under_limits(engine: Engine, **started: int) -> Iterator[AnyReading]:
    """The same, as if it had been started with more and was turned down since."""
    told = engine.run(30)
    info = next(each for each in told if isinstance(each, EngineInfo))
    yield replace_fields(info, **started)
    now = {name: getattr(info, name) for name in started}
    start = {f"start_{name}": value for name, value in started.items()}
    yield LiveLimits(
        source=info.source,
        t_ns=1,
        version=1,
        change=LimitChange.SET,
        by="ada",
        **{
            "max_num_seqs": info.max_num_seqs,
            "max_num_batched_tokens": info.max_num_batched_tokens,
            "start_max_num_seqs": info.max_num_seqs,
            "start_max_num_batched_tokens": info.max_num_batched_tokens,
        }
        | now
        | start,
    )
    yield from told


def test_what_a_live_limit_of_ours_does_needs_no_restart() -> None:
    engine = replace(SMALL_BATCH, settings={"max_num_seqs": 32})

    told = after(under_limits(engine, max_num_seqs=32)).findings[0]

    assert told.name == "batch_too_small"
    most = engine.max_num_seqs
    assert f"max_num_seqs {most} (a live limit, 32 at start) are" in told.sentence
    knob = told.knobs[0]
    assert knob.flag == "--max-num-seqs 32"  # no more without a restart
    assert knob.present == f"{most}, a live limit of ours; 32 at start"
    assert re.fullmatch(
        r"Raise the sequences that may run at once \(up to \d+ waited\): "
        r"k turns it live",
        knob.text,
    )
    assert knob.effort == (Effort.NOW,)


def test_what_was_started_so_needs_a_restart_to_be_raised() -> None:
    engine = replace(SMALL_BATCH)

    told = after(under_limits(engine, max_num_seqs=engine.max_num_seqs)).findings[0]

    knob = told.knobs[-1]
    assert (knob.flag or "").startswith("--max-num-seqs ")
    assert knob.present == f"{engine.max_num_seqs}"
    assert knob.effort == (Effort.RESTART,)


def test_a_value_that_was_not_told_is_unknown() -> None:
    told = after(Engine(kv_blocks=60).run(30)).findings[0]

    flags = {each.flag: each.present for each in told.knobs if each.flag}
    assert flags["--kv-cache-dtype fp8"] is None


@pytest.mark.parametrize("minutes", [5, pytest.param(60, marks=pytest.mark.soak)])
def test_changing_load_raises_nothing(minutes: int) -> None:
    """Bursts, long prompts, hits and misses; every second is judged."""
    engine = Engine(
        step_s=0.1,
        token_s=0.0001,
        rate_per_s=lambda t_s: 6 if t_s % 97 < 4 else 0.4 + 0.2 * (t_s // 60 % 3),
        prompt=lambda r: r.choice((60, 120, 200, 400, 1_500)),
        output=lambda r: r.randint(5, 40),
        hits=lambda r: r.choice((0.0, 0.5, 0.8)),
    )

    assert held(engine.run(60 * minutes)) == {}


def test_fewer_are_advised_than_the_largest_batch_that_lost_no_blocks() -> None:
    fault = next(each for each in PLANTED if each.finding == "preemptions")

    _, found = held(fault.told(), until=fault.finding)[fault.finding]

    (knob,) = (each for each in found.knobs if each.flag and "num-seqs" in each.flag)
    flag, value = (knob.flag or "").split()
    assert flag == "--max-num-seqs"
    assert 5 < int(value) < Engine.max_num_seqs
    assert f"({value} ran at once in the last minute without preemptions)" in knob.text


def test_the_verdict_says_that_requests_are_refused_and_of_whom() -> None:
    refusing = next(each for each in PLANTED if each.finding == "refused")

    model = after(refusing.told())

    query = SnapshotQuery(Window.MINUTE)
    shown = model.snapshot(40 * 10**9, query)
    assert shown.verdict.health is Health.DEGRADED
    assert "requests are refused" in shown.verdict.sentence
    (finding,) = shown.findings
    assert finding.subject is Subject.TRAFFIC
    assert "max_model_len 2,048 is too short" in finding.sentence
    assert "up to 3,100 tokens" in finding.sentence
