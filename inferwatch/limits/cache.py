"""KV cache size of a request, and the number of requests that fit."""

from math import ceil

from inferwatch.limits.shape import ModelShape


def kv_bytes_per_token(shape: ModelShape) -> float:
    """Bytes of KV cache for one more token, if no sliding window is full yet.

    Key and value of each KV head: 2 · layers · kv_heads · head_dim · bytes (Pope et
    al., *Efficiently scaling transformer inference*, arXiv 2211.05102; grouped heads:
    Ainslie et al., arXiv 2305.13245). With MLA, one latent vector and one rotated key
    per layer for all heads (DeepSeek-V2, arXiv 2405.04434, 2.1.2).
    """
    return shape.layers * kv_bytes_per_layer(shape)


def kv_bytes_per_layer(shape: ModelShape) -> float:
    """Bytes of KV cache for one token in one layer."""
    if shape.mla is not None:
        return (shape.mla.kv_rank + shape.mla.rope_dim) * shape.kv_bits / 8
    return 2 * shape.kv_heads * shape.head_dim * shape.kv_bits / 8


def kv_bytes(shape: ModelShape, tokens: int, block_tokens: int | None = None) -> int:
    """Bytes of KV cache for a request, in whole blocks if a block size is given.

    A paged cache allocates whole blocks (Kwon et al., *PagedAttention*, arXiv
    2309.06180). A layer with a sliding window keeps no more than its window (Beltagy et
    al., arXiv 2004.05150; Mistral 7B, arXiv 2310.06825).
    """
    full = _in_blocks(tokens, block_tokens)
    kept = tokens if shape.window is None else min(tokens, shape.window)
    windowed = _in_blocks(kept, block_tokens)
    full_layers = shape.layers - shape.window_layers
    cached = full_layers * full + shape.window_layers * windowed
    return round(cached * kv_bytes_per_layer(shape))


def kv_shards(shape: ModelShape, tensor_parallel: int) -> int:
    """Number of tensor-parallel GPUs the cache is actually divided among.

    vLLM gives each GPU at least one whole KV head, and all of them MLA's latent
    vectors: beyond that, the cache is replicated instead of divided, unless decode
    context parallel divides it by tokens, which is not counted on.
    """
    return 1 if shape.mla is not None else min(shape.kv_heads, tensor_parallel)


def max_requests(
    memory_bytes: float,
    weight_bytes: float,
    overhead_bytes: float,
    per_request_bytes: float,
) -> int:
    """Largest number of requests of this size that fit beside the weights (B_max).

    (memory − weights − overhead) / KV per request, rounded down: Kwon et al., arXiv
    2309.06180. 0 if not even the weights fit.
    """
    left = memory_bytes - weight_bytes - overhead_bytes
    return max(0, int(left // per_request_bytes))


def _in_blocks(tokens: int, block_tokens: int | None) -> int:
    """Tokens rounded up to whole blocks."""
    return tokens if not block_tokens else ceil(tokens / block_tokens) * block_tokens
