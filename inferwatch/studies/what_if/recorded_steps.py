"""The recorded steps of one engine as columns, with the context of each member."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from collectors.contract.readings import Step

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedSteps:
    """One row for each step, in order of time."""

    start_ns: Ints
    end_ns: Ints
    took_ns: Ints
    gap_ns: Ints
    """Time from its end to the next step's start; -1 if the engine was idle then."""
    members: Ints
    prefill_tokens: Ints
    context: Ints
    """Tokens in the cache of all requests that decode."""
    pairs: Floats
    """Pairs of query and key tokens in attention, of all requests that prefill."""
    ended: Bools
    """Whether it was the last step of any request."""
    flat: "FlatMembers"

    def where(self, mask: Bools) -> "RecordedSteps":
        """Some of the steps, to learn their cost; ``flat`` remains that of all."""
        return replace(
            self,
            start_ns=self.start_ns[mask],
            end_ns=self.end_ns[mask],
            took_ns=self.took_ns[mask],
            gap_ns=self.gap_ns[mask],
            members=self.members[mask],
            prefill_tokens=self.prefill_tokens[mask],
            context=self.context[mask],
            pairs=self.pairs[mask],
            ended=self.ended[mask],
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlatMembers:
    """One row for each member of each step."""

    member: Ints
    step: Ints
    scheduled: Ints
    produced: Ints
    after: Ints
    """The member's tokens in the cache after the step."""


def recorded_steps(steps: Sequence[Step], prompts: Mapping[int, int]) -> RecordedSteps:
    """The steps as columns; ``prompts`` has prompt tokens by request ordinal."""
    flat = _flat(steps)
    end_ns = np.array([each.end_ns for each in steps], np.int64)
    start_ns = np.array([each.start_ns for each in steps], np.int64)
    took_ns = np.array([each.duration_ns for each in steps], np.int64)
    context, is_decode, last = _contexts(flat, prompts, steps)
    flat.after[:] = context + flat.scheduled
    decode_context = np.bincount(
        flat.step, np.where(is_decode, context, 0), minlength=len(steps)
    )
    area = flat.scheduled * (context + flat.scheduled / 2)
    weights = np.where(is_decode, 0.0, area)
    pairs = np.bincount(flat.step, weights, minlength=len(steps))
    prefill = np.bincount(
        flat.step, np.where(is_decode, 0, flat.scheduled), minlength=len(steps)
    )
    return RecordedSteps(
        start_ns=np.maximum(start_ns, end_ns - took_ns),
        end_ns=end_ns,
        took_ns=took_ns,
        gap_ns=_gaps(steps, start_ns, end_ns),
        members=np.bincount(flat.step, minlength=len(steps)).astype(np.int64),
        prefill_tokens=prefill.astype(np.int64),
        context=decode_context.astype(np.int64),
        pairs=pairs.astype(np.float64),
        ended=np.bincount(flat.step, last, minlength=len(steps)) > 0,
        flat=flat,
    )


def _flat(steps: Sequence[Step]) -> FlatMembers:
    sizes = [len(each.members) for each in steps]
    total = sum(sizes)

    def joined(name: str) -> Ints:
        every = (n for each in steps for n in getattr(each, name))
        return np.fromiter(every, np.int64, total)

    return FlatMembers(
        member=joined("members"),
        step=np.repeat(np.arange(len(steps)), sizes),
        scheduled=joined("scheduled"),
        produced=joined("produced"),
        after=np.zeros(total, np.int64),
    )


def _contexts(
    flat: FlatMembers, prompts: Mapping[int, int], steps: Sequence[Step]
) -> tuple[Ints, Bools, Bools]:
    """Each row's cached tokens, whether it decodes, and whether it is the last.

    At the end of its prefill, a request has computed all of its tokens so far. So
    contexts are counted back from there, whatever was found in the prefix cache, and
    however often the request was preempted.
    """
    order = np.lexsort((flat.step, flat.member))
    member, scheduled = flat.member[order], flat.scheduled[order]
    produced = flat.produced[order]
    starts = np.flatnonzero(np.r_[True, member[1:] != member[:-1]])
    sizes = np.diff(np.r_[starts, len(member)])
    prompt = np.array([prompts.get(n, 0) for n in member[starts].tolist()], np.int64)
    upto = np.cumsum(produced) - produced
    outputs = upto - np.repeat(upto[starts], sizes)
    known_tokens = np.repeat(prompt, sizes) + outputs
    resumed = _resumed(flat, order, steps)
    decodes = (outputs > 0) & ~resumed
    context = np.where(decodes, known_tokens - 1, 0)
    # A prefill: the known tokens less those it computes from here to its end.
    left, whose = 0, -1
    for place in np.flatnonzero(~decodes)[::-1]:
        if produced[place] or member[place] != whose:
            left, whose = 0, member[place]
        left += int(scheduled[place])
        context[place] = max(int(known_tokens[place]) - left, 0)
    last = np.zeros(len(order), bool)
    last[np.r_[starts[1:], len(member)] - 1] = True
    back = np.argsort(order)
    return np.maximum(context, 0)[back], decodes[back], last[back]


def _resumed(flat: FlatMembers, order: Ints, steps: Sequence[Step]) -> Bools:
    """Which rows recompute tokens that a preemption lost."""
    resumed = np.zeros(len(order), bool)
    preempted: dict[int, list[int]] = {}
    for place, step in enumerate(steps):
        for ordinal in step.preempted:
            preempted.setdefault(ordinal, []).append(place)
    if not preempted:
        return resumed
    member, when = flat.member[order], flat.step[order]
    produced = flat.produced[order]
    for ordinal, places in preempted.items():
        low, high = np.searchsorted(member, [ordinal, ordinal + 1])
        for place in places:
            row = low + int(np.searchsorted(when[low:high], place))
            while row < high:
                resumed[row] = True
                if produced[row]:
                    break
                row += 1
    return resumed


def _gaps(steps: Sequence[Step], start_ns: Ints, end_ns: Ints) -> Ints:
    """The gaps between steps; -1 where no request waits or is in both steps."""
    gaps = np.full(len(steps), -1, np.int64)
    between = np.maximum(start_ns[1:] - end_ns[:-1], 0)
    for place, (step, after) in enumerate(pairwise(steps)):
        if step.waiting or _goes_on(step, after):
            gaps[place] = between[place]
    return gaps


def _goes_on(step: Step, after: Step) -> bool:
    """Whether a request is in both steps; the oldest are tried first."""
    if step.members is after.members or not step.members:
        return bool(step.members)
    present = set(after.members)
    return any(member in present for member in step.members)
