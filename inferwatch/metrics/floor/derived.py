"""Derives how much context each step's members have in the KV cache.

Attention reads the keys and values of each member's whole context: the tokens computed
before, including a cached prefix, and those of this step; layers with a sliding window
read no further back. `metrics.floor.rank` turns this into bytes. Left out are
activations, reads for sampling, and second passes: a kernel may read a prefill's
context once for each tile of queries, so prefill reads more than this. A prefix that
members share may be read once for all of them.

For a request that was running before the watch, only prompt tokens and those computed
since are counted. The prefix cache hits of a preempted request are known once its last
chunk is done.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from collectors.contract.readings import EngineInfo, EventKind, RequestEvent, Step
from inferwatch.limits.step import chunk_pairs
from inferwatch.metrics.requests.request import come_first

MOST_REQUESTS = 20_000
"""Largest number of live requests followed; the end of some may never be reported."""
MOST_RANKS = 512


class StepTraffic(NamedTuple):
    """Least bytes that a step moved to and from memory."""

    weight_bytes: float
    kv_bytes: float


class RequestContext(msgspec.Struct, array_like=True, gc=False):
    """How much of a request that is not decoding is in the KV cache."""

    known_tokens: int = 0
    """Tokens of prompt and output; 0 where the prompt is unknown."""
    computed: int = 0
    """Tokens whose keys and values are in the cache."""


class RankTraffic(msgspec.Struct, array_like=True):
    """The decoding requests of a rank's latest step, and the context of its members."""

    steps: int = 0
    decoding: dict[int, int] = {}
    """Tokens in the cache minus ``steps``, by ordinal.

    A step that adds one token to each member, as nearly all do, changes nothing here.
    """
    members: list[int] = []
    """Members of the latest step if each decoded one token, else empty.

    The next step likely has the same. Always empty with chunked attention.
    """
    context: int = 0
    """Total context of the latest step's members, including the step's own tokens."""
    pairs: int = 0
    """Query-key pairs of the latest step: a token attends to itself and those before.
    """
    window: int | None = None
    """Window in tokens of sliding-window layers; None where there are none."""
    chunked: bool = False
    """Whether the window is a chunk, as in chunked attention."""
    tokens: int = 0
    """Tokens scheduled in the latest step."""
    window_context: int = 0
    """Context before the latest step that is inside the window."""
    window_pairs: int = 0
    nearing: list[int] = []
    """For each member whose context is shorter than the window, the last step that
    starts so; sorted.
    """


class EngineTraffic(msgspec.Struct, array_like=True):
    """The ranks and requests of one engine."""

    ranks: dict[int, RankTraffic] = {}
    requests: dict[int, RequestContext] = {}
    """Requests that are not decoding, by ordinal, oldest first."""


class DerivedTraffic:
    """Follows the context of each request, to derive what each step read."""

    def __init__(self) -> None:
        self._engines: dict[str, EngineTraffic] = {}

    def info(self, info: EngineInfo) -> None:
        ranks = self._engines.setdefault(info.source, EngineTraffic()).ranks
        if info.rank not in ranks and len(ranks) < MOST_RANKS:
            ranks[info.rank] = RankTraffic()

    def windowed(
        self, source: str, number: int, window: int | None, *, chunked: bool = False
    ) -> None:
        """Set the window of a rank's sliding-window layers."""
        engine = self._engines.get(source)
        rank = engine.ranks.get(number) if engine is not None else None
        if rank is not None and (rank.window, rank.chunked) != (window, chunked):
            rank.window, rank.chunked = window, chunked
            rank.members = []  # look all members up again
            rank.window_context = rank.window_pairs = 0

    def event(self, event: RequestEvent) -> None:
        """Update a request that arrives, is scheduled, or ends."""
        engine, ordinal = self._engines.get(event.source), event.ordinal
        if engine is None or ordinal is None:
            return
        if event.kind is EventKind.FINISHED:
            engine.requests.pop(ordinal, None)
            for rank in engine.ranks.values():
                rank.decoding.pop(ordinal, None)
            return
        for rank in engine.ranks.values():
            if ordinal in rank.decoding:
                return
        request = _request(engine, ordinal)
        prompt, cached = event.prompt_tokens or 0, event.cached_tokens or 0
        request.known_tokens = max(request.known_tokens, prompt)
        request.computed = max(request.computed, cached)

    def step(self, step: Step) -> RankTraffic | None:
        """Return the context of a new step's members, valid until the next step.

        None where the rank is unknown or the step is incomplete.
        """
        engine = self._engines.get(step.source)
        rank = None if engine is None else engine.ranks.get(step.rank)
        if engine is None or rank is None:
            return None
        if not len(step.members) == len(step.scheduled) == len(step.produced):
            return None
        _follow(engine, rank, step)
        return rank

    def lost(self, source: str) -> None:
        """Forget a lost engine, or all; a restarted one counts requests anew."""
        for each in [source] if source else list(self._engines):
            self._engines.pop(each, None)

    def saved(self) -> dict[str, EngineTraffic]:
        """Return the state for a checkpoint; encode it before the next reading."""
        return self._engines

    def restore(self, saved: dict[str, EngineTraffic]) -> None:
        self._engines = saved


def _follow(engine: EngineTraffic, rank: RankTraffic, step: Step) -> None:
    """Update the context of a rank by the members of a step."""
    members = len(step.members)
    one_each = 0 < step.produced.count(1) == members == step.decode_tokens
    if one_each and step.members == rank.members and not step.preempted:
        rank.steps += 1
        rank.tokens = members
        rank.context = rank.pairs = rank.context + members
        if rank.window is not None:
            _one_more_in_window(rank)
    else:
        _look_up(engine, rank, step)
        # with chunked attention the context starts over at each chunk
        grows = one_each and not step.prefill_tokens and not rank.chunked
        rank.members = step.members if grows else []


def _one_more_in_window(rank: RankTraffic) -> None:
    """Update the window context of a step that adds one token to each member."""
    nearing = rank.nearing
    rank.window_context += len(nearing)
    if nearing and nearing[0] < rank.steps:
        del nearing[: bisect_left(nearing, rank.steps)]
    rank.window_pairs = rank.window_context + len(nearing)


def _look_up(engine: EngineTraffic, rank: RankTraffic, step: Step) -> None:
    before, decoding = rank.steps, rank.decoding
    rank.steps += 1
    for ordinal in step.preempted:
        _stop_decoding(engine, rank, ordinal, before).computed = 0
    held = len(decoding)
    if come_first(decoding, step.members):
        others: Sequence[int] = range(held, len(step.members))
        cached_tokens: list[int | None] = [*decoding.values(), *[None] * len(others)]
        alike = step.produced[:held].count(1) == held
    else:
        cached_tokens = list(map(decoding.get, step.members))
        others = [place for place, each in enumerate(cached_tokens) if each is None]
        if held > len(cached_tokens) - len(others):
            for ordinal in decoding.keys() - step.members:
                _stop_decoding(engine, rank, ordinal, before)
        alike = step.produced.count(1) == len(cached_tokens)
    if not alike:  # drafts, or a discarded token
        rows = zip(step.members, cached_tokens, step.produced, strict=False)
        more = {ordinal: each + n - 1 for ordinal, each, n in rows if each is not None}
        decoding.update(more)
    for place in others:
        # As for decoding members: minus the steps before this one.
        cached_tokens[place] = _prefill(engine, rank, step, place) - before
    cached: list[int] = cached_tokens  # type: ignore[assignment] # there is no None left
    _add_up(rank, cached, step.scheduled, others)


def _add_up(
    rank: RankTraffic, cached: list[int], scheduled: list[int], others: Sequence[int]
) -> None:
    """Sum up the context of a step's members, for the rank's traffic.

    ``cached`` are cached tokens less the steps so far, as in ``decoding``.
    """
    before, whole = rank.steps - 1, sum(scheduled)
    rank.tokens = whole
    rank.context = rank.pairs = len(cached) * before + sum(cached) + whole
    if whole != len(cached):
        of_others = sum([scheduled[place] for place in others])
        drafts = whole - of_others != len(cached) - len(others)
        for place in range(len(cached)) if drafts else others:
            n = scheduled[place]
            rank.pairs += (n - 1) * (cached[place] + before) + n * (n - 1) // 2
    if rank.window is not None:
        _look_into_windows(rank, [each + before for each in cached], scheduled)


def _look_into_windows(
    rank: RankTraffic, cached: list[int], scheduled: list[int]
) -> None:
    """Compute how much of the context, and how many pairs, are inside the window."""
    window, context, pairs = rank.window or 0, 0, 0
    if rank.chunked:
        rank.window_context = sum(tokens % window for tokens in cached)
        both = zip(cached, scheduled, strict=True)
        rank.window_pairs = sum(chunk_pairs(n, tokens, window) for tokens, n in both)
        return
    for tokens, n in zip(cached, scheduled, strict=True):
        context += min(tokens, window)
        growing = min(max(window - tokens, 0), n)  # tokens whose window is not full
        pairs += (
            growing * tokens + growing * (growing + 1) // 2 + (n - growing) * window
        )
    rank.window_context, rank.window_pairs = context, pairs
    rank.nearing = sorted(rank.steps + window - h - 1 for h in cached if h < window)


def _prefill(engine: EngineTraffic, rank: RankTraffic, step: Step, place: int) -> int:
    """Return the cached tokens of a member that was not decoding before this step."""
    ordinal, scheduled = step.members[place], step.scheduled[place]
    produced = step.produced[place]
    request = _request(engine, ordinal)
    computed = request.computed
    if not produced:
        request.computed += scheduled
        return computed
    after = computed + scheduled
    if request.known_tokens > computed:  # the whole prompt is in the cache now
        after = request.known_tokens + produced - 1
    rank.decoding[ordinal] = after - rank.steps
    del engine.requests[ordinal]
    return max(computed, after - scheduled)


def _stop_decoding(
    engine: EngineTraffic, rank: RankTraffic, ordinal: int, steps: int
) -> RequestContext:
    """Take a request out of those that decode, and return its context."""
    request = _request(engine, ordinal)
    tokens = rank.decoding.pop(ordinal, None)
    if tokens is not None:
        request.computed = tokens + steps
        request.known_tokens = request.computed + 1  # the latest is not computed yet
    return request


def _request(engine: EngineTraffic, ordinal: int) -> RequestContext:
    """Return the context of a request, created where it is new."""
    requests = engine.requests
    request = requests.get(ordinal)
    if request is None:
        if len(requests) >= MOST_REQUESTS:
            del requests[next(iter(requests))]
        request = requests[ordinal] = RequestContext()
    return request
