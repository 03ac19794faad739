"""What requests take of the cache: whole blocks, windows, latent vectors."""

from dataclasses import replace

from inferwatch.limits.cache import kv_bytes, kv_bytes_per_token, kv_shards
from inferwatch.limits.hf_config import shape_of
from inferwatch.limits.presets import PRESETS

LLAMA = shape_of(PRESETS["llama-3-8b"])
OSS = shape_of(PRESETS["gpt-oss-20b"])
DEEPSEEK = shape_of(PRESETS["deepseek-v3"])


def test_a_paged_cache_hands_out_whole_blocks() -> None:
    assert kv_bytes(LLAMA, 17) == 17 * 131_072
    assert kv_bytes(LLAMA, 17, 16) == 32 * 131_072
    assert kv_bytes(LLAMA, 16, 16) == 16 * 131_072
    assert kv_bytes(LLAMA, 0, 16) == 0


def test_a_window_is_kept_in_whole_blocks_too() -> None:
    layer = 2 * 8 * 64 * 2

    assert kv_bytes(OSS, 1000, 48) == layer * 12 * (1008 + 144)


def test_all_heads_share_one_latent_vector() -> None:
    assert kv_bytes_per_token(DEEPSEEK) == 61 * (512 + 64) * 2
    assert kv_bytes_per_token(replace(DEEPSEEK, kv_bits=8)) == 61 * (512 + 64)


def test_the_cache_is_divided_by_heads_and_latent_vectors_not_at_all() -> None:
    assert [kv_shards(LLAMA, ways) for ways in (1, 4, 8, 16)] == [1, 4, 8, 8]
    assert kv_shards(DEEPSEEK, 8) == 1
