"""What each scenario's sentence says of runs whose truth was planted."""

from collections.abc import Iterable
from typing import Any

import pytest

from collectors.contract.readings import (
    AnyReading,
    EventKind,
    Phase,
    RequestEvent,
    RequestRecord,
    Step,
    TokenTimes,
    Vantage,
)
from inferwatch.loadgen.scenarios.finding import finding_of
from inferwatch.metrics.load.book import LoadBook
from inferwatch.metrics.load.scenarios.evidence import (
    EngineTrail,
    ScenarioEvidence,
    ScenarioFinding,
    event_mean,
)

MS = 1_000_000
S = 1000 * MS
RUN = "load-1"


def record(index: int, due_ns: int, **changes: Any) -> RequestRecord:
    fields = {
        "source": RUN,
        "index": index,
        "external_id": f"{RUN}-{index}",
        "phase": Phase.STEADY,
        "intended_ns": due_ns,
        "sent_ns": due_ns,
        "first_token_ns": due_ns + 50 * MS,
        "last_token_ns": due_ns + 250 * MS,
        "end_ns": due_ns + 250 * MS,
        "prompt_tokens": 100,
        "output_tokens": 11,
    }
    return RequestRecord(**{**fields, **changes})


def told(
    name: str,
    readings: Iterable[AnyReading],
    engine: Iterable[AnyReading] | None = None,
    **counters: dict[str, float],
) -> ScenarioFinding:
    book = LoadBook(RUN)
    for reading in readings:
        book.fold(reading)
    trail = None
    if engine is not None:
        trail = EngineTrail()
        for reading in engine:
            trail.fold(reading)
    found = finding_of(name, ScenarioEvidence(book=book, trail=trail, **counters))
    assert found is not None
    assert found.name == name
    return found


def moment(index: int, kind: EventKind, t_ns: int, **more: Any) -> RequestEvent:
    return RequestEvent(
        source="engine",
        t_ns=t_ns,
        kind=kind,
        vantage=Vantage.ENGINE,
        request_id=f"cmpl-{RUN}-{index}-0-ab",
        external_id=f"cmpl-{RUN}-{index}-0",
        ordinal=index,
        **more,
    )


# Interference: chats whose tokens come every 20 ms, and 100 ms later each time that
# a long prompt prefills.

EVERY_NS = 4 * S


def chats_and_longs(longs: int, stall_ms: float) -> Iterable[AnyReading]:
    """Each chat has 100 gaps; each long prompt stalls the two that are under way."""
    index = 0
    for number in range(longs):
        begin_ns = number * EVERY_NS
        prefill_ns = begin_ns + 1000 * MS + 5 * MS
        for delay_ms in (0, 3):
            due_ns = begin_ns + delay_ms * MS
            first_ns = due_ns + 50 * MS
            gaps = [20 * MS] * 100
            gaps[(prefill_ns - first_ns) // (20 * MS)] += round(stall_ms * MS)
            yield record(
                index,
                due_ns,
                class_name="chat",
                last_token_ns=first_ns + sum(gaps),
                end_ns=first_ns + sum(gaps),
                output_tokens=101,
            )
            yield TokenTimes(
                source=RUN,
                external_id=f"{RUN}-{index}",
                first_ns=first_ns,
                gaps_ns=gaps,
            )
            index += 1
        yield record(
            index,
            prefill_ns,
            class_name="long",
            prompt_tokens=4000,
            first_token_ns=prefill_ns + 5 * MS,
        )
        index += 1


def test_what_a_long_prompt_costs_is_found_again() -> None:
    found = told("interference", chats_and_longs(60, stall_ms=100))

    cost = found.numbers["cost_per_chat"]
    assert cost["n"] == 60
    assert cost["mean_s"] == pytest.approx(0.1, rel=0.01)
    assert found.numbers["itl"]["otherwise"]["mean_s"] == pytest.approx(0.02)
    assert found.numbers["prefills_told_by"] == "client"
    assert found.sentence.startswith(
        "each long prompt of 4,000 tokens costs each chat beside it 100 ms (95%: "
    )
    assert "60 long prompts" in found.sentence
    assert "their ITL is 120 ms while one prefills, 20.0 ms otherwise" in found.sentence


def test_a_long_prompt_that_costs_nothing_is_not_said_to() -> None:
    found = told("interference", chats_and_longs(60, stall_ms=0))

    assert "nothing that can be told" in found.sentence


def test_too_few_long_prompts_tell_nothing() -> None:
    found = told("interference", chats_and_longs(3, stall_ms=100))

    assert found.sentence == "too few long prompts to tell: 3; run it for 30 s"


def test_the_engine_knows_when_a_prompt_was_prefilled() -> None:
    readings = list(chats_and_longs(60, stall_ms=100))
    longs = [
        each
        for each in readings
        if isinstance(each, RequestRecord) and each.class_name == "long"
    ]
    # As the client saw it a prefill is long over; the engine knows better.
    late = [
        record(
            each.index,
            each.intended_ns - 900 * MS,
            class_name="long",
            prompt_tokens=4000,
            first_token_ns=each.intended_ns - 890 * MS,
        )
        for each in longs
    ]
    others = [each for each in readings if each not in longs]
    engine = [
        reading
        for each in longs
        for reading in (
            moment(each.index, EventKind.SCHEDULED, each.intended_ns),
            step(each.intended_ns, each.intended_ns + 5 * MS, {each.index: 1}),
        )
    ]

    blind = told("interference", [*others, *late])
    seeing = told("interference", [*others, *late], engine)

    assert seeing.numbers["prefills_told_by"] == "engine"
    assert seeing.numbers["cost_per_chat"]["mean_s"] == pytest.approx(0.1, rel=0.01)
    assert blind.numbers["cost_per_chat"]["mean_s"] < 0.01


# Abandon.


def hung_up(index: int, due_ns: int) -> list[AnyReading]:
    return [
        record(
            index,
            due_ns,
            failure="hung_up",
            output_tokens=None,
            last_token_ns=due_ns + 190 * MS,
            end_ns=due_ns + 190 * MS,
        ),
        TokenTimes(
            source=RUN,
            external_id=f"{RUN}-{index}",
            first_ns=due_ns + 50 * MS,
            gaps_ns=[20 * MS] * 7,
        ),
    ]


def abandoned(hang_ups: int = 10) -> list[AnyReading]:
    some = [each for n in range(hang_ups) for each in hung_up(n, n * S)]
    stayed = [
        record(100 + n, n * S, output_tokens=100, last_token_ns=n * S + 2030 * MS)
        for n in range(20)
    ]
    return [*some, *stayed]


def step(
    start_ns: int, end_ns: int, produced: dict[int, int], waiting: int = 0
) -> Step:
    return Step(
        source="engine",
        index=0,
        start_ns=start_ns,
        end_ns=end_ns,
        duration_ns=end_ns - start_ns,
        waiting=waiting,
        members=list(produced),
        scheduled=[1] * len(produced),
        produced=list(produced.values()),
    )


def ended(index: int, left_ns: int, after_ms: int, reason: str) -> list[AnyReading]:
    """A step before the client left, two after it, then the end."""
    return [
        step(left_ns - 2 * MS, left_ns - MS, {index: 1}),
        step(left_ns, left_ns + MS, {index: 1}),
        step(left_ns + MS, left_ns + 2 * MS, {index: 1}),
        moment(index, EventKind.FINISHED, left_ns + after_ms * MS, reason=reason),
    ]


def test_capacity_that_is_freed() -> None:
    engine = [e for n in range(10) for e in ended(n, n * S + 190 * MS, 10, "abort")]

    found = told("abandon", abandoned(), engine)

    assert found.numbers["freed"]["mean_s"] == pytest.approx(0.010)
    assert found.numbers["tokens_after_hang_up_mean"] == 2
    assert found.sentence.startswith(
        "capacity is freed: the engine ended 10 of 10 abandoned requests, on average "
        "10.0 ms "
    )
    assert "2.0 tokens after the hang-up" in found.sentence
    assert "20 clients who stayed had a TPOT of 20.0 ms" in found.sentence


def test_capacity_that_is_not_freed() -> None:
    engine = [
        each
        for n in range(10)
        for each in (
            ended(n, n * S + 190 * MS, 2000, "length")
            if n < 8
            else ended(n, n * S + 190 * MS, 10, "abort")
        )
    ]

    found = told("abandon", abandoned(), engine)

    assert found.sentence.startswith(
        "capacity is not freed: 8 of 10 abandoned requests ran on to their end, for "
        "2.00 s on average"
    )


def test_who_leaves_at_the_very_end_of_an_answer_tells_nothing() -> None:
    engine = [
        each
        for n in range(10)
        for each in ended(
            n,
            n * S + 190 * MS,
            after_ms=3 if n < 2 else 10,
            reason="length" if n < 2 else "abort",
        )
    ]

    found = told("abandon", abandoned(), engine)

    assert found.numbers["ran_on"]["n"] == 0
    assert found.numbers["left_at_their_end"] == 2
    assert found.sentence.startswith(
        "capacity is freed: the engine ended 8 of 8 abandoned requests"
    )


TOKENS = "vllm:generation_tokens_total"
READ = 10 * 8 + 20 * 100
UNREAD = 10 * (100 - 8)


@pytest.mark.parametrize(
    ("made", "verdict"),
    [
        (READ + 20, "capacity is freed: the server made about 2%"),
        (READ + UNREAD, "capacity is not freed: the server made about 100%"),
        (READ + UNREAD // 2, "capacity is freed late, or of some"),
    ],
)
def test_without_a_probe_the_tokens_that_were_made_tell(
    made: int, verdict: str
) -> None:
    after = {TOKENS: 500.0 + made}

    found = told("abandon", abandoned(), before={TOKENS: 500.0}, after=after)

    assert found.sentence.startswith(verdict)


def test_without_probe_and_counters_nobody_can_tell() -> None:
    found = told("abandon", abandoned())

    assert found.numbers["unread_tokens_made_share"] is None
    assert found.sentence.startswith("whether capacity is freed cannot be told")


def test_who_stayed_has_no_rate_where_their_tokens_are_not_counted() -> None:
    uncounted = record(130, 20 * S, output_tokens=None, last_token_ns=21 * S)

    found = told("abandon", [*abandoned(), uncounted])

    assert found.numbers["output_tokens_per_s"] is None
    assert "– tokens/s in all" in found.sentence


def test_too_few_hang_ups_tell_nothing() -> None:
    found = told("abandon", abandoned(2))

    assert found.sentence.startswith("too few clients that hung up to tell: 2; run it ")


# Burst.


def bursts(
    count: int = 6, lasts_ms: int = 800, every_ns: int = 10 * S
) -> list[AnyReading]:
    """Of eight each, served one after the other; others come every 500 ms."""
    found: list[AnyReading] = []
    for number in range(count):
        start_ns = (number + 1) * every_ns
        for place in range(8):
            first_ns = start_ns + (place + 1) * lasts_ms * MS // 8
            found.append(
                record(len(found), start_ns, phase=Phase.BURST, first_token_ns=first_ns)
            )
    steady = [
        record(1000 + n, n * S // 2 + 3 * MS)
        for n in range((count + 1) * every_ns // S * 2)
    ]
    return [*found, *steady]


def test_how_long_a_burst_lasts_is_found_again() -> None:
    found = told("burst", bursts())

    assert found.numbers["until_nobody_waits"]["mean_s"] == pytest.approx(0.8)
    assert (found.numbers["bursts"], found.numbers["requests_mean"]) == (6, 8)
    assert found.numbers["ttft_outside"]["max"] == pytest.approx(0.05)
    assert found.sentence.startswith(
        "after a burst of 8 requests nobody waits any more within 800 ms "
    )
    assert "TTFT p99 ~800 ms inside bursts (48 requests)" in found.sentence
    assert "50.0 ms outside" in found.sentence


def test_the_engine_knows_when_nobody_waits() -> None:
    readings = bursts()
    burst = [
        each
        for each in readings
        if isinstance(each, RequestRecord) and each.phase is Phase.BURST
    ]
    events = [
        moment(each.index, EventKind.ADDED, each.intended_ns + 5 * MS) for each in burst
    ]
    starts = sorted({each.intended_ns for each in burst})
    steps = [
        step(at + n * 100 * MS, at + (n + 1) * 100 * MS, {}, waiting=max(6 - 2 * n, 0))
        for at in starts
        for n in range(8)
    ]

    found = told("burst", readings, [*events, *steps])

    assert found.numbers["told_by"] == "engine"
    assert found.numbers["until_nobody_waits"]["mean_s"] == pytest.approx(0.3)


def test_bursts_that_come_too_close() -> None:
    found = told("burst", bursts(lasts_ms=12_000))

    assert found.numbers["never_over"] == 5
    assert found.sentence.startswith(
        "the queue is not empty again before the next burst: 5 of 6 bursts"
    )


def test_too_few_bursts_tell_nothing() -> None:
    found = told("burst", bursts(2))

    assert found.sentence == "too few bursts to tell: 2; run it for 90 s"


# Cache, cold and warm.


def cold_and_warm(
    asked: int = 60, gain_ms: int = 30, after: int = 4
) -> list[RequestRecord]:
    found = []
    for number in range(asked):
        warm = number % 2 == 1 and number // 2 >= after
        due_ns = number * S // 4
        took_ms = 100 + number % 7 - (gain_ms if warm else 0)
        if warm:  # its own control: slow where its first asking was slow
            took_ms = 100 + (number - 2 * after - 1) % 7 - gain_ms
        found.append(
            record(
                number,
                due_ns,
                class_name="warm" if warm else "cold",
                first_token_ns=due_ns + took_ms * MS,
            )
        )
    return found


def test_what_a_hit_is_worth_is_found_again() -> None:
    found = told("cache-cold", cold_and_warm())

    assert found.numbers["pairs"] == 26
    assert found.numbers["worth"]["mean_s"] == pytest.approx(0.03)
    assert found.sentence.startswith(
        "a prefix-cache hit is worth 30.0 ms (95%: 30.0 to 30.0 ms, 26 prompts asked "
        "twice) of TTFT"
    )
    assert found.sentence.endswith("nobody told how much of them the cache held")


@pytest.mark.parametrize(
    ("cached", "said"),
    [
        (96, "the cache held 96% of the warm prompts' tokens"),
        (10, "the prefix cache did not keep them: it held 10%"),
    ],
)
def test_the_engine_knows_what_the_cache_held(cached: int, said: str) -> None:
    records = cold_and_warm()
    engine = [
        moment(each.index, EventKind.SCHEDULED, each.intended_ns, cached_tokens=cached)
        for each in records
        if each.class_name == "warm"
    ]

    assert said in told("cache-cold", records, engine).sentence


def test_a_cache_that_is_worth_nothing_is_not_said_to_be() -> None:
    records = cold_and_warm(gain_ms=0)

    assert "nothing that can be told" in told("cache-cold", records).sentence


def test_too_few_prompts_asked_twice_tell_nothing() -> None:
    found = told("cache-cold", cold_and_warm(asked=14))

    assert found.sentence.startswith("too few prompts that were asked twice to tell: 3")


# How sure.


def test_a_mean_of_few_events_has_students_interval() -> None:
    found = event_mean([10 * MS, 20 * MS, 30 * MS, 40 * MS, 50 * MS])

    low, high = found.ci95
    assert found.mean_s == pytest.approx(0.03)
    assert (low, high) == pytest.approx((0.0104, 0.0496), abs=1e-4)


def test_no_duration_is_below_zero_but_a_difference_may_be() -> None:
    values = [1 * MS, 1 * MS, 1 * MS, 1 * MS, 100 * MS]

    low, _ = event_mean(values).ci95
    below, _ = event_mean(values, signed=True).ci95

    assert low == 0.0
    assert below is not None
    assert below < 0


def test_a_mean_of_fewer_has_none() -> None:
    assert event_mean([10 * MS] * 4).ci95 == (None, None)
    assert event_mean([]).mean_s is None


def test_no_scenario_means_nothing() -> None:
    evidence = ScenarioEvidence(book=LoadBook(RUN))

    assert finding_of(None, evidence) is None
    assert finding_of("storm", evidence) is None
