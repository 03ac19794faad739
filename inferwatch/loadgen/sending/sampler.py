"""Accuracy of the generator: how late it sends and reads, and its CPU time."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from collectors.contract.clock import monotonic_ns
from collectors.contract.readings import ClientSample, Phase
from inferwatch.loadgen.exchange.call import Call
from inferwatch.loadgen.exchange.receive_stamps import ReceiveStamps
from inferwatch.loadgen.sending.pipes import Outbox

EVERY_S = 1.0
MOST_LAGS = 1 << 18
"""Lags kept of a whole run; beyond, every second one is dropped, repeatedly."""


class LagSample:
    """Lags: an even sample if there are very many, and the true maximum."""

    def __init__(self) -> None:
        self._kept: list[int] = []
        self._stride = 1
        self._worst_ns: int | None = None

    def add(self, lags_ns: list[int]) -> None:
        if not lags_ns:
            return
        worst_ns = max(lags_ns)
        self._worst_ns = max(worst_ns, self._worst_ns or 0)
        self._kept += lags_ns[:: self._stride]
        if len(self._kept) > MOST_LAGS:
            self._kept = self._kept[::2]
            self._stride *= 2

    def told(self, name: str) -> dict[str, Any]:
        """The sample's lags as fields of a ClientSample."""
        p50_ns = p99_ns = None
        if self._kept:
            p50_ns, p99_ns = (int(each) for each in np.percentile(self._kept, (50, 99)))
        return {
            f"{name}_lag_p50_ns": p50_ns,
            f"{name}_lag_p99_ns": p99_ns,
            f"{name}_lag_max_ns": self._worst_ns,
        }


@dataclass(slots=True)
class SampleWindow:
    """The client's activity since a time: sends, tokens, reads, and lags."""

    since_ns: int = field(default_factory=monotonic_ns)
    cpu_began_s: float = field(default_factory=time.process_time)
    sends: int = 0
    late_sends: int = 0
    tokens: int = 0
    kernel_stamps: int = 0
    reads: int = 0
    merged_reads: int = 0
    held_back: int = 0
    send_lags: LagSample = field(default_factory=LagSample)
    recv_lags: LagSample = field(default_factory=LagSample)

    def count(self, call: Call) -> None:
        tokens = len(call.reply.stamps_ns)
        self.tokens += tokens
        self.kernel_stamps += tokens * call.reply.by_kernel
        self.merged_reads += call.reply.merged_reads
        if call.sent_ns is not None:
            self.late_sends += call.late
            self.send_lags.add([call.lag_ns])

    def sample(self, transport: str, in_flight: int, *, final: bool) -> ClientSample:
        """The window as a ClientSample, as of now."""
        now_ns = monotonic_ns()
        return ClientSample(
            t_ns=now_ns,
            span_ns=now_ns - self.since_ns,
            final=final,
            transport=transport,
            sends=self.sends,
            late_sends=self.late_sends,
            tokens=self.tokens,
            kernel_stamps=self.kernel_stamps,
            reads=self.reads,
            merged_reads=self.merged_reads,
            cpu_s=time.process_time() - self.cpu_began_s,
            in_flight=in_flight,
            held_back=self.held_back,
            **self.send_lags.told("send"),
            **self.recv_lags.told("recv"),
        )


class Sampler:
    """Reports a client sample each second, and one of the whole run at its end."""

    def __init__(
        self, transport: str, receive_stamps: ReceiveStamps, outbox: Outbox
    ) -> None:
        self._transport = transport
        self._receive_stamps = receive_stamps
        self._outbox = outbox
        self._reads_before = 0
        self._whole = SampleWindow()
        self._second = SampleWindow()
        self.in_flight = 0

    def begin(self) -> None:
        """Start counting: the run starts, or its warm-up has ended."""
        self._take_lags()
        # not of the warm-up, but each of these needs an outcome
        begun = self._whole.sends
        self._whole, self._second = SampleWindow(sends=begun), SampleWindow()

    def begun(self, call: Call) -> None:
        """Count a call when it is sent; one of the warm-up only for this second."""
        self._second.sends += 1
        if call.phase is not Phase.WARMUP:
            self._whole.sends += 1

    def held_back(self, call: Call) -> None:
        """Count a request that is late because too many were in flight."""
        self._second.held_back += 1
        if call.phase is not Phase.WARMUP:
            self._whole.held_back += 1

    def count(self, call: Call) -> None:
        """Count a call when it ended; one of the warm-up only for this second."""
        self._second.count(call)
        if call.phase is not Phase.WARMUP:
            self._whole.count(call)

    async def run(self) -> None:
        """Report a sample each second until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            self._report(final=False)

    def end(self) -> None:
        self._report(final=True)

    def _report(self, *, final: bool) -> None:
        self._take_lags()
        window = self._whole if final else self._second
        self._second = SampleWindow()
        self._outbox.put(window.sample(self._transport, self.in_flight, final=final))

    def _take_lags(self) -> None:
        lags_ns = self._receive_stamps.take_lags()
        reads = self._receive_stamps.reads - self._reads_before
        self._reads_before = self._receive_stamps.reads
        for window in (self._whole, self._second):
            window.recv_lags.add(lags_ns)
            window.reads += reads
