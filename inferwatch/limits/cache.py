"""What requests take of the KV cache, and how many fit."""

from math import ceil

from inferwatch.limits.shape import ModelShape


def kv_bytes_per_token(shape: ModelShape) -> float:
    """What one more token takes, of a request that is shorter than any window.

    Key and value of each KV head: 2 · layers · kv_heads · head_dim · bytes (Pope et
    al., *Efficiently scaling transformer inference*, arXiv 2211.05102; grouped heads:
    Ainslie et al., arXiv 2305.13245). With MLA one latent vector and one rotated key a
    layer, for all heads (DeepSeek-V2, arXiv 2405.04434, 2.1.2).
    """
    return shape.layers * kv_bytes_per_layer(shape)


def kv_bytes_per_layer(shape: ModelShape) -> float:
    """What one token takes in one layer's cache."""
    if shape.mla is not None:
        return (shape.mla.kv_rank + shape.mla.rope_dim) * shape.kv_bits / 8
    return 2 * shape.kv_heads * shape.head_dim * shape.kv_bits / 8


def kv_bytes(shape: ModelShape, tokens: int, block_tokens: int | None = None) -> int:
    """What a request of so many tokens takes; with a block size, in whole blocks.

    Whole blocks are what a paged cache hands out (Kwon et al., *PagedAttention*, arXiv
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
    """Among how many of the tensor-parallel GPUs the cache is really divided.

    vLLM gives each GPU at least one whole KV head, and every GPU the latent vectors of
    MLA: beyond that the cache is copied, not divided.
    """
    return 1 if shape.mla is not None else min(shape.kv_heads, tensor_parallel)


def max_requests(
    memory_bytes: float,
    weight_bytes: float,
    overhead_bytes: float,
    per_request_bytes: float,
) -> int:
    """B_max: how many requests of this size the memory beside the weights holds.

    (memory − weights − overhead) / KV of a request, whole ones: Kwon et al., arXiv
    2309.06180. 0 where not even the weights fit.
    """
    left = memory_bytes - weight_bytes - overhead_bytes
    return max(0, int(left // per_request_bytes))


def _in_blocks(tokens: int, block_tokens: int | None) -> int:
    """So many slots."""
    return tokens if not block_tokens else ceil(tokens / block_tokens) * block_tokens
