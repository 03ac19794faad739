"""What tenants made each other wait is what a plain walk over all steps finds."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.contract.readings import (
    AnyReading,
    BoundBy,
    EventKind,
    RequestEvent,
    Step,
    Tick,
    Vantage,
)
from inferwatch.metrics.causes.charges import MOST_TENANTS, divided
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.requests.group_names import NO_VALUE, OTHERS
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.metrics.tenants.view import NoisyTenant, Tenants, jain
from inferwatch.printing.summary.tenants import rows_of_several
from tests.inferwatch.metrics.findings.simulated_engine import Engine, S
from tests.inferwatch.metrics.test_saved import Keeps

END_NS = 60 * S
MIXED = Engine(
    max_num_seqs=8,
    max_num_batched_tokens=512,
    kv_blocks=20_000,
    prompt=lambda r: 3_000 if r.random() < 0.15 else 80,
    rate_per_s=6,
    header_of=lambda prompt: "bulk" if prompt > 1_000 else "chat",
)
TIGHT = replace(MIXED, max_num_seqs=64, kv_blocks=500, max_num_batched_tokens=4_096)


def told(
    readings: Iterable[AnyReading],
    window: Window = Window.SESSION,
    names: Iterable[str] = (),
) -> Tenants:
    """What is shown at the end; ``names`` are tenants of before."""
    model = Model()
    for name in names:
        model._tenants._code(name)
    for reading in readings:
        model.fold(reading)
    found = model.snapshot(END_NS, SnapshotQuery(window, tenants=True)).tenants
    assert found is not None
    return found


def ended_after(engine: Engine) -> list[AnyReading]:
    """A load that ends before the readings do, so that all requests end."""
    rate = engine.rate_per_s
    assert not callable(rate)
    short = replace(engine, rate_per_s=lambda t_s: rate if t_s < 20 else 0)
    return [*short.run(END_NS / S)]


def known(value: int | None) -> int:
    assert value is not None
    return value


class Walk:
    """Each wait, charged step by step to the members of the step."""

    def __init__(self, readings: Iterable[AnyReading]) -> None:
        self.tenant: dict[int, str] = {}
        self.added: dict[int, int] = {}
        self.begun: dict[int, int] = {}
        self.steps: list[Step] = []
        self.held: dict[int, int] = defaultdict(int)
        names: dict[str, str] = {}
        for each in readings:
            if isinstance(each, Step):
                self.steps.append(each)
            elif isinstance(each, RequestEvent):
                if each.vantage is Vantage.FRONTEND and each.header:
                    names[each.request_id] = each.header
                elif each.ordinal is not None and each.kind is EventKind.ADDED:
                    self.added[each.ordinal] = each.t_ns
                    self.tenant[each.ordinal] = names[each.request_id]
                elif each.ordinal is not None and each.kind is EventKind.SCHEDULED:
                    self.begun[each.ordinal] = each.t_ns

    def weights(self, step: Step) -> dict[str, int]:
        found: dict[str, int] = defaultdict(int)
        for ordinal in step.preempted:
            self.held[ordinal] = 0
        for ordinal, tokens in zip(step.members, step.scheduled, strict=True):
            self.held[ordinal] += tokens
            weight = {BoundBy.SEQS: 1, BoundBy.KV: self.held[ordinal]}
            found[self.tenant[ordinal]] += weight.get(step.bound_by, tokens)
        return found

    def charged(self) -> dict[tuple[str, str], float]:
        found: dict[tuple[str, str], float] = defaultdict(float)
        ends = [step.start_ns for step in self.steps[1:]] + [1 << 62]
        for step, next_ns in zip(self.steps, ends, strict=True):
            weights = self.weights(step)
            whole = sum(weights.values())
            holds = step.bound_by in {BoundBy.SEQS, BoundBy.TOKENS, BoundBy.KV}
            until_ns = next_ns if holds else step.end_ns
            for ordinal, begun_ns in self.begun.items():
                since_ns = max(self.added[ordinal], step.start_ns)
                waited_ns = min(begun_ns, until_ns) - since_ns
                for tenant, weight in weights.items() if waited_ns > 0 else ():
                    pair = tenant, self.tenant[ordinal]
                    found[pair] += waited_ns * weight / whole
        return found


@pytest.mark.parametrize("engine", [MIXED, TIGHT], ids=["sequences", "blocks"])
def test_waits_are_charged_to_who_held_what_bound_the_queue(engine: Engine) -> None:
    readings = ended_after(engine)
    walk = Walk(readings)

    tenants = told(readings, names=("bulk", "chat")).tenants
    found = {each.name: each for each in tenants}

    charged = walk.charged()
    slack_ns = 4 * len(walk.steps)
    binding = BoundBy.KV if engine is TIGHT else BoundBy.SEQS
    assert {step.bound_by for step in walk.steps} >= {binding, BoundBy.TOKENS}
    for name, other in (("bulk", "chat"), ("chat", "bulk")):
        assert found[name].caused_ns == pytest.approx(
            charged[name, other], abs=slack_ns
        )
        assert found[name].by_itself_ns == pytest.approx(
            charged[name, name], abs=slack_ns
        )
    assert known(found["bulk"].caused_ns) > S


def test_kv_blocks_are_charged_by_tokens_held() -> None:
    """Long prompts that fill the cache make small ones wait, which hold little."""
    readings = ended_after(TIGHT)

    found = {each.name: each for each in told(readings).tenants}

    bound = [each.bound_by for each in readings if isinstance(each, Step)]
    assert bound.count(BoundBy.KV) > 100
    assert known(found["bulk"].caused_ns) > 10 * known(found["chat"].by_itself_ns)
    assert (found["bulk"].caused_share or 0) > 0.8


@pytest.mark.parametrize("engine", [MIXED, TIGHT], ids=["sequences", "blocks"])
def test_tenants_add_up_to_all_requests_and_all_steps(engine: Engine) -> None:
    readings = ended_after(engine)
    walk = Walk(readings)

    found = told(readings)

    tenants = found.tenants
    assert sum(each.requests for each in tenants) == len(walk.added)
    assert sum(known(each.gpu_ns) for each in tenants) == found.gpu_ns
    assert found.gpu_ns == sum(step.duration_ns for step in walk.steps)
    queued_ns = sum(walk.begun[each] - walk.added[each] for each in walk.begun)
    assert sum(known(each.queue_ns) for each in tenants) == found.queue_ns == queued_ns
    caused_ns = sum(known(each.caused_ns) for each in tenants)
    assert caused_ns == sum(known(each.by_others_ns) for each in tenants)
    for each in tenants:
        held_ns = known(each.by_others_ns) + known(each.by_itself_ns)
        assert held_ns <= known(each.queue_ns)
    assert sum(each.cost_share or 0 for each in tenants) == pytest.approx(1.0)


def test_a_restored_model_charges_as_if_nothing_had_been() -> None:
    plain, model, keeps = Model(), Model(), Keeps()
    for number, reading in enumerate(replace(MIXED).run(25)):
        plain.fold(reading)
        model.fold(reading)
        if number % 1_500 == 700:
            saved = model.saved()
            keeps.keep(saved)
            model = keeps.restored(saved)

    for window in Window:
        query = SnapshotQuery(window, tenants=True)
        assert model.snapshot(25 * S, query).tenants == (
            plain.snapshot(25 * S, query).tenants
        )


def test_a_window_has_those_that_ended_in_it() -> None:
    readings = [*replace(MIXED).run(END_NS / S)]

    minute, recent = (
        told(readings, window) for window in (Window.SESSION, Window.TEN_SECONDS)
    )

    assert 0 < recent.requests < minute.requests
    assert 0 < known(recent.gpu_ns) <= 10 * S


def test_more_tenants_than_are_told_apart_are_others() -> None:
    many = replace(
        MIXED,
        rate_per_s=20,
        max_num_seqs=64,
        prompt=lambda r: r.randint(20, 120),
        header_of=lambda prompt: f"user {prompt}",
    )

    found = told(many.run(30)).tenants

    assert len(found) == MOST_TENANTS + 1
    assert [each.name for each in found].count(OTHERS) == 1


HELD = replace(
    MIXED,
    prompt=lambda r: 3_000 if r.random() < 0.3 else 80,
    output=lambda r: r.randint(20, 40),
)
"""With patience, in which the requests of one tenant do not end."""


def unended(engine: Engine) -> list[AnyReading]:
    """A load in which bulk keeps its sequences, so that none of its requests ends."""
    told = [*replace(engine).run(END_NS / S)]
    bulk = {
        each.request_id
        for each in told
        if isinstance(each, RequestEvent) and each.header == "bulk"
    }
    return [
        each
        for each in told
        if not (
            isinstance(each, RequestEvent)
            and each.kind is EventKind.FINISHED
            and each.request_id in bulk
        )
    ]


def test_a_tenant_none_of_whose_requests_ended_is_charged_too() -> None:
    readings = unended(HELD)
    model = Model()
    for reading in readings:
        model.fold(reading)

    found = told(readings, Window.MINUTE)

    bulk, chat = found.tenants
    assert (bulk.name, bulk.requests, bulk.prompt_tokens) == ("bulk", 0, 0)
    assert known(bulk.caused_ns) == chat.by_others_ns
    assert known(bulk.caused_ns) > S
    assert known(bulk.gpu_ns) + known(chat.gpu_ns) == found.gpu_ns
    assert known(bulk.gpu_ns) > known(chat.gpu_ns)
    noisy = model._tenants.noisy(END_NS)
    assert noisy is not None
    assert (noisy.name, noisy.requests_share, noisy.prompt_tokens) == ("bulk", 0, None)
    assert noisy.share > 0.5


def test_a_noisy_tenant_is_looked_for_every_ten_seconds() -> None:
    model = Model()
    for reading in unended(HELD):
        model.fold(reading)
    tenants = model._tenants
    looked: list[int] = []
    look = tenants._noisy

    def counted(now_ns: int) -> NoisyTenant | None:
        looked.append(now_ns)
        return look(now_ns)

    tenants._noisy = counted  # type: ignore[method-assign]
    found = [tenants.noisy(END_NS + each * S) for each in range(1, 25)]

    assert looked == [70 * S, 80 * S]
    assert found[0] is found[8]


def test_requests_that_a_late_watch_never_saw_come_keep_their_share() -> None:
    """It begins in the middle, when requests ran whose tenants nobody told."""
    late = [
        each for each in replace(HELD).run(40) if getattr(each, "t_ns", 11 * S) > 10 * S
    ]
    steps = [each for each in late if isinstance(each, Step) and each.end_ns > 10 * S]
    told_late = [each for each in late if not isinstance(each, Step) or each in steps]

    found = told(told_late)

    shares = [known(each.gpu_ns) for each in found.tenants]
    assert sum(shares) == found.gpu_ns == sum(step.duration_ns for step in steps)
    (nobody,) = [each for each in found.tenants if each.name == NO_VALUE]
    assert known(nobody.gpu_ns) > 0
    assert nobody in found.rows
    caused = sum(known(each.caused_ns) for each in found.tenants)
    assert caused == sum(known(each.by_others_ns) for each in found.tenants)


def gives_up(asked: Sequence[AnyReading]) -> tuple[dict[str, int], dict[str, int]]:
    """When those queued that were never scheduled, and when the engine ended them."""
    moments: dict[EventKind, dict[str, int]] = defaultdict(dict)
    for each in asked:
        if isinstance(each, RequestEvent) and each.vantage is Vantage.ENGINE:
            moments[each.kind][each.request_id] = each.t_ns
    added, begun = moments[EventKind.ADDED], moments[EventKind.SCHEDULED]
    queued = {name: t_ns for name, t_ns in added.items() if name not in begun}
    return queued, moments[EventKind.FINISHED]


IMPATIENT = replace(
    HELD,
    max_num_seqs=2,
    output=lambda _: 60,
    rate_per_s=lambda t_s: 8 if t_s < 20 else 0,
    patience_s=lambda r: 1.5 if r.random() < 0.6 else 90,
)


@pytest.mark.parametrize("engine_tells", [True, False])
def test_who_gives_up_in_the_queue_has_queued_until_then(engine_tells: bool) -> None:
    """Until the engine told of the end; where that is lost, until the front end did."""
    readings = [*replace(IMPATIENT).run(END_NS / S)]
    queued, ended = gives_up(readings)
    assert len(queued) > 10
    begun_ns = told(
        [each for each in readings if getattr(each, "request_id", "") not in queued],
        names=("bulk", "chat"),
    ).queue_ns
    late_ns = 0 if engine_tells else 300_000
    if not engine_tells:
        readings = [
            each
            for each in readings
            if not (
                isinstance(each, RequestEvent)
                and each.kind is EventKind.FINISHED
                and each.vantage is Vantage.ENGINE
                and each.request_id in queued
            )
        ]

    found = told(readings, names=("bulk", "chat"))

    gave_up_ns = sum(ended[name] + late_ns - t_ns for name, t_ns in queued.items())
    assert found.queue_ns == known(begun_ns) + gave_up_ns
    by_whom = sum(
        known(each.by_others_ns) + known(each.by_itself_ns) for each in found.tenants
    )
    assert by_whom > 0.9 * known(found.queue_ns)


def test_what_no_engine_told_is_not_known() -> None:
    front = [
        each
        for each in ended_after(MIXED)
        if isinstance(each, RequestEvent | Tick)
        and getattr(each, "vantage", Vantage.FRONTEND) is Vantage.FRONTEND
    ]

    found = told(front)

    assert found.requests > 50
    assert (found.queue_ns, found.gpu_ns) == (None, None)
    for each in found.tenants:
        assert each.requests > 0
        assert each.queue_ns is each.kv_token_ns is each.gpu_ns is None
        assert each.caused_ns is each.by_others_ns is each.caused_share is None


def test_a_header_called_others_is_not_all_others() -> None:
    names = replace(MIXED, header_of=lambda prompt: OTHERS if prompt > 1_000 else "–")

    found = {each.name for each in told(names.run(20)).tenants}

    assert found == {'"others"', '"–"'}


def test_one_tenant_makes_nobody_wait_but_itself() -> None:
    (only,) = told(replace(MIXED, header_of=lambda _: "all").run(30)).tenants

    assert only.caused_ns == only.by_others_ns == 0
    assert known(only.by_itself_ns) > 0.9 * known(only.queue_ns)
    assert only.cost_share == 1.0
    assert only.caused_share is None


def test_without_headers_tenants_are_models() -> None:
    (only,) = told(replace(MIXED, header_of=None).run(10)).tenants

    assert only.name == "simulated"
    alone = told(replace(MIXED, header_of=None).run(10))
    assert rows_of_several(alone, None) == {}


def test_fairness_falls_where_one_tenant_gets_nothing() -> None:
    flood = replace(
        MIXED,
        rate_per_s=12,
        max_num_seqs=64,
        max_num_batched_tokens=256,
        prompt=lambda r: 9_000 if r.random() < 0.15 else 80,
    )

    alike = told(replace(MIXED, rate_per_s=1).run(130)).fairness
    found = told(flood.run(130))

    assert [each.since_ns for each in alike] == [0, 60 * S]
    assert min(each.index for each in alike) > 0.99
    assert len(found.fairness) == 2
    for number, minute in enumerate(found.fairness):
        served = [each.served[number] or 0.0 for each in found.tenants]
        assert minute.index == pytest.approx(jain(served))
        assert 0.5 <= minute.index < 1


@given(st.integers(0, 10**12), st.lists(st.integers(0, 10**9), max_size=66))
def test_parts_add_up_and_are_within_one_of_their_share(
    total: int, weights: list[int]
) -> None:
    whole = sum(weights)
    (parts,) = divided(np.array([total]), np.array([weights], float)).tolist()

    assert sum(parts) == (total if whole else 0)
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - total * weight / max(whole, 1)) <= 1 + total * 1e-12
