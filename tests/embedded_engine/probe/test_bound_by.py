"""Why the head of the queue was not scheduled, on schedulers of our own making."""

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from collectors.contract.readings import BoundBy
from embedded_engine.probe.tap.engine_tap import QueueHeadRule


class Queue(deque[Any]):
    """As vLLM's first-come-first-served one."""

    def peek_request(self) -> object:
        return self[0]


def scheduler(**changes: Any) -> SimpleNamespace:
    """Budget 512 tokens, 32 sequences, blocks of 16 tokens, prompts chunked."""
    settings: dict[str, Any] = {
        "max_num_scheduled_tokens": 512,
        "max_num_active_reqs": 32,
        "scheduler_config": SimpleNamespace(
            max_num_batched_tokens=512, enable_chunked_prefill=True
        ),
        "vllm_config": SimpleNamespace(speculative_config=None),
        "kv_cache_manager": SimpleNamespace(watermark_blocks=0),
        "kv_cache_config": SimpleNamespace(kv_cache_groups=[object()]),
        "block_size": 16,
        "_pause_state": 0,
        "num_waiting_for_streaming_input": 0,
        "deferred_waiting": set(),
        "running": [],
    }
    return SimpleNamespace(**(settings | changes))


def request(tokens: int = 100, *, encodes: bool = False) -> object:
    return FrozenRequest(tokens, encodes=encodes)


class FrozenRequest:
    def __init__(self, num_tokens: int, *, encodes: bool) -> None:
        self.num_tokens = num_tokens
        self.has_encoder_inputs = encodes
        self.status: object = SimpleNamespace(name="WAITING")
        self.lora_request: object = None


def waits_for(status: str = "WAITING", adapter: int | None = None) -> FrozenRequest:
    deferred = FrozenRequest(10, encodes=False)
    deferred.status = SimpleNamespace(name=status)
    if adapter is not None:
        deferred.lora_request = SimpleNamespace(lora_int_id=adapter)
    return deferred


def bound(  # noqa: PLR0913 - a case names what it changes
    of: SimpleNamespace,
    waiting: list[object],
    *,
    running: int = 4,
    tokens: int = 4,
    free: int = 100,
    preempted: bool = False,
    holding: tuple[object, ...] = (),
    holds: bool = False,
) -> BoundBy:
    return reasons(
        of,
        waiting,
        running=running,
        tokens=tokens,
        free=free,
        preempted=preempted,
        holding=holding,
        holds=holds,
    )[0]


def reasons(  # noqa: PLR0913 - likewise
    of: SimpleNamespace,
    waiting: list[object],
    *,
    running: int = 4,
    tokens: int = 4,
    free: int = 100,
    preempted: bool = False,
    holding: tuple[object, ...] = (),
    holds: bool = False,
) -> tuple[BoundBy, str | None]:
    missing: list[str] = []
    rule = QueueHeadRule(of, missing.append)
    state = running, Queue(waiting), Queue(holding), free
    result = rule.by(of, state, (running, tokens, preempted, holds))
    assert missing == []
    return result


def test_a_preemption_means_kv() -> None:
    assert bound(scheduler(), [request()], preempted=True) is BoundBy.KV


def test_a_used_up_budget_means_tokens_even_when_the_seats_are_taken() -> None:
    assert bound(scheduler(), [request()], running=32, tokens=512) is BoundBy.TOKENS


def test_taken_seats_mean_seqs() -> None:
    assert bound(scheduler(), [request()], running=32, tokens=32) is BoundBy.SEQS


def test_a_limit_lowered_below_what_runs_means_seqs() -> None:
    lowered = scheduler(max_num_active_reqs=8)

    assert bound(lowered, [request()], running=32, tokens=32) is BoundBy.SEQS


def test_paused_sessions_take_seats_too() -> None:
    of = scheduler(num_waiting_for_streaming_input=2)

    assert bound(of, [request()], running=30) is BoundBy.SEQS


def test_a_head_that_does_not_fit_the_free_blocks_means_kv() -> None:
    assert bound(scheduler(), [request(100)], free=6) is BoundBy.KV


def test_a_head_that_fits_was_held_up_by_something_else() -> None:
    assert bound(scheduler(), [request(100)], free=7) is BoundBy.OTHER


def test_the_watermark_stays_free() -> None:
    of = scheduler(kv_cache_manager=SimpleNamespace(watermark_blocks=2))

    assert bound(of, [request(100)], free=8) is BoundBy.KV


def test_who_holds_blocks_is_the_head() -> None:
    assert bound(scheduler(), [request(10)], free=6, holding=(request(),)) is BoundBy.KV


def test_a_paused_scheduler_means_other() -> None:
    assert bound(scheduler(_pause_state=1), [request()], free=0) is BoundBy.OTHER


def test_deferred_requests_are_not_the_head() -> None:
    blocked, head = request(10), request(100)

    of = scheduler(deferred_waiting={blocked})

    assert bound(of, [blocked, head], free=6) is BoundBy.KV


def test_when_all_are_passed_over_they_are_deferred_whatever_is_free() -> None:
    blocked, also = request(10), request(20)
    of = scheduler(deferred_waiting={blocked, also})

    assert bound(of, [blocked], free=0) is BoundBy.DEFERRED
    assert bound(of, [blocked], holding=(also,)) is BoundBy.DEFERRED
    assert bound(of, [blocked], running=32) is BoundBy.SEQS  # vLLM never looked at it


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR", "grammar"),
        ("WAITING_FOR_REMOTE_KVS", "KV transfer"),
        ("WAITING_FOR_STREAMING_REQ", "streaming input"),
        ("WAITING", None),
    ],
)
def test_the_status_of_a_deferred_request_says_why(
    status: str, reason: str | None
) -> None:
    first, other = waits_for(status), waits_for("WAITING_FOR_REMOTE_KVS")
    of = scheduler(deferred_waiting={first, other})

    assert reasons(of, [first, other]) == (BoundBy.DEFERRED, reason)
    assert reasons(of, [other], holding=(first,)) == (BoundBy.DEFERRED, reason)


def test_what_vllm_looks_at_first_hides_why_another_is_deferred() -> None:
    grammar = waits_for("WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR")
    of = scheduler(deferred_waiting={grammar})

    assert reasons(of, [grammar], running=32) == (BoundBy.SEQS, None)
    assert reasons(of, [grammar, request()], free=6) == (BoundBy.KV, None)


def test_a_deferred_request_with_an_adapter_waits_for_its_turn() -> None:
    late = waits_for(adapter=3)
    of = scheduler(deferred_waiting={late})

    assert reasons(of, [late]) == (BoundBy.DEFERRED, "adapter")


@pytest.mark.parametrize(
    ("running", "reason"), [((1, 2, 1), "adapter"), ((1, 1), "KV transfer")]
)
def test_beside_a_connector_the_batch_tells_of_adapters(
    running: tuple[int, ...], reason: str
) -> None:
    late = waits_for(adapter=3)
    of = scheduler(
        deferred_waiting={late},
        connector=object(),
        lora_config=SimpleNamespace(max_loras=2),
        running=[waits_for(adapter=each) for each in running],
    )

    assert reasons(of, [late]) == (BoundBy.DEFERRED, reason)


def test_an_encoder_elsewhere_defers_who_needs_no_other_thing() -> None:
    pictured = waits_for()
    of = scheduler(deferred_waiting={pictured}, ec_connector=object())

    assert reasons(of, [pictured]) == (BoundBy.DEFERRED, "encoder")


def test_a_held_prefill_is_told_from_limits() -> None:
    held = BoundBy.DEFERRED, "held prefill"

    assert reasons(scheduler(), [request()], holds=True) == held
    assert reasons(scheduler(), [request()], holds=True, free=6) == held
    assert bound(scheduler(), [request()], holds=True, running=32) is BoundBy.SEQS
    assert bound(scheduler(), [request()], holds=True, tokens=512) is BoundBy.TOKENS


def test_deferred_requests_are_counted_where_vllm_keeps_a_list() -> None:
    state = 4, Queue([request()]), Queue(), 100

    for deferred, count in (({waits_for(), waits_for()}, 2), (lambda _: True, None)):
        of = scheduler(deferred_waiting=deferred)
        rule = QueueHeadRule(of, print)
        rule.by(of, state, (4, 4, True, False))
        assert rule.deferred == count


def test_a_head_with_an_image_that_would_fit_waits_for_the_encoder() -> None:
    pictured = request(100, encodes=True)

    assert reasons(scheduler(), [pictured], free=7) == (BoundBy.DEFERRED, "encoder")
    assert bound(scheduler(), [pictured], free=6) is BoundBy.KV


def test_a_prompt_that_may_not_be_cut_waits_for_tokens() -> None:
    of = scheduler(
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=512, enable_chunked_prefill=False
        )
    )

    assert bound(of, [request(100)], tokens=450) is BoundBy.TOKENS
    assert bound(of, [request(100)], tokens=400, free=6) is BoundBy.KV


@pytest.mark.parametrize(("tokens", "binds"), [(486, "tokens"), (485, "other")])
def test_drafting_takes_slots_of_the_budget(tokens: int, binds: str) -> None:
    slots = SimpleNamespace(max_num_new_slots_for_drafting=5)
    of = scheduler(vllm_config=SimpleNamespace(speculative_config=slots))

    assert bound(of, [request()], running=4, tokens=tokens + 1) == binds
