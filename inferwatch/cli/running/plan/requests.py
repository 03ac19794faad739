"""Which requests a plan is of, and what was measured of them."""

from collections.abc import Mapping
from typing import Any

from inferwatch.cli.running.plan.model import find_model, shape_with
from inferwatch.errors import UsageError
from inferwatch.limits.plan import Workload
from inferwatch.limits.speculation import Drafting
from inferwatch.printing.summary.plan import MeasuredTimes
from inferwatch.quantities import duration_s

DEFAULT_CONTEXT = 4096
DEFAULT_OUTPUT = 256
MOST_DRAFTS = 128


def workload_of(given: Mapping[str, Any]) -> Workload:
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
        chunk=given["chunk"],
        drafting=_drafting(given),
    )


def _drafting(given: Mapping[str, Any]) -> Drafting | None:
    """Return how tokens are drafted; None without speculation."""
    acceptance, drafts = given["acceptance"], given["k"]
    model, cost = given["draft_model"], given["draft_cost"]
    if acceptance is None and drafts is None:
        if model is not None or cost is not None:
            raise UsageError("--draft-model and --draft-cost go with --acceptance, --k")
        return None
    if acceptance is None or drafts is None:
        raise UsageError("--acceptance and --k go together: --acceptance 0.7 --k 4")
    if drafts > MOST_DRAFTS:
        raise UsageError(f"--k {drafts:,}: at most {MOST_DRAFTS} tokens are drafted")
    if model is not None and cost is not None:
        raise UsageError("--draft-model and --draft-cost: give one of both")
    draft = None
    if model is not None:
        own = {"dtype": given["dtype"], "weight_bits": None, "quantize_head": False}
        draft = shape_with(find_model(model, "--draft-model")[1], own, None, "auto")
    return Drafting(
        acceptance=acceptance, drafts=drafts, model=draft, cost_share=cost or 0.0
    )


def measured_of(given: Mapping[str, Any]) -> MeasuredTimes:
    return MeasuredTimes(
        tpot_s=seconds_of(given["measured_tpot"], "--measured-tpot"),
        ttft_s=seconds_of(given["measured_ttft"], "--measured-ttft"),
        tokens_per_s=given["measured_tokens_per_s"],
    )


def seconds_of(text: str | None, flag: str) -> float | None:
    """Parse a duration such as ``15ms``, ``800us`` or ``1.2s``; seconds by default."""
    if text is None:
        return None
    seconds = duration_s(text)
    if not seconds:
        raise UsageError(f"{flag} {text!r}: give a time such as 15ms or 1.2s")
    return seconds
