"""Kernels and operators are known by the names that vLLM and its libraries use."""

import pytest

from inferwatch.profiles.classes import kernel_class
from inferwatch.profiles.report import KernelClass

NAMES = {
    KernelClass.ATTENTION: (
        "_C::cpu_attention_with_kv_cache",
        "vllm::unified_attention_with_output",
        "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128>>",
        "fmhaSm100fKernel_QkvBfloat16OBfloat16H128PagedKvCausal",
        "kernel_unified_attention_2d",
        "void vllm::paged_attention_v2_kernel<c10::BFloat16>",
        "BatchDecodeWithPagedKVCacheKernel",
        "BatchPrefillWithPagedKVCacheKernel<LogitsSoftCap>",
        "_C::top_k_per_row_decode",
        "void deep_gemm::sm90_fp8_paged_mqa_logits<32, 128>",
    ),
    KernelClass.GEMM: (
        "_C::onednn_mm",
        "aten::addmm",
        "nvjet_tst_128x64_64x8_2x1_v_bz_TNT",
        "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16>",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64",
        "void gemv2T_kernel_val<int, __nv_bfloat16>",
        "void marlin::Marlin<nv_bfloat16>",
    ),
    KernelClass.MOE: (
        "fused_moe_kernel",
        "void vllm::moe::topkGatingSoftmax<8, 64>",
        "vllm::moe_forward",
        "moe_align_block_size_kernel",
        "_moe_C::moe_unpermute",
        "aten::_grouped_mm",
    ),
    KernelClass.NORM: (
        "void vllm::rms_norm_kernel<c10::BFloat16>",
        "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0",
        "void vllm::act_and_mul_kernel<c10::BFloat16, silu_kernel>",
        "void vllm::rotary_embedding_kernel<c10::BFloat16>",
        "_C::gemma_rms_norm",
        "aten::silu",
        "aten::mul",
    ),
    KernelClass.SAMPLING: (
        "_C::fused_gumbel_argmax",
        "void at::native::reduce_kernel<512, 1, ReduceOp<float, ArgMaxOps<float>>>",
        "aten::topk",
        "void flashinfer::sampling::TopKTopPSamplingFromProbKernel",
    ),
    KernelClass.COMMUNICATION: (
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>",
        "c10d::allreduce_",
        "c10d::broadcast_",
        "_c10d_functional::broadcast",
        "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    ),
    KernelClass.COPY: (
        "Memcpy HtoD (Pageable -> Device)",
        "Memset (Device)",
        "aten::copy_",
        "void at::native::vectorized_elementwise_kernel<4, FillFunctor<int>>",
    ),
    KernelClass.KV_WRITE: (
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>",
        "vllm::unified_kv_cache_update",
        "_C::cpu_attn_reshape_and_cache",
    ),
    KernelClass.OTHER: (
        "aten::empty",
        "aten::view",
        "aten::permute",
        "aten::broadcast_to",
        "aten::broadcast_tensors",
        "aten::expand",
        "aten::searchsorted",
        "aten::upsample_bicubic2d",
        "aten::grid_sampler_2d",
        "aten::normal_",
        "aten::_mkldnn_reshape",
        "set_property",
        "my_kernel",
        "",
    ),
}


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, each) for kind, names in NAMES.items() for each in names]
)
def test_a_name_has_the_class_of_its_work(kind: KernelClass, name: str) -> None:
    assert kernel_class(name) is kind


def test_every_class_has_names() -> None:
    assert set(NAMES) == set(KernelClass)


@pytest.mark.parametrize(
    "name",
    [
        "aten::permute",
        "aten::broadcast_to",
        "aten::broadcast_tensors",
        "aten::upsample_nearest2d",
        "aten::grid_sampler_2d",
        "aten::normal_",
        "aten::quantile",
        "aten::embedding",
    ],
)
def test_an_operator_of_no_class_only_sounds_like_one(name: str) -> None:
    assert kernel_class(name) is KernelClass.OTHER
