"""The memory traffic that steps imply, against values worked out by hand.

The model has 1,000 bytes of weights and 10 bytes of KV cache a token.
"""

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from collectors.contract.readings import EngineInfo, EventKind, RequestEvent, Step
from inferwatch.limits.step import StepSums
from inferwatch.metrics.floor import derived
from inferwatch.metrics.floor.derived import DerivedTraffic, EngineTraffic

MakeStep = Callable[..., Step]
MakeEvent = Callable[..., RequestEvent]
WEIGHTS, PER_TOKEN = 1_000, 10


def info(**fields: Any) -> EngineInfo:
    size = {"weight_bytes": WEIGHTS, "kv_bytes_per_token": PER_TOKEN}
    known = {"source": "engine", "t_ns": 0, "pid": 1, "model": "m"}
    return EngineInfo(**{**known, "vllm_version": "0.32.0", **size, **fields})


@pytest.fixture
def source(make_step: MakeStep) -> str:
    return make_step(0).source


class Engine:
    """Tells a DerivedTraffic what an engine does; its answers are tokens of context."""

    def __init__(self, make_step: MakeStep, make_event: MakeEvent) -> None:
        self._make_step, self._make_event = make_step, make_event
        self.source = make_step(0).source
        self.traffic, self.batch = DerivedTraffic(), 0
        self.traffic.info(info(source=self.source))

    def request(self, ordinal: int, prompt: int, cached: int = 0) -> None:
        for kind in (EventKind.ADDED, EventKind.SCHEDULED):
            self.event(kind, ordinal, prompt_tokens=prompt, cached_tokens=cached)

    def event(self, kind: EventKind, ordinal: int, **fields: Any) -> None:
        self.traffic.event(
            self._make_event(0, kind, f"r{ordinal}", ordinal=ordinal, **fields)
        )

    def prefill(self, scheduled: dict[int, int], produced: list[int]) -> int | None:
        step = self._make_step(
            0,
            dict(zip(scheduled, produced, strict=True)),
            scheduled=list(scheduled.values()),
            prefill_requests=len(scheduled),
            prefill_tokens=sum(scheduled.values()),
            decode_tokens=0,
        )
        return self.context(step)

    def decode(self, *ordinals: int, **fields: Any) -> int | None:
        return self.context(self._make_step(0, dict.fromkeys(ordinals, 1), **fields))

    def sums(self, window: int | None = None) -> StepSums:
        """Of its latest step, as its cost depends on them."""
        rank = self.traffic.saved()[self.source].ranks[0]
        windowed = (rank.window_context, rank.window_pairs) if window else ()
        before = rank.context - rank.tokens
        return StepSums(rank.tokens, self.batch, before, rank.pairs, *windowed)

    def context(self, step: Step) -> int | None:
        rank, self.batch = self.traffic.step(step), len(step.members)
        return None if rank is None else rank.context


@pytest.fixture
def engine(make_step: MakeStep, make_event: MakeEvent) -> Engine:
    return Engine(make_step, make_event)


def test_a_prompt_reads_itself_and_each_token_after_it_one_more(
    engine: Engine,
) -> None:
    engine.request(0, prompt=20)

    assert engine.prefill({0: 20}, [1]) == 20
    assert [engine.decode(0) for _ in range(4)] == [21, 22, 23, 24]


def test_a_chunk_reads_what_was_computed_before_it(engine: Engine) -> None:
    engine.request(0, prompt=100)

    assert engine.prefill({0: 64}, [0]) == 64
    assert engine.prefill({0: 36}, [1]) == 64 + 36
    assert engine.decode(0) == 101


def test_a_cached_prefix_is_read_though_it_is_not_computed(engine: Engine) -> None:
    engine.request(0, prompt=100, cached=80)

    assert engine.prefill({0: 20}, [1]) == 100


def test_members_add_up_as_they_come_and_go(engine: Engine) -> None:
    engine.request(0, prompt=20)
    engine.request(1, prompt=50)
    engine.prefill({0: 20, 1: 50}, [1, 1])

    assert engine.decode(0, 1) == 21 + 51
    assert engine.decode(0, 1) == 22 + 52
    assert engine.decode(1) == 53  # only one of them was scheduled
    assert engine.decode(0, 1) == 23 + 54
    engine.event(EventKind.FINISHED, 1, prompt_tokens=50)
    assert engine.decode(0) == 24
    engine.request(2, prompt=5)
    mixed = engine._make_step(
        0,
        {0: 1, 2: 1},
        scheduled=[1, 5],
        prefill_requests=1,
        prefill_tokens=5,
        decode_tokens=1,
    )
    assert engine.context(mixed) == 25 + 5
    assert engine.decode(0, 2) == 26 + 6


def test_a_window_that_fills_up_lets_no_more_be_seen(engine: Engine) -> None:
    engine.traffic.windowed(engine.source, 0, 22)
    engine.request(0, prompt=20)
    engine.request(1, prompt=50)
    engine.prefill({0: 20, 1: 50}, [1, 1])

    told = []
    for _ in range(5):
        engine.decode(0, 1)
        told.append(engine.sums(22)[-2:])

    assert told == [
        (20 + 22, 21 + 22),
        (21 + 22, 22 + 22),
        (22 + 22, 22 + 22),
        (22 + 22, 22 + 22),
        (22 + 22, 22 + 22),
    ]


def test_of_rejected_drafts_nothing_stays_in_the_cache(engine: Engine) -> None:
    engine.request(0, prompt=20)
    engine.prefill({0: 20}, [1])

    drafted = engine._make_step(0, {0: 2}, scheduled=[4], decode_tokens=4)

    assert engine.context(drafted) == 20 + 4  # verified together, two rejected
    assert engine.decode(0) == 20 + 2 + 1


def test_a_preempted_request_begins_anew_with_its_own_tokens(engine: Engine) -> None:
    engine.request(0, prompt=20)
    engine.request(1, prompt=30)
    engine.prefill({0: 20, 1: 30}, [1, 1])
    engine.decode(0, 1)  # 0 has 2 tokens of output now: 22 in all

    assert engine.decode(1, preempted=[0]) == 32
    assert engine.prefill({0: 10}, [0]) == 10
    assert engine.prefill({0: 12}, [1]) == 22
    assert engine.decode(0) == 23


def test_what_a_preempted_request_finds_cached_again_is_read(engine: Engine) -> None:
    engine.request(0, prompt=20)
    engine.prefill({0: 20}, [1])
    engine.context(engine._make_step(0, {}, preempted=[0]))

    assert engine.prefill({0: 5}, [1]) == 21  # 16 of 21 were in the prefix cache


def test_a_request_that_nobody_announced_counts_from_what_is_seen(
    engine: Engine,
) -> None:
    assert engine.decode(7) == 1
    assert engine.decode(7) == 2

    engine.request(8, prompt=40)  # its output so far was not heard

    assert engine.decode(8) == 40
    assert engine.decode(8) == 41


@pytest.mark.parametrize(
    ("window", "chunked"), [(None, False), (1, False), (48, False), (48, True)]
)
@pytest.mark.parametrize("seed", range(5))
def test_whatever_a_scheduler_does_each_step_reads_the_context_of_its_members(
    engine: Engine, make_step: MakeStep, seed: int, window: int | None, chunked: bool
) -> None:
    """Made-up traffic that knows how much of each request is in the cache."""
    dice = random.Random(seed)
    engine.traffic.windowed(engine.source, 0, window, chunked=chunked)
    known: dict[int, int] = {}  # prompt and output
    cached: dict[int, int] = {}
    for ordinal in range(400):
        if ordinal % 4 == 0 and len(known) < 12:
            known[ordinal] = dice.randint(1, 300)
            cached[ordinal] = dice.choice([0, (known[ordinal] - 1) // 2])
            engine.request(ordinal, prompt=known[ordinal], cached=cached[ordinal])
        preempted = [o for o in known if dice.random() < 0.01]
        for each in preempted:
            cached[each] = 0
        here = [o for o in known if o not in preempted and dice.random() < 0.97]
        scheduled, produced, read, prefills = [], [], 0, []
        batch: list[tuple[int, int]] = []
        for each in here:
            left = known[each] - cached[each]
            drafts = dice.choice([0, 0, 0, 3]) if left == 1 else 0
            now = min(left, 64) + drafts
            read += cached[each] + now
            batch.append((now, cached[each]))
            whole = now >= left
            made = 1 + dice.randint(0, drafts) if whole else 0
            cached[each] += min(now, left) + max(made - 1, 0)
            known[each] += made
            scheduled.append(now)
            produced.append(made)
            prefills += [now] if left > 1 else []
        step = make_step(
            0,
            dict(zip(here, produced, strict=True)),
            scheduled=scheduled,
            preempted=preempted,
            prefill_tokens=sum(prefills),
            decode_tokens=sum(scheduled) - sum(prefills),
        )
        assert engine.context(step) == read
        sums = StepSums.of_requests(batch, window, chunked=chunked)
        assert engine.sums(window) == sums
        for each in [o for o in here if dice.random() < 0.03]:
            engine.event(EventKind.FINISHED, each)
            del known[each], cached[each]


def test_a_damaged_step_tells_nothing_and_breaks_nothing(engine: Engine) -> None:
    engine.request(0, prompt=20)
    whole = engine._make_step(0, {0: 1, 1: 1}, scheduled=[20, 1])

    damages: list[dict[str, Any]] = [
        {"scheduled": [20]},
        {"produced": []},
        {"members": [0]},
    ]
    for damage in damages:
        assert engine.context(msgspec.structs.replace(whole, **damage)) is None
    assert engine.prefill({0: 20}, [1]) == 20


def test_hearing_of_the_engine_again_changes_nothing(engine: Engine) -> None:
    engine.request(0, prompt=20)
    engine.prefill({0: 20}, [1])
    engine.decode(0)
    engine.decode(0)

    engine.traffic.info(info(source=engine.source))
    engine.request(0, prompt=20)

    assert engine.decode(0) == 23


def test_each_rank_and_each_engine_has_traffic_of_its_own(
    make_step: MakeStep, make_event: MakeEvent
) -> None:
    traffic = DerivedTraffic()
    for source, rank in (("a", 0), ("a", 1), ("b", 0)):
        traffic.info(info(source=source, rank=rank, weight_bytes=rank + 1))
    for source, prompt in (("a", 10), ("b", 100)):
        traffic.event(
            make_event(
                0, EventKind.ADDED, source=source, ordinal=0, prompt_tokens=prompt
            )
        )

    of = [
        traffic.step(make_step(0, {rank << 40: 1}, source=source, rank=rank))
        for source, rank in (("a", 0), ("b", 0), ("a", 1), ("b", 1))
    ]

    assert [each and each.context for each in of] == [10, 100, 1, None]


def test_requests_are_forgotten_when_they_end(engine: Engine) -> None:
    for ordinal in range(100):
        engine.request(ordinal, prompt=20)
        engine.prefill({ordinal: 20}, [1])
        engine.event(EventKind.FINISHED, ordinal)

    kept = engine.traffic.saved()[engine.source]
    assert not kept.requests
    assert not kept.ranks[0].decoding


def test_requests_whose_end_is_never_heard_are_bounded(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derived, "MOST_REQUESTS", 10)

    for ordinal in range(100):
        engine.request(ordinal, prompt=20)

    assert list(engine.traffic.saved()[engine.source].requests) == [*range(90, 100)]


def test_those_that_no_step_has_any_more_do_not_pile_up(engine: Engine) -> None:
    for ordinal in range(100):
        engine.decode(ordinal)  # and then nothing is heard of it

    assert list(engine.traffic.saved()[engine.source].ranks[0].decoding) == [99]


def test_another_life_of_an_engine_knows_none_of_the_requests_before(
    engine: Engine,
) -> None:
    engine.request(0, prompt=20)
    engine.prefill({0: 20}, [1])

    engine.traffic.lost(engine.source)

    assert engine.decode(0) is None
    engine.traffic.info(info(source=engine.source))
    assert engine.decode(0) == 1


def test_what_was_saved_goes_on_as_if_nothing_had_been(engine: Engine) -> None:
    engine.request(0, prompt=20)
    engine.request(1, prompt=7)
    engine.prefill({0: 20, 1: 7}, [1, 1])
    engine.decode(0, 1)
    engine.decode(0, 1)
    written = msgspec.msgpack.encode(engine.traffic.saved())

    engine.traffic = DerivedTraffic()
    engine.traffic.restore(
        msgspec.msgpack.decode(written, type=dict[str, EngineTraffic])
    )

    assert engine.decode(0, 1) == 23 + 10
    assert engine.decode(1) == 11
    assert engine.decode(0) == 24
