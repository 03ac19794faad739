"""A request's path through the steps: chunks, tokens, preemptions and KV blocks."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from collectors.contract.readings import Step


class OwnStep(msgspec.Struct, kw_only=True, gc=False):
    """A step that the request was in."""

    place: int
    """Index among the steps of its rank."""
    step: Step
    scheduled: int
    produced: int
    again: bool = False
    """Whether it recomputed tokens that a preemption had discarded."""
    prefills: bool = False
    """Whether it computed known tokens (prefill); else it computed the next one."""


@dataclass(slots=True, kw_only=True)
class Preemption:
    """A step that began by preempting the request."""

    place: int
    step: Step
    own: int
    """Number of the request's own steps before it."""


@dataclass(slots=True)
class RequestWalk:
    """A request's steps, tokens and preemptions, from one pass over all steps."""

    own: list[OwnStep] = field(default_factory=list)
    preemptions: list[Preemption] = field(default_factory=list)
    computed: list[tuple[int, int]] = field(default_factory=list)
    """Times, with the number of its tokens computed or being computed from then on."""
    drafted: int | None = None
    accepted: int | None = None
    tokens: int = 0
    """Output tokens of its steps."""
    with_token: list[OwnStep] = field(default_factory=list)
    """Steps that gave it tokens."""

    @property
    def first(self) -> OwnStep | None:
        return self.with_token[0] if self.with_token else None


class MemberFinder:
    """Finds a request among the members of steps.

    Consecutive steps mostly share one list of members, so each list is searched once.
    """

    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal
        self._places: dict[int, int | None] = {}

    def own(self, place: int, step: Step) -> OwnStep | None:
        """Return the request's part of a step; None where it has none."""
        members = step.members
        at = self._places.get(id(members), -1)
        if at == -1:
            here = self._ordinal in members
            at = members.index(self._ordinal) if here else None
            self._places[id(members)] = at
        if at is None:
            return None
        scheduled, produced = step.scheduled[at], step.produced[at]
        return OwnStep(place=place, step=step, scheduled=scheduled, produced=produced)


@dataclass(slots=True)
class Computing:
    """How far a request's known tokens are computed."""

    known_tokens: int | None
    """Length of its prompt, if known."""
    computed: int
    lost: int = 0
    """Computed tokens that a preemption discarded."""
    fresh: bool = True
    """Whether known tokens are not computed yet, so that it is in prefill."""

    def put_back(self) -> None:
        """Discard all computed tokens because of a preemption."""
        self.lost, self.computed = max(self.lost, self.computed), 0
        self.fresh = True

    def take(self, own: OwnStep, walked: RequestWalk) -> None:
        """Add a step of the request, and set what the step computed."""
        own.prefills, own.again = self.fresh, self.fresh and self.computed < self.lost
        if not self.fresh:
            self.computed += max(own.produced, 1)
            if own.step.drafted_tokens is not None:
                walked.drafted = (walked.drafted or 0) + own.scheduled - 1
                walked.accepted = (walked.accepted or 0) + max(own.produced, 1) - 1
            return
        if own.produced:
            # The last chunk ends with the last known token: what it did not schedule
            # was computed before, or came out of the prefix cache.
            if self.known_tokens is not None:
                tokens = self.known_tokens + walked.tokens
                self.computed = max(self.computed, tokens - own.scheduled)
            self.fresh, self.lost = False, 0
        self.computed += own.scheduled


def walk(
    steps: Sequence[Step],
    ordinal: int | None,
    known_tokens: int | None,
    cached_tokens: int,
) -> RequestWalk:
    """Follow a request through the steps of its rank, in order.

    ``known_tokens`` is the length of its prompt, ``cached_tokens`` how many of these
    were found in the prefix cache.
    """
    walked = RequestWalk()
    if ordinal is None:
        return walked
    finder, state = MemberFinder(ordinal), Computing(known_tokens, cached_tokens)
    for place, step in enumerate(steps):
        if step.preempted and ordinal in step.preempted:
            back = Preemption(place=place, step=step, own=len(walked.own))
            walked.preemptions.append(back)
            walked.computed.append((step.start_ns, 0))
            state.put_back()
        own = finder.own(place, step)
        if own is None:
            continue
        state.take(own, walked)
        walked.computed.append((step.start_ns, state.computed))
        walked.own.append(own)
        walked.tokens += own.produced
        if own.produced:
            walked.with_token.append(own)
    return walked
