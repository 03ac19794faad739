"""What kernels and operators are for, by their names.

Names are those of vLLM 0.32 (``csrc``, ``vllm/_custom_ops.py``, ``v1/attention``) and
of the libraries it calls: FlashAttention, FlashInfer, FlashMLA, Triton as TorchInductor
writes it, cuBLAS (``nvjet``, ``gemvx``), CUTLASS, DeepGEMM, Marlin, Machete, oneDNN,
NCCL and PyTorch's own. The first pattern that is found decides, so the more special
ones come first, and attention, in whose names logits occur, before sampling; a name
that none finds is of no class of its own.
"""

import re
from functools import cache

from inferwatch.profiles.report import KernelClass

_TABLE: tuple[tuple[KernelClass, str], ...] = (
    (
        KernelClass.COMMUNICATION,
        (
            r"nccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"
            r"|c10d|_c_custom_ar|cross_device_reduce|multimem|nvshmem|deep_?ep|symm_mem"
            r"|gloo|shm_(?:all|gather|send|recv)|rccl"
        ),
    ),
    (
        KernelClass.KV_WRITE,
        (
            r"reshape_and_cache|kv_cache_update|concat_and_cache|cache_flash|append_paged_kv"
            r"|indexer_k_quant_and_cache|copy_blocks|swap_blocks|cpu_attn_reshape_and_cache"
        ),
    ),
    (
        KernelClass.MOE,
        (
            r"moe|expert|topk_softmax|topk_sigmoid|grouped_topk|grouped_?gemm|grouped_mm"
            r"|cutlass_fused|router"
        ),
    ),
    (
        KernelClass.ATTENTION,
        (
            r"attention|attn|flash_fwd|flash::|fmha|paged_|unified_attention|mla_|decode_mla"
            r"|flashinfer::(?:batch|single)|BatchDecode|BatchPrefill|scaled_dot_product"
            r"|merge_(?:attn_)?states|get_scheduler_metadata|splitkv|cascade|prepare_varlen"
            r"|mqa_logits|top_k_per_row"
        ),
    ),
    (
        KernelClass.SAMPLING,
        (
            r"gumbel|(?<!up)(?<!grid_)sampl|argmax|top_?k|top_?p|multinomial|log_?softmax|penalt|logit"
            r"|rejection|exponential_|apply_temperature|min_p|bitmask|(?<!search)sort"
        ),
    ),
    (
        KernelClass.GEMM,
        (
            r"gemm(?!a)|gemv|nvjet|cutlass|cublas|_mm\b|::mm$|::addmm|::bmm|::linear|::matmul"
            r"|onednn|mkldnn(?:::|_linear|_conv|_rnn)|marlin|machete|scaled_mm|wgmma|xmma|deep_gemm|splitk?reduce"
            r"|cpublas|sgl_kernel.*linear|wvsplitk|hipblas|Cijk_|awq|gptq|dot_kernel"
        ),
    ),
    (
        KernelClass.NORM,
        (
            r"norm(?!al_)|silu|gelu|relu|swiglu|act_and_mul|_and_mul|rotary|(?<!p)rope"
            r"|softmax|sigmoid|tanh|quant(?!ile)|activation|::pow$|rsqrt|::mean$|residual"
        ),
    ),
    (
        KernelClass.COPY,
        (
            r"memcpy|memset|::copy_$|::_to_copy$|::to$|::clone$|::contiguous$|::pin_memory"
            r"|direct_copy|copy_kernel|::fill_$|::zero_$|CatArray|::cat$|fillfunctor"
        ),
    ),
    # What is left of arithmetic by elements is that of norms and activations.
    (
        KernelClass.NORM,
        r"::(?:add|sub|mul|div|sum|sqrt|exp)_?$|elementwise|reduce_kernel|triton_",
    ),
)
_PATTERNS = tuple((kind, re.compile(text, re.IGNORECASE)) for kind, text in _TABLE)
WEAK = frozenset({KernelClass.COPY, KernelClass.OTHER})
"""Classes that an operator has only where none of those around it has another."""


@cache
def kernel_class(name: str) -> KernelClass:
    """Return the class of a kernel, or of an operator by itself.

    >>> kernel_class("nvjet_tst_128x64_64x8_2x1_v_bz_TNT")
    <KernelClass.GEMM: 'GEMM'>
    """
    return next(
        (kind for kind, pattern in _PATTERNS if pattern.search(name)),
        KernelClass.OTHER,
    )
