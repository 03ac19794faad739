"""What an answer says beside its tokens: reasoning, counts, the server's own times."""

import json
from typing import Any

from inferwatch.loadgen.exchange.reply import Reply


def told(*chunks: dict[str, Any]) -> Reply:
    """A reply whose n-th chunk came at n."""
    reply = Reply()
    for at_ns, chunk in enumerate(chunks, 1):
        reply.read(b"data: " + json.dumps(chunk).encode() + b"\n\n", at_ns)
    reply.end()
    return reply


def delta(**said: str) -> dict[str, Any]:
    return {"choices": [{"delta": said}]}


def usage(tokens: int, **chunk: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"completion_tokens": tokens}, **chunk}


def test_the_answer_begins_where_the_reasoning_ends() -> None:
    reply = told(
        delta(role="assistant", content=""),
        delta(reasoning_content="hm"),
        delta(reasoning="so"),
        delta(content="Yes"),
        delta(content="!"),
    )

    assert reply.stamps_ns == [2, 3, 4, 5]
    assert reply.first_content_ns == 4


def test_an_answer_without_reasoning_has_no_such_moment() -> None:
    assert told(delta(content="Yes")).first_content_ns is None


def test_who_answers_first_and_reasons_later_has_no_such_moment() -> None:
    reply = told(delta(content="Yes"), delta(reasoning="so"), delta(content="!"))

    assert reply.first_content_ns is None


def test_a_count_in_each_chunk_tells_what_the_first_one_brought() -> None:
    text = {"choices": [{"text": "a"}]}
    role = usage(0, choices=[{"delta": {"role": "assistant", "content": ""}}])

    reply = told(role, usage(3, **text), usage(7, **text), usage(7))

    assert reply.first_chunk_tokens == 3
    assert reply.output_tokens == 7


def test_a_count_at_the_end_tells_nothing_of_the_first_chunk() -> None:
    text = {"choices": [{"text": "a"}]}

    assert told(text, text, usage(7)).first_chunk_tokens is None


def test_the_servers_own_times_are_kept() -> None:
    metrics = {
        "time_to_first_token_ms": 12.5,
        "queue_time_ms": 3.0,
        "generation_time_ms": None,
        "speculative_decoding": None,
    }

    times = told({"choices": [{"text": "a"}]}, usage(1, metrics=metrics)).times

    assert (times.time_to_first_token_ms, times.queue_time_ms) == (12.5, 3.0)
    assert times.generation_time_ms is None
