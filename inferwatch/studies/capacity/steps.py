"""How long the steps of a planned server take: at best, estimated or calibrated.

At best they take their floors. An estimate divides those by a share of the peaks and
adds communication; with a recording, what its steps took beyond their floors is added.
Times are of one queue: of the requests that a pipeline stage of a data-parallel rank
has for itself, which pass all stages in turn.
"""

from dataclasses import astuple, dataclass
from enum import StrEnum
from math import ceil
from typing import Protocol

from collectors.contract.clock import NS_PER_S
from inferwatch.limits.communication import communication
from inferwatch.limits.plan import GpuSetup, Workload
from inferwatch.limits.shape import ModelShape
from inferwatch.limits.step import StepCosts, StepSums, StepWork, floor_s
from inferwatch.studies.what_if.scheduler import StepLoad


class Claim(StrEnum):
    """What times rest on."""

    FLOOR = "floor"
    """No server is faster."""
    ESTIMATE = "estimate"
    CALIBRATED = "calibrated"


class Overhead(Protocol):
    """What steps take beyond their floors."""

    def overhead_s(self, load: StepLoad) -> float:
        """Seconds beyond the floor of a step with this load, gap included."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPace:
    """How much slower than their floors steps are; by default not at all."""

    efficiency: float | None = None
    """Share of the peaks that is reached; with it, communication counts as well."""
    overhead: Overhead | None = None

    @property
    def claim(self) -> Claim:
        """The least sure of what times rest on."""
        if self.overhead is not None:
            return Claim.CALIBRATED
        return Claim.FLOOR if self.efficiency is None else Claim.ESTIMATE


AT_BEST = StepPace()


class StepTimes:
    """Durations of the steps of one queue; a `StepDurations` of the scheduler."""

    def __init__(
        self,
        shape: ModelShape,
        machine: GpuSetup,
        workload: Workload,
        pace: StepPace = AT_BEST,
    ) -> None:
        self.workload, self.pace = workload, pace
        self.costs = StepCosts.of(shape, machine.tensor_parallel, machine.data_parallel)
        self._bandwidth = machine.device.bytes_per_s
        self.flops = machine.device.flops_at(shape.compute_dtype)
        lengths = workload.prompt, workload.output
        window, chunked = shape.window, shape.chunked
        self._token = StepSums.answering(1, lengths, window, chunked=chunked)
        self.prompt = StepSums.prefilling(workload.prompt, 0, window, chunked=chunked)
        self._prompt_flops = self.costs.work(self.prompt).flops
        token, prompt = self._token, self.prompt
        self._windowed = (
            _part(token.window_context_tokens, token.context_tokens),
            _part(token.window_pairs, token.attention_pairs),
            _part(prompt.window_pairs, prompt.attention_pairs),
        )
        """Shares that count in layers with a window: of context and pairs of answers,
        of pairs of prompts."""
        link = machine.link
        self._send_s = [0.0, 0.0]
        """Communication of a step, and of each of its tokens."""
        if pace.efficiency is not None and link is not None:
            calls, one = (communication(shape, machine.ways, n) for n in (0, 1))
            self._send_s = [calls.time_s(link), one.time_s(link) - calls.time_s(link)]
        self.answer_steps = max(1, workload.output - 1)
        """Steps after the one that gives the first token."""

    @property
    def compute_is_known(self) -> bool:
        return self.flops is not None

    def is_as_fast_as(self, other: "StepTimes") -> bool:
        """Whether no step on the same GPUs takes longer than the other's."""
        costs = zip(astuple(self.costs), astuple(other.costs), strict=True)
        return (self.flops or 0.0) >= (other.flops or 0.0) and all(
            mine <= others for mine, others in costs
        )

    def step_s(self, load: StepLoad) -> float:
        """The duration of a step.

        What a prompt's earlier chunks left in the cache is not counted as read: it is
        little beside the weights. In layers with a window, contexts and pairs count in
        the proportion they have over a whole request.
        """
        pairs = load.pairs + load.prefill_tokens / 2
        seen = load.context_tokens + load.decoding
        context, answers, prompts = self._windowed
        sums = StepSums(
            load.decoding + load.prefill_tokens,
            load.decoding + load.prefilling,
            load.context_tokens,
            seen + pairs,
            load.context_tokens * context,
            seen * answers + pairs * prompts,
        )
        return self._taking(self.costs.work(sums), sums.tokens, load)

    def step_ns(self, load: StepLoad, now_ns: int) -> tuple[int, int]:
        """The duration of a step for the scheduler, and no gap after it."""
        del now_ns
        return max(round(self.step_s(load) * NS_PER_S), 1), 0

    def load_of(self, decoding: float, prompt_tokens: int = 0) -> StepLoad:
        """A step in the middle of answers, and with tokens of prompts."""
        return StepLoad(
            decoding=round(decoding),
            prefilling=int(prompt_tokens > 0),
            prefill_tokens=prompt_tokens,
            context_tokens=round(decoding * self._token.context_tokens),
            pairs=prompt_tokens * self.workload.prompt / 2,
        )

    def mean_s(self, batch: float) -> float:
        """The mean step while ``batch`` requests decode and as many come as leave.

        Each step has their tokens and 1 / (output − 1) of their prompts, computed while
        memory is read for decode (chunked prefill: Agrawal et al., *Sarathi-Serve*,
        arXiv 2403.02310). max(bytes of decode / bandwidth, FLOP of both / peak): no
        schedule is faster. Without answers longer than a token, a step is ``batch``
        prompts.
        """
        if self.workload.output == 1:
            sums = StepSums(*(batch * each for each in self.prompt))
            return self._taking(
                self.costs.work(sums), sums.tokens, self.load_of(0, round(sums.tokens))
            )
        share = batch / self.answer_steps
        decode = self._decode(batch)
        work = StepWork(decode.bytes_read, decode.flops + share * self._prompt_flops)
        tokens = batch + share * self.workload.prompt
        load = self.load_of(batch, round(share * self.workload.prompt))
        return self._taking(work, tokens, load)

    def most_per_s(self, batch: float) -> float:
        """Requests per second that ``batch`` of them at a time make, without a queue.

        By Little's law (Operations Research 9/3, 1961): batch / time of an answer.
        """
        return batch / (self.mean_s(batch) * self.answer_steps)

    def ttft_s(self, batch: int, stages: int) -> float:
        """TTFT of a request that takes a place of a batch as soon as it is free.

        Alone, its chunks are spread over all stages. Else it is in a step in which the
        others decode, which has their prompts as well.
        """
        alone_s = self.alone_s() / stages
        if batch == 1:
            return alone_s
        if self.workload.output == 1:
            return max(alone_s, self.mean_s(batch))
        beside = self.load_of(batch - 1, ceil(self.workload.prompt / stages))
        return max(alone_s, self.step_s(beside), self.mean_s(batch))

    def alone_s(self) -> float:
        """TTFT of a prompt that is alone, in one step."""
        work = self.costs.work(self.prompt)
        load = self.load_of(0, self.workload.prompt)
        return self._taking(work, self.prompt.tokens, load)

    def is_computing(self, batch: float) -> bool:
        """Whether compute takes up the mean step; not said of recorded overhead."""
        if self.pace.overhead is not None:
            return False
        if self.workload.output == 1:
            return self.flops is not None
        decode, prompts = self._decode(batch), self._prompts(batch)
        return (
            self.flops is not None
            and self._bandwidth is not None
            and (decode.flops + prompts) / self.flops
            > decode.bytes_read / self._bandwidth
        )

    def is_prefilling(self, batch: float) -> bool:
        """Whether most of the FLOP are of prompts."""
        return self._prompts(batch) > self._decode(batch).flops

    def _decode(self, batch: float) -> StepWork:
        return self.costs.work(StepSums(*(batch * each for each in self._token)))

    def _prompts(self, batch: float) -> float:
        return batch / self.answer_steps * self._prompt_flops

    def _taking(self, work: StepWork, tokens: float, load: StepLoad) -> float:
        least = floor_s(work, self._bandwidth, self.flops) or 0.0
        took = least / (self.pace.efficiency or 1.0)
        took += self._send_s[0] + self._send_s[1] * tokens
        overhead = self.pace.overhead
        return took if overhead is None else took + overhead.overhead_s(load)


def _part(windowed: float, full: float) -> float:
    return windowed / full if full else 0.0
