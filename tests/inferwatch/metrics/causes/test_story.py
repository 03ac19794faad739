"""A request's story, from readings in which each cause was planted."""

import time
from typing import Any

import pytest

from collectors.contract.readings import (
    AnyReading,
    BoundBy,
    Deferral,
    EngineInfo,
    EventKind,
    GpuSample,
    Note,
    NoteKind,
    Phase,
    RequestEvent,
    RequestRecord,
    Step,
    TokenTimes,
    Vantage,
)
from inferwatch.live.past.live_recall import RecentLookup
from inferwatch.live.recent_readings import RecentReadings
from inferwatch.metrics.causes.cause import Cause
from inferwatch.metrics.requests.request_row import RequestState
from inferwatch.metrics.story.story import RequestStory, SpanKind
from inferwatch.metrics.story.telling import tell

MS = 1_000_000
MINE, OTHER = 1, 2
NAMES = {MINE: "mine", OTHER: "other"}
Members = dict[int, tuple[int, int]]
"""By ordinal: tokens scheduled and produced."""


class Script:
    """An engine that does what it is told, from 0 ms on."""

    def __init__(self) -> None:
        self.readings: list[AnyReading] = [
            EngineInfo(
                source="e",
                t_ns=0,
                pid=1,
                model="m",
                vllm_version="0",
                kv_block_tokens=16,
            )
        ]
        self.at_ms = 0.0
        self._index = 0

    def tell(self, member: int, kind: EventKind, at_ms: float, **facts: Any) -> None:
        front = kind in {EventKind.ARRIVED, EventKind.FIRST_TOKEN}
        vantage = facts.pop("vantage", Vantage.FRONTEND if front else Vantage.ENGINE)
        known: dict[str, Any] = {"external_id": f"cmpl-{NAMES[member]}-0"}
        if vantage is Vantage.ENGINE:
            known = {"ordinal": member}
        self.readings.append(
            RequestEvent(
                source="e",
                t_ns=round(at_ms * MS),
                kind=kind,
                vantage=vantage,
                request_id=NAMES[member],
                **known,
                **facts,
            )
        )

    def comes(self, member: int, at_ms: float, prompt: int = 20, **facts: Any) -> None:
        """Tokenised for 1 ms, handed over for another."""
        tokenised_ns = round((at_ms + 1) * MS)
        self.tell(member, EventKind.ARRIVED, at_ms, tokenised_ns=tokenised_ns)
        self.tell(member, EventKind.ADDED, at_ms + 2, prompt_tokens=prompt, **facts)

    def step(
        self, members: Members, ms: float = 10, idle_ms: float = 0, **fields: Any
    ) -> None:
        """One that begins where the last ended, or later; who prefills is told."""
        start_ms = self.at_ms + idle_ms
        self.at_ms = start_ms + ms
        prefills = fields.pop("prefills", ())
        tokens = sum(members[each][0] for each in prefills)
        every = sum(scheduled for scheduled, _ in members.values())
        self._index += 1
        self.readings.append(
            Step(
                source="e",
                index=self._index,
                start_ns=round(start_ms * MS),
                end_ns=round(self.at_ms * MS),
                duration_ns=round(ms * MS),
                prefill_requests=len(prefills),
                prefill_tokens=tokens,
                decode_requests=len(members) - len(prefills),
                decode_tokens=every - tokens,
                running=len(members),
                members=list(members),
                scheduled=[scheduled for scheduled, _ in members.values()],
                produced=[produced for _, produced in members.values()],
                **fields,
            )
        )

    def decode(self, count: int, *members: int, ms: float = 10) -> None:
        for _ in range(count):
            self.step(dict.fromkeys(members, (1, 1)), ms)

    def begins(self, **facts: Any) -> None:
        """Mine comes at 5 ms, in a step of 10 ms, and is prefilled in the next."""
        self.step({OTHER: (1, 1)})
        self.comes(MINE, 5)
        self.tell(MINE, EventKind.SCHEDULED, 10, **facts)
        self.step({OTHER: (1, 1), MINE: (20, 1)}, prefills=[MINE])
        self.tell(MINE, EventKind.FIRST_TOKEN, 21)

    def ends(self, tokens: int, thinking: int | None = None) -> None:
        done: dict[str, Any] = {"output_tokens": tokens, "reason": "length"}
        at_ms = self.at_ms
        self.tell(MINE, EventKind.FINISHED, at_ms, thinking_tokens=thinking, **done)
        vantage = Vantage.FRONTEND
        self.tell(MINE, EventKind.FINISHED, self.at_ms + 1, vantage=vantage, **done)

    def story(self, now_ms: float | None = None) -> RequestStory:
        recent = RecentReadings()
        for each in self.readings:
            recent.take(each)
        now_ns = round((self.at_ms + 5 if now_ms is None else now_ms) * MS)
        story = tell(RecentLookup(recent, "e/mine"), "e/mine", now_ns)
        assert story is not None
        return story


@pytest.fixture
def script() -> Script:
    return Script()


def spans(story: RequestStory) -> list[tuple[SpanKind, float]]:
    """What it was in, and for how many milliseconds."""
    return [(each.kind, (each.end_ns - each.start_ns) / MS) for each in story.spans]


def test_a_quiet_request_is_told_from_arrival_to_end(script: Script) -> None:
    script.begins()
    script.decode(3, OTHER, MINE)
    script.ends(4)

    story = script.story()

    assert spans(story) == [
        (SpanKind.TOKENISE, 1),
        (SpanKind.HANDOVER, 1),
        (SpanKind.QUEUE, 3),
        (SpanKind.CHUNK, 10),
        (SpanKind.DECODE, 30),
        (SpanKind.SEND, 1),
    ]
    told = [*story.spikes, *story.companions, *story.missing]
    assert told == []
    assert story.token_ns == tuple(at * MS for at in (20, 30, 40, 50))
    assert (story.gap_p50_ns, story.gap_p99_ns) == (10 * MS, 10 * MS)
    assert dict(story.ttft_parts) == {
        Cause.API: 0.001,
        Cause.QUEUE_STEP: 0.004,
        Cause.PREFILL: pytest.approx(0.01 * 20 / 21, abs=2e-9),
        Cause.PREFILL_SHARED: pytest.approx(0.01 / 21, abs=2e-9),
        Cause.SEND: 0.001,
    }
    assert story.row.cause is Cause.PREFILL
    assert (story.steps_total, story.steps[0].scheduled) == (4, 20)
    assert story.kv_blocks == ((10 * MS, 2), (50 * MS, 0))
    assert story.drafted_tokens is story.accepted_tokens is None


def test_media_are_parts_of_their_own_before_the_queue(script: Script) -> None:
    script.step({OTHER: (1, 1)}, ms=50)
    media = {"media_items": 2, "media_cached": 1, "tokenised_ns": 40 * MS}
    media |= {"fetch_start_ns": 6 * MS, "fetch_end_ns": 26 * MS}
    media |= {"preprocess_start_ns": 28 * MS, "preprocess_end_ns": 38 * MS}
    script.tell(MINE, EventKind.ARRIVED, 5, **media)
    script.tell(MINE, EventKind.ADDED, 42, prompt_tokens=20)
    script.tell(MINE, EventKind.SCHEDULED, 50)
    script.step({OTHER: (1, 1), MINE: (20, 1)}, prefills=[MINE])
    script.tell(MINE, EventKind.FIRST_TOKEN, 61)

    story = script.story()

    assert spans(story)[:6] == [
        (SpanKind.TOKENISE, 1),
        (SpanKind.MEDIA, 20),
        (SpanKind.TOKENISE, 2),
        (SpanKind.PREPROCESS, 10),
        (SpanKind.TOKENISE, 2),
        (SpanKind.HANDOVER, 2),
    ]
    parts = dict(story.ttft_parts)
    assert (parts[Cause.MEDIA], parts[Cause.PREPROCESS]) == (0.02, 0.01)
    assert parts[Cause.API] == pytest.approx(0.005)
    assert sum(parts.values()) == pytest.approx(story.row.ttft_s)
    assert (story.row.media_items, story.row.media_cached) == (2, 1)


@pytest.mark.parametrize(
    ("thinking", "produced", "expected"),
    [
        (3, 1, [("thinking", 20, 2), ("decode", 30, 3)]),
        (6, 1, [("thinking", 50, 5)]),
        (4, 2, [("thinking", 20, 4), ("decode", 30, 6)]),  # within a step: to its end
        (1, 1, [("decode", 50, 5)]),
        (None, 1, [("decode", 50, 5)]),
    ],
    ids=["two steps", "no answer", "speculation", "prefill's token", "not told"],
)
def test_thinking_is_told_apart_from_the_answer(
    script: Script,
    thinking: int | None,
    produced: int,
    expected: list[tuple[str, float, int]],
) -> None:
    script.begins()
    for _ in range(5):
        script.step({OTHER: (1, 1), MINE: (produced, produced)})
    script.ends(1 + 5 * produced, thinking)

    told = [
        (each.kind.value, (each.end_ns - each.start_ns) / MS, each.tokens)
        for each in script.story().spans
        if each.kind in {SpanKind.THINKING, SpanKind.DECODE}
    ]

    assert told == expected


def test_where_steps_are_missing_thinking_is_not_told_apart(script: Script) -> None:
    script.begins()
    script.decode(3, OTHER, MINE)
    script.ends(9, 2)

    assert SpanKind.THINKING not in {each.kind for each in script.story().spans}


def test_each_reason_of_a_queue_is_a_stretch_of_its_own(script: Script) -> None:
    script.step({OTHER: (1, 1)})
    script.comes(MINE, 5)
    for bound in (BoundBy.KV, BoundBy.KV, BoundBy.SEQS, BoundBy.DEFERRED):
        script.step({OTHER: (1, 1)}, bound_by=bound, waiting=1)
    script.tell(MINE, EventKind.SCHEDULED, script.at_ms, external_tokens=16)
    script.step({OTHER: (1, 1), MINE: (4, 1)}, prefills=[MINE])

    story = script.story()

    told = [
        (each.kind, each.cause, (each.end_ns - each.start_ns) / MS)
        for each in story.spans[2:6]
    ]
    assert told == [
        (SpanKind.QUEUE, Cause.QUEUE_STEP, 3),
        (SpanKind.QUEUE, Cause.QUEUE_KV, 20),
        (SpanKind.QUEUE, Cause.QUEUE_SEQS, 10),
        (SpanKind.TRANSFER, Cause.QUEUE_DEFERRED, 10),
    ]


def test_while_nothing_ran_it_waited_for_a_grammar(script: Script) -> None:
    script.step({OTHER: (1, 1)})
    script.comes(MINE, 5)
    script.tell(MINE, EventKind.SCHEDULED, 100)
    script.step(
        {MINE: (4, 1)}, idle_ms=90, prefills=[MINE], deferred_before=Deferral.GRAMMAR
    )
    script.tell(MINE, EventKind.FIRST_TOKEN, 111)

    story = script.story()

    told = [
        (each.kind, each.cause, (each.end_ns - each.start_ns) / MS)
        for each in story.spans[2:4]
    ]
    assert told == [
        (SpanKind.QUEUE, Cause.QUEUE_STEP, 3),
        (SpanKind.QUEUE, Cause.QUEUE_GRAMMAR, 90),
    ]
    assert dict(story.ttft_parts)[Cause.QUEUE_GRAMMAR] == 0.09


def test_steps_that_held_prefills_are_told_between_chunks(script: Script) -> None:
    script.comes(MINE, 0, prompt=100)
    script.tell(MINE, EventKind.SCHEDULED, 5)
    script.step({MINE: (60, 0)}, idle_ms=5, prefills=[MINE])
    script.step({OTHER: (1, 1)}, deferred_by=Deferral.HELD)
    script.step({MINE: (40, 1)}, prefills=[MINE])
    script.tell(MINE, EventKind.FIRST_TOKEN, 36)

    story = script.story()

    left_out = [each for each in story.spans if each.kind is SpanKind.LEFT_OUT]
    assert [each.cause for each in left_out] == [Cause.PREFILL_HELD]
    assert dict(story.ttft_parts)[Cause.PREFILL_HELD] == 0.01


def test_a_live_request_is_told_up_to_now(script: Script) -> None:
    script.step({OTHER: (1, 1)})
    script.comes(MINE, 5)
    script.step({OTHER: (1, 1)}, bound_by=BoundBy.KV, waiting=1)

    story = script.story(now_ms=26)

    assert story.row.state is RequestState.QUEUED
    assert story.spans[-1].kind is SpanKind.QUEUE
    assert story.spans[-1].cause is Cause.QUEUE_KV
    assert story.end_ns == 26 * MS
    assert story.ttft_parts == ()


def test_between_its_chunks_it_was_left_out(script: Script) -> None:
    script.comes(MINE, 0, prompt=100)
    script.tell(MINE, EventKind.SCHEDULED, 5)
    script.step({MINE: (60, 0)}, idle_ms=5, prefills=[MINE])
    script.step({OTHER: (64, 0)}, prefills=[OTHER])
    script.step({MINE: (40, 1)}, prefills=[MINE])
    script.tell(MINE, EventKind.FIRST_TOKEN, 36)

    story = script.story()

    assert spans(story)[2:6] == [
        (SpanKind.QUEUE, 3),
        (SpanKind.CHUNK, 10),
        (SpanKind.LEFT_OUT, 10),
        (SpanKind.CHUNK, 10),
    ]
    assert dict(story.ttft_parts)[Cause.PREFILL_DELAYED] == 0.01
    assert story.kv_blocks[:2] == ((5 * MS, 4), (25 * MS, 7))
    assert story.companions == ()


def test_one_with_a_single_token_has_ended_before_its_step_is_heard_of(
    script: Script,
) -> None:
    script.step({OTHER: (1, 1)})
    script.comes(MINE, 5)
    script.step({OTHER: (1, 1)}, bound_by=BoundBy.KV, waiting=1)
    script.tell(MINE, EventKind.SCHEDULED, 23)
    done: dict[str, Any] = {"output_tokens": 1, "reason": "length"}
    script.tell(MINE, EventKind.FINISHED, 33, **done)
    script.step({MINE: (20, 1)}, idle_ms=3, prefills=[MINE])
    script.tell(MINE, EventKind.FIRST_TOKEN, 34)

    story = script.story()

    assert dict(story.ttft_parts)[Cause.QUEUE_KV] == 0.013
    assert Cause.PREFILL_DELAYED not in dict(story.ttft_parts)


def test_others_in_its_prefill_are_companions(script: Script) -> None:
    script.comes(OTHER, 0)
    script.comes(MINE, 0, prompt=60)
    script.step({OTHER: (40, 1), MINE: (60, 1)}, idle_ms=5, prefills=[OTHER, MINE])

    (companion,) = script.story().companions

    assert (companion.key, companion.name) == ("e/other", "cmpl-other-0")
    assert (companion.prefill_tokens, companion.steps) == (40, 1)


def test_a_preemption_is_told_with_what_was_computed_again(script: Script) -> None:
    script.begins()
    script.decode(20, OTHER, MINE)
    script.step({OTHER: (1, 1)}, preempted=[MINE], bound_by=BoundBy.KV, waiting=1)
    script.step(
        {OTHER: (1, 1), MINE: (9, 1)}, ms=30, prefills=[MINE], recomputed_tokens=9
    )
    script.decode(2, OTHER, MINE)
    script.ends(24)

    story = script.story()

    kinds = [each for each, _ in spans(story)]
    assert kinds[4:] == [
        SpanKind.DECODE,
        SpanKind.PREEMPTED,
        SpanKind.RECOMPUTE,
        SpanKind.DECODE,
        SpanKind.SEND,
    ]
    (spike,) = story.spikes
    assert (spike.cause, spike.gap_ns) == (Cause.RECOMPUTE, 40 * MS)
    assert "9 tokens" in spike.evidence
    assert story.row.itl_cause is Cause.RECOMPUTE
    # Of 41 tokens known 9 were computed again: 32 were in the prefix cache still.
    assert story.kv_blocks[-3:] == ((220 * MS, 0), (230 * MS, 3), (280 * MS, 0))


def test_a_long_prefill_in_the_same_step_is_named(script: Script) -> None:
    script.begins()
    script.decode(20, MINE)
    script.comes(OTHER, script.at_ms - 1, prompt=2_048)
    script.step({MINE: (1, 1), OTHER: (2_048, 1)}, ms=300, prefills=[OTHER])
    script.decode(5, MINE, OTHER)

    (spike,) = script.story().spikes

    assert spike.cause is Cause.LONG_PREFILL
    assert spike.blamed == "e/other"
    assert spike.evidence.startswith(
        "prefill of cmpl-other-0, 2,048 tokens, in the same step: 300 ms"
    )
    assert spike.gap_ns == 300 * MS


def test_a_compilation_is_why_its_token_was_late(script: Script) -> None:
    script.begins()
    script.decode(20, MINE)
    script.readings.append(
        Note(
            source="e",
            t_ns=round((script.at_ms + 10) * MS),
            kind=NoteKind.COMPILATION,
            text="compiled while serving: torch.compile 0/1",
            duration_ns=250 * MS,
        )
    )
    script.step({MINE: (1, 1)}, ms=300)
    script.decode(5, MINE)

    (spike,) = script.story().spikes

    assert spike.cause is Cause.COMPILATION
    assert spike.evidence == (
        "a step with 1 decode token took 300 ms while the engine compiled, 10.0 ms is "
        "usual: slow for all in it"
    )


def test_an_engine_that_stood_still_between_steps_stalled(script: Script) -> None:
    script.begins()
    script.decode(20, MINE)
    script.step({MINE: (1, 1)}, idle_ms=290)
    script.decode(5, MINE)

    (spike,) = script.story().spikes

    assert spike.cause is Cause.HOST_STALL
    assert "290 ms" in spike.evidence
    assert spike.blamed is None


@pytest.mark.parametrize(
    ("clock_mhz", "cause"), [(1_400, Cause.SLOW_STEP), (600, Cause.CLOCK_DROP)]
)
def test_a_step_of_usual_work_that_took_long_is_slow_for_all(
    script: Script, clock_mhz: int, cause: Cause
) -> None:
    script.begins()
    script.decode(20, MINE)
    script.step({MINE: (1, 1)}, ms=200)
    script.decode(5, MINE)
    for at_ms in range(0, 500, 100):
        slow = 230 <= at_ms <= 430
        script.readings.append(
            GpuSample(
                source="GPU-1",
                t_ns=at_ms * MS,
                sm_clock_mhz=clock_mhz if slow and at_ms == 300 else 1_400,
            )
        )

    (spike,) = script.story().spikes

    assert spike.cause is cause
    assert "200 ms" in spike.evidence


def test_what_is_speculated_and_accepted_is_counted(script: Script) -> None:
    script.begins()
    for produced in (4, 1, 2):
        script.step({MINE: (4, produced)}, drafted_tokens=3, accepted_tokens=0)

    story = script.story()

    assert (story.drafted_tokens, story.accepted_tokens) == (9, 4)
    assert story.row.output_tokens == 8


@pytest.fixture
def with_client(script: Script) -> Script:
    """Sent 1 ms late, 3 ms on its way; 20 tokens, the client 2 ms behind."""
    script.begins()
    script.decode(19, MINE)
    script.ends(20)
    script.readings.append(
        RequestRecord(
            source="load",
            index=0,
            external_id="mine",
            phase=Phase.STEADY,
            intended_ns=1 * MS,
            sent_ns=2 * MS,
            first_token_ns=23 * MS,
            last_token_ns=213 * MS,
            end_ns=213 * MS,
            class_name="chat",
        )
    )
    return script


def test_a_client_of_ours_tells_of_the_way(with_client: Script) -> None:
    gaps_ns = [10 * MS] * 19
    with_client.readings.append(
        TokenTimes(source="load", external_id="mine", first_ns=23 * MS, gaps_ns=gaps_ns)
    )

    story = with_client.story()

    assert spans(story)[0] == (SpanKind.NETWORK, 3)
    assert dict(story.client) == {
        Cause.CLIENT: 0.001,
        Cause.NETWORK: 0.003,
        Cause.RETURN: 0.002,
    }
    assert story.row.class_name == "chat"
    assert story.spikes == ()


def test_tokens_that_came_together_were_merged_on_their_way(
    with_client: Script,
) -> None:
    gaps_ns = [10 * MS] * 5 + [60 * MS] + [10 * MS] * 8
    with_client.readings.append(
        TokenTimes(source="load", external_id="mine", first_ns=23 * MS, gaps_ns=gaps_ns)
    )

    (spike,) = with_client.story().spikes

    assert spike.cause is Cause.MERGED
    assert spike.gap_ns == 60 * MS
    assert "6 outputs" in spike.evidence


def test_a_late_token_of_the_engine_is_not_blamed_on_the_way(script: Script) -> None:
    script.begins()
    script.decode(10, MINE)
    script.step({MINE: (1, 1)}, idle_ms=60)
    script.decode(8, MINE)
    gaps_ns = [10 * MS] * 10 + [70 * MS] + [10 * MS] * 8
    script.readings.append(
        TokenTimes(source="load", external_id="mine", first_ns=23 * MS, gaps_ns=gaps_ns)
    )

    assert [each.cause for each in script.story().spikes] == [Cause.HOST_STALL]


def test_what_nobody_told_is_said_to_be_missing(script: Script) -> None:
    script.tell(MINE, EventKind.SCHEDULED, 0, prompt_tokens=20)
    script.step({MINE: (20, 1)}, prefills=[MINE])
    script.decode(2, MINE)

    story = script.story()

    assert len(story.missing) == 2
    assert [each for each, _ in spans(story)] == [SpanKind.CHUNK, SpanKind.DECODE]
    assert story.ttft_parts == ()


@pytest.mark.timing
def test_a_request_of_100_000_tokens_is_told_soon(
    script: Script,
) -> None:
    script.begins()
    for _ in range(100_000 - 1):
        script.step({MINE: (1, 1), OTHER: (1, 1)})
    recent = RecentReadings(kept_ns=10**18, most_bytes=10**10)
    for each in script.readings:
        recent.take(each)

    began_s = time.process_time()
    story = tell(RecentLookup(recent, "e/mine"), "e/mine", 10**18)
    took_s = time.process_time() - began_s

    assert story is not None
    assert len(story.token_ns) == story.steps_total == 100_000
    assert len(story.steps) == 5_000
    assert took_s <= 3
