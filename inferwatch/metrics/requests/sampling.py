"""How long answers get, and how they end, by how they were sampled."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from collectors.contract.readings import Vantage
from inferwatch.formatting import counted, format_share
from inferwatch.metrics.number import Better, Number, Unit, piece
from inferwatch.metrics.requests.outcomes import CUT
from inferwatch.metrics.requests.request_groups import (
    TO_THE_END,
    limit_range,
    quantiles_of,
    sampling_name,
)
from inferwatch.metrics.series.window import Quantiles

STOPPED = frozenset({"stop", "repetition"})
"""Finish reasons of answers that ended by themselves."""
MANY_CUT = 0.4
"""Share of answers cut off from which that is said, 0-1."""
ENDING = 0.05
"""Share that ends by itself; a load of fixed lengths has none."""
ROOMY = 4
"""How many times the p99 of output lengths max_tokens is where that is said."""
MOST_LIMITS = 12
"""Different max_tokens that are told apart."""
LEAST = 20
"""Answers of which something is said."""
NO_COST = (
    "in vLLM that reserves no KV block and keeps nobody waiting, as blocks are given "
    "when tokens come; it only bounds an answer that runs away, and costs where a "
    "router or client admits by max_tokens"
)


def many_cut(cut: int, ended: int) -> bool:
    """Whether many of these answers were cut off, while others ended by themselves.

    >>> many_cut(8, 20), many_cut(7, 20), many_cut(20, 20), many_cut(8, 19)
    (True, False, False, False)
    """
    return ended >= LEAST and MANY_CUT <= cut / ended <= 1 - ENDING


class SampledAnswer(NamedTuple):
    """How an answer was sampled, and what came of it."""

    temperature: float | None
    top_p: float | None
    max_tokens: int | None
    fills_context: bool
    """max_tokens is all that the context leaves, as where a client gave none."""
    output_tokens: int | None
    reason: str | None
    thinking_tokens: int | None
    by_front_end: bool = False
    """The engine did not tell its length; the front end did."""


@piece("sampling", Vantage.ENGINE, span="session")
class SamplingGroup:
    """Answers that were sampled alike."""

    name: Annotated[
        str,
        Number("sampled with", "Sampling", "Temperature, top_p and max_tokens."),
    ]
    temperature: float | None
    top_p: float | None
    max_tokens: int | None
    fills_context: bool
    answers: Annotated[
        int,
        Number(
            "answers",
            "Answers sampled so",
            "Answers that ended and were not aborted.",
            unit=Unit.REQUESTS,
        ),
    ]
    output_tokens: Annotated[
        Quantiles,
        Number("out", "Output length", "Their output tokens.", unit=Unit.TOKENS),
    ]
    stopped: Annotated[
        int,
        Number(
            "ended themselves",
            "Answers that stopped",
            "Answers that ended by themselves: stop or repetition.",
            unit=Unit.REQUESTS,
        ),
    ]
    cut: Annotated[
        int,
        Number(
            "cut off",
            "Answers cut off",
            "Answers that ended at max_tokens, or at the end of the context: length.",
            unit=Unit.REQUESTS,
            better=Better.LOWER,
        ),
    ]
    thinking_share: Annotated[
        float | None,
        Number(
            "thinking",
            "Thinking share",
            "Of the output tokens of answers that thought, those before the answer.",
            unit=Unit.SHARE,
        ),
    ] = None

    @property
    def cut_share(self) -> float | None:
        ended = self.stopped + self.cut
        return self.cut / ended if ended else None

    @property
    def sentences(self) -> tuple[str, ...]:
        """What is unusual of the group, without full stops."""
        share = self.cut_share
        if self.answers < LEAST or share is None:
            return ()
        if many_cut(self.cut, self.stopped + self.cut):
            limit = "the context's end" if self.fills_context else self._limit
            answers = counted(self.answers, "answer")
            return (
                f"{format_share(share).strip()} of {answers} are cut off at {limit}",
            )
        p99 = self.output_tokens.p99
        if self.fills_context or self.max_tokens is None or p99 is None:
            return ()
        if share <= 1 - ENDING and self.max_tokens >= ROOMY * p99:
            return (f"max_tokens is {self.max_tokens:,}, 99% end by {p99:,.0f}",)
        return ()

    @property
    def _limit(self) -> str:
        known = self.max_tokens is not None
        return f"max_tokens {self.max_tokens:,}" if known else "max_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """All groups of a session, those with most answers first."""

    groups: tuple[SamplingGroup, ...]
    answers: int
    unknown: int
    """Answers of which nobody told how they were sampled."""
    by_front_end: int = 0
    """Answers of the groups whose length only the front end told."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """What is unusual, the largest group first; no more than five."""
        said = [
            f"{text} ({group.name})"
            for group in self.groups
            for text in group.sentences
        ]
        return tuple(said[:5])

    @property
    def roomy(self) -> bool:
        """Whether any group has a max_tokens far above what its answers take."""
        return any(
            text.startswith("max_tokens is")
            for group in self.groups
            for text in group.sentences
        )


def sampled(answers: Iterable[SampledAnswer]) -> Sampled:
    """Group answers by temperature, top_p and max_tokens.

    Where there are many max_tokens, as of a load with lengths of its own, those
    between two powers of two are taken together.
    """
    members: dict[_Sampling, dict[int | None, list[SampledAnswer]]] = {}
    unknown = by_front_end = 0
    for each in answers:
        limit = None if each.fills_context else each.max_tokens
        if (each.temperature, each.top_p, each.max_tokens) == (None, None, None):
            unknown += 1
            continue
        by_front_end += each.by_front_end
        key = _as_named(each.temperature), _as_named(each.top_p), each.fills_context
        members.setdefault(key, {}).setdefault(limit, []).append(each)
    groups = [
        _group(name, of_group)
        for by_limit in members.values()
        for name, of_group in _by_name(by_limit).items()
    ]
    groups.sort(key=lambda each: -each.answers)
    n = sum(each.answers for each in groups)
    return Sampled(
        groups=tuple(groups), answers=n, unknown=unknown, by_front_end=by_front_end
    )


_Sampling = tuple[float | None, float | None, bool]


def _as_named(setting: float | None) -> float | None:
    """Return a setting as far as names tell it: to six digits."""
    return None if setting is None else float(f"{setting:g}")


def _by_name(
    by_limit: dict[int | None, list[SampledAnswer]],
) -> dict[str | None, list[SampledAnswer]]:
    named: dict[str | None, list[SampledAnswer]] = {}
    for limit, answers in by_limit.items():
        name = None if limit is None else f"{limit:,}"
        if answers[0].fills_context:
            name = TO_THE_END
        elif limit is not None and len(by_limit) > MOST_LIMITS:
            name = limit_range(limit)
        named.setdefault(name, []).extend(answers)
    return named


def _group(limit: str | None, answers: Sequence[SampledAnswer]) -> SamplingGroup:
    first = answers[0]
    limits = {each.max_tokens for each in answers}
    thought = [
        (each.thinking_tokens, each.output_tokens)
        for each in answers
        if each.thinking_tokens is not None and each.output_tokens
    ]
    return SamplingGroup(
        name=sampling_name(first.temperature, first.top_p, limit),
        temperature=_as_named(first.temperature),
        top_p=_as_named(first.top_p),
        max_tokens=first.max_tokens
        if len(limits) == 1 and not first.fills_context
        else None,
        fills_context=bool(first.fills_context),
        answers=len(answers),
        output_tokens=quantiles_of(each.output_tokens for each in answers),
        stopped=sum(each.reason in STOPPED for each in answers),
        cut=sum(each.reason == CUT for each in answers),
        thinking_share=sum(a for a, _ in thought) / sum(b for _, b in thought)
        if thought
        else None,
    )
