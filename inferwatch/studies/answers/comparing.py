"""Compares the answers of a setting with a baseline's, by the baseline's own noise.

Per prompt there are two distances: the share of the answer that comes after the first
difference, and the drift, the mean distance of the log-probs of the baseline's tokens.
Both are measured of the setting and of the baseline asked again, each once with prompts
sent alone and once with prompts sent at once. If the setting is as the baseline, what
differs between it and the baseline's own repeat is random in sign: the exact sign-flip
test, or many draws of it (Fisher 1935, The Design of Experiments, section 21).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from itertools import product
from statistics import fmean, median

import numpy as np
import numpy.typing as npt

from collectors.contract.readings import AnswerHashes
from inferwatch.formatting import counted, format_figure
from inferwatch.metrics.series.intervals import ALPHA

Floats = npt.NDArray[np.float64]

LEAST_PROMPTS = 6
"""Fewer cannot differ significantly: 2**-6 is below half of ALPHA."""
EXACT = 12
"""Up to this many prompts that differ all signs are tried, else DRAWS of them."""
DRAWS = 20_000
SEED = 0
AFTER = (1, 2, 4, 8, 16, 32)
"""Tokens after which agreement is told."""
DUST = 1e-9
LEAST_DRIFT = 0.01
"""In nats, a change of a token's probability by 1%. Arithmetic that is merely ordered
otherwise drifts by less, and it changes no greedy choice but between two tokens that
are as good as equal. A baseline that repeats itself exactly would else be told apart
from any other build of the same kernels."""


class AnswerVerdict(StrEnum):
    """Whether a setting's answers are as equal as the baseline's own."""

    EQUAL = "answers as equal as the baseline's own"
    DIFFER = "answers differ more than the baseline's own noise"
    DRIFT = "answers equal, but log-probs differ more than the baseline's own noise"
    """No answer to a prompt sent alone differs, and their agreement tells nothing."""
    UNTOLD = "answers not told apart from the baseline's own noise"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The distance of the log-probs of the baseline's tokens, in nats."""

    tokens: int
    mean: float
    p99: float

    @property
    def text(self) -> str:
        """``0.012 (p99 0.31)``."""
        if not self.p99 and not self.mean:
            return "0"
        mean, p99 = (format_figure(each).strip() for each in (self.mean, self.p99))
        return f"{mean} (p99 {p99})"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerDifference:
    """How far the answers to the same prompts agree between two rounds."""

    prompts: int
    differ: int
    """The number of prompts with different answers."""
    tokens: int
    equal: int
    """The number of tokens before the first difference of their answer."""
    first: int | None = None
    """The earliest token at which answers differ, counted from 1."""
    first_median: float | None = None
    """The median over differing answers of the first token that differs."""
    agreeing: dict[int, float] = field(default_factory=dict)
    """The share of prompts that still agree after so many tokens."""

    @property
    def share(self) -> float | None:
        """The share of tokens that come before any difference."""
        return self.equal / self.tokens if self.tokens else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerComparison:
    """A setting's answers compared with the present's, and these with each other."""

    by_tokens: bool
    against: AnswerDifference
    """Each prompt sent alone."""
    again: AnswerDifference | None = None
    """The present setting asked a second time; None if it was asked only once."""
    at_once: AnswerDifference | None = None
    """The present setting: prompts sent alone compared with prompts sent concurrently.
    """
    drift: Drift | None = None
    """Of the baseline's tokens under the setting, alone; None where not scored."""
    own_drift: Drift | None = None
    """Of the baseline's tokens under the baseline, asked again."""
    own_drift_at_once: Drift | None = None
    verdict: AnswerVerdict = AnswerVerdict.UNKNOWN
    p_value: float | None = None
    """Of the sign-flip tests together; None where nothing was tested."""
    why_unknown: str | None = None
    whose: str = "the present"
    """What the baseline is called in sentences."""

    @property
    def differs(self) -> bool:
        """Whether it differs more than the present setting from itself.

        By the verdict; where that is unknown, by how many answers differ.
        """
        if self.verdict is not AnswerVerdict.UNKNOWN:
            return self.verdict in {AnswerVerdict.DIFFER, AnswerVerdict.DRIFT}
        known = [each.differ for each in (self.again, self.at_once) if each is not None]
        return self.against.differ > max(known, default=0)

    @property
    def sentence(self) -> str:
        noun = "token" if self.by_tokens else "word"
        difference = self.against
        if not difference.tokens:
            return "nothing was answered, so no answers can be compared"
        text = f"{_share(difference)} of {counted(difference.tokens, noun)} equal"
        if difference.differ:
            verb = "differs" if difference.differ == 1 else "differ"
            text += (
                f"; {difference.differ} of {counted(difference.prompts, 'prompt')} "
                f"{verb}, first at {noun} {difference.first}"
            )
        texts = (text, self._own_differences(), self._drift_text, self._verdict_text)
        return "; ".join(filter(None, texts))

    @property
    def conclusion(self) -> str:
        """The verdict, and what it rests on in few words."""
        if self.verdict is AnswerVerdict.UNKNOWN:
            return f"whether answers differ is {self.verdict}: {self.why_unknown}"
        differing = (
            f"{self.against.differ} of {counted(self.against.prompts, 'prompt')} differ"
        )
        facts = [differing if self.against.differ else "all prompts alike"]
        if self.drift is not None and self.own_drift is not None:
            facts.append(
                f"drift {self.drift.text}, own {self.own_drift.text} of log-probs"
            )
        return f"{self.verdict}: {', '.join(facts)}"

    @property
    def _drift_text(self) -> str:
        if self.drift is None:
            return ""
        own = [
            f"{each.text} {how}"
            for how, each in (
                ("asked again", self.own_drift),
                ("all at once", self.own_drift_at_once),
            )
            if each is not None
        ]
        by = f", {self.whose}'s own by {', '.join(own)}" if own else ""
        return f"log-probs of {self.whose}'s tokens drift by {self.drift.text}{by}"

    @property
    def _verdict_text(self) -> str:
        if self.drift is None:  # what is counted above says it
            return ""
        why = f": {self.why_unknown}" if self.why_unknown else ""
        return f"{self.verdict}{why}"

    def _own_differences(self) -> str:
        """How far answers of the present setting differ from each other, in words."""
        ways = (("asked again", self.again), ("asked all at once", self.at_once))
        texts = [
            f"{_rest(each)} {how}"
            for how, each in ways
            if each is not None and each.tokens
        ]
        if not texts:
            return f"how far {self.whose} differs from itself was not asked"
        return f"{self.whose} differs from itself in {', '.join(texts)}"

    def as_json(self) -> dict[str, object]:
        """All of it for programs; null is unknown."""
        return {
            "verdict": self.verdict,
            "why": self.why_unknown,
            "p": self.p_value,
            "by": "tokens" if self.by_tokens else "words",
            "against": _difference_json(self.against),
            "own_again": self.again and _difference_json(self.again),
            "own_at_once": self.at_once and _difference_json(self.at_once),
            "drift": self.drift and asdict(self.drift),
            "own_drift_again": self.own_drift and asdict(self.own_drift),
            "own_drift_at_once": self.own_drift_at_once
            and asdict(self.own_drift_at_once),
        }


def _difference_json(found: AnswerDifference) -> dict[str, object]:
    return {
        "prompts": found.prompts,
        "differ": found.differ,
        "tokens": found.tokens,
        "equal_share": found.share,
        "first": found.first,
        "agreeing_after": {str(n): share for n, share in found.agreeing.items()},
    }


def compare_answers(
    present: Sequence[AnswerHashes], other: AnswerHashes
) -> AnswerComparison | None:
    """Compare a setting's answers with the present's; None if prompts differ.

    ``present`` holds all rounds of the present setting, oldest first.
    """
    comparable = [each for each in present if each.asked == other.asked]
    if not comparable:
        return None
    first, *again = comparable
    repeat = again[0] if again else None
    verdict, p_value, why = _judged(first, repeat, other)
    drift, own_drift, at_once = _measured(first, repeat, other)
    return AnswerComparison(
        by_tokens=other.by_tokens,
        against=difference(first.alone, other.alone),
        again=difference(first.alone, repeat.alone) if repeat else None,
        at_once=difference(first.alone, first.together),
        drift=drift,
        own_drift=own_drift,
        own_drift_at_once=at_once,
        verdict=verdict,
        p_value=p_value,
        why_unknown=why,
    )


# The verdict.


def _judged(
    first: AnswerHashes, repeat: AnswerHashes | None, other: AnswerHashes
) -> tuple[AnswerVerdict, float | None, str | None]:
    """The verdict, its p-value, and why it is unknown."""
    unknown = AnswerVerdict.UNKNOWN
    if not any(first.alone):
        return unknown, None, "nothing was answered"
    if repeat is None:
        return unknown, None, "the baseline was asked only once, so its noise is not"
    prompts = len(first.alone)
    if prompts < LEAST_PROMPTS:
        return unknown, None, f"too few prompts ({prompts}; it takes {LEAST_PROMPTS})"
    excesses = [*_excesses(first, repeat, other)]
    chances = [min(1.0, len(excesses) * chance_of_more(each)) for each in excesses]
    p_value = min(chances)
    if p_value <= ALPHA:
        alike = chances[0] > ALPHA and not difference(first.alone, other.alone).differ
        return (AnswerVerdict.DRIFT if alike else AnswerVerdict.DIFFER), p_value, None
    more = any(each.sum() > DUST for each in excesses)
    return (AnswerVerdict.UNTOLD if more else AnswerVerdict.EQUAL), p_value, None


def _excesses(
    first: AnswerHashes, repeat: AnswerHashes, other: AnswerHashes
) -> Iterator[Floats]:
    """By how much each prompt differs more than the baseline's own repeat.

    First in tokens; then in log-probs, if these drift by what may matter at all.
    """
    yield _apart(first, other) - _apart(first, repeat)
    if _scored_alike(first, repeat, other):
        excess = _drifts(first, other) - _drifts(first, repeat)
        yield excess if excess.mean() >= LEAST_DRIFT else np.zeros_like(excess)


def _apart(first: AnswerHashes, other: AnswerHashes) -> Floats:
    """The mean share of each answer after the first difference, of both ways."""
    ways = ((first.alone, other.alone), (first.alone, other.together))
    shares = np.array([_shares_apart(*each) for each in ways], np.float64)
    return np.asarray(shares.mean(axis=0), np.float64)


def _shares_apart(
    one: Sequence[Sequence[int]], other: Sequence[Sequence[int]]
) -> list[float]:
    return [
        1 - _equal(a, b) / max(len(a), len(b), 1)
        for a, b in zip(one, other, strict=True)
    ]


def _drifts(first: AnswerHashes, other: AnswerHashes) -> Floats:
    """The mean distance of log-probs of each prompt, of both ways."""
    ways = [
        [
            float(np.abs(np.subtract(a, b)).mean()) if a else 0.0
            for a, b in zip(first.scored_alone, scored, strict=True)
        ]
        for scored in (other.scored_alone, other.scored_together)
    ]
    return np.asarray(np.array(ways, np.float64).mean(axis=0), np.float64)


def chance_of_more(excess: Floats) -> float:
    """One-sided p-value of the sign-flip test that these are above zero."""
    known = excess[np.abs(excess) > DUST]
    if not len(known) or known.sum() <= 0:
        return 1.0
    if len(known) <= EXACT:
        signs = np.array([*product((1.0, -1.0), repeat=len(known))])
        return float((signs @ known >= known.sum() - DUST).mean())
    random = np.random.default_rng(SEED)
    signs = random.choice((1.0, -1.0), size=(DRAWS, len(known)))
    beyond = int((signs @ known >= known.sum() - DUST).sum())
    return (beyond + 1) / (DRAWS + 1)


def _measured(
    first: AnswerHashes, repeat: AnswerHashes | None, other: AnswerHashes
) -> tuple[Drift | None, Drift | None, Drift | None]:
    """The drift of the setting, of the repeat, and of prompts sent at once.

    All by one measure: over all tokens of the baseline where each round scored them,
    else over those that both rounds gave, which tells nothing of prompts sent at once.
    """
    if _scored_alike(first, other, repeat or first):
        alone = first.scored_alone
        own = _scored_drift(alone, repeat.scored_alone) if repeat else None
        at_once = _scored_drift(alone, first.scored_together)
        return _scored_drift(alone, other.scored_alone), own, at_once
    own = _chosen_drift(first, repeat) if repeat else None
    drift = _chosen_drift(first, other)
    return drift, own if drift is not None else None, None


def _scored_alike(*rounds: AnswerHashes) -> bool:
    """Whether all of them scored the same tokens."""
    scores = {each.scored_of for each in rounds}
    return None not in scores and len(scores) == 1


def _scored_drift(
    ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]
) -> Drift | None:
    """The drift over all of the baseline's tokens."""
    return _drift_of(zip(ours, theirs, strict=True))


def _chosen_drift(first: AnswerHashes, other: AnswerHashes) -> Drift | None:
    """The drift over the tokens that both gave, where nothing was scored."""
    if not first.chosen or not other.chosen:
        return None
    both = zip(first.alone, other.alone, first.chosen, other.chosen, strict=True)
    return _drift_of(
        (ours[: _equal(a, b)], theirs[: _equal(a, b)]) for a, b, ours, theirs in both
    )


def _drift_of(
    pairs: Iterable[tuple[Sequence[float], Sequence[float]]],
) -> Drift | None:
    apart = [
        abs(a - b) for ours, theirs in pairs for a, b in zip(ours, theirs, strict=False)
    ]
    if not apart:
        return None
    return Drift(
        tokens=len(apart),
        mean=float(np.mean(apart)),
        p99=float(np.quantile(apart, 0.99, method="inverted_cdf")),
    )


# Agreement.


def difference(
    one: Sequence[Sequence[int]], other: Sequence[Sequence[int]]
) -> AnswerDifference:
    pairs = list(zip(one, other, strict=True))
    equal = [_equal(a, b) for a, b in pairs]
    longest = [max(len(a), len(b)) for a, b in pairs]
    parts = [same + 1 for same, most in zip(equal, longest, strict=True) if same < most]
    return AnswerDifference(
        prompts=len(pairs),
        differ=len(parts),
        tokens=sum(longest),
        equal=sum(equal),
        first=min(parts, default=None),
        first_median=median(parts) if parts else None,
        agreeing={n: fmean(_agrees(*each, n) for each in pairs) for n in AFTER}
        if pairs
        else {},
    )


def _agrees(one: Sequence[int], other: Sequence[int], after: int) -> bool:
    return list(one[:after]) == list(other[:after])


def _equal(one: Sequence[int], other: Sequence[int]) -> int:
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))


def _share(difference: AnswerDifference) -> str:
    """The share in percent; 0% and 100% only if they are exact."""
    if difference.equal == difference.tokens:
        return "100%"
    return f"{min(max(difference.equal / difference.tokens, 0.001), 0.999):.1%}"


def _rest(difference: AnswerDifference) -> str:
    if difference.equal == difference.tokens:
        return "0%"
    return f"{max(1 - difference.equal / difference.tokens, 0.001):.1%}"
