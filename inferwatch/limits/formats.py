"""Bits of a parameter or cached value in the formats servers use."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from inferwatch.errors import InferwatchError


class ShapeError(InferwatchError):
    """A model's shape cannot be derived; the message says what is missing."""

    exit_status = 2


DTYPES = {
    "float32": "float32",
    "float": "float32",
    "fp32": "float32",
    "float16": "float16",
    "half": "float16",
    "fp16": "float16",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
}
"""Canonical names of the dtypes of unquantised weights."""
DTYPE_BITS = {"float32": 32.0, "float16": 16.0, "bfloat16": 16.0}
_CACHE_BITS = {
    "fp8": 8.0,
    "fp8_e4m3": 8.0,
    "fp8_e5m2": 8.0,
    "fp8_inc": 8.0,
    "fp8_per_token_head": 8.0,
    "int8": 8.0,
    "int8_per_token_head": 8.0,
    "int4_per_token_head": 4.0,
    # two values per byte, and an FP8 scale for sixteen
    "nvfp4": 4.5,
    # 512 values in FP8, four scales in FP32, 64 in BF16: 656 bytes for 576 values
    "fp8_ds_mla": 656 * 8 / 576,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """Effect of a quantisation method on a model's weights."""

    weight_bits: float
    """Bits per parameter of attention and FFN matrices, scales included."""
    expert_bits: float | None = None
    """Bits per parameter of routed experts, where different."""
    quantised_attention: bool = True
    compute_dtype: str | None = None
    """Dtype of its matrix products; None: that of the activations."""


def plain_dtype(name: str | None) -> str | None:
    """The canonical dtype: ``bfloat16`` for ``torch.bfloat16``, None for ``auto``.

    Raises:
        ShapeError: the dtype is unknown.
    """
    if name is None or name == "auto":
        return None
    dtype = DTYPES.get(name.removeprefix("torch.").lower())
    if dtype is None:
        raise ShapeError(f"dtype {name!r} is not known; known are {_listed(DTYPES)}")
    return dtype


def cache_bits(kv_dtype: str | None, dtype: str, quantisation: object = None) -> float:
    """Bits of a value in the KV cache.

    ``auto`` follows the checkpoint's quantisation if that says so, else the dtype.

    Raises:
        ShapeError: the dtype is unknown.
    """
    if kv_dtype is None or kv_dtype == "auto":
        scheme = _mapping(_mapping(quantisation).get("kv_cache_scheme"))
        algorithm = _mapping(quantisation).get("kv_cache_quant_algo")
        bits = scheme.get("num_bits") or (
            8 if str(algorithm).upper() == "FP8" else None
        )
        return float(bits) if bits else DTYPE_BITS[dtype]
    name = kv_dtype.removeprefix("torch.").lower()
    name = "fp8" if name.startswith("float8") else name
    if name in _CACHE_BITS:
        return _CACHE_BITS[name]
    if name in DTYPES:
        return DTYPE_BITS[DTYPES[name]]
    listed = _listed({"auto": 0, **DTYPES, **_CACHE_BITS})
    raise ShapeError(f"KV cache dtype {kv_dtype!r} is not known; known are {listed}")


def weight_format(
    method: str | None, quantisation: Mapping[str, Any], other_bits: float
) -> WeightFormat:
    """The format given by a ``quantization_config``, or by the server's own method.

    Raises:
        ShapeError: the bits of this method are unknown.
    """
    name = (method or _method_of(quantisation)).lower().replace("_", "-")
    attention = not _leaves_attention(quantisation)
    if not name or name in {"none", "auto"}:
        return WeightFormat(weight_bits=other_bits)
    if name in {"mxfp4", "gpt-oss-mxfp4"}:
        # OCP Microscaling Formats 1.0: 32 values of 4 bits share a scale of 8 bits
        return WeightFormat(
            weight_bits=other_bits, expert_bits=4.25, quantised_attention=False
        )
    if name == "experts-int8":
        return WeightFormat(weight_bits=other_bits, expert_bits=8.0)
    if "compressed" in name:
        return _compressed_tensors(quantisation, attention=attention)
    simple = _SIMPLE.get(name)
    bits = simple(quantisation) if simple else None
    if bits is None:
        raise ShapeError(
            f"how many bits a weight takes in {name!r} is not known; "
            "give them by --weight-bits, or leave the method out"
        )
    return WeightFormat(
        weight_bits=bits,
        quantised_attention=attention,
        compute_dtype=_COMPUTES_IN.get(name),
    )


def _grouped(quantisation: Mapping[str, Any]) -> float:
    """Bits per weight of GPTQ and AWQ, with the scales and zero points.

    Integers with an FP16 scale per group, and a zero point as wide as a value: GPTQ,
    arXiv 2210.17323, section 5; AWQ, arXiv 2306.00978, section 5.
    """
    bits = float(quantisation.get("bits") or quantisation.get("w_bit") or 4)
    size = int(
        quantisation.get("group_size") or quantisation.get("q_group_size") or 128
    )
    if size <= 0:  # -1: one scale per column, which is negligible
        return bits
    return bits + (16 + bits) / size


def _float8(quantisation: Mapping[str, Any]) -> float:
    """Bits per weight of FP8: 8, and for blocks an FP32 scale each.

    DeepSeek-V3, arXiv 2412.19437, 3.3.
    """
    block = quantisation.get("weight_block_size")
    return 8 + 32 / (block[0] * block[1]) if block else 8.0


def _bitsandbytes(quantisation: Mapping[str, Any]) -> float:
    """Bits per weight of bitsandbytes: 8, or NF4 with scales.

    64 values share an FP32 scale, or an 8-bit one with double quantisation (QLoRA:
    Dettmers et al., arXiv 2305.14314, section 3).
    """
    if quantisation.get("load_in_8bit"):
        return 8.0
    twice = quantisation.get("bnb_4bit_use_double_quant")
    return 4 + (8 / 64 + 32 / (64 * 256) if twice else 32 / 64)


def _modelopt(quantisation: Mapping[str, Any]) -> float | None:
    """Bits per weight of a ModelOpt algorithm; None for an unknown one."""
    algorithm = str(quantisation.get("quant_algo") or "FP8").upper()
    return {"FP8": 8.0, "MXFP8": 8.25, "NVFP4": 4.5, "W4A16_AWQ": 4.125}.get(algorithm)


_SIMPLE: dict[str, Callable[[Mapping[str, Any]], float | None]] = {
    "fp8": _float8,
    "fbgemm-fp8": _float8,
    "ptpc-fp8": _float8,
    "fp8-per-tensor": _float8,
    "fp8-per-block": _float8,
    "fp8-per-channel": _float8,
    "w8a8-fp8": _float8,
    "modelopt": _modelopt,
    "modelopt-fp4": lambda _: 4.5,
    "nvfp4": lambda _: 4.5,
    "nvfp4-per-token": lambda _: 4.5,
    "petit-nvfp4": lambda _: 4.5,
    "modelopt-mxfp8": lambda _: 8.25,
    "mxfp8": lambda _: 8.25,
    "gptq": _grouped,
    "gptq-marlin": _grouped,
    "awq": _grouped,
    "awq-marlin": _grouped,
    "moe-wna16": _grouped,
    "auto-round": _grouped,
    "inc": _grouped,
    "bitsandbytes": _bitsandbytes,
    "int8": lambda _: 8.0,
    "int8-per-channel-weight-only": lambda _: 8.0,
    "w8a16": lambda _: 8.0,
    "w8a8": lambda _: 8.0,
    "w8a8-int8": lambda _: 8.0,
    "int4": lambda _: 4 + 16 / 128,
    "4bit": lambda _: 4 + 16 / 128,
}
_COMPUTES_IN = {
    "fp8": "float8",
    "fbgemm-fp8": "float8",
    "ptpc-fp8": "float8",
    "fp8-per-tensor": "float8",
    "fp8-per-block": "float8",
    "fp8-per-channel": "float8",
    "w8a8-fp8": "float8",
    # integers: Xiao et al., SmoothQuant, arXiv 2211.10438
    "w8a8": "int8",
    "w8a8-int8": "int8",
    "modelopt": "float8",
    "modelopt-mxfp8": "float8",
    "mxfp8": "float8",
    "modelopt-fp4": "float4",
    "nvfp4": "float4",
    "nvfp4-per-token": "float4",
}
"""Other methods keep activations in 16 bits and dequantise the weights first."""


def _compressed_tensors(
    quantisation: Mapping[str, Any], *, attention: bool
) -> WeightFormat:
    """The format of weights with ``compressed-tensors``, by its first config group."""
    groups = _mapping(quantisation.get("config_groups"))
    if not groups:
        raise ShapeError("compressed-tensors without config_groups: no bits are told")
    group = _mapping(next(iter(groups.values())))
    weights = _mapping(group.get("weights"))
    bits = weights.get("num_bits")
    if not bits:
        raise ShapeError("compressed-tensors without weights.num_bits in its groups")
    is_float = weights.get("type") == "float"
    size = weights.get("group_size") or 0
    scale = 8 if is_float and bits == 4 else 16
    inputs = _mapping(group.get("input_activations"))
    same = inputs.get("num_bits") == bits
    computes = {(True, 8): "float8", (True, 4): "float4", (False, 8): "int8"}
    return WeightFormat(
        weight_bits=bits + (scale / size if size > 0 else 0),
        quantised_attention=attention,
        compute_dtype=computes.get((is_float, bits)) if same else None,
    )


def _method_of(quantisation: Mapping[str, Any]) -> str:
    return str(quantisation.get("quant_method") or quantisation.get("quant_algo") or "")


def _leaves_attention(quantisation: Mapping[str, Any]) -> bool:
    """Whether attention of all layers is excluded from quantisation."""
    names = [
        str(name)
        for key in ("modules_to_not_convert", "ignore", "ignored_layers", "exclude")
        for name in quantisation.get(key) or ()
    ]
    whole = (name for name in names if "attn" in name or "attention" in name)
    return any("*" in name or not any(map(str.isdigit, name)) for name in whole)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(names)
