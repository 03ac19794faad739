"""Measures a server's capacity by a closed loop whose requests are left out."""

import asyncio
from collections.abc import Sequence

from collectors.contract.clock import NS_PER_S, monotonic_ns
from collectors.contract.readings import Phase
from inferwatch.loadgen.exchange.call import Call
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.loadgen.prompts.prompts import Prompts
from inferwatch.loadgen.sending.closed_loop import ClosedLoop
from inferwatch.loadgen.sending.in_flight import InFlight

POLL_S = 0.02


class NoOutputError(Exception):
    """The warm-up yielded no token; the message says why."""


class CapacityMeasurement:
    """Measures output tokens/s by a closed loop, for ``warmup_s`` from the first token.

    Its last requests overlap with the open loop: draining them first would start the
    open loop on an idle engine.
    """

    def __init__(self, plan: LoadPlan, in_flight: InFlight, prompts: Prompts) -> None:
        self._plan = plan
        self._in_flight = in_flight
        self._loop = ClosedLoop(in_flight, {Phase.WARMUP: prompts.all(Phase.WARMUP)})
        self._loop.keep = True

    async def measure(self) -> float:
        """Output tokens per second the server produced.

        Raises:
            NoOutputError: it produced none.
        """
        streams = self._plan.warmup_streams
        self._in_flight.spawn(self._loop.run(streams, lambda: Phase.WARMUP))
        try:
            await self._first_token()
            await asyncio.sleep(self._plan.warmup_s)
        finally:
            self._loop.stop()
        rate = output_rate(self._loop.calls, monotonic_ns())
        if rate is None:
            raise NoOutputError(self._in_flight.counts.last_failure or "no token came")
        return rate

    async def _first_token(self) -> None:
        """Wait for the first token, less long if requests fail."""
        started_ns = monotonic_ns()
        while not any(call.reply.stamps_ns for call in self._loop.calls):
            waited_s = (monotonic_ns() - started_ns) / NS_PER_S
            failing = bool(self._in_flight.counts.failures)
            if waited_s > (self._plan.warmup_s if failing else self._longest_s):
                return
            await asyncio.sleep(POLL_S)

    @property
    def _longest_s(self) -> float:
        return self._plan.request_timeout_s


def output_rate(calls: Sequence[Call], end_ns: int) -> float | None:
    """Output tokens per second from the first token of all to ``end_ns``.

    Timestamps are of chunks. Running requests have no token count yet, so finished ones
    determine the number of tokens per chunk.
    """
    stamps = [at for call in calls for at in call.reply.stamps_ns]
    if not stamps or min(stamps) >= end_ns:
        return None
    chunks_per_s = len(stamps) / (end_ns - min(stamps)) * NS_PER_S
    return chunks_per_s * _tokens_per_chunk(calls)


def _tokens_per_chunk(calls: Sequence[Call]) -> float:
    counted = [call.reply for call in calls if call.reply.output_tokens is not None]
    chunks = sum(len(reply.stamps_ns) for reply in counted)
    tokens = sum(reply.output_tokens or 0 for reply in counted)
    return tokens / chunks if chunks else 1.0
