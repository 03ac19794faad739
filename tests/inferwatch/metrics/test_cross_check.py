"""The same requests, seen by the client and by the server."""

from collections.abc import Callable
from typing import Any

import pytest

from collectors.contract.readings import (
    EventKind,
    Phase,
    RequestEvent,
    RequestRecord,
    Vantage,
)
from inferwatch.metrics.load.book import LoadBook
from inferwatch.metrics.load.cross_check import (
    CrossCheck,
    ServerBook,
    check_answers,
    check_means,
    check_requests,
    cross_check,
)

MS = 1_000_000
RUN = "load-1"
Events = Callable[..., RequestEvent]


def book(count: int = 10, **changes: Any) -> LoadBook:
    """Due at 0 ms, sent at 1, first token at 60."""
    found = LoadBook(RUN)
    for index in range(count):
        fields = {
            "source": RUN,
            "index": index,
            "external_id": f"{RUN}-{index}",
            "phase": Phase.STEADY,
            "intended_ns": 0,
            "sent_ns": 1 * MS,
            "first_token_ns": 60 * MS,
            "last_token_ns": 100 * MS,
            "end_ns": 101 * MS,
            "output_tokens": 5,
        }
        found.fold(RequestRecord(**{**fields, **changes}))
    return found


def server(make_event: Events, count: int = 10, first_ms: float = 58) -> ServerBook:
    """Arrived at 2 ms, queued at 3, scheduled at 8, first token out at 58."""
    found = ServerBook()
    for index in range(count):
        name = f"r{index}"
        known = f"cmpl-{RUN}-{index}-0"
        for t_ms, kind, external_id in (
            (2, EventKind.ARRIVED, known),
            (3, EventKind.ADDED, None),
            (8, EventKind.SCHEDULED, None),
            (first_ms, EventKind.FIRST_TOKEN, None),
        ):
            found.fold(make_event(t_ms, kind, name, external_id=external_id))
    return found


def counters(count: int, ttft_s: float, tokens: int) -> dict[str, float]:
    name = "vllm:time_to_first_token_seconds"
    return {
        f"{name}_count": count,
        f"{name}_sum": count * ttft_s,
        "vllm:request_queue_time_seconds_count": count,
        "vllm:request_queue_time_seconds_sum": count * 0.005,
        "vllm:request_prefill_time_seconds_count": count,
        "vllm:request_prefill_time_seconds_sum": count * 0.05,
        "vllm:generation_tokens_total": tokens,
    }


def means(run: LoadBook, after: dict[str, float]) -> CrossCheck:
    found = check_means(run, counters(0, 0.0, 0), after)
    assert found is not None
    return found


def test_each_part_of_a_ttft_is_measured(make_event: Events) -> None:
    found = check_requests(book(), server(make_event))

    assert found is not None
    assert found.n == 10
    assert found.parts == pytest.approx(
        {
            "send_lag_s": 0.001,
            "network_s": 0.001,
            "api_s": 0.001,
            "queue_s": 0.005,
            "prefill_s": 0.050,
            "return_s": 0.002,
        }
    )
    assert found.ttft_s == pytest.approx(0.060)
    assert found.disagreements == ()


def test_a_token_that_came_before_it_left_is_said(make_event: Events) -> None:
    found = check_requests(book(), server(make_event, first_ms=63))

    assert found is not None
    assert found.disagreements == (
        "3 ms (5%) of the TTFT is negative: clocks disagree",
    )


def test_requests_of_others_are_not_compared(make_event: Events) -> None:
    assert check_requests(book(external_id="other"), server(make_event)) is None


def test_an_event_of_the_other_vantage_is_no_arrival(make_event: Events) -> None:
    found = server(make_event, 1)
    found.fold(
        make_event(1, EventKind.ARRIVED, "r9", vantage=Vantage.ENGINE, external_id="x")
    )

    assert found.moments()["x"] == {}


def test_counters_give_means_and_leave_the_way() -> None:
    found = means(book(), counters(10, 0.058, 50))

    assert found.parts["send_lag_s"] == pytest.approx(0.001)
    assert found.parts["api_s"] == pytest.approx(0.003)
    assert found.unexplained_s == pytest.approx(0.001)
    assert found.disagreements == ()


def test_more_than_two_percent_is_said() -> None:
    found = means(book(), counters(10, 0.050, 50))

    assert found.disagreements == (
        "9 ms (15%) of the client's TTFT is not in the server's",
    )


def test_means_of_other_requests_are_not_compared() -> None:
    (said,) = means(book(), counters(15, 0.010, 75)).disagreements

    assert said.startswith("the server counts 15 first tokens, the client 10")


def test_tokens_that_went_missing_are_said() -> None:
    (said,) = means(book(), counters(10, 0.058, 60)).disagreements

    assert said == "the server made 60 tokens, the client received 50"


def test_tokens_that_no_answer_counted_did_not_go_missing() -> None:
    found = means(book(output_tokens=None), counters(10, 0.058, 60))

    assert found.disagreements == ()


def test_a_server_without_counters_is_not_checked() -> None:
    assert check_means(book(), {}, {}) is None


TOLD = {
    "server_queue_ns": 5 * MS,
    "server_prefill_ns": 50 * MS,
    "server_decode_ns": 40 * MS,
}


def answers(run: LoadBook, after: dict[str, float]) -> CrossCheck:
    found = check_answers(run, counters(0, 0.0, 0), after)
    assert found is not None
    return found


def test_answers_tell_queue_and_prefill_and_the_counters_the_rest() -> None:
    found = answers(book(**TOLD), counters(10, 0.058, 50))

    assert found.source == "answers"
    assert found.n == 10
    assert found.parts["queue_s"] == pytest.approx(0.005)
    assert found.parts["prefill_s"] == pytest.approx(0.050)
    assert found.parts["api_s"] == pytest.approx(0.003)
    assert found.unexplained_s == pytest.approx(0.001)
    assert found.disagreements == ()


def test_without_counters_of_the_same_requests_the_api_is_part_of_the_way() -> None:
    found = answers(book(**TOLD), counters(11, 0.058, 50))

    assert found.parts["api_s"] is None
    assert found.unexplained_s == pytest.approx(0.004)
    assert found.disagreements == (
        "4 ms (7%) of the client's TTFT is not in the engine's",
    )


def test_a_stream_that_was_held_up_is_said() -> None:
    held_up = book(**{**TOLD, "server_decode_ns": 32 * MS})

    (text,) = answers(held_up, counters(10, 0.058, 50)).disagreements

    assert text == "8 ms (25%) longer is the client's decode time"


def test_the_best_source_is_taken_and_a_better_one_named(make_event: Events) -> None:
    before, after = counters(0, 0.0, 0), counters(10, 0.058, 50)
    told, silent, nobody = book(**TOLD), book(), ServerBook()

    found = [
        cross_check(told, server(make_event), before, after),
        cross_check(told, nobody, before, after),
        cross_check(silent, nobody, before, after),
    ]

    assert [each and each.source for each in found] == ["probe", "answers", "metrics"]
    assert [bool(each and each.hint) for each in found] == [False, False, True]
