"""Which requests a plan is of, and what was measured of them."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from inferwatch.cli.options import flag_of
from inferwatch.cli.running.plan.model import find_model, shape_with
from inferwatch.errors import UsageError
from inferwatch.limits.plan import Workload
from inferwatch.limits.speculation import Drafting
from inferwatch.printing.summary.plan import MeasuredTimes
from inferwatch.quantities import count_of, duration_s

DEFAULT_CONTEXT = 4096
DEFAULT_OUTPUT = 256
MOST_DRAFTS = 128
MOST_CHARACTERS, MOST_POINTS = 1_000_000, 256
MOST_BATCH, MOST_RATE = 1_000_000_000, 1e12


def workloads_of(given: Mapping[str, Any]) -> list[Workload]:
    """Return a workload for each context, of the first batch.

    Of context, prompt and output, two determine the third.
    """
    contexts: tuple[int | None, ...] = given["context"] or (None,)
    return [_workload(given, context) for context in contexts]


def workload_of(given: Mapping[str, Any]) -> Workload:
    """Return the only workload.

    Raises:
        UsageError: there are several.
    """
    if draws_curve(given):
        raise UsageError("several batches or contexts make a curve: give one of each")
    return workloads_of(given)[0]


def draws_curve(given: Mapping[str, Any]) -> bool:
    """Whether several batches or contexts are asked for, or a curve was measured."""
    several = len(given["batch"]) > 1 or len(given["context"] or ()) > 1
    return several or given["measured_curve"] is not None


def _workload(given: Mapping[str, Any], context: int | None) -> Workload:
    prompt, output = given["prompt"], given["output"]
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
        batch=given["batch"][0],
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


def claimed_curve(given: Mapping[str, Any]) -> dict[int, float]:
    """Return the measured tokens/s by batch; empty without any.

    Raises:
        UsageError: they cannot be read, or other options do not go with a curve.
    """
    measured = ("measured_tpot", "measured_ttft", "measured_tokens_per_s")
    for each in (*measured, "storage_gbps", "call_latency"):
        if given[each]:
            instead = "; of a curve give --measured-curve 1=140,8=540"
            raise UsageError(
                f"{flag_of(each)} is of one batch and context"
                f"{instead if each in measured else ''}"
            )
    text = given["measured_curve"]
    if text is None:
        return {}
    if len(given["context"] or ()) > 1:
        raise UsageError("--measured-curve is of one --context")
    return dict(_points(text))


def _points(text: str) -> Iterator[tuple[int, float]]:
    """Yield batch and tokens/s of each point, given in words or in the lines of a file.

    In a file batch and rate may stand apart by a comma or blanks, too; what follows #
    is a comment, and a first line without numbers the names of columns.
    """
    is_file = "=" not in text or Path(text).is_file()
    seen: set[int] = set()
    for word in _lines(Path(text)) if is_file else text.split(","):
        batch, rate = _point(word)
        if batch in seen:
            raise UsageError(f"--measured-curve: batch {batch} is there twice")
        seen.add(batch)
        yield batch, rate
    if not seen:
        raise UsageError(f"--measured-curve {text!r} holds no point")
    if len(seen) > MOST_POINTS:
        raise UsageError(f"--measured-curve: more than {MOST_POINTS} points")


def _lines(path: Path) -> list[str]:
    """Return the lines of a file that are to be points."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MOST_CHARACTERS + 1)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--measured-curve {str(path)!r}: no such file that can be read, and no "
            "points such as 1=140,8=540"
        ) from error
    if len(text) > MOST_CHARACTERS:
        raise UsageError(f"--measured-curve {str(path)!r} is too large for a curve")
    stripped = (line.partition("#")[0].strip() for line in text.splitlines())
    lines = [each for each in stripped if each]
    is_headed = lines and not any(map(str.isdigit, lines[0]))
    return lines[1:] if is_headed else lines


def _point(word: str) -> tuple[int, float]:
    parts = re.split(r"\s*[=,;\t]\s*|\s+", word.strip())
    batch = count_of(parts[0])
    try:
        rate = float(parts[1])
    except (IndexError, ValueError):
        rate = 0.0
    if len(parts) != 2 or not batch or not 0 < rate < MOST_RATE or batch > MOST_BATCH:
        raise UsageError(
            f"--measured-curve: {word!r} is no batch with its tokens/s, such as 8=540"
        )
    return batch, rate


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
