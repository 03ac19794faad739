"""Turning a scheduler's limits: only downwards, never below what runs, and back."""

import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from collectors.contract.readings import LimitChange, LiveLimits, Step
from embedded_engine.probe import vllm_names
from embedded_engine.probe.control.live_limits import SEQS, TOKENS
from embedded_engine.probe.hooks import wrapped
from embedded_engine.probe.tap.step_assembler import ONLY_DECODE, StepAssembler
from tests.embedded_engine.limit_bench import Bench, Scheduler, as_vllms


@pytest.fixture(autouse=True)
def _scheduler() -> Iterator[None]:
    with as_vllms():
        yield


def test_nothing_is_hooked_until_something_is_turned_and_after_it_is_back() -> None:
    bench = Bench()
    assert bench.hook.before is None

    bench.set(8)
    assert bench.hook.before is not None
    assert bench.step() == (8, 512)

    bench.limits.back(LimitChange.RESET)
    assert bench.step() == (32, 512)
    assert bench.hook.before is None
    assert [each.change for each in bench.told] == ["set", "reset"]


def test_what_is_turned_just_as_the_hook_goes_is_not_lost() -> None:
    bench = Bench()
    bench.set(8)
    bench.step()

    class Turning(list[LiveLimits]):
        def append(self, told: LiveLimits) -> None:
            super().append(told)
            if told.change is LimitChange.RESET:
                bench.set(4)

    bench.limits._tell = Turning().append
    bench.limits.back(LimitChange.RESET)

    assert [bench.step()[0], bench.step()[0]] == [32, 4]


def test_a_limit_below_what_runs_waits_until_less_does() -> None:
    bench = Bench()
    bench.set(8)

    assert [bench.step(running)[0] for running in (32, 20, 8, 3)] == [32, 20, 8, 8]


def test_paused_sessions_do_not_count_towards_a_lowered_limit() -> None:
    bench = Bench(Scheduler(num_waiting_for_streaming_input=20))
    bench.set(8)

    assert bench.step(2)[0] == 28


@pytest.mark.parametrize(
    ("running", "speculated", "budget"),
    [(0, 0, 4), (5, 0, 5), (5, 3, 20), (200, 3, 512)],
)
def test_all_that_run_get_their_tokens_whatever_the_budget(
    running: int, speculated: int, budget: int
) -> None:
    bench = Bench(Scheduler(num_spec_tokens=speculated))
    bench.set(tokens=4)

    assert bench.step(running)[1] == budget


def test_it_is_told_once_with_the_entry_of_the_step_that_goes_by_it() -> None:
    bench = Bench()
    entries: list[int] = []
    bench.hook.after = lambda *call: entries.append(call[3])
    bench.step()
    bench.set(8, 64)
    bench.step()
    bench.step()

    [told] = bench.told
    assert (told.t_ns, told.version, told.by) == (entries[1], 1, "a test")
    assert (told.max_num_seqs, told.max_num_batched_tokens) == (8, 64)
    assert told.in_force


def test_an_engine_that_rests_tells_at_once_and_not_again() -> None:
    bench = Bench(Scheduler(running=[]))
    bench.set(8)
    bench.soon()
    assert [each.max_num_seqs for each in bench.told] == [8]

    bench.step(3)
    assert len(bench.told) == 1

    bench.scheduler.running = []
    bench.fuse.blow("too dear")
    bench.soon()
    assert [each.change for each in bench.told] == ["set", "reset"]


def test_what_was_turned_at_rest_is_told_before_what_the_next_step_goes_by() -> None:
    bench = Bench(Scheduler(running=[]))
    bench.set(8)
    bench.scheduler.running = [0]
    bench.set(16)
    bench.step()
    bench.soon()

    assert [each.version for each in bench.told] == [1, 2]


def test_one_that_has_something_waiting_does_not_rest() -> None:
    bench = Bench(Scheduler(running=[], waiting=[0]))
    bench.set(8)

    assert bench.told == []


def test_what_was_turned_back_before_any_step_is_told_as_it_is() -> None:
    bench = Bench()
    bench.set(8)
    bench.limits.back(LimitChange.RESET)

    assert bench.step() == (32, 512)
    assert [(each.version, each.in_force) for each in bench.told] == [(2, False)]


def test_an_older_vllm_is_limited_by_what_it_has() -> None:
    scheduler = Scheduler(max_num_running_reqs=32)
    del scheduler.max_num_active_reqs
    bench = Bench(scheduler)
    bench.hook.before = None
    bench.set(8)
    scheduler.running = [0] * 20
    assert bench.hook.before is not None

    bench.hook.before(scheduler, (), 1)

    assert scheduler.max_num_running_reqs == 20  # it asserts that no more run


def test_a_blown_fuse_brings_the_start_up_values_back_for_good() -> None:
    bench = Bench()
    bench.set(8, 64)
    assert bench.step() == (8, 64)

    bench.fuse.blow("too dear")

    assert bench.step() == (32, 512)
    assert bench.limits.turn(LimitChange.SET, 4, 32).in_force is False
    assert bench.step() == (32, 512)
    assert bench.limits.ended == "too dear"
    bench.soon()
    assert [each.change for each in bench.told] == ["set", "reset"]
    assert bench.told[-1].by == "the probe"


def test_what_breaks_in_it_blows_the_fuse_and_never_reaches_the_engine() -> None:
    bench = Bench()
    bench.set(8)
    bench.step()
    del bench.scheduler.num_waiting_for_streaming_input

    assert bench.step() == (32, 512)
    assert len(bench.reports) == 1


def test_a_fuse_that_blows_while_a_step_begins_wins() -> None:
    bench = Bench()
    bench.set(8)

    class Slow(list[int]):
        def __len__(self) -> int:
            bench.fuse.blow("meanwhile")
            return 0

    bench.scheduler.running = Slow()

    assert bench.step() == (32, 512)


def test_it_keeps_no_scheduler_alive_and_touches_no_other() -> None:
    bench = Bench()
    bench.set(8)
    other = Scheduler()
    wrapped(Scheduler.schedule, bench.hook, bench.fuse)(other)
    gone = weakref.ref(bench.scheduler)
    del bench.scheduler

    assert other.seen == [(32, 512)]
    assert gone() is None
    bench.limits.end("over")


UNCERTAIN = {
    "has_mamba_layers": True,
    "need_mamba_block_aligned_split": True,
    "max_num_encoder_input_tokens": 2048,
    "is_encoder_decoder": True,
    "num_prefill_lookahead": 3,
    "prefix_replay_tokens": 128,
    "scheduler_config__enable_chunked_prefill": False,
    "scheduler_config__long_prefill_token_threshold": 100,
    "scheduler_config__prefill_schedule_interval": 4,
    "vllm_config__model_config__is_diffusion": True,
}


@pytest.mark.parametrize("path", UNCERTAIN)
def test_where_a_step_needs_some_least_size_the_budget_is_fixed(path: str) -> None:
    fixed = Bench(Scheduler(**{path: UNCERTAIN[path]})).limits.wanted.fixed

    assert set(fixed) == {TOKENS}


@pytest.mark.parametrize("name", ["has_mamba_layers", "num_spec_tokens"])
def test_what_this_vllm_does_not_say_is_not_certain(name: str) -> None:
    scheduler = Scheduler()
    delattr(scheduler, name)

    assert "does not say" in Bench(scheduler).limits.wanted.fixed[TOKENS]


def test_a_scheduler_with_rules_of_its_own_is_left_alone() -> None:
    class Other(Scheduler):
        def schedule(self) -> None:
            super().schedule()

    assert set(Bench(Other()).limits.wanted.fixed) == {SEQS, TOKENS}


def test_a_limit_that_is_elsewhere_is_fixed_and_never_set() -> None:
    scheduler = Scheduler(max_num_scheduled_tokens="auto")
    scheduler.scheduler_config.max_num_batched_tokens = 2048
    bench = Bench(scheduler)
    bench.set(8, 2048)
    bench.step()
    bench.limits.back(LimitChange.RESET)

    assert str(bench.step()[1]) == "auto"
    assert set(bench.limits.wanted.fixed) == {TOKENS}
    assert bench.told[0].start_max_num_batched_tokens == 2048
    bench.limits.end("over")
    assert str(bench.step()[1]) == "auto"


def test_nothing_is_fixed_where_all_is_plain() -> None:
    assert Bench().limits.wanted.fixed == {}


def test_reasons_are_short_enough_for_an_answer() -> None:
    assert max(len(rule.why) for rule in vllm_names.BUDGET_RULES) < 120


def test_limits_are_told_between_the_steps_before_and_after() -> None:
    kept: dict[str, Any] = {}
    story = StepAssembler(0, None, kept.__setitem__, lambda _: None, lambda _: None)
    before, after = object(), object()
    turned = Bench().limits.wanted

    def begin(output: object, at_ns: int) -> None:
        story.under_way.append((output, {"a": 1}, at_ns, 1, 1, ONLY_DECODE))

    begin(before, 10)
    begin(after, 20)  # asynchronous: it begins before the first has ended
    limits = replace(turned, t_ns=20)
    assert story.limits(limits) == []

    first = story.end(before, {}, 11, 12, (None, None))
    second = story.end(after, {}, 21, 22, (None, None))

    assert [type(each) for each in first] == [Step]
    assert [type(each) for each in second] == [LiveLimits, Step]
    assert kept["limits"] == limits


def test_limits_with_no_step_under_way_are_told_at_once() -> None:
    story = StepAssembler(0, None, lambda *_: None, lambda _: None, lambda _: None)
    limits = Bench().limits.wanted

    assert story.limits(limits) == [limits]
