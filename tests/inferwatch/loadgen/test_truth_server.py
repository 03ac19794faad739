"""The server that knows the truth keeps to its own schedule."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import httpx
import pytest

MS = 1_000_000


@pytest.fixture
def ask(truth_url: str) -> Callable[..., httpx.Response]:
    """``ask(model, request_id)``: one whole completion, or chat."""

    def send(model: str, name: str, *, tokens: int = 5, path: str = "") -> Any:
        return httpx.post(
            f"{truth_url}/v1/{path}completions",
            headers={"X-Request-Id": name},
            json={
                "model": model,
                "messages" if path else "prompt": [1, 2, 3],
                "max_tokens": tokens,
            },
            timeout=30,
            trust_env=False,
        )

    return send


def chunks(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.text.splitlines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


@pytest.mark.timing
def test_tokens_leave_when_they_are_due(
    ask: Callable[..., httpx.Response], truth_log: Callable[[str], Any]
) -> None:
    ask("ttft=0.05,itl=0.01", "due-0", tokens=40)

    sent_ns = truth_log("due")["due-0"].sent_ns
    first_ns = truth_log("due")["due-0"].started_ns + 50 * MS
    lateness = [at - first_ns - 10 * MS * k for k, at in enumerate(sent_ns)]
    assert min(lateness) >= 0
    assert sorted(lateness)[10] < 1 * MS  # a neighbour may delay the others


@pytest.mark.timing
def test_a_frozen_server_sends_nothing(
    ask: Callable[..., httpx.Response], truth_log: Callable[[str], Any]
) -> None:
    ask("ttft=0.01,itl=0.01,freeze=0.1,every=0.2", "frozen-0", tokens=40)

    answer = truth_log("frozen")["frozen-0"]
    into_ns = [at % (200 * MS) for at in answer.sent_ns]
    # What was due just before a freeze may leave a moment late.
    assert not [at for at in into_ns if 10 * MS < at < 100 * MS]
    assert max(b - a for a, b in pairwise(answer.sent_ns)) > 80 * MS


def test_who_finds_no_slot_waits_for_one(
    ask: Callable[..., httpx.Response], truth_log: Callable[[str], Any]
) -> None:
    with ThreadPoolExecutor(3) as users:
        for number in range(3):
            users.submit(ask, "ttft=0.5,itl=0.001,slots=1", f"slot-{number}")

    answers = sorted(truth_log("slot").values(), key=lambda each: each.started_ns)
    for earlier, later in pairwise(answers):
        assert later.started_ns >= max(earlier.sent_ns[-1], later.received_ns)
        assert later.sent_ns[0] >= later.started_ns + 500 * MS


def test_it_tells_how_many_requests_it_has(
    ask: Callable[..., httpx.Response], truth_url: str
) -> None:
    user = threading.Thread(target=ask, args=("ttft=1.0", "gauge-0"))
    user.start()
    deadline_s = time.monotonic() + 10
    text = ""
    while "vllm:num_requests_running 1.0" not in text:
        assert time.monotonic() < deadline_s, text
        text = httpx.get(f"{truth_url}/metrics", trust_env=False).text
    user.join()


def test_a_chat_is_answered_in_deltas(ask: Callable[..., httpx.Response]) -> None:
    response = ask("ttft=0,variant=early_role", "chat-0", tokens=3, path="chat/")

    role, *tokens, usage = chunks(response)
    assert role["choices"][0]["delta"]["role"] == "assistant"
    assert [each["choices"][0]["delta"]["content"] for each in tokens] == ["é "] * 3
    assert usage["usage"]["completion_tokens"] == 3
