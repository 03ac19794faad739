"""Number of parameters of a shape, and their size in memory.

Counts follow from the matrix shapes in published implementations (``transformers``,
``modeling_llama.py`` and its relatives; MLA: section 2.1.1 of the DeepSeek-V2 report,
arXiv 2405.04434; experts: Mixtral, arXiv 2401.04088).
"""

from dataclasses import dataclass

from inferwatch.limits.cache import kv_shards
from inferwatch.limits.shape import Experts, Mla, ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """A model's parameters by purpose."""

    embedding: int
    """The input embedding; if tied, it is also the head and is counted here."""
    positions: int
    head: int
    """The output matrix; 0 if tied."""
    attention: int
    """Attention matrices of all layers."""
    ffn: int
    """Matrices used by every token: dense FFNs and shared experts."""
    experts: int
    """Matrices of all routed experts."""
    active_experts: int
    """Matrices of the routed experts one token uses."""
    router: int
    norms: int
    """Norms and biases, of all layers and the last norm."""
    expert_biases: int

    @property
    def total(self) -> int:
        """Parameters in a checkpoint, without layers for speculation."""
        tables = self.embedding + self.positions + self.head
        layers = self.attention + self.ffn + self.experts + self.router
        return tables + layers + self.norms + self.expert_biases

    @property
    def active(self) -> int:
        """All parameters except experts that a token does not use.

        As Qwen and DeepSeek count; OpenAI leaves out the input embedding as well.
        """
        return self.total - self.experts + self.active_experts

    @property
    def linear_active(self) -> int:
        """Parameters that each token of a step is multiplied with: not the head."""
        return self.attention + self.ffn + self.active_experts + self.router


def parameters(shape: ModelShape) -> Parameters:
    experts = shape.experts
    dense_layers = shape.layers - (experts.layers if experts else 0)
    matrices = 3 if shape.gated else 2
    ffn = dense_layers * matrices * shape.hidden * shape.ffn
    table = shape.vocab * shape.hidden
    return Parameters(
        embedding=table,
        positions=shape.learned_positions * shape.hidden,
        head=0 if shape.tied else table,
        attention=shape.layers * _attention(shape),
        ffn=ffn + (_shared(shape, experts) if experts else 0),
        experts=_routed(shape, experts, experts.count) if experts else 0,
        active_experts=_routed(shape, experts, experts.per_token) if experts else 0,
        router=_routers(shape, experts) if experts else 0,
        norms=_norms_and_biases(shape, dense_layers),
        expert_biases=_expert_biases(shape, experts) if experts else 0,
    )


def weight_bytes(shape: ModelShape) -> int:
    """Bytes of the weights: parameters times bits, with scales of quantised ones.

    Router, norms and biases are not quantised; embeddings and head are rarely
    (``modules_to_not_convert`` of a checkpoint; vLLM's ``LinearMethod`` for the rest).
    """
    counted = parameters(shape)
    return round(
        (
            (counted.embedding + counted.head) * table_bits(shape)
            + counted.positions * shape.other_bits
            + counted.attention * attention_bits(shape)
            + counted.ffn * shape.weight_bits
            + counted.experts * expert_bits(shape)
            + (counted.router + counted.norms) * shape.other_bits
            + counted.expert_biases * shape.other_bits
        )
        / 8
    )


def gpu_weight_bytes(
    shape: ModelShape,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    data_parallel: int = 1,
) -> float:
    """Bytes of the weights of one GPU: an even share, except what each keeps whole.

    Data-parallel ranks have all of attention each, and share routed experts.
    """
    counted = parameters(shape)
    experts = counted.experts * expert_bits(shape) / 8
    attention = counted.attention * attention_bits(shape) / 8
    even = weight_bytes(shape) - experts - attention + experts / data_parallel
    own = attention_share(shape, tensor_parallel) * attention
    return (even / tensor_parallel + own) / pipeline_parallel


def attention_share(shape: ModelShape, tensor_parallel: int) -> float:
    """Share of attention's matrices that each of so many GPUs holds, 0-1.

    Each has whole KV heads, at least one, and all of MLA's projections to latent
    vectors (vLLM's ``QKVParallelLinear``, and ``ReplicatedLinear`` in DeepSeek-V2).
    """
    whole = _attention(shape)
    divided_less = _divided_less(shape)
    shards = kv_shards(shape, tensor_parallel)
    own = (whole - divided_less) / tensor_parallel + divided_less / shards
    return own / whole


def _divided_less(shape: ModelShape) -> int:
    """Attention parameters of a layer that are divided like the KV cache."""
    mla = shape.mla
    if mla is None:
        return 2 * shape.hidden * shape.kv_heads * shape.head_dim
    return shape.hidden * (mla.kv_rank + mla.rope_dim + (mla.query_rank or 0))


def attention_bits(shape: ModelShape) -> float:
    return shape.weight_bits if shape.quantised_attention else shape.other_bits


def table_bits(shape: ModelShape) -> float:
    return shape.other_bits if shape.table_bits is None else shape.table_bits


def expert_bits(shape: ModelShape) -> float:
    return shape.weight_bits if shape.expert_bits is None else shape.expert_bits


def _attention(shape: ModelShape) -> int:
    """Number of attention parameters of one layer, without biases and norms."""
    if shape.mla is not None:
        return _latent_attention(shape, shape.mla)
    query = shape.hidden * shape.heads * shape.head_dim
    key = shape.hidden * shape.kv_heads * shape.head_dim
    return 2 * query + 2 * key


def _latent_attention(shape: ModelShape, mla: Mla) -> int:
    """Number of MLA parameters of one layer: arXiv 2405.04434, 2.1.2."""
    query_out = shape.heads * (mla.nope_dim + mla.rope_dim)
    if mla.query_rank is None:
        query = shape.hidden * query_out
    else:
        query = mla.query_rank * (shape.hidden + query_out)
    down = shape.hidden * (mla.kv_rank + mla.rope_dim)
    up = mla.kv_rank * shape.heads * (mla.nope_dim + mla.value_dim)
    return query + down + up + shape.heads * mla.value_dim * shape.hidden


def _shared(shape: ModelShape, experts: Experts) -> int:
    """Number of parameters of shared experts in all layers."""
    matrices = 3 if shape.gated else 2
    return experts.layers * matrices * shape.hidden * experts.shared_ffn


def _routed(shape: ModelShape, experts: Experts, count: int) -> int:
    """Number of parameters of ``count`` routed experts in each layer with experts."""
    matrices = 3 if shape.gated else 2
    return experts.layers * count * matrices * shape.hidden * experts.ffn


def _routers(shape: ModelShape, experts: Experts) -> int:
    """Number of router parameters: a row per expert, and one for a shared gate."""
    return experts.layers * (experts.count + experts.shared_gate) * shape.hidden


def _expert_biases(shape: ModelShape, experts: Experts) -> int:
    """Number of experts' biases: one per row of each matrix; 0 without biases."""
    if not experts.bias:
        return 0
    rows = (2 if shape.gated else 1) * experts.ffn + shape.hidden
    return experts.layers * experts.count * rows


def _norms_and_biases(shape: ModelShape, dense_layers: int) -> int:
    """Number of norm and bias parameters; negligible except in small models."""
    experts = shape.experts
    norms = (shape.layers * shape.norms + shape.last_norms) * shape.hidden
    norms *= 2 if shape.norm_bias else 1
    layer = 2 * shape.head_dim if shape.qk_norm else 0
    if shape.wide_qk_norm:
        layer += (shape.heads + shape.kv_heads) * shape.head_dim
    if shape.mla is not None:
        latent = shape.mla.kv_rank + (shape.mla.query_rank or 0)
        layer += latent
        layer += latent + shape.mla.rope_dim if shape.attention_bias else 0
    elif shape.attention_bias:
        layer += (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    layer += shape.hidden if shape.output_bias else 0
    rows = (2 if shape.gated else 1) * shape.ffn + shape.hidden
    dense = dense_layers * rows if shape.ffn_bias else 0
    routers = experts.layers * experts.count if experts and experts.router_bias else 0
    head = shape.vocab if shape.head_bias else 0
    return norms + shape.layers * layer + dense + routers + head
