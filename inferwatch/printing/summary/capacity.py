"""The conclusion of a capacity plan in one sentence: how many fit, what bounds them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from inferwatch.formatting import counted, format_rate, gigabytes_text
from inferwatch.limits.plan import CapacityPlan, plan_for
from inferwatch.printing.summary.set_ups import change_text, machine_text

SAME = 0.05
"""A rate that differs by less is no help."""
MOST_OTHERS = 3


def capacity_sentence(plans: Sequence[CapacityPlan]) -> str:
    """How many users fit, also in other formats, and what bounds their output.

    For example ``15 users of 32,768 tokens fit on H100 SXM; with FP8 weights 21, FP8
    both 43; prompts limit output to 172 tokens/s, which an FP8 cache does not help``.
    ``plans`` are the first column, then others.
    """
    first, *others = plans
    named = [(name, each) for each in others if (name := _difference(first, each))]
    named = named[:MOST_OTHERS]
    fits = "; ".join([_fitting(first), *_other_counts(first, named)])
    bound = _bound(first, named)
    return f"{fits}; {bound}" if bound else fits


def _fitting(plan: CapacityPlan) -> str:
    where = machine_text(plan)
    most, asked = plan.max_requests, plan.workload.batch
    if not most:
        short = gigabytes_text(-plan.left_bytes)
        return f"No user fits on {where}: {short} per GPU short"
    users = f"{counted(most, 'user')} of {plan.workload.context:,} tokens"
    fits = "fits" if most == 1 else "fit"
    if asked > most:
        return f"{asked:,} users do not fit on {where}: {most:,} do"
    return f"{users} {fits} on {where}"


def _other_counts(
    first: CapacityPlan, others: Sequence[tuple[str, CapacityPlan]]
) -> Iterator[str]:
    counts = [f"{name} {plan.max_requests:,}" for name, plan in others]
    counts[1:] = [each.removeprefix("with ") for each in counts[1:]]
    if counts and any(e.max_requests != first.max_requests for _, e in others):
        yield ", ".join(counts)


def _difference(first: CapacityPlan, other: CapacityPlan) -> str | None:
    """What is different of the second column, in words; None if there is nothing."""
    formats = change_text(first.shape, other.shape)
    if (other.machine.device, other.machine.gpus) != (
        first.machine.device,
        first.machine.gpus,
    ):
        where = f"on {machine_text(other)}"
        return f"{where} with {formats}" if formats else where
    return f"with {formats}" if formats else None


def _full(plan: CapacityPlan) -> CapacityPlan:
    """The same with as many users as fit."""
    return plan_for(
        plan.shape, plan.machine, replace(plan.workload, batch=plan.max_requests)
    )


def _bound(
    first: CapacityPlan, others: Sequence[tuple[str, CapacityPlan]]
) -> str | None:
    """What bounds the output of as many users as fit, and which format helps."""
    if not first.max_requests:
        return None
    full = _full(first)
    decoded, served = full.tokens_per_s, full.served_tokens_per_s
    if decoded is None:
        return None
    rate = decoded if served is None else served
    prompts = served is not None and served < (1 - SAME) * decoded
    text = f"{format_rate(rate).strip()} tokens/s"
    where = f"on {machine_text(first)}, " if _are_several(first, others) else ""
    if prompts:
        said = f"{where}prompts limit output to {text}"
        return ", ".join([said, *_no_help(rate, others)])
    by = f" by {full.binds}" if full.binds else ""
    return f"{where}decode is bound{by}, at {text} for all of them"


def _are_several(
    first: CapacityPlan, others: Sequence[tuple[str, CapacityPlan]]
) -> bool:
    return any(machine_text(each) != machine_text(first) for _, each in others)


def _no_help(rate: float, others: Sequence[tuple[str, CapacityPlan]]) -> Iterator[str]:
    """The formats that bring no more output, though more users fit."""
    names = []
    for name, plan in others:
        full = _full(plan) if plan.max_requests else None
        served = full.served_tokens_per_s if full is not None else None
        if served is not None and served < (1 + SAME) * rate:
            names.append(name.removeprefix("with "))
    if len(names) > 1 and all("FP8" in each for each in names):
        yield "which FP8 does not help"
    elif len(names) > 1:
        yield f"which {', '.join(names[:-1])} and {names[-1]} do not help"
    elif names:
        verb = "do" if names[0].endswith("weights") else "does"
        yield f"which {names[0]} {verb} not help"
