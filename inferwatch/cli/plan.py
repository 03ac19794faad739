"""``inferwatch plan``: what a model could do on some GPUs, without an engine."""

from collections.abc import Mapping
from typing import Any

import click

from inferwatch.cli.options import HeadedCommand
from inferwatch.quantities import count_of


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
    "Model": (
        "model",
        "dtype",
        "quantization",
        "kv_dtype",
        "weight_bits",
        "quantize_head",
    ),
    "Model without a file": (
        *("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "tied"),
        *("experts", "experts_per_token", "expert_ffn", "window"),
    ),
    "GPUs": (
        *("gpu", "tp", "pp", "dp", "ep", "call_latency", "memory_share", "overhead_gb"),
        *("peak_gbps", "peak_tflops", "memory_gb", "storage_gbps", "gpu_hour"),
        "currency",
    ),
    "Requests": ("batch", "context", "prompt", "output", "chunk", "block_size"),
    "Speculation": ("acceptance", "k", "draft_model", "draft_cost"),
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
    "a preset: llama-3-8b, llama-3-70b, llama-3-405b, qwen2.5-7b, qwen2.5-72b, "
    "qwen3-30b-a3b, mixtral-8x7b, gpt-oss-20b, deepseek-v3.",
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
@click.option(
    "--dp",
    type=MANY,
    default=1,
    show_default=True,
    metavar="N",
    help="Data parallel of a mixture of experts: ranks with attention of their own.",
)
@click.option("--ep", is_flag=True, help="Expert parallel: each GPU has whole experts.")
@click.option(
    "--call-latency",
    metavar="TIME",
    help="Of a call between GPUs, an estimate.  [default: 10us]",
)
@click.option("--dtype", help="Of what is not quantised: bfloat16, float16, float32.")
@click.option(
    "--quantization",
    multiple=True,
    metavar="METHOD",
    help="Of weights: none, fp8, awq, gptq, bitsandbytes, nvfp4, w8a8, w8a16 …; "
    "several side by side.  [default: as the checkpoint]",
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
@click.option(
    "--quantize-head",
    is_flag=True,
    help="Embedding and output head have those bits, too, as in GGUF.",
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
    "--chunk",
    type=MANY,
    default=8192,
    show_default=True,
    metavar="TOKENS",
    help="Most that a step computes, as vLLM's --max-num-batched-tokens.",
)
@click.option(
    "--block-size",
    type=MANY,
    default=16,
    show_default=True,
    metavar="TOKENS",
    help="Of a block of the KV cache.",
)
@click.option(
    "--acceptance",
    type=SHARE,
    metavar="SHARE",
    help="Chance that a drafted token is accepted if those before it were.",
)
@click.option("--k", type=MANY, metavar="N", help="Tokens drafted for each pass.")
@click.option(
    "--draft-model",
    metavar="CONFIG",
    help="That drafts them, as --model.  [default: n-grams, which cost nothing]",
)
@click.option(
    "--draft-cost",
    type=SHARE,
    metavar="SHARE",
    help="Of a head that drafts: time of a token, as a share of a decode step.",
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
    from inferwatch.cli.running.plan.print_plan import print_plan

    return print_plan({**given, "model": named or given["model"]})
