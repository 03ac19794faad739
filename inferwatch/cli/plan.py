"""``inferwatch plan``: what a model could do on some GPUs, without an engine."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from inferwatch.cli.options import HeadedCommand, flag_of
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


MOST_VALUES = 64


class ListParam(click.ParamType[tuple[int, ...]]):
    """Whole numbers above zero: one, several with commas, or a range that doubles."""

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(
        self,
        value: Any,  # noqa: ANN401 - click's
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[int, ...]:
        """Refuse what is not such a list.

        ``1..6`` are 1, 2, 4 and 6.
        """
        numbers: list[int] = []
        for part in str(value).split(","):
            first, is_range, last = part.partition("..")
            low = int(MANY.convert(first.strip(), param, ctx))
            high = int(MANY.convert(last.strip(), param, ctx)) if is_range else low
            if low > high:
                self.fail(f"{part!r} falls: write {last}..{first}", param, ctx)
            while low < high:
                numbers.append(low)
                low *= 2
            numbers.append(high)
        if len(numbers) > MOST_VALUES:
            self.fail(f"{len(numbers)} values are more than {MOST_VALUES}", param, ctx)
        return tuple(dict.fromkeys(numbers))


class PriceParam(click.ParamType[Mapping[str, float]]):
    """A price of every GPU, or of each by its name; that of every one is of ""."""

    name = "price"

    def convert(
        self,
        value: Any,  # noqa: ANN401 - click's
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Mapping[str, float]:
        """Refuse what is not a price, and a GPU that has two."""
        prices: dict[str, float] = {}
        for each in str(value).split(","):
            name, named, price = each.rpartition("=")
            name = name.strip()
            if name in prices or bool(named) != bool(name) or (prices and not name):
                self.fail(
                    f"{value!r}: give one price, or one of each GPU: H100=2.5,A100=1.4",
                    param,
                    ctx,
                )
            prices[name] = POSITIVE.convert(price.strip(), param, ctx)
        if "" in prices and len(prices) > 1:
            self.fail(f"{value!r}: name every GPU, or none", param, ctx)
        return prices


MANY = PositiveParam("count", whole=True, most=1_000_000_000)
POSITIVE = PositiveParam("amount", whole=False, most=1e12)
LIST = ListParam("counts")
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
    "Objectives": (
        *("slo", "slo_target", "rate", "demand", "start_time"),
        *("efficiency", "calibrate"),
    ),
    "Requests": ("batch", "context", "prompt", "output", "chunk", "block_size"),
    "Speculation": ("acceptance", "k", "draft_model", "draft_cost"),
    "Measured": (
        *("measured_tpot", "measured_ttft", "measured_tokens_per_s"),
        "measured_curve",
    ),
    "Answer": ("as_json", "html", "force", "fail_if_not_fit"),
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
    type=LIST,
    multiple=True,
    metavar="N",
    help="Tensor parallel: GPUs that share each layer; 2,4 or 1..8 (doubling) side by "
    "side.  [default: 1]",
)
@click.option(
    "--pp",
    type=LIST,
    default="1",
    show_default=True,
    metavar="N",
    help="Pipeline parallel: stages of layers; 1,2 side by side.",
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
@click.option(
    "--gpu-hour",
    type=PriceParam(),
    metavar="PRICE",
    help="Of one GPU: 2.50, or by its name: H100=2.5,A100=1.4.",
)
@click.option("--currency", metavar="TEXT", help="Of --gpu-hour.  [default: $]")
@click.option(
    "--batch",
    type=LIST,
    default="1",
    show_default=True,
    metavar="N",
    help="Requests that decode together; 1,8,64 or 1..256 (doubling) make a curve.",
)
@click.option(
    "--context",
    type=LIST,
    metavar="TOKENS",
    help="Tokens that each request has room for in the KV cache; 2k,8k,32k: a curve "
    "each.  32k is 32,000, 32K is 32,768.  [default: prompt + output, or 4096]",
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
    "--slo",
    metavar="TEXT",
    help="The least GPUs that hold these objectives, such as 'ttft_s<1 tpot_s<50ms'.",
)
@click.option(
    "--slo-target",
    type=SHARE,
    metavar="SHARE",
    help="Share of the requests that must meet them.  [default: 0.95]",
)
@click.option(
    "--rate",
    metavar="RATE",
    help="Requests that come at random: 20, 20/s, 600/min; their wait is simulated.",
)
@click.option(
    "--demand",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Requests of each hour of a day (CSV or JSON lines): replicas by the hour.",
)
@click.option(
    "--start-time",
    metavar="TIME",
    help="Of a replica: 3min.  [default: as recorded, else the floor of its load]",
)
@click.option(
    "--efficiency",
    type=SHARE,
    metavar="SHARE",
    help="Of the peaks that steps reach: estimates, with communication between GPUs.",
)
@click.option(
    "--calibrate",
    metavar="SESSION",
    help="A recording: what its steps took beyond their floors is added.",
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
@click.option(
    "--measured-curve",
    metavar="POINTS",
    help="Tokens/s by batch, as 1=140,8=540, or a file with such lines: can they be?",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A page with the curves.",
)
@click.option("--force", is_flag=True, help="Overwrite the file of --html.")
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
    The least GPUs for 20 requests a second with TPOT under 40 ms, and with FP8:
      inferwatch plan 70b --gpu H100 --rate 20 --prompt 2k --output 256 \\
          --slo 'tpot_s<40ms'
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
    Where does throughput stop growing?
      inferwatch plan 8b --gpu A100,H100 --batch 1..256 --context 2k,8k

    Exit status 1 where a measured number beats its floor, or with --fail-if-not-fit
    where a batch does not fit; also where nothing holds --slo at --rate.
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    if named is not None and given["model"] is not None:
        raise click.UsageError(f"{named} and --model {given['model']}: give one model")
    given["model"] = named or given["model"]
    if any(given[each] is not None for each in ("slo", "rate", "demand")):
        from inferwatch.cli.running.plan.print_capacity import print_capacity

        return print_capacity(given)
    needless = [
        flag_of(name)
        for name in ("slo_target", "start_time", "efficiency", "calibrate")
        if given[name] is not None
    ]
    if needless:
        raise click.UsageError(
            f"{', '.join(needless)}: give --slo or --rate as well, which they are for"
        )
    from inferwatch.cli.running.plan.print_plan import print_plan

    return print_plan(given)
