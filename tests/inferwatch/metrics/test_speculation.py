"""Speculative decoding is counted to the token, whoever tells of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from collectors.contract.readings import (
    AnyReading,
    EngineSample,
    EngineSettings,
    ServerInfo,
    Step,
    Tick,
    Vantage,
)
from inferwatch.metrics.configuration import configuration_of
from inferwatch.metrics.fleet import servers_of, totals_of
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.metrics.steps.speculation import Speculation
from tests.collectors.http_server import VLLM, serving
from tests.collectors.servers.test_scrape import ANSWERS, watching
from tests.inferwatch.metrics.scraped_servers import Served, contact, model_of, see
from tests.inferwatch.metrics.test_saved import Keeps

S = 1_000_000_000
Make = Callable[..., Any]
DRAFTS = "spec_decode_num_drafts"
PER_POS = "spec_decode_num_accepted_tokens_per_pos"
ON = {"speculative_method": "ngram", "num_speculative_tokens": 4}
OFF = {"speculative_method": None, "num_speculative_tokens": None}


def settings(**values: Any) -> EngineSettings:
    return EngineSettings(source="engine-1", t_ns=0, settings=values)


def drafted(step: Step, drafts: int, *accepted: int, drafted: int) -> Step:
    """The same step, with drafts accepted so often up to each position."""
    return replace(
        step,
        drafts=drafts,
        drafted_tokens=drafted,
        accepted_tokens=sum(accepted),
        accepted_by_position=list(accepted),
    )


def shown(readings: Sequence[AnyReading], window: Window = Window.SESSION) -> Snapshot:
    return model_of(readings).snapshot(100 * S, SnapshotQuery(window))


def told(snapshot: Snapshot) -> Speculation:
    assert snapshot.speculation is not None
    return snapshot.speculation


@pytest.fixture
def steps(make_step: Make) -> list[Step]:
    """One of them drafts nothing; the second is in the last minute, too."""
    return [
        drafted(make_step(1_000, {0: 3}), 2, 2, 1, 0, 0, drafted=8),
        make_step(50_000, {0: 1}),
        drafted(make_step(90_000, {0: 2}), 1, 1, 0, 0, 0, drafted=3),
    ]


def test_what_steps_drafted_adds_up(steps: list[Step]) -> None:
    whole = told(shown([settings(**ON), *steps]))

    assert (whole.drafts, whole.drafted_tokens, whole.accepted_tokens) == (3, 11, 4)
    assert whole.wasted_tokens == 7
    assert whole.acceptance == pytest.approx(4 / 11)
    assert whole.acceptance_length == pytest.approx(1 + 4 / 3)
    assert whole.accepted_by_position == (3, 1, 0, 0)
    assert whole.acceptance_by_position == pytest.approx((1, 1 / 3, 0, 0))
    assert (whole.method, whole.num_speculative_tokens) == ("ngram", 4)
    assert whole.vantage is Vantage.ENGINE


def test_a_window_has_its_own_drafts(steps: list[Step]) -> None:
    last = told(shown([settings(**ON), *steps], Window.MINUTE))

    assert (last.drafts, last.drafted_tokens, last.accepted_tokens) == (1, 3, 1)


def test_it_is_on_before_the_first_draft_where_it_is_configured() -> None:
    before = told(shown([settings(**ON)]))

    assert (before.drafts, before.drafted_tokens, before.accepted_tokens) == (0, 0, 0)
    assert before.acceptance is before.acceptance_length is None
    assert before.accepted_by_position == (0, 0, 0, 0)


def test_it_is_none_where_it_is_off(make_step: Make) -> None:
    assert shown([settings(**OFF), make_step(1_000, {0: 1})]).speculation is None
    assert shown([make_step(1_000, {0: 1})]).speculation is None


def test_records_without_drafts_have_acceptance_and_no_length(
    steps: list[Step],
) -> None:
    old = [replace(each, drafts=None, accepted_by_position=[]) for each in steps]

    whole = told(shown(old))  # nor do they tell the setting

    assert whole.acceptance == pytest.approx(4 / 11)
    assert whole.drafts is whole.acceptance_length is None
    assert whole.acceptance_by_position == ()


def test_acceptance_over_time_has_gaps_where_nothing_was_drafted(
    steps: list[Step],
) -> None:
    line = shown([settings(**ON), *steps]).timeline

    known = [each for each in line.acceptance if each is not None]
    lengths = [each for each in line.acceptance_length if each is not None]
    assert known == pytest.approx([3 / 8, 1 / 3])
    assert lengths == pytest.approx([1 + 3 / 2, 2])
    assert len(line.acceptance) == len(line.steps)


def test_a_restored_model_counts_on(steps: list[Step]) -> None:
    keeps, half = Keeps(), model_of([settings(**ON), *steps[:2]]).saved()
    keeps.keep(half)

    model = keeps.restored(half)
    model.fold(steps[2])

    whole = model.snapshot(100 * S, SnapshotQuery(Window.SESSION)).speculation
    assert whole == shown([settings(**ON), *steps]).speculation


@dataclass
class Drafting(Served):
    """A server that counts what it drafts, by vLLM's names, from its start."""

    drafts: int = 0
    drafted_tokens: int = 0
    accepted: list[int] = field(default_factory=lambda: [0] * 4)

    def __post_init__(self) -> None:
        super().__init__()

    def draft(self, tokens: int, accepted: int) -> None:
        """Verify a draft of so many tokens."""
        self.drafts += 1
        self.drafted_tokens += tokens
        for place in range(accepted):
            self.accepted[place] += 1

    @property
    def counters(self) -> dict[str, float]:
        return {
            DRAFTS: self.drafts,
            "spec_decode_num_draft_tokens": self.drafted_tokens,
            "spec_decode_num_accepted_tokens": sum(self.accepted),
            **{f"{PER_POS}{{{at}}}": n for at, n in enumerate(self.accepted)},
        }

    @property
    def page(self) -> str:
        """What it says at ``/metrics``."""
        of = 'engine="0",model_name="tiny"'
        plain = [(name, "", n) for name, n in self.counters.items() if "{" not in name]
        each = [(PER_POS, f',position="{at}"', n) for at, n in enumerate(self.accepted)]
        lines = (f"vllm:{name}_total{{{of}{at}}} {n}.0" for name, at, n in plain + each)
        return VLLM + "\n".join([*lines, ""])

    def drafting_at(self, t_s: float) -> EngineSample:
        return replace(self.at(t_s), others=self.counters)


async def test_what_a_server_counts_while_it_is_watched_is_told_to_the_token() -> None:
    truth = Drafting()
    truth.draft(4, 4)  # before anybody watched
    first = truth.drafted_tokens
    async with serving(ANSWERS | {"/metrics": truth.page}) as server:
        async with watching(server) as seen:
            await seen.samples(1)
            for tokens, accepted in ((4, 0), (3, 2), (4, 4), (1, 1), (4, 1)):
                truth.draft(tokens, accepted)
                server.answers["/metrics"] = truth.page
            await seen.until(lambda: drafts_of(seen.of(EngineSample)[-1]) == 6)
    model = model_of(seen.readings)
    last_ns = seen.of(EngineSample)[-1].t_ns

    whole = told(model.snapshot(last_ns, SnapshotQuery(Window.SESSION)))

    assert whole.vantage is Vantage.SCRAPE
    assert whole.drafts == truth.drafts - 1 == 5
    assert whole.drafted_tokens == truth.drafted_tokens - first == 16
    assert whole.accepted_tokens == 8
    assert whole.accepted_by_position == (4, 2, 1, 1)
    assert whole.acceptance == 8 / 16
    assert whole.acceptance_length == 1 + 8 / 5


def drafts_of(sample: EngineSample) -> float:
    return sample.others[DRAFTS]


def test_a_scraped_server_that_speculates_is_on_from_its_first_answer() -> None:
    truth = Drafting()

    first = told(see([contact(0), truth.drafting_at(0)], 1))

    assert first.acceptance is None
    assert first.drafts is None  # it takes two scrapes


def test_drafts_of_a_server_are_charted_and_stay_across_its_restart() -> None:
    truth = Drafting()
    readings: list[AnyReading] = [contact(0), truth.drafting_at(0)]
    for second in (1, 2, 3):
        truth.draft(4, 2)
        readings.append(truth.drafting_at(second))
    anew = Drafting()
    readings += [contact(4, restarted=True), anew.drafting_at(4)]
    anew.draft(4, 1)
    readings.append(anew.drafting_at(5))

    snapshot = see(readings, 5)

    assert told(snapshot).drafted_tokens == 16
    assert told(snapshot).accepted_by_position == (4, 3, 0, 0)
    known = [each for each in snapshot.timeline.acceptance if each is not None]
    assert known[0] == pytest.approx(0.5)
    assert known[-1] == pytest.approx(0.25)


def test_counters_that_never_rise_are_no_speculation() -> None:
    """llama.cpp exports them whether or not it has a draft model."""
    idle = replace(
        Served().at(0),
        others={DRAFTS: 0, "spec_decode_num_draft_tokens": 0},
    )
    later = replace(idle, t_ns=S)
    at_work = replace(
        idle,
        t_ns=2 * S,
        others={DRAFTS: 3, "spec_decode_num_draft_tokens": 9},
    )

    assert see([contact(0), idle, later], 1).speculation is None
    assert told(see([contact(0), idle, later, at_work], 2)).drafted_tokens == 9


def test_gauges_of_a_server_are_told_as_they_are() -> None:
    """SGLang tells rates, and no counts."""
    gauges = {"spec_accept_length": 2.5, "spec_accept_rate": 0.5}
    on = replace(Served().at(0), others=gauges)
    off = replace(on, others=dict.fromkeys(gauges, 0.0))

    now = told(see([contact(0), on], 1))

    assert (now.acceptance, now.acceptance_length) == (0.5, 2.5)
    assert now.drafted_tokens is now.wasted_tokens is None
    assert see([contact(0), off], 1).speculation is None


def test_servers_of_a_fleet_are_added_up_and_one_that_is_off_is_none() -> None:
    truth, other = Drafting(), Served(source="b:1")
    readings: list[AnyReading] = []
    for second in range(3):
        truth.draft(4, second)
        readings += [truth.drafting_at(second), other.at(second)]

    snapshot = see(readings, 2)

    servers = servers_of(snapshot)
    states = {each.name: each.state.speculation for each in servers}
    assert states["b:1"] is None
    assert states["chat:8000"] == told(snapshot)
    assert totals_of(snapshot, servers).state.speculation == told(snapshot)


def test_scraped_servers_with_and_without_speculation_differ_in_their_tag() -> None:
    info = ServerInfo(
        t_ns=0, source="chat:8000", name="a", family="vllm", models=["tiny"]
    )

    def tag(sample: EngineSample) -> str:
        found = configuration_of(see([info, contact(0), sample], 1))
        assert found is not None
        return found.exact_tag

    assert tag(Drafting().drafting_at(0)) != tag(Served().at(0))


@pytest.mark.parametrize(
    ("what", "speculates"),
    [
        ([], False),
        ([settings(**OFF)], False),
        ([settings(**ON)], True),
        ([Served().at(0), Served().at(1)], False),
        (
            [replace(Drafting().drafting_at(at), source="engine-1") for at in (0, 1)],
            True,
        ),
        ([Drafting().drafting_at(0), Drafting().drafting_at(1)], False),
    ],
    ids=[
        "nothing told",
        "off",
        "on",
        "counters of others",
        "counters of drafts",
        "drafts of another server",
    ],
)
def test_findings_know_whether_it_is_on_by_settings_or_counters(
    what: list[AnyReading], speculates: bool, make_step: Make
) -> None:
    model = model_of([*what, make_step(1_000, {0: 1}), Tick(t_ns=2 * S)])

    assert model.watch.facts is not None
    assert model.watch.facts.speculates is speculates


def test_findings_know_it_by_a_draft_where_no_setting_is_told(
    steps: list[Step],
) -> None:
    model = model_of([steps[0], Tick(t_ns=2 * S)])

    assert model.watch.facts is not None
    assert model.watch.facts.speculates
