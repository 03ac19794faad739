"""How many parameters a shape has, and what they take in memory.

Counts follow from the shapes of the matrices that published implementations declare
(``transformers``, ``modeling_llama.py`` and its kin; for MLA section 2.1.1 of the
DeepSeek-V2 report, arXiv 2405.04434; for experts Mixtral, arXiv 2401.04088).
"""

from dataclasses import dataclass

from inferwatch.limits.shape import Experts, Mla, ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """A model's parameters by what they are for."""

    embedding: int
    """The input table; where it is tied it is the head, too, and counted here."""
    positions: int
    head: int
    """The output matrix; 0 where it is tied."""
    attention: int
    """Matrices of attention, of all layers."""
    ffn: int
    """Matrices that every token passes: dense FFNs and shared experts."""
    experts: int
    """Matrices of all routed experts."""
    active_experts: int
    """Of which one token passes so many."""
    router: int
    norms: int
    """Norms and biases, of all layers and the last."""
    expert_biases: int

    @property
    def total(self) -> int:
        """All that a checkpoint holds, without layers for speculation."""
        tables = self.embedding + self.positions + self.head
        layers = self.attention + self.ffn + self.experts + self.router
        return tables + layers + self.norms + self.expert_biases

    @property
    def active(self) -> int:
        """All but the experts that a token does not pass.

        As Qwen and DeepSeek count; OpenAI leaves the input embedding out besides.
        """
        return self.total - self.experts + self.active_experts

    @property
    def linear_active(self) -> int:
        """Those that every token of a step is multiplied with: not the head."""
        return self.attention + self.ffn + self.active_experts + self.router


def parameters(shape: ModelShape) -> Parameters:
    """Count them."""
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
    """What the weights take: parameters times bits, scales of quantised ones included.

    Quantisers leave embeddings, head, router, norms and biases as they were
    (``modules_to_not_convert`` of a checkpoint; vLLM's ``LinearMethod`` for the rest).
    """
    counted = parameters(shape)
    return round(
        (
            (counted.embedding + counted.positions) * shape.other_bits
            + counted.head * shape.other_bits
            + counted.attention * attention_bits(shape)
            + counted.ffn * shape.weight_bits
            + counted.experts * expert_bits(shape)
            + (counted.router + counted.norms) * shape.other_bits
            + counted.expert_biases * shape.other_bits
        )
        / 8
    )


def attention_bits(shape: ModelShape) -> float:
    """Bits of a parameter of attention's matrices."""
    return shape.weight_bits if shape.quantised_attention else shape.other_bits


def expert_bits(shape: ModelShape) -> float:
    """Bits of a parameter of a routed expert."""
    return shape.weight_bits if shape.expert_bits is None else shape.expert_bits


def _attention(shape: ModelShape) -> int:
    """One layer's matrices: query, key, value and output; or those of MLA."""
    if shape.mla is not None:
        return _latent_attention(shape, shape.mla)
    query = shape.hidden * shape.heads * shape.head_dim
    key = shape.hidden * shape.kv_heads * shape.head_dim
    return 2 * query + 2 * key


def _latent_attention(shape: ModelShape, mla: Mla) -> int:
    """Down to the latent vectors and up from them: arXiv 2405.04434, 2.1.2."""
    query_out = shape.heads * (mla.nope_dim + mla.rope_dim)
    if mla.query_rank is None:
        query = shape.hidden * query_out
    else:
        query = mla.query_rank * (shape.hidden + query_out)
    down = shape.hidden * (mla.kv_rank + mla.rope_dim)
    up = mla.kv_rank * shape.heads * (mla.nope_dim + mla.value_dim)
    return query + down + up + shape.heads * mla.value_dim * shape.hidden


def _shared(shape: ModelShape, experts: Experts) -> int:
    """Experts that every token passes."""
    matrices = 3 if shape.gated else 2
    return experts.layers * matrices * shape.hidden * experts.shared_ffn


def _routed(shape: ModelShape, experts: Experts, count: int) -> int:
    """So many experts of each layer that has some."""
    matrices = 3 if shape.gated else 2
    return experts.layers * count * matrices * shape.hidden * experts.ffn


def _routers(shape: ModelShape, experts: Experts) -> int:
    """A row for each expert, and for those that every token passes together."""
    return experts.layers * (experts.count + experts.shared_gate) * shape.hidden


def _expert_biases(shape: ModelShape, experts: Experts) -> int:
    """One number a row of each matrix, where experts have a bias."""
    if not experts.bias:
        return 0
    rows = (2 if shape.gated else 1) * experts.ffn + shape.hidden
    return experts.layers * experts.count * rows


def _norms_and_biases(shape: ModelShape, dense_layers: int) -> int:
    """What is one number a row: small, but not of a small model."""
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
