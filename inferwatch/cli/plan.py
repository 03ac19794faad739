"""``inferwatch plan``: what a model could do on some GPUs, without an engine."""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import Any

import click

from inferwatch.cli.options import HeadedCommand
from inferwatch.cli.say import say, say_coloured, say_json
from inferwatch.errors import UsageError
from inferwatch.formatting import counted, format_bytes
from inferwatch.limits.devices import DEVICES, Device, device_named
from inferwatch.limits.hf_config import ShapeError, UnknownFamilyError, shape_of
from inferwatch.limits.plan import CapacityPlan, GpuSetup, Workload, plan_for
from inferwatch.limits.presets import ALSO_KNOWN_AS, PRESETS
from inferwatch.limits.shape import ModelShape
from inferwatch.printing.summary.capacity import capacity_sentence
from inferwatch.printing.summary.plan import MeasuredTimes, as_json, plan_text
from inferwatch.printing.text import painter, wrapped_sentence
from inferwatch.quantities import count_of, duration_s

GB = 1e9
DEFAULT_CONTEXT = 4096
DEFAULT_OUTPUT = 256
MOST_COLUMNS = 24
MOST_GPUS = 4096
SEVERAL = re.compile(
    r"(?P<n>\d+)\s*[xX×*]\s*(?P<gpu>.+)|(?P<gpu_>.+?)\s?[x×*:](?P<n_>\d{1,3})"
)
"""Several GPUs: 4xH100, H100x4 or H100:4."""
SAME_SIZE = 0.03
"""The relative difference allowed between stored and computed weights."""
MOST_CONFIG_BYTES = 64 << 20
SHAPE_FLAGS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
    "tied": "tie_word_embeddings",
    "experts": "num_experts",
    "experts_per_token": "num_experts_per_tok",
    "expert_ffn": "moe_intermediate_size",
    "window": "sliding_window",
}
NEEDED = ("layers", "hidden", "heads", "vocab")


def print_plan(given: Mapping[str, Any]) -> int:
    """Print the plan; return 1 if a number is impossible, or does not fit.

    Raises:
        UsageError, ShapeError: the options do not go together, or are too few.
    """
    name, config, stored = _config(given)
    workload = _workload(given)
    measured = _measured(given)
    plans = [
        plan_for(
            _splittable(_shape(config, given, method, kv), machine), machine, workload
        )
        for machine, method, kv in _columns(given)
    ]
    conclusion = capacity_sentence([*plans, *_in_fp8(config, given, plans)])
    if given["as_json"]:
        facts = as_json(name, plans, measured, conclusion)
        say_json({**facts, "stored_weight_bytes": stored})
    else:
        width = shutil.get_terminal_size((88, 24)).columns
        say("\n".join([*wrapped_sentence(f"{conclusion}.", width=width), ""]))
        say_coloured(
            plan_text(name, plans, measured, width, painter(), given["currency"] or "$")
        )
        odd = _odd(stored, plans[0].total_weight_bytes, given)
        if odd is not None:
            say(odd)
    impossible = any(measured.beaten(each) for each in plans)
    unfit = given["fail_if_not_fit"] and not all(each.fits for each in plans)
    return 1 if impossible or unfit else 0


FP8_FORMATS = (("fp8", "auto"), (None, "fp8"), ("fp8", "fp8"))
"""Of the weights, and of the KV cache."""


def _in_fp8(
    config: Mapping[str, Any], given: Mapping[str, Any], plans: Sequence[CapacityPlan]
) -> Iterator[CapacityPlan]:
    """Yield what a single column in 16 bits would be in FP8, where that is possible."""
    first = plans[0]
    formats = (first.shape.weight_bits, first.shape.kv_bits)
    if len(plans) > 1 or formats != (16.0, 16.0) or given["weight_bits"]:
        return
    most = first.max_requests
    for method, kv in FP8_FORMATS:
        with suppress(ShapeError):
            shape = _shape(config, given, method, kv)
            plan = plan_for(shape, first.machine, first.workload)
            if plan.max_requests > most:
                most = plan.max_requests
                yield plan


# The model.


ModelFiles = tuple[str, Mapping[str, Any], int | None]
"""The model's name, its configuration, and the bytes of its weights on disk."""


def _config(given: Mapping[str, Any]) -> ModelFiles:
    shape_flags = {
        flag: given[flag] for flag in SHAPE_FLAGS if given[flag] not in {None, False}
    }
    model: str | None = given["model"]
    if model is not None and shape_flags:
        flags = ", ".join(map(_flag, shape_flags))
        raise UsageError(
            f"{flags} describe a model without a file: leave them or --model out"
        )
    if model is not None:
        return _find_model(model)
    inner = (
        ("expert_ffn", "experts_per_token") if "experts" in shape_flags else ("ffn",)
    )
    missing = [_flag(flag) for flag in (*NEEDED, *inner) if flag not in shape_flags]
    if not shape_flags or missing:
        also = f"; {', '.join(missing)} missing" if shape_flags else ""
        raise UsageError(
            "say which model: a preset or a config.json, or its shape by --layers, "
            f"--hidden, --heads, --ffn and --vocab{also}"
        )
    return (
        "model",
        {SHAPE_FLAGS[flag]: value for flag, value in shape_flags.items()},
        None,
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _find_model(model: str) -> ModelFiles:
    """Find a model: a preset, a file, a folder, or one in the Hugging Face cache."""
    key = ALSO_KNOWN_AS.get(model.lower(), model.lower())
    path = Path(model).expanduser()
    if key in PRESETS and not path.exists():
        return key, PRESETS[key], None
    for file in (path, path / "config.json", *_cached(model)):
        if file.is_file():
            name = path.name if path.exists() else model
            return name, _read(file), _stored(file.parent)
    if path.is_dir():
        raise UsageError(f"{model}: there is no config.json in this folder")
    near = get_close_matches(key, [*PRESETS, *ALSO_KNOWN_AS], 1, 0.5)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise UsageError(
        f"--model {model}: no such file or folder, not in the Hugging Face cache here, "
        f"and no preset.{hint} Presets are {', '.join(PRESETS)}. The config.json of a "
        "model is enough: its weights are not needed"
    )


def _cached(model: str) -> Iterator[Path]:
    """Yield the model's configurations in Hugging Face's cache, without a download."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", model):
        return
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()
    folder = hub / f"models--{model.replace('/', '--')}" / "snapshots"
    yield from sorted(folder.glob("*/config.json"))


def _stored(folder: Path) -> int | None:
    """Return the size of the weight files beside a configuration; None without any."""
    sizes = [each.stat().st_size for each in folder.glob("model*.safetensors")]
    return sum(sizes) or None


def _odd(stored: int | None, computed: int, given: Mapping[str, Any]) -> str | None:
    """Return a warning if the weight files' size differs from the computed weights."""
    reshaped = given["dtype"] or given["quantization"] or given["weight_bits"]
    if stored is None or reshaped or abs(stored - computed) <= SAME_SIZE * computed:
        return None
    return (
        f"\nIts files hold {format_bytes(stored).strip()}, but its configuration makes "
        f"{format_bytes(computed).strip()} of weights. What a configuration does not "
        "tell is left\nout: towers for images, layers for speculation, missing files."
    )


def _read(file: Path) -> Mapping[str, Any]:
    try:
        if file.stat().st_size > MOST_CONFIG_BYTES:
            raise UsageError(f"{file} is too large to be a config.json")
        config = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise UsageError(f"{file} is not a configuration of a model: not a JSON object")
    return config


def _shape(
    config: Mapping[str, Any], given: Mapping[str, Any], method: str | None, kv: str
) -> ModelShape:
    bits = given["weight_bits"]
    try:
        shape = shape_of(
            config,
            dtype=given["dtype"],
            kv_dtype=kv,
            quantization="none" if bits else method,
        )
    except UnknownFamilyError as error:
        raise ShapeError(
            f"{error}; where it is built as Llama is, leave --model out and give its "
            "shape: --layers, --hidden, --heads, --kv-heads, --ffn and --vocab"
        ) from error
    if bits is None:
        return shape
    if method not in {None, "none"}:
        raise UsageError("--weight-bits and --quantization: give one of both")
    return replace(shape, weight_bits=bits)


def _splittable(shape: ModelShape, machine: GpuSetup) -> ModelShape:
    """Return the shape if tensor parallelism can split its heads evenly."""
    ways = machine.tensor_parallel
    if shape.heads % ways:
        can = [
            str(n) for n in range(1, min(shape.heads, 64) + 1) if not shape.heads % n
        ]
        raise UsageError(
            f"--tp {ways}: {shape.heads} attention heads cannot be shared evenly "
            f"among {ways} GPUs; {', '.join(can)} would do"
        )
    return shape


# The columns.


def _columns(
    given: Mapping[str, Any],
) -> Sequence[tuple[GpuSetup, str | None, str]]:
    """Return a GPU setup, quantisation and KV cache dtype for each column to print."""
    gpus = list(dict.fromkeys(_gpus(each, given) for each in _listed(given["gpu"])))
    if not gpus:
        raise UsageError("say which GPU: --gpu H200, for instance")
    methods: list[str | None] = [*_listed(given["quantization"])] or [None]
    caches = _listed(given["kv_dtype"]) or ["auto"]
    machines = [_machine(device, way, given) for device, ways in gpus for way in ways]
    columns = list(product(machines, methods, caches))
    if len(columns) > MOST_COLUMNS:
        raise UsageError(f"{len(columns)} columns are more than {MOST_COLUMNS}")
    return columns


def _listed(values: Sequence[str]) -> list[str]:
    """Return the values of a repeated or comma-separated option, each once."""
    parts = (part.strip() for each in values for part in each.split(","))
    return list(dict.fromkeys(part for part in parts if part))


def _gpus(text: str, given: Mapping[str, Any]) -> tuple[Device, tuple[int, ...]]:
    """Return a device, and by how many of it each layer may be shared.

    ``4xH100`` is four GPUs: tensor parallel by four, or by two in two stages.
    """
    ways = tuple(_number(each) for each in _listed(given["tp"]))
    several = SEVERAL.fullmatch(text)
    if several is None:
        return _device(text, given), ways or (1,)
    name, stages = several["gpu"] or several["gpu_"], given["pp"]
    gpus, device = int(several["n"] or several["n_"]), _device(name, given)
    if not 0 < gpus <= MOST_GPUS:
        raise UsageError(f"--gpu {text}: give how many GPUs, such as 2x{name}")
    if gpus % stages or (ways and ways != (gpus // stages,)):
        raise UsageError(
            f"--gpu {text} is {counted(gpus, 'GPU')}, but {_used(ways, stages)}: leave "
            f"it out, or write --gpu {name}"
        )
    return device, (gpus // stages,)


def _used(ways: Sequence[int], stages: int) -> str:
    """Say how many GPUs --tp and --pp use."""
    if not ways:
        return f"--pp {stages} does not divide them"
    used = " or ".join(str(each * stages) for each in ways)
    more = f" --pp {stages}" if stages > 1 else ""
    return f"--tp {','.join(map(str, ways))}{more} uses {used}"


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= MOST_GPUS:
        raise UsageError(f"--tp {text!r}: give how many GPUs, such as 2 or 2,4")
    return int(text)


def _device(name: str, given: Mapping[str, Any]) -> Device:
    """Return the device of that name, with the changes or numbers that options give."""
    device = device_named(name)
    gbps, tflops, memory = (
        given[each] for each in ("peak_gbps", "peak_tflops", "memory_gb")
    )
    if device is None:
        if gbps is None or memory is None:
            raise UsageError(_unknown(name))
        return Device(
            name=name,
            bytes_per_s=gbps * GB,
            flops=_all_dtypes(tflops),
            memory_bytes=memory * GB,
            pcie_bytes_per_s=None,
            source="you",
        )
    if gbps is tflops is memory is None:
        return device
    return replace(
        device,
        bytes_per_s=device.bytes_per_s if gbps is None else gbps * GB,
        flops=device.flops if tflops is None else _all_dtypes(tflops),
        memory_bytes=device.memory_bytes if memory is None else memory * GB,
        source=f"{device.source}; you",
    )


def _all_dtypes(tflops: float | None) -> dict[str, float]:
    """Return the peak FLOP/s that an option gives, the same for every dtype."""
    if tflops is None:
        return {}
    names = ("float32", "float16", "bfloat16", "float8", "int8", "float4")
    return dict.fromkeys(names, tflops * 1e12)


def _unknown(name: str) -> str:
    names = [device.name for device in DEVICES]
    near = get_close_matches(name.upper(), names, 3, 0.5)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return (
        f"--gpu {name}: not known here.{hint} Of any other GPU give --peak-gbps and "
        f"--memory-gb, best with --peak-tflops. Known are {', '.join(names)}"
    )


def _machine(device: Device, ways: int, given: Mapping[str, Any]) -> GpuSetup:
    overhead, storage = given["overhead_gb"], given["storage_gbps"]
    return GpuSetup(
        device=device,
        tensor_parallel=ways,
        pipeline_parallel=given["pp"],
        memory_share=given["memory_share"],
        overhead_bytes=None if overhead is None else overhead * GB,
        storage_bytes_per_s=None if storage is None else storage * GB,
        gpu_hour=given["gpu_hour"],
    )


# The requests.


def _workload(given: Mapping[str, Any]) -> Workload:
    """Return the workload; of context, prompt and output, two determine the third."""
    context, prompt, output = (given[each] for each in ("context", "prompt", "output"))
    if context is None:
        made = output or DEFAULT_OUTPUT
        context = DEFAULT_CONTEXT if prompt is None else prompt + made
    if output is None:
        room = context - prompt if prompt is not None else context - 1
        output = max(1, min(DEFAULT_OUTPUT, room))
    if prompt is None:
        prompt = context - output
    if given["output"] is None and given["prompt"] is not None and prompt >= context:
        raise UsageError(f"--prompt {prompt} leaves no room in --context {context}")
    if prompt < 1 or prompt + output > context:
        raise UsageError(
            f"--prompt {prompt} and --output {output} do not fit into "
            f"--context {context}"
        )
    return Workload(
        batch=given["batch"],
        prompt=prompt,
        output=output,
        context=context,
        block_tokens=given["block_size"],
    )


def _measured(given: Mapping[str, Any]) -> MeasuredTimes:
    return MeasuredTimes(
        tpot_s=_seconds(given["measured_tpot"], "--measured-tpot"),
        ttft_s=_seconds(given["measured_ttft"], "--measured-ttft"),
        tokens_per_s=given["measured_tokens_per_s"],
    )


def _seconds(text: str | None, flag: str) -> float | None:
    """Parse a duration such as ``15ms``, ``800us`` or ``1.2s``; seconds by default."""
    if text is None:
        return None
    seconds = duration_s(text)
    if not seconds:
        raise UsageError(f"{flag} {text!r}: give a time such as 15ms or 1.2s")
    return seconds


class PositiveParam(click.ParamType[float]):
    """A number above zero; its bounds would be noise in the help, so it hides them."""

    def __init__(self, name: str, *, whole: bool, most: float) -> None:
        self.name, self.whole, self.most = name, whole, most

    def convert(
        self,
        value: Any,  # noqa: ANN401 - click's
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Refuse what is not a number, zero, or absurdly large."""
        try:
            number = (count_of(str(value)) or 0) if self.whole else float(value)
        except (ValueError, OverflowError):
            number = 0
        if not 0 < number <= self.most:
            kind = "whole number" if self.whole else "number"
            most = f"{self.most:,.0f}" if self.most < 1e12 else f"{self.most:g}"
            self.fail(f"{value!r} is not a {kind} above 0, at most {most}", param, ctx)
        return number


MANY = PositiveParam("count", whole=True, most=1_000_000_000)
POSITIVE = PositiveParam("amount", whole=False, most=1e12)
SHARE = PositiveParam("share", whole=False, most=1)
HEADINGS: Mapping[str, tuple[str, ...]] = {
    "Model": ("model", "dtype", "quantization", "kv_dtype", "weight_bits"),
    "Model without a file": (
        *("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "tied"),
        *("experts", "experts_per_token", "expert_ffn", "window"),
    ),
    "GPUs": (
        *("gpu", "tp", "pp", "memory_share", "overhead_gb"),
        *("peak_gbps", "peak_tflops", "memory_gb", "storage_gbps", "gpu_hour"),
        "currency",
    ),
    "Requests": ("batch", "context", "prompt", "output", "block_size"),
    "Measured": ("measured_tpot", "measured_ttft", "measured_tokens_per_s"),
    "Answer": ("as_json", "fail_if_not_fit"),
}


@click.command(
    cls=HeadedCommand,
    headings=HEADINGS,
)
@click.argument("named", required=False, metavar="[MODEL]")
@click.option(
    "--model",
    metavar="CONFIG",
    help="A config.json, a folder with one, a model in the Hugging Face cache here, or "
    "a preset: llama-3-8b, llama-3-70b, llama-3-405b, qwen2.5-7b, qwen3-30b-a3b, "
    "gpt-oss-20b, deepseek-v3.",
)
@click.option(
    "--gpu",
    multiple=True,
    metavar="NAME",
    help="H200, A100-40GB, 'RTX 4090', 4xH100 …; again, or H100,H200: side by side.",
)
@click.option(
    "--tp",
    multiple=True,
    metavar="N",
    help="Tensor parallel: GPUs that share each layer; 2,4 side by side.  [default: 1]",
)
@click.option(
    "--pp",
    type=MANY,
    default=1,
    show_default=True,
    metavar="N",
    help="Pipeline parallel: stages of layers.",
)
@click.option("--dtype", help="Of what is not quantised: bfloat16, float16, float32.")
@click.option(
    "--quantization",
    multiple=True,
    metavar="METHOD",
    help="Of weights: none, fp8, awq, gptq, bitsandbytes, nvfp4, int8 …; several side "
    "by side.  [default: as the checkpoint]",
)
@click.option(
    "--kv-dtype",
    multiple=True,
    metavar="DTYPE",
    help="Of the KV cache: auto, fp8, bfloat16 …; several as well.  [default: auto]",
)
@click.option(
    "--weight-bits",
    type=POSITIVE,
    metavar="BITS",
    help="Of a quantised weight, where the method does not say it: 4.85 for Q4_K_M.",
)
@click.option("--layers", type=MANY, metavar="N", help="Layers.")
@click.option("--hidden", type=MANY, metavar="N", help="Hidden size.")
@click.option("--heads", type=MANY, metavar="N", help="Query heads.")
@click.option("--kv-heads", type=MANY, metavar="N", help="KV heads.  [default: heads]")
@click.option(
    "--head-dim", type=MANY, metavar="N", help="Of a head.  [default: hidden / heads]"
)
@click.option("--ffn", type=MANY, metavar="N", help="Inner size of the FFN.")
@click.option("--vocab", type=MANY, metavar="N", help="Words of the vocabulary.")
@click.option("--tied", is_flag=True, help="The input table is the output head, too.")
@click.option("--experts", type=MANY, metavar="N", help="Experts of each layer.")
@click.option(
    "--experts-per-token", type=MANY, metavar="N", help="Those a token passes."
)
@click.option("--expert-ffn", type=MANY, metavar="N", help="Inner size of an expert.")
@click.option(
    "--window", type=MANY, metavar="TOKENS", help="Sliding window, all layers."
)
@click.option(
    "--memory-share",
    type=SHARE,
    default=0.92,
    show_default=True,
    metavar="SHARE",
    help="Of a GPU's memory, as vLLM's --gpu-memory-utilization.",
)
@click.option(
    "--overhead-gb",
    type=POSITIVE,
    metavar="GB",
    help="Of a GPU, beside weights and KV: activations, graphs, libraries.  [default: "
    "an estimate]",
)
@click.option("--peak-gbps", type=POSITIVE, metavar="GB/S", help="Memory bandwidth.")
@click.option(
    "--peak-tflops", type=POSITIVE, metavar="TFLOP/S", help="Dense, at the dtype."
)
@click.option("--memory-gb", type=POSITIVE, metavar="GB", help="Memory of a GPU.")
@click.option(
    "--storage-gbps", type=POSITIVE, metavar="GB/S", help="Where weights load from."
)
@click.option("--gpu-hour", type=POSITIVE, metavar="PRICE", help="Of one GPU.")
@click.option("--currency", metavar="TEXT", help="Of --gpu-hour.  [default: $]")
@click.option(
    "--batch",
    type=MANY,
    default=1,
    show_default=True,
    metavar="N",
    help="Requests that decode together.",
)
@click.option(
    "--context",
    type=MANY,
    metavar="TOKENS",
    help="Tokens that each request has room for in the KV cache.  "
    "32k is 32,000, 32K is 32,768.  [default: prompt + output, or 4096]",
)
@click.option(
    "--prompt", type=MANY, metavar="TOKENS", help="[default: context − output]"
)
@click.option("--output", type=MANY, metavar="TOKENS", help="[default: 256]")
@click.option(
    "--block-size",
    type=MANY,
    default=16,
    show_default=True,
    metavar="TOKENS",
    help="Of a block of the KV cache.",
)
@click.option("--measured-tpot", metavar="TIME", help="15ms: can it be?")
@click.option("--measured-ttft", metavar="TIME", help="Of a prompt alone: can it be?")
@click.option(
    "--measured-tokens-per-s",
    type=POSITIVE,
    metavar="RATE",
    help="Output of all requests: can it be?",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--fail-if-not-fit", is_flag=True, help="Exit status 1 where a batch does not fit."
)
def plan(named: str | None, **given: Any) -> int:  # noqa: ANN401 - click's
    """Say what a model on some GPUs could do at best; no engine is needed.

    Does it fit, what binds decode, what limits the batch, what latency, what price, how
    long it loads: from the shape of the model and data sheets. Times are floors, rates
    are ceilings: at 100% of the peaks, without communication between GPUs, the host and
    the queue. Real servers reach 50 to 80% of them.

    \b
    64 requests of 4,096 tokens on one H200:
      inferwatch plan llama-3-8b --gpu H200 --batch 64
    What an FP8 cache or more GPUs would change, side by side:
      inferwatch plan --model llama-3-70b --gpu H100 --tp 2,4 --kv-dtype auto,fp8 \\
          --batch 32 --gpu-hour 2.50
    A model of your own; a GPU that is not known here:
      inferwatch plan --model ./my-model --gpu H200 --prompt 2000 --output 500
      inferwatch plan --model qwen2.5-7b --gpu mine --peak-gbps 2000 \\
          --peak-tflops 300 --memory-gb 64
    Without any file:
      inferwatch plan --layers 32 --hidden 4096 --heads 32 --kv-heads 8 --ffn 14336 \\
          --vocab 128256 --gpu L40S
    Can this measurement be?
      inferwatch plan --model llama-3-8b --gpu A100 --measured-tpot 7.1ms

    Exit status 1 where a measured number beats its floor, or with --fail-if-not-fit
    where a batch does not fit.
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    if named is not None and given["model"] is not None:
        raise click.UsageError(f"{named} and --model {given['model']}: give one model")
    return print_plan({**given, "model": named or given["model"]})
