"""Classes and turns, each for itself; and the rate that was asked on average."""

from typing import Any

import pytest

from collectors.contract.readings import LoadEvent, LoadKind, Phase, RequestRecord
from inferwatch.metrics.load.book import LoadBook
from inferwatch.metrics.load.request_latencies import tpot_ns
from inferwatch.metrics.load.result import LoadResult, load_result
from inferwatch.metrics.requests.slo import parse_slo
from inferwatch.printing.summary.load import load_text, summarise_load

MS = 1_000_000
RUN = "load-1"


def request(index: int, ttft_ms: int = 50, **fields: Any) -> RequestRecord:
    """Due every 10 ms; ten tokens, 10 ms apart."""
    due_ns = index * 10 * MS
    first_ns = due_ns + ttft_ms * MS
    known = {
        "source": RUN,
        "index": index,
        "external_id": f"{RUN}-{index}",
        "phase": Phase.STEADY,
        "intended_ns": due_ns,
        "sent_ns": due_ns,
        "first_token_ns": first_ns,
        "last_token_ns": first_ns + 90 * MS,
        "end_ns": first_ns + 90 * MS,
        "prompt_tokens": 20,
        "output_tokens": 10,
    }
    return RequestRecord(**{**known, **fields})


def book(*readings: Any) -> LoadBook:
    found = LoadBook(RUN)
    for reading in readings:
        found.fold(reading)
    return found


def mix() -> LoadBook:
    """Nine chats, and one that is huge and slow."""
    chats = [request(n, class_name="chat") for n in range(9)]
    huge = request(9, 900, class_name="huge", prompt_tokens=32_000)
    return book(*chats, huge)


def judged(**classes: str) -> LoadResult:
    limits = {name: parse_slo(text) for name, text in classes.items()}
    return load_result(mix(), parse_slo("ttft_s<1"), limits)


def test_each_class_has_its_own_latencies() -> None:
    chat, huge = load_result(mix()).classes.values()

    assert (chat.sent, huge.sent) == (9, 1)
    assert huge.prompt_tokens == 32_000
    assert chat.latencies["ttft_s"].quantiles.max == pytest.approx(0.05)
    assert huge.latencies["ttft_s"].quantiles.max == pytest.approx(0.9)
    assert chat.goodput is None


def test_a_class_without_objectives_is_held_to_those_of_all() -> None:
    classes = judged(huge="ttft_s<0.1").classes

    assert str(classes["chat"].slo) == "ttft_s<1"
    assert str(classes["huge"].slo) == "ttft_s<0.1"


def test_a_rare_class_that_misses_its_own_is_not_hidden_by_the_others() -> None:
    result = judged(huge="ttft_s<0.1")

    assert result.goodput is not None
    assert result.goodput.share == 0.9
    assert result.missed(0.9) == ["huge"]
    assert result.worst is not None
    assert (result.worst.n, result.worst.share) == (1, 0)


def test_a_class_that_holds_its_own_is_not_held_to_another() -> None:
    assert judged(chat="ttft_s<0.1", huge="ttft_s<1").missed(1.0) == []


def test_without_a_mix_there_are_no_classes() -> None:
    assert load_result(book(request(0))).classes == {}


def test_turns_stand_in_their_order() -> None:
    turns = load_result(book(*(request(n, turn=3 - n) for n in range(3)))).turns

    assert list(turns) == ["1", "2", "3"]


def test_of_conversations_only_the_first_turns_have_a_rate() -> None:
    turns = [request(n, turn=1 + n % 2) for n in range(10)]

    summary = summarise_load(load_result(book(*turns)))

    assert summary["rate"]["achieved"] == pytest.approx(50)
    assert summary["rate"]["of"] == "conversations"
    assert "counted in conversations" in load_text(summary)


def test_people_read_a_line_for_each() -> None:
    lines = load_text(summarise_load(judged(huge="ttft_s<0.1"))).splitlines()

    assert max(map(len, lines)) <= 80
    at = next(n for n, line in enumerate(lines) if line.startswith("class"))
    assert lines[at + 1].split()[:5] == ["chat", "ms", "9", "0", "20"]
    assert lines[at + 2].split()[0] == "huge"
    assert lines[at + 2].endswith("0.0%")


def test_a_first_chunk_of_several_tokens_is_one_moment() -> None:
    assert tpot_ns(request(0)) == 10 * MS
    assert tpot_ns(request(0, first_chunk_tokens=4)) == 15 * MS
    assert tpot_ns(request(0, first_chunk_tokens=10)) is None


def test_first_content_is_told_only_where_an_answer_began_with_reasoning() -> None:
    thought = request(0, first_content_ns=80 * MS)

    told = load_result(book(thought, request(1))).latencies["first_content_s"]

    assert told.quantiles.n == 1
    assert told.quantiles.max == pytest.approx(0.08)
    assert "first_content_s" not in load_result(book(request(0))).latencies
    assert "first content" in load_text(summarise_load(load_result(book(thought))))


def event(at_s: float, kind: LoadKind, rate: float | None = None) -> LoadEvent:
    return LoadEvent(source=RUN, t_ns=round(at_s * 1e9), kind=kind, rate_per_s=rate)


def asked(*events: LoadEvent) -> tuple[float | None, tuple[float, float] | None]:
    found = book(*events)
    return found.asked_per_s, found.asked_range


def test_a_rate_that_changed_is_asked_on_average() -> None:
    events = (
        event(0, LoadKind.RATE, 10),
        event(3, LoadKind.RATE, 40),
        event(4, LoadKind.DRAINING),
        event(9, LoadKind.STOPPED),
    )

    assert asked(*events) == (17.5, (10, 40))


def test_what_was_asked_in_the_warm_up_does_not_count() -> None:
    events = (
        event(0, LoadKind.RATE, 99),
        event(1, LoadKind.RATE, 10),
        event(2, LoadKind.WARMUP_ENDED, 500),
        event(4, LoadKind.RATE, 30),
        event(6, LoadKind.DRAINING),
    )

    assert asked(*events) == (20, (10, 30))


def test_one_rate_is_asked_as_it_is() -> None:
    assert asked(event(0, LoadKind.RATE, 10)) == (10, None)


def test_users_are_asked_no_rate() -> None:
    assert asked(event(0, LoadKind.RATE), event(2, LoadKind.RATE)) == (None, None)
    assert asked() == (None, None)
