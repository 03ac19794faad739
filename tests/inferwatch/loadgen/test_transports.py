import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from itertools import accumulate
from typing import Any

import pytest

from collectors.contract.clock import monotonic_ns
from collectors.contract.readings import Phase
from inferwatch.loadgen.exchange.call import Call, Failure
from inferwatch.loadgen.exchange.transport import transport_for
from inferwatch.loadgen.plan.plan import LoadPlan, TransportKind
from inferwatch.loadgen.prompts.prompts import Prompt

Until = Callable[..., Awaitable[None]]
PlanFor = Callable[..., LoadPlan]
TOKENS = 10
GENEROUS_NS = 1_000_000_000


@pytest.fixture(params=[TransportKind.RAW, TransportKind.HTTPX], autouse=True)
def kind(request: pytest.FixtureRequest) -> TransportKind:
    """Each test runs with both."""
    chosen: TransportKind = request.param
    return chosen


@pytest.fixture
def plan_for(kind: TransportKind) -> PlanFor:
    def plan(url: str, variant: str, **changes: Any) -> LoadPlan:
        changes = {"model": f"variant={variant}", "transport": kind} | changes
        return LoadPlan(run_id="client", url=url, **changes)

    return plan


def new_call(external_id: str = "client-0") -> Call:
    prompt = Prompt(token_ids=list(range(300, 320)), max_tokens=TOKENS, kv_tokens=30)
    return Call(
        index=0,
        external_id=external_id,
        phase=Phase.STEADY,
        intended_ns=monotonic_ns(),
        prompt=prompt,
    )


async def ask(plan: LoadPlan, call: Call | None = None) -> Call:
    call = call or new_call()
    async with aclosing(transport_for(plan)) as transport:
        await transport.open()
        await transport.prepare(call).begin()
    return call


def stamps(call: Call) -> list[int]:
    times = call.token_times()
    return list(accumulate(times.gaps_ns, initial=times.first_ns)) if times else []


@pytest.mark.parametrize(
    "variant",
    [
        *("plain", "crlf", "no_space", "bytewise", "keepalive", "bare_last"),
        *("extra_finish", "no_done"),
    ],
)
async def test_every_dialect_gives_every_token(
    truth_url: str, variant: str, plan_for: PlanFor
) -> None:
    call = await ask(plan_for(truth_url, variant))

    record = call.record()
    assert record.failure is None
    assert len(stamps(call)) == record.output_tokens == TOKENS
    assert record.prompt_tokens == 20


async def test_tokens_in_one_chunk_are_counted_by_the_server(
    truth_url: str, plan_for: PlanFor
) -> None:
    call = await ask(plan_for(truth_url, "bundle"))

    assert call.record().output_tokens == TOKENS
    assert len(stamps(call)) == 3


@pytest.mark.parametrize("variant", ["no_usage", "no_done_no_usage"])
async def test_without_usage_the_token_count_is_unknown(
    truth_url: str, variant: str, plan_for: PlanFor
) -> None:
    record = (await ask(plan_for(truth_url, variant))).record()

    assert record.failure is None
    assert record.output_tokens is None
    assert record.prompt_tokens == 20


@pytest.mark.parametrize(
    ("variant", "failure", "detail"),
    [
        ("http_404", Failure.HTTP_4XX, "404 no such model"),
        ("http_429", Failure.HTTP_4XX, "429 slow down"),
        ("http_500", Failure.HTTP_5XX, "500 engine dead"),
        ("redirect", Failure.HTTP_3XX, "302"),
        ("empty", Failure.EMPTY, "without a token"),
        ("hangup", Failure.BROKEN_STREAM, "disconnected"),
        ("broken", Failure.BROKEN_STREAM, "incomplete"),
        ("unfinished", Failure.BROKEN_STREAM, "without a finish"),
        ("junk", Failure.BROKEN_STREAM, "not a completion"),
        ("error_event", Failure.SERVER_ERROR_EVENT, "engine is gone"),
        ("named_error", Failure.SERVER_ERROR_EVENT, "engine is gone"),
    ],
)
async def test_every_failure_has_its_name(
    truth_url: str, variant: str, failure: Failure, detail: str, plan_for: PlanFor
) -> None:
    record = (await ask(plan_for(truth_url, variant))).record()

    assert record.failure == failure
    assert detail in (record.detail or "")
    assert record.end_ns is not None


async def test_tokens_before_a_failure_are_kept(
    truth_url: str, plan_for: PlanFor
) -> None:
    call = await ask(plan_for(truth_url, "broken"))

    assert len(stamps(call)) == TOKENS // 2
    assert call.record().output_tokens is None


async def test_a_port_where_nobody_listens_refuses(plan_for: PlanFor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"

    record = (await ask(plan_for(url, "plain"))).record()

    assert record.failure == Failure.REFUSED
    assert record.sent_ns is None


async def test_a_silent_server_times_out(truth_url: str, plan_for: PlanFor) -> None:
    plan = plan_for(truth_url, "silent", request_timeout_s=0.2)

    record = (await ask(plan)).record()

    assert record.failure == Failure.TIMEOUT
    assert record.sent_ns is not None
    assert record.first_token_ns is None


async def test_stamps_follow_the_servers_sends(
    truth_url: str,
    truth_log: Callable[[str], Any],
    plan_for: PlanFor,
    kind: TransportKind,
) -> None:
    plan = plan_for(truth_url, "plain", model="ttft=0.05,itl=0.02")

    call = await ask(plan, new_call(f"stamps{kind}-0"))

    truth = truth_log(f"stamps{kind}")[f"stamps{kind}-0"]
    pairs = zip(truth.sent_ns, stamps(call), strict=True)
    assert all(0 <= came - sent < GENEROUS_NS for sent, came in pairs)


async def test_a_send_is_stamped_before_it_arrives(
    truth_url: str,
    truth_log: Callable[[str], Any],
    plan_for: PlanFor,
    kind: TransportKind,
) -> None:
    call = await ask(plan_for(truth_url, "plain"), new_call(f"sends{kind}-0"))

    received_ns = truth_log(f"sends{kind}")[f"sends{kind}-0"].received_ns
    assert call.sent_ns is not None
    assert call.intended_ns <= call.sent_ns <= received_ns
    assert received_ns - call.sent_ns < GENEROUS_NS


async def test_the_request_says_what_the_plan_says(
    truth_url: str,
    truth_log: Callable[[str], Any],
    plan_for: PlanFor,
    kind: TransportKind,
) -> None:
    await ask(plan_for(truth_url, "plain", temperature=0.7), new_call(f"asked{kind}-0"))

    asked = truth_log(f"asked{kind}")[f"asked{kind}-0"]
    assert asked.prompt == list(range(300, 320))
    assert asked.body == {
        "model": "variant=plain",
        "max_tokens": TOKENS,
        "temperature": 0.7,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_a_unix_socket_is_as_good(truth_uds: str, plan_for: PlanFor) -> None:
    plan = plan_for("http://localhost", "plain", uds=truth_uds)

    assert (await ask(plan)).record().output_tokens == TOKENS


async def test_aborting_closes_the_connection(
    truth_url: str,
    truth_log: Callable[[str], Any],
    until: Until,
    plan_for: PlanFor,
    kind: TransportKind,
) -> None:
    plan = plan_for(truth_url, "plain", model="itl=0.5")
    call = new_call(f"aborted{kind}-0")
    async with aclosing(transport_for(plan)) as transport:
        await transport.open()
        sending = transport.prepare(call).begin()
        await until(lambda: bool(call.reply.stamps_ns))

        sending.cancel()
        await asyncio.wait([sending])

        await until(lambda: truth_log(f"aborted{kind}")[f"aborted{kind}-0"].cut_off)
    assert call.record().failure == Failure.ABORTED


SOON_NS = 100_000_000
"""Far less than what is left of the answer."""


async def test_who_hangs_up_closes_the_connection_at_once(
    truth_url: str,
    truth_log: Callable[[str], Any],
    until: Until,
    plan_for: PlanFor,
    kind: TransportKind,
) -> None:
    plan = plan_for(truth_url, "plain", model="ttft=0.02,itl=0.05")
    call = new_call(f"hangsup{kind}-0")
    call.prompt = call.prompt._replace(max_tokens=100, hang_up_after=3)
    async with aclosing(transport_for(plan)) as transport:
        await transport.open()
        await transport.prepare(call).begin()

        await until(lambda: truth_log(f"hangsup{kind}")[f"hangsup{kind}-0"].cut_off)
    truth = truth_log(f"hangsup{kind}")[f"hangsup{kind}-0"]

    record = call.record()
    assert record.failure == Failure.HUNG_UP
    assert record.detail == "after 3 chunks"
    assert len(stamps(call)) == 3
    assert len(truth.sent_ns) == 3
    assert record.end_ns is not None
    assert 0 <= truth.cut_off_ns - record.end_ns < SOON_NS


async def test_who_would_hang_up_after_the_end_is_answered(
    truth_url: str, plan_for: PlanFor
) -> None:
    call = new_call()
    call.prompt = call.prompt._replace(hang_up_after=TOKENS + 1)

    record = (await ask(plan_for(truth_url, "plain"), call)).record()

    assert (record.failure, record.output_tokens) == (None, TOKENS)


async def test_who_is_refused_cannot_hang_up(truth_url: str, plan_for: PlanFor) -> None:
    call = new_call()
    call.prompt = call.prompt._replace(hang_up_after=1)

    record = (await ask(plan_for(truth_url, "http_500"), call)).record()

    assert record.failure == Failure.HTTP_5XX
