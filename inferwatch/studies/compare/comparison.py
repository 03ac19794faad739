"""Compares sessions: each side with the first, over all metrics at once."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from inferwatch.metrics.load.client_verdict import ClientState
from inferwatch.metrics.series.intervals import ALPHA
from inferwatch.studies.answers.comparing import AnswerComparison
from inferwatch.studies.compare.checks.every import quality_of
from inferwatch.studies.compare.checks.requests import more_failed
from inferwatch.studies.compare.fail_if import Condition, ConditionOutcome
from inferwatch.studies.compare.metrics import JUDGED, MONEY, JudgedMetric
from inferwatch.studies.compare.quality import QualityCheck, void
from inferwatch.studies.compare.reading import between_runs
from inferwatch.studies.compare.reading.between_runs import allowance, may_be_why
from inferwatch.studies.compare.reading.configuration import (
    RATE,
    DifferingSetting,
    differing,
)
from inferwatch.studies.compare.reading.request_kinds import ChangedPart
from inferwatch.studies.compare.reading.session_numbers import (
    ComparedSide,
    Pairing,
    SessionNumbers,
)
from inferwatch.studies.compare.statistics import family
from inferwatch.studies.compare.statistics.far_tail import TailDifference, nearer_than
from inferwatch.studies.compare.statistics.repeated import RunDifference
from inferwatch.studies.compare.statistics.resampling import (
    CHANCES,
    DRAWS,
    LEAST_BLOCKS,
    MEMORIES_MADE_UP_FOR,
    Draws,
    Floats,
    blocks_for,
    memories,
    too_short,
)
from inferwatch.studies.compare.statistics.significance import (
    AnyDifference,
    Difference,
    Interval,
    Resampled,
)
from inferwatch.studies.compare.verdicts import (
    MATTERS,
    MetricVerdict,
    coarseness,
    direction,
    is_clear,
    uncertainty,
)
from inferwatch.studies.compare.where.places import CHANGED, PlaceFinder

MOST_TIMES = 100
"""With an estimate above this factor no number of extra requests is given."""
LEAST_MORE = 0.25
"""Least share of the requests so far that is given: thirty blocks, the most there are,
show a spread to an eighth, and so what is needed to a quarter.
"""
LEAST_REQUESTS = 10
TOO_SHORT = "is too short for how much it varies"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRules:
    """How sessions are judged; the same rules and sessions give the same verdicts."""

    matters: float = MATTERS
    seed: int = 0
    draws: int = DRAWS
    places: bool = True
    """Whether to look for when and for which requests a metric changed."""
    conditions: tuple[Condition, ...] = ()
    inconclusive_fails: bool = False
    """Whether an inconclusive ``--fail-if`` condition counts as failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricResult:
    """One metric of two sides and the verdict on it; unknown values are None."""

    metric: JudgedMetric
    a: float | None
    b: float | None
    n_a: int
    n_b: int
    difference: float | None = None
    difference_span: Interval | None = None
    ratio: float | None = None
    ratio_span: Interval | None = None
    p_value: float | None = None
    adjusted_p: float | None = None
    verdict: MetricVerdict = MetricVerdict.OPEN
    more_requests: int | None = None
    """About how many more requests in each session would settle the verdict."""
    more_runs: int | None = None
    """With repeated runs: about how many more runs of each side would settle it."""
    why: str | None = None
    """An explanation of the verdict, if there is one."""
    client_alone: bool = False
    """Whether the value reflects a client that was too slow, not the server."""
    currency: str | None = None
    """Of a number in money; None for others, and where the sides' differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionCheck:
    """A ``--fail-if`` condition and its outcome."""

    condition: Condition
    outcome: ConditionOutcome
    span: Interval | None
    """The interval of the ratio or of the difference, at the check's level."""
    why: str | None = None
    """Why the outcome is open, if the metric could not be judged."""
    open_fails: bool = False
    """Whether an open outcome counts as failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPair:
    """One side compared with the first, metric by metric."""

    a: ComparedSide
    b: ComparedSide
    results: tuple[MetricResult, ...]
    checks: tuple[ConditionCheck, ...] = ()
    quality: tuple[QualityCheck, ...] = ()
    """The checks whether the two sides can be compared."""
    places: tuple[ChangedPart, ...] = ()
    """When and for which requests the changed metrics changed most."""
    answers: AnswerComparison | None = None
    """How far the second side's answers are the first's; None if they were not given.
    """

    @property
    def pairing(self) -> Pairing | None:
        """The requests that both sides answered; None if the sides are not paired."""
        return None if self.is_repeated else self.b.first.pairing

    @property
    def unpaired_because(self) -> str | None:
        """Why the sides are not paired, for use in brackets; None if they are."""
        return self.b.unpaired_because

    @property
    def is_repeated(self) -> bool:
        """Whether a side has several runs; intervals then cover how runs vary."""
        return self.a.is_repeated or self.b.is_repeated

    @property
    def about_runs(self) -> str:
        """Whether the intervals cover the variation between runs, in words."""
        if not self.is_repeated:
            return (
                "one run a side: what differs between runs of one setting is not in "
                "these intervals"
            )
        counts = f"{len(self.a.runs)} runs against {len(self.b.runs)}"
        single = next((e for e in (self.a, self.b) if not e.is_repeated), None)
        if single is None:
            return f"{counts}: what differs between runs is in these intervals"
        return f"{counts}: how much {single.name} varies is taken from the other's runs"

    @property
    def void(self) -> str | None:
        """Why no verdict may be given; None if one may."""
        return void(self.quality)

    def of(self, verdict: MetricVerdict) -> list[MetricResult]:
        return [each for each in self.results if each.verdict is verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Several sides, each compared with the first."""

    sides: tuple[ComparedSide, ...]
    pairs: tuple[SessionPair, ...]
    settings: tuple[DifferingSetting, ...]
    """Settings that differ between the sessions."""
    rules: ComparisonRules = field(default_factory=ComparisonRules)

    @property
    def sessions(self) -> tuple[SessionNumbers, ...]:
        return tuple(run for side in self.sides for run in side.runs)

    @property
    def judged(self) -> int:
        return sum(each.p_value is not None for p in self.pairs for each in p.results)

    @property
    def failed(self) -> bool:
        return any(e.outcome is ConditionOutcome.FAILED for e in self._checks)

    @property
    def inconclusive(self) -> bool:
        """Whether a condition that must be decided is undecided, and none failed."""
        opens = [e for e in self._checks if e.outcome is ConditionOutcome.OPEN]
        return any(each.open_fails for each in opens) and not self.failed

    @property
    def _checks(self) -> Iterator[ConditionCheck]:
        return (check for pair in self.pairs for check in pair.checks)


def compare(sides: Sequence[ComparedSide], rules: ComparisonRules) -> Comparison:
    drawings = [_Drawing(place, each, rules) for place, each in enumerate(sides)]
    pairs = [_Pairing(drawings[0], other, rules) for other in drawings[1:]]
    members = [each for pair in pairs for each in pair.members(drawings)]
    adjusted = iter(family.adjusted(members, rules.seed))
    settings = differing([run.configuration for side in sides for run in side.runs])
    if all(pair.is_paired for pair in pairs):  # a measured rate is the same
        settings = [each for each in settings if each.name != RATE]
    return Comparison(
        sides=tuple(sides),
        pairs=tuple(
            _with_places(
                pair.judge([next(adjusted) for _ in pair.judged], len(pairs)), rules
            )
            for pair in pairs
        ),
        settings=tuple(settings),
        rules=rules,
    )


def _with_places(pair: SessionPair, rules: ComparisonRules) -> SessionPair:
    """The pair, with where each metric changed: in which requests, or when.

    Of inconclusive metrics, only changes limited to some of the time are added.
    """
    if pair.void or not rules.places:
        return pair
    changed = [each.metric for each in pair.results if each.verdict in CHANGED]
    unclear = [each for each in pair.of(MetricVerdict.OPEN) if not each.client_alone]
    timed = [each.metric for each in unclear if each.a and each.b]
    allowed = 0.0 if pair.is_repeated else allowance((*pair.a.runs, *pair.b.runs))
    finder = PlaceFinder(pair.a, pair.b, rules.seed, allowed)
    return replace(pair, places=tuple(finder.places(changed, timed, rules.matters)))


class _Drawing:
    """One side and its resamplings, made once for each number of blocks."""

    def __init__(self, place: int, side: ComparedSide, rules: ComparisonRules) -> None:
        self.side, self.place = side, place
        self.numbers = side.first
        """The numbers of the side's first run; all there is for a single run."""
        self._rules = rules
        self._draws: dict[tuple[int, int], Draws] = {}
        self._drawn: dict[str, Resampled] = {}
        self._parts: dict[str, Floats] = {}

    def drawn(self, metric: JudgedMetric) -> Resampled:
        """The metric resampled with this side's own blocks, cached for all pairs."""
        if metric.key not in self._drawn:
            long = self.numbers.memories(metric)
            self._drawn[metric.key] = self.drawn_with(metric, self.place, long)
        return self._drawn[metric.key]

    def drawn_with(self, metric: JudgedMetric, place: int, long: float) -> Resampled:
        """The metric resampled with the same blocks as the side at index ``place``."""
        blocks = place, blocks_for(long, MEMORIES_MADE_UP_FOR)
        if blocks not in self._draws:
            seed = (self._rules.seed, *blocks)
            self._draws[blocks] = Draws.make(blocks[1], seed, self._rules.draws)
        return self.numbers.drawn(metric, self._draws[blocks], long)

    def parts(self, metric: JudgedMetric) -> Floats:
        if metric.key not in self._parts:
            runs = [run.parts(metric) for run in self.side.runs]
            self._parts[metric.key] = np.concatenate(runs) / len(runs)
        return self._parts[metric.key]


class _Pairing:
    """Two sides while they are judged: first differences, then verdicts."""

    def __init__(
        self, first: _Drawing, other: _Drawing, rules: ComparisonRules
    ) -> None:
        a, b = self._a, self._b = first.side, other.side
        self._first, self._other = first, other
        self._rules = rules
        self._long: dict[str, float] = {}
        self._requests = min(a.load.requests, b.load.requests)
        self._repeated = a.is_repeated or b.is_repeated
        shared = a.first.pairing
        same = shared is not None and shared == b.first.pairing
        self.is_paired = same and not self._repeated
        self._allowed = 0.0 if self._repeated else allowance((*a.runs, *b.runs))
        self._quality = quality_of(a, b)
        self._void = void(self._quality)
        self._known = [each for each in JUDGED if a.n_of(each) or b.n_of(each)]
        self.judged = [each for each in self._known if self._why_not(each) is None]
        self._found = {each.key: self._difference(each) for each in self.judged}

    def members(self, drawings: Sequence[_Drawing]) -> Iterator[family.FamilyMember]:
        for metric in self.judged:
            a, b = self._first.parts(metric), self._other.parts(metric)
            parts = [np.zeros(len(each.side.runs) * CHANCES) for each in drawings]
            if self.is_paired:
                parts[0] = b - a
            else:
                parts[self._first.place] = -a
                parts[self._other.place] = b
            yield family.FamilyMember(
                p_value=self._found[metric.key].p_value,
                weight=metric.weight,
                parts=np.concatenate(parts),
            )

    def _difference(self, metric: JudgedMetric) -> AnyDifference:
        if self._repeated:
            runs = self._a.runs, self._b.runs
            values = ([run.value_of(metric) or 0.0 for run in side] for side in runs)
            return RunDifference(*values)
        if self._too_few(metric):
            return self._tail_difference(metric) or self._between(metric, metric)
        return self._between(metric, metric)

    def _between(self, of_a: JudgedMetric, of_b: JudgedMetric) -> Difference:
        if not self.is_paired:
            return Difference(self._first.drawn(of_a), self._other.drawn(of_b))
        long = self._memories(of_a)
        return Difference(
            self._first.drawn_with(of_a, 0, long),
            self._other.drawn_with(of_b, 0, long),
            paired=True,
        )

    def _tail_difference(self, metric: JudgedMetric) -> TailDifference | None:
        """The difference of two p99s that is significant though one has too few values.

        None for other metrics, or if it is not significant.
        """
        a, b = self._a.value_of(metric), self._b.value_of(metric)
        nearer = nearer_than(metric)
        if self._repeated or nearer is None or a is None or b is None:
            return None
        if self._too_few(nearer):
            return None
        difference = self._between(*((metric, nearer) if b > a else (nearer, metric)))
        tails = TailDifference((a, b), difference)
        return tails if tails.holds else None

    def _memories(self, metric: JudgedMetric) -> float:
        """Length of the shorter session in autocorrelation times of the metric.

        If requests are paired, the autocorrelation is that of their ratios.
        """
        if metric.key not in self._long:
            self._long[metric.key] = self._measured_memories(metric)
        return self._long[metric.key]

    def _measured_memories(self, metric: JudgedMetric) -> float:
        if not self.is_paired:
            return min(e.numbers.memories(metric) for e in (self._first, self._other))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.log(
                self._other.numbers.means(metric) / self._first.numbers.means(metric)
            )
        return memories(np.where(np.isfinite(ratios), ratios, np.nan))

    def judge(self, adjusted: Sequence[float], pairs: int) -> SessionPair:
        """The verdicts, given the p-values adjusted for all metrics."""
        by_key = dict(zip(self._found, adjusted, strict=True))
        alpha = ALPHA / max(len(self._rules.conditions) * pairs, 1)
        return SessionPair(
            a=self._a,
            b=self._b,
            results=tuple(
                self._result(each, by_key.get(each.key)) for each in self._known
            ),
            quality=self._quality,
            checks=tuple(self._check(each, alpha) for each in self._rules.conditions),
        )

    def _why_not(self, metric: JudgedMetric) -> str | None:
        return self._void or self._why_not_this(metric)

    def _why_not_this(self, metric: JudgedMetric) -> str | None:
        runs = (*self._a.runs, *self._b.runs)
        without = next((run for run in runs if run.value_of(metric) is None), None)
        if without is not None:
            return f"{without.name} has no values"
        if metric.key in MONEY and len(self._currencies) > 1:
            named = sorted(map(str, self._currencies))
            return f"their prices are in {' and '.join(named)}"
        for each in (self._a, self._b):
            if each.client_alone(metric):
                return f"{each.name}'s client was too slow ({ClientState.CLIENT_BOUND})"
        few = self._too_few(metric)
        return few if few and self._tail_difference(metric) is None else None

    @property
    def _currencies(self) -> set[str | None]:
        return {run.currency for run in (*self._a.runs, *self._b.runs)}

    def _too_few(self, metric: JudgedMetric) -> str | None:
        for each in (self._a, self._b):
            if each.n_of(metric) < metric.least_n:
                has = f"{each.name} has {each.n_of(metric):,}"
                return f"needs {metric.least_n:,} values, {has}"
        if self._repeated:
            return None  # runs show the variation, however short they are
        for each in (self._a, self._b):
            long = self._memories(metric)
            if not self.is_paired:
                long = each.first.memories(metric)
            blocks = blocks_for(long, MEMORIES_MADE_UP_FOR)
            if each.first.as_many_blocks(metric, blocks) < LEAST_BLOCKS:
                return f"the values of {each.name} are one burst or one long trend"
        if metric.needs_length and self._too_short(metric) > 1:
            return f"a session {TOO_SHORT}"
        return None

    def _result(self, metric: JudgedMetric, adjusted: float | None) -> MetricResult:
        a, b = self._a, self._b
        in_money, currencies = metric.key in MONEY, self._currencies
        alike = len(currencies) == 1
        plain = MetricResult(
            metric=metric,
            a=a.value_of(metric),
            b=b.value_of(metric),
            n_a=a.n_of(metric),
            n_b=b.n_of(metric),
            client_alone=any(each.client_alone(metric) for each in (a, b)),
            currency=next(iter(currencies)) if in_money and alike else None,
        )
        difference = self._found.get(metric.key)
        if difference is None or adjusted is None:
            more = None
            settles = alike or not in_money
            if settles and not plain.client_alone and not self._void:
                more = self._more_for_percentile(metric)
            return replace(plain, why=self._why_not(metric), more_requests=more)
        judged = replace(
            plain,
            difference=difference.difference,
            difference_span=difference.span(),
            ratio=difference.ratio,
            ratio_span=difference.ratio_span(),
            p_value=difference.p_value,
            adjusted_p=adjusted,
        )
        return self._with_verdict(judged, difference, adjusted)

    def _with_verdict(
        self, result: MetricResult, difference: AnyDifference, adjusted: float
    ) -> MetricResult:
        metric = result.metric
        clear = is_clear(metric, difference)
        if clear and may_be_why(result.ratio_span, self._allowed):
            return replace(result, why=between_runs.why(self._allowed))
        if clear:
            sure = adjusted <= ALPHA
            verdict = direction(metric, difference.difference, sure=sure)
            return replace(result, verdict=verdict)
        short = self._too_short(metric)
        coarse = coarseness(metric, difference, self._rules.matters)
        if max(short, coarse) > 1:
            why = f"a difference of {self._rules.matters:.0%} could have been missed"
            if short > 1:
                why = f"a session {TOO_SHORT}"
            times = min(coarse, max(uncertainty(difference), 1.1))
            if isinstance(difference, RunDifference):
                return replace(result, more_runs=difference.more_runs(times), why=why)
            more = self._more_requests(max(short, times**2))
            return replace(result, more_requests=more, why=why)
        return replace(result, verdict=MetricVerdict.SAME)

    def _too_short(self, metric: JudgedMetric) -> float:
        if self._repeated:
            return 0.0
        return too_short(self._memories(metric), metric.share)

    def _more_for_percentile(self, metric: JudgedMetric) -> int | None:
        """How many more requests would give the percentile enough values, if known."""
        n = min(self._a.n_of(metric), self._b.n_of(metric))
        if not n:
            return None
        return self._more_requests(max(metric.least_n / n, self._too_short(metric)))

    def _more_requests(self, times: float) -> int | None:
        """How many more requests are needed for ``times`` as many; None if too many."""
        if times > MOST_TIMES:
            return None
        return rounded_up(self._requests * max(times - 1, LEAST_MORE))

    def _check(self, condition: Condition, alpha: float) -> ConditionCheck:
        delta = self._found.get(condition.metric.key)
        span = None
        if delta is not None:
            relative = condition.relative
            span = delta.ratio_span(alpha) if relative else delta.span(alpha)
        outcome, why = condition.outcome(delta, alpha), self._why_not(condition.metric)
        excused = delta and may_be_why(delta.ratio_span(alpha), self._allowed)
        if excused and outcome is ConditionOutcome.FAILED:
            outcome, why = ConditionOutcome.OPEN, between_runs.why(self._allowed)
        if self._void and more_failed(self._a, self._b):
            outcome = ConditionOutcome.FAILED  # it answers fewer requests
        return ConditionCheck(
            condition=condition,
            outcome=outcome,
            span=span,
            why=why,
            open_fails=self._rules.inconclusive_fails or self._void is not None,
        )


def rounded_up(number: float) -> int:
    """Round up to one digit, or a half below two, as the number is an estimate."""
    number = max(number, LEAST_REQUESTS)
    unit = int(10 ** math.floor(math.log10(number)))
    unit = unit // 2 if number < 2 * unit else unit
    return math.ceil(number / unit) * unit
