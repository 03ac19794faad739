"""Conversations: each turn repeats everything before it, with the real responses.

A turn is due some time after the response, so only first turns are scheduled. The
response is repeated exactly, so that the server's prefix cache can match it: as token
ids if the server returns them (``return_token_ids``, vLLM), else as text. A server that
takes ids but returns none gets other ids in place of the response.
"""

import asyncio
from itertools import cycle, islice

from collectors.contract.clock import NS_PER_S, monotonic_ns
from collectors.contract.readings import Phase
from inferwatch.loadgen.exchange.call import Call
from inferwatch.loadgen.exchange.reply import Reply
from inferwatch.loadgen.exchange.transport import Exchange
from inferwatch.loadgen.plan.plan import Api, LoadPlan
from inferwatch.loadgen.prompts.prompts import Prompt
from inferwatch.loadgen.sending.in_flight import InFlight


class Conversations:
    """Builds the next turn of a conversation from the previous prompt and response."""

    def __init__(self, plan: LoadPlan, in_flight: InFlight) -> None:
        self._chats = plan.endpoint is Api.CHAT
        self._in_flight = in_flight

    def next_turn(self, call: Call) -> Exchange | None:
        """The next turn, to be sent later; None if there is none or the call failed."""
        if not call.prompt.later:
            return None
        call.judge()
        if call.failure is not None:
            return None
        prompt = continued(call.prompt, call.reply, chats=self._chats)
        return self._in_flight.make(call.phase, prompt, 0)


class OpenConversations:
    """Later turns of the conversations started by a schedule."""

    def __init__(
        self, plan: LoadPlan, in_flight: InFlight, slots: asyncio.Semaphore
    ) -> None:
        self._conversations = Conversations(plan, in_flight)
        self._in_flight = in_flight
        self._slots = slots
        self._plan = plan
        self._steady_ns = 0
        self._end_ns: float = float("inf")
        self._going_on: set[asyncio.Task[None]] = set()

    def begin(self, start_ns: int, warmup_ns: int) -> None:
        """Set the start of the schedule."""
        self._steady_ns = start_ns + warmup_ns
        if self._plan.duration_s is not None:
            self._end_ns = self._steady_ns + self._plan.duration_s * NS_PER_S

    def begun(self, call: Call, ended: asyncio.Future[None]) -> None:
        """Continue a conversation whose first turn is in flight."""
        if call.prompt.later:
            task = self._in_flight.spawn(self._go_on(call, ended))
            self._going_on.add(task)
            task.add_done_callback(self._going_on.discard)

    async def end(self) -> None:
        """Wait until all conversations ended or time is up; calls in flight go on."""
        while self._going_on and (left_ns := self._end_ns - monotonic_ns()) > 0:
            timeout = None if left_ns == float("inf") else left_ns / NS_PER_S
            await asyncio.wait(self._going_on, timeout=timeout)
        self._end_ns = 0

    async def _go_on(self, call: Call, ended: asyncio.Future[None]) -> None:
        while True:
            await asyncio.wait([ended])
            exchange = self._conversations.next_turn(call)
            due_ns = (call.end_ns or monotonic_ns()) + int(
                self._plan.think_s * NS_PER_S
            )
            if exchange is None or due_ns >= self._end_ns:
                return
            await asyncio.sleep(max(due_ns - monotonic_ns(), 0) / NS_PER_S)
            is_full = self._slots.locked()
            await self._slots.acquire()
            if due_ns >= self._end_ns:
                self._slots.release()
                return
            call = exchange.call
            call.intended_ns = due_ns
            call.phase = Phase.WARMUP if due_ns < self._steady_ns else Phase.STEADY
            if is_full:
                self._in_flight.held_back(exchange)
            ended = self._in_flight.send(exchange)
            ended.add_done_callback(lambda _: self._slots.release())


def continued(prompt: Prompt, reply: Reply, *, chats: bool) -> Prompt:
    """The prompt of the next turn, which contains the last one and its response."""
    turn, *later = prompt.later
    answer = "".join(reply.words or ())
    text, messages = turn.text, prompt.said
    if chats:
        messages = (*prompt.messages, {"role": "assistant", "content": answer})
    elif prompt.text is not None:
        text = f"{prompt.text}{answer} {turn.text}"
    return prompt._replace(
        token_ids=[*prompt.token_ids, *_ids(prompt, reply), *turn.token_ids],
        max_tokens=turn.max_tokens,
        kv_tokens=len(turn.token_ids) + turn.max_tokens,
        text=text,
        said=messages,
        estimated=prompt.text is not None,
        counted=None,
        turn=(prompt.turn or 1) + 1,
        later=tuple(later),
    )


def _ids(prompt: Prompt, reply: Reply) -> list[int]:
    """The token ids of the response; if unknown, as many of the prompt's."""
    if reply.ids or not prompt.token_ids:
        return reply.ids or []
    tokens = reply.output_tokens or len(reply.stamps_ns)
    return list(islice(cycle(prompt.token_ids), tokens))
