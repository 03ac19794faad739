"""The shape of a model, from which its compute and memory needs follow."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts, in the layers that have one."""

    count: int
    per_token: int
    ffn: int
    """Inner size of one expert."""
    shared_ffn: int = 0
    """Inner size of all shared experts together."""
    shared_gate: bool = False
    """Shared experts are scaled by a weight per token, as in Qwen 2 MoE: one more
    vector of the hidden size in each of these layers."""
    layers: int
    """Number of layers with experts; the others have a dense FFN."""
    bias: bool = False
    """Matrices of experts have biases, as in gpt-oss."""
    router_bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mla:
    """Multi-head latent attention: the cache holds one latent vector per token."""

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
    """Inner size of the dense FFN; 0 if all layers have experts."""
    gated: bool = True
    """Three matrices per FFN, as in SwiGLU; otherwise two."""
    vocab: int
    tied: bool = False
    """The input embedding is also the output head."""
    attention_bias: bool = False
    """Biases of query, key and value; with MLA, of the projections to latent
    vectors."""
    output_bias: bool = False
    """Bias of attention's output projection."""
    ffn_bias: bool = False
    head_bias: bool = False
    norms: int = 2
    """Norms of the hidden size per layer."""
    last_norms: int = 1
    """The same outside of layers."""
    norm_bias: bool = False
    qk_norm: bool = False
    """Norms of each head's queries and keys."""
    wide_qk_norm: bool = False
    """Norms of all heads' queries and keys together."""
    learned_positions: int = 0
    """Rows of a position embedding, as in GPT-2."""
    experts: Experts | None = None
    mla: Mla | None = None
    window: int | None = None
    """Tokens seen by layers with a sliding window."""
    chunked: bool = False
    """These layers see their chunk of so many tokens from its start, as in Llama 4."""
    window_layers: int = 0
    weight_bits: float = 16.0
    """Bits per parameter of quantised linear layers, scales included."""
    other_bits: float = 16.0
    """Bits of everything else: embeddings, head, norms, and what the method
    excludes."""
    table_bits: float | None = None
    """Bits of embedding and output head, where different from ``other_bits``: files of
    GGUF quantise them, too."""
    expert_bits: float | None = None
    """Bits of experts, where different from ``weight_bits``: 4.25 for MXFP4."""
    quantised_attention: bool = True
    """Attention has ``weight_bits``, not ``other_bits``."""
    kv_bits: float = 16.0
    integer_cache: bool = False
    """Its cached values are integers."""
    compute_dtype: str = "bfloat16"
    """Dtype of matrix products, which selects the peak."""
