"""Memory traffic and FLOP of an engine step, and the least time they take.

The roofline model (Williams, Waterman and Patterson, *Roofline*, CACM 52/4, 2009) on
the arithmetic of a decoder (Pope et al., arXiv 2211.05102; Kaplan et al., arXiv
2001.08361, section 2.1: two FLOP per parameter and token).

vLLM has an estimate of its own (``--enable-mfu-metrics``, ``v1/metrics/perf.py``). It
describes a step while ours is a lower bound, hence the deliberate differences:

- vLLM counts activations passed between layers as memory traffic; kernels may keep them
  on the chip, so a floor leaves them out. `StepCosts.activation_bytes` has them: with
  it both agree on dense models; without it a decode step of an 8B model in 16 bits
  differs by 0.05 % per request.
- vLLM counts attention of prompt tokens as a full square, tokens × context; causal
  kernels skip the masked half, and so do we. Decode is the same.
- vLLM assumes three matrices in every FFN, no memory for quantisation scales, and MXFP4
  in attention where only experts have it; it leaves out norms, biases and router.
- vLLM reads `tokens × top-k` experts up to their number; tokens that are routed
  independently share experts, so we expect fewer.
- Both leave out all-reduce and other communication.

Real steps can beat this floor, so a violation is not always a mistake: requests may
share a prefix whose KV is read once (cascade attention), tokens may prefer the same few
experts, and weights may stay in a large on-chip cache.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from inferwatch.limits.cache import kv_bytes_per_layer, kv_shards
from inferwatch.limits.parameters import (
    Parameters,
    attention_bits,
    attention_share,
    expert_bits,
    parameters,
    table_bits,
)
from inferwatch.limits.shape import ModelShape


class StepSums(NamedTuple):
    """Sums over the batch of a step: all that its cost depends on.

    Fractions occur in a mean step.
    """

    tokens: float
    """Scheduled tokens of all requests."""
    sequences: float
    """Requests that need logits: nearly always all of the step."""
    context_tokens: float
    """Tokens computed earlier, whose KV is read from the cache."""
    attention_pairs: float
    """Pairs of a query and a key at or before it."""
    window_context_tokens: float = 0
    """context_tokens for layers with a sliding window."""
    window_pairs: float = 0

    @classmethod
    def of_requests(
        cls,
        requests: Iterable[tuple[int, int]],
        window: int | None = None,
        *,
        chunked: bool = False,
    ) -> "StepSums":
        """Sums over requests, given as tokens scheduled and tokens computed before."""
        tokens = sequences = context = pairs = window_context = window_pairs = 0
        for scheduled, before in requests:
            tokens += scheduled
            sequences += 1
            context += before
            pairs += causal_pairs(scheduled, before)
            if window is not None:
                window_context += before % window if chunked else min(before, window)
                pairs_of = chunk_pairs if chunked else causal_pairs
                window_pairs += pairs_of(scheduled, before, window)
        return cls(tokens, sequences, context, pairs, window_context, window_pairs)

    @classmethod
    def decoding(
        cls,
        requests: int,
        context: int,
        window: int | None = None,
        *,
        chunked: bool = False,
    ) -> "StepSums":
        """Sums over requests that decode one token each after the same context."""
        one = cls.of_requests([(1, context)], window, chunked=chunked)
        return cls(*(requests * each for each in one))

    @classmethod
    def answering(
        cls,
        requests: float,
        lengths: tuple[int, int],
        window: int | None = None,
        *,
        chunked: bool = False,
    ) -> "StepSums":
        """Sums of the mean decode step; ``lengths`` are tokens of prompt and output.

        First tokens are left out. A floor is a maximum of two sums that both grow with
        these: that of the mean step is at most the mean of all steps' floors, hence a
        lower bound of TPOT.
        """
        prompt, output = lengths
        steps = max(1, output - 1)
        # a token sees those before it, which the previous one saw, and itself
        context, pairs = (causal_pairs(steps, n) for n in (prompt - 1, prompt))
        sums = [steps, steps, context, pairs]
        if window is not None and chunked:
            seen = chunk_pairs(steps, prompt, window)
            sums += [seen - steps, seen]
        elif window is not None:
            sums += [causal_pairs(steps, n, window) for n in (prompt - 1, prompt)]
        return cls(*(requests * each / steps for each in sums))

    def verifying(self, drafts: int) -> "StepSums":
        """The same decode step with so many drafted tokens of each request verified.

        All its tokens need logits, and the cache is read once for them.
        """
        rows = drafts + 1
        return StepSums(
            tokens=rows * self.tokens,
            sequences=rows * self.sequences,
            context_tokens=self.context_tokens,
            attention_pairs=rows * (self.attention_pairs + self.tokens * drafts / 2),
            window_context_tokens=self.window_context_tokens,
            window_pairs=rows * self.window_pairs,
        )

    @classmethod
    def prefilling(
        cls,
        tokens: int,
        before: int = 0,
        window: int | None = None,
        *,
        chunked: bool = False,
    ) -> "StepSums":
        """Sums of a prompt, or of its chunk after ``before`` computed tokens."""
        return cls.of_requests([(tokens, before)], window, chunked=chunked)


def causal_pairs(tokens: int, before: int, window: int | None = None) -> int:
    """Query-key pairs of a chunk: each token attends to all before it and to itself.

    With a window, each sees the last ``window`` tokens, itself included.
    """
    last = before + tokens
    if window is None or last <= window:
        return tokens * before + tokens * (tokens + 1) // 2
    if before >= window:
        return tokens * window
    return causal_pairs(window - before, before) + (last - window) * window


def chunk_pairs(tokens: int, before: int, chunk: int) -> int:
    """Query-key pairs where each query sees only its attention chunk, up to itself."""

    def up_to(last: int) -> int:
        whole, rest = divmod(last, chunk)
        return whole * causal_pairs(chunk, 0) + causal_pairs(rest, 0)

    return up_to(before + tokens) - up_to(before)


class StepWork(NamedTuple):
    """The minimal work of a step."""

    bytes_read: float
    """Memory traffic: weights and KV read, and new KV written."""
    flops: float

    @property
    def intensity(self) -> float | None:
        """FLOP per byte of memory traffic (Williams et al. 2009)."""
        return self.flops / self.bytes_read if self.bytes_read else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """A model's cost coefficients, computed once and used for every step."""

    weight_bytes: float
    """Read in every step: all layers, without routed experts."""
    head_bytes: float
    """Read if a sequence needs logits; a tied table is counted here, as the head."""
    row_bytes: float
    """Read from token and position embeddings per token."""
    expert_bytes: float
    """All routed experts."""
    untouched: float
    """Probability that a token does not use a given expert, nor its fellows of other
    data-parallel ranks: 1 − top-k / experts of each."""
    kv_full_bytes: float
    """KV of a token in layers with full attention."""
    kv_window_bytes: float
    """KV of a token in layers with a sliding window."""
    token_flops: float
    sequence_flops: float
    pair_flops: float
    """FLOP of a query and key pair, over all layers with full attention."""
    window_pair_flops: float
    activation_token_bytes: float
    activation_sequence_bytes: float

    @classmethod
    def of(
        cls, shape: ModelShape, tensor_parallel: int = 1, data_parallel: int = 1
    ) -> "StepCosts":
        """Coefficients of a whole model, or of one of its tensor-parallel GPUs.

        A GPU's share is a plain division (Shoeybi et al., *Megatron-LM*, arXiv
        1909.08053), without the all-reduce; KV heads that cannot be divided further are
        replicated. Pipeline stages add up for one token, so they shorten no step.
        Data-parallel ranks share the routed experts, each with as many tokens (vLLM's
        data-parallel attention); the rest they have whole.
        """
        counted = parameters(shape)
        kv_layer = kv_bytes_per_layer(shape) / kv_shards(shape, tensor_parallel)
        pair = _pair_flops(shape) / tensor_parallel
        full_layers = shape.layers - shape.window_layers
        head = shape.vocab * shape.hidden
        experts = shape.experts
        positions = shape.other_bits if shape.learned_positions else 0
        row = shape.hidden * (table_bits(shape) + positions) / 8
        return cls(
            weight_bytes=_layer_bytes(shape, counted, tensor_parallel),
            head_bytes=head * table_bits(shape) / 8 / tensor_parallel,
            row_bytes=row / tensor_parallel,
            expert_bytes=counted.experts
            * expert_bits(shape)
            / 8
            / (tensor_parallel * data_parallel),
            untouched=(1 - experts.per_token / experts.count) ** data_parallel
            if experts
            else 1.0,
            kv_full_bytes=full_layers * kv_layer,
            kv_window_bytes=shape.window_layers * kv_layer,
            token_flops=2 * counted.linear_active / tensor_parallel,
            sequence_flops=2 * head / tensor_parallel,
            pair_flops=full_layers * pair,
            window_pair_flops=shape.window_layers * pair,
            activation_token_bytes=_activations(shape, tensor_parallel),
            activation_sequence_bytes=(shape.hidden + shape.vocab / tensor_parallel)
            * shape.other_bits
            / 8,
        )

    def work(self, sums: StepSums) -> StepWork:
        """Memory traffic and FLOP of a step.

        Weights once (except an untied input embedding, of which a token needs one row),
        routed experts by the expected share in use, the KV of the context, and new KV
        written. FLOP: two per parameter and token, two per parameter of the head and
        sequence, four per pair, head and its dimension (arXiv 2211.05102).
        """
        read = self.weight_bytes + sums.tokens * self.row_bytes
        if sums.sequences:
            read += self.head_bytes
        if self.expert_bytes:
            read += self.expert_bytes * self.touched(sums.tokens)
        flops = (
            self.token_flops * sums.tokens
            + self.sequence_flops * sums.sequences
            + self.pair_flops * sums.attention_pairs
            + self.window_pair_flops * sums.window_pairs
        )
        return StepWork(read + self.kv_traffic(sums), flops)

    def kv_traffic(self, sums: StepSums) -> float:
        """Bytes of KV cache that a step reads and writes."""
        full = self.kv_full_bytes * (sums.context_tokens + sums.tokens)
        windowed = self.kv_window_bytes * (sums.window_context_tokens + sums.tokens)
        return full + windowed

    def touched(self, tokens: float) -> float:
        """Expected share of experts that ``tokens`` tokens use: 1 − (1 − k/E)^T.

        Assumes even and independent routing; real tokens prefer some experts and use
        fewer.
        """
        return 1 - float(self.untouched**tokens)

    def activation_bytes(self, sums: StepSums) -> float:
        """Bytes of activations between layers, if all of them went through memory.

        As in vLLM's estimate, for attention, FFN and head. Not part of a floor.
        """
        return (
            self.activation_token_bytes * sums.tokens
            + self.activation_sequence_bytes * sums.sequences
        )


def floor_s(
    work: StepWork, bytes_per_s: float | None, flops: float | None
) -> float | None:
    """Lower bound of a step's time: max(bytes / bandwidth, FLOP / peak).

    Roofline (Williams et al. 2009): both may overlap entirely. If one peak is unknown,
    the other still bounds it.
    """
    least = [
        amount / peak
        for amount, peak in ((work.bytes_read, bytes_per_s), (work.flops, flops))
        if peak
    ]
    return max(least, default=None)


def binding(
    work: StepWork, bytes_per_s: float | None, flops: float | None
) -> Literal["memory", "compute"] | None:
    """Whether memory or compute sets the floor; None unless both peaks are known."""
    if not bytes_per_s or not flops:
        return None
    memory_s, compute_s = work.bytes_read / bytes_per_s, work.flops / flops
    return "memory" if memory_s >= compute_s else "compute"


def _layer_bytes(shape: ModelShape, counted: Parameters, tensor_parallel: int) -> float:
    """Bytes of a GPU's share of all weights in layers except routed experts."""
    attention = counted.attention * attention_bits(shape)
    bits = (
        attention * attention_share(shape, tensor_parallel)
        + (
            counted.ffn * shape.weight_bits
            + (counted.router + counted.norms) * shape.other_bits
        )
        / tensor_parallel
    )
    return bits / 8


def _pair_flops(shape: ModelShape) -> float:
    """FLOP of a query and key pair in one layer: scores and weighted values, all heads.

    For MLA with expanded keys and values, which is the cheapest of its forms.
    """
    mla = shape.mla
    if mla is not None:
        return 2 * shape.heads * (mla.nope_dim + mla.rope_dim + mla.value_dim)
    return 4 * shape.heads * shape.head_dim


def _activations(shape: ModelShape, tensor_parallel: int) -> float:
    """Bytes of activations that a token reads and writes over all layers.

    The sums of vLLM's ``v1/metrics/perf.py``: inputs and outputs of each product, and
    of the FFN's activation function.
    """
    heads = shape.heads * shape.head_dim / tensor_parallel
    kv = shape.kv_heads * shape.head_dim / tensor_parallel
    attention = shape.layers * (2 * shape.hidden + 3 * heads + 2 * kv)
    dense_layers = shape.layers - (shape.experts.layers if shape.experts else 0)
    ffn = dense_layers * (2 * shape.hidden + 6 * shape.ffn / tensor_parallel)
    experts = shape.experts
    if experts is not None:
        routed = 2 * shape.hidden + 6 * experts.ffn / tensor_parallel
        shared = 2 * shape.hidden + 6 * experts.shared_ffn / tensor_parallel
        ffn += experts.layers * experts.per_token * routed
        ffn += experts.layers * shared if experts.shared_ffn else 0
    return (attention + ffn) * shape.other_bits / 8


# Lower bounds of user-visible latencies: sums of the floors of their steps.
#
# Communication between GPUs, host overhead and queueing come on top.


def ttft_floor_s(
    costs: StepCosts,
    steps: Iterable[StepSums],
    bytes_per_s: float | None,
    flops: float | None,
) -> float | None:
    """Lower bound of the time to first token of a prompt that does not queue.

    In one step, or in chunks, each of which reads the weights again (Agrawal et al.,
    *Sarathi-Serve*, arXiv 2403.02310, section 3).
    """
    least = 0.0
    for each in steps:
        step_s = floor_s(costs.work(each), bytes_per_s, flops)
        if step_s is None:
            return None
        least += step_s
    return least


def e2el_s(ttft_s: float, tpot_s: float, output_tokens: int) -> float:
    """End-to-end latency: TTFT + (N − 1) · TPOT, as the first token is in TTFT.

    As MLPerf Inference and vLLM's benchmarks define TPOT.
    """
    return ttft_s + max(0, output_tokens - 1) * tpot_s


def load_floor_s(
    weight_bytes: float,
    storage_bytes_per_s: float | None,
    pcie_bytes_per_s: float | None,
) -> float | None:
    """Lower bound of the time to load weights from storage to a GPU: the slower link.

    Both transfers can overlap entirely (Fu et al., *ServerlessLLM*, arXiv 2401.14351,
    section 4).
    """
    known = [each for each in (storage_bytes_per_s, pcie_bytes_per_s) if each]
    return weight_bytes / min(known) if known else None
