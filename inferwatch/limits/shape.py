"""The shape of a model: what its arithmetic and its memory follow from."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts, of the layers that have one."""

    count: int
    per_token: int
    ffn: int
    """Inner size of one expert."""
    shared_ffn: int = 0
    """Inner size, together, of experts that every token passes."""
    shared_gate: bool = False
    """Their output is multiplied by a weight of each token's own, as in Qwen 2 MoE:
    a vector of the hidden size more in each of these layers."""
    layers: int
    """How many of the layers have experts; the others have a dense FFN."""
    bias: bool = False
    """Matrices of experts have a bias each, as of gpt-oss."""
    router_bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mla:
    """Multi-head latent attention: the cache holds one latent vector a token."""

    kv_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    query_rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder-only transformer; sizes are of the whole model, not of one GPU."""

    name: str | None = None
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    """Inner size of the dense FFN; 0 where all layers have experts."""
    gated: bool = True
    """Three matrices an FFN, as in SwiGLU; else two."""
    vocab: int
    tied: bool = False
    """The input embedding is the output head, too."""
    attention_bias: bool = False
    """Of query, key and value; of MLA, of what makes the latent vectors."""
    output_bias: bool = False
    """Of the projection behind attention."""
    ffn_bias: bool = False
    head_bias: bool = False
    norms: int = 2
    """Norms of the hidden size in each layer."""
    last_norms: int = 1
    """Likewise, not of a layer."""
    norm_bias: bool = False
    qk_norm: bool = False
    """Of each head's queries and keys."""
    wide_qk_norm: bool = False
    """Of the queries and keys of all heads together."""
    learned_positions: int = 0
    """Rows of a table of positions, as GPT-2 has one."""
    experts: Experts | None = None
    mla: Mla | None = None
    window: int | None = None
    """Tokens that layers with a sliding window look back."""
    chunked: bool = False
    """These see their chunk of so many tokens from its first on, as of Llama 4."""
    window_layers: int = 0
    weight_bits: float = 16.0
    """Of the linear layers that are quantised, scales included."""
    other_bits: float = 16.0
    """Of all else: embeddings, head, norms, and what the method leaves out."""
    expert_bits: float | None = None
    """Of experts where it differs from ``weight_bits``: MXFP4 has 4.25."""
    quantised_attention: bool = True
    """Its attention has ``weight_bits``, not ``other_bits``."""
    kv_bits: float = 16.0
    compute_dtype: str = "bfloat16"
    """In which products are computed: names the peak that counts."""
