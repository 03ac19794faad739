"""The metrics that a comparison judges, named as in ``--json`` and ``--fail-if``."""

from collections.abc import Iterator
from dataclasses import dataclass

from collectors.contract.readings import Vantage
from inferwatch.metrics.breakdown.view import BreakdownPhase
from inferwatch.metrics.floor.view import OperatingPoint
from inferwatch.metrics.load.request_latencies import CLIENT_LATENCIES
from inferwatch.metrics.number import Better, Number, Unit, number_of, numbers
from inferwatch.metrics.requests.latencies import LATENCIES
from inferwatch.metrics.steps.counter import StepTotals
from inferwatch.metrics.steps.flow import Flow
from inferwatch.metrics.steps.speculation import Speculation

STATISTICS = {"p50": 0.50, "p90": 0.90, "p99": 0.99}
LEAST_N = {0.90: 100, 0.99: 500}
"""How many values a percentile needs; 500 put five beyond the p99."""
LEAST_N_ELSE = 20
MEAN = "mean"
CLIENT = tuple(CLIENT_LATENCIES)
STEP = number_of(StepTotals.duration_s).key
DISTRIBUTIONS: dict[str, Number] = {
    **LATENCIES,
    **CLIENT_LATENCIES,
    STEP: number_of(StepTotals.duration_s),
}
FRONTEND = ("ttft_s", "e2el_s")
ENGINE = ("queue_s", "tpot_s", "itl_s", STEP)
HEADLINE = frozenset(
    f"{each}_s"
    for each in (
        *("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99", "tpot_mean"),
        *("itl_p50", "itl_p99", "e2el_p50", "output_tokens_per", "goodput_per"),
    )
)
"""The metrics that people look at first, from any vantage."""
HEADLINE_WEIGHT = 6.0
NEGLIGIBLE_S = 100e-6
"""A smaller difference in latency is not noticed by anybody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedMetric:
    """One number of a session that can be compared with that of another session."""

    key: str
    """For example ``ttft_p99_s`` or ``output_tokens_per_s``."""
    of: str
    """The distribution that this is a statistic of, or the key of the rate itself."""
    statistic: str | None
    """p50, p90, p99 or mean of a distribution; None for a rate."""
    name: str
    """The label in tables, for example ``TTFT``."""
    unit: Unit
    better: Better
    vantage: Vantage
    negligible: float = 0.0
    """A smaller difference counts as none."""

    @property
    def share(self) -> float | None:
        return STATISTICS.get(self.statistic or "")

    @property
    def weight(self) -> float:
        """The metric's weight among all metrics; higher for headline metrics."""
        return HEADLINE_WEIGHT if self.key.removeprefix("client.") in HEADLINE else 1.0

    @property
    def needs_length(self) -> bool:
        """Whether its intervals are unreliable in short sessions, as a p99's are."""
        return self.share is not None and self.share > 0.95

    @property
    def least_n(self) -> int:
        """How many values each side needs for a reliable interval."""
        return LEAST_N.get(self.share or 0.0, LEAST_N_ELSE)


def _of_distribution(source: str) -> Iterator[JudgedMetric]:
    distribution = DISTRIBUTIONS[source]
    stem = "step" if source == STEP else source.removesuffix("_s")
    for statistic in (*STATISTICS, MEAN):
        yield JudgedMetric(
            key=f"{stem}_{statistic}_s",
            of=source,
            statistic=statistic,
            name=distribution.label,
            unit=distribution.unit,
            better=distribution.better,
            vantage=distribution.vantage or Vantage.ENGINE,
            negligible=NEGLIGIBLE_S,
        )


def _rate(
    key: str,
    name: str,
    unit: Unit,
    vantage: Vantage,
    better: Better = Better.HIGHER,
    negligible: float = 0.0,
) -> JudgedMetric:
    return JudgedMetric(
        key=key,
        of=key,
        statistic=None,
        name=name,
        unit=unit,
        better=better,
        vantage=vantage,
        negligible=negligible,
    )


PHASE_NAMES = {
    BreakdownPhase.TOKENISE: "tokenising",
    BreakdownPhase.API: "in API",
    BreakdownPhase.MEDIA: "in media",
    BreakdownPhase.QUEUE: "in queue",
    BreakdownPhase.PREFILL: "in prefill",
    BreakdownPhase.PREEMPTED: "preempting",
    BreakdownPhase.DECODE: "in decode",
    BreakdownPhase.PROMPTS: "for others",
    BreakdownPhase.STALLS: "in stalls",
    BreakdownPhase.SEND: "in sending",
    BreakdownPhase.UNKNOWN: "unknown",
}
"""Of ten characters at most, as the first column is narrow."""
PHASE_KEYS = {phase: f"phase_{phase.name.lower()}_s" for phase in BreakdownPhase}
ENGINE_PHASES = frozenset(
    {
        BreakdownPhase.QUEUE,
        BreakdownPhase.PREFILL,
        BreakdownPhase.PREEMPTED,
        BreakdownPhase.DECODE,
        BreakdownPhase.PROMPTS,
        BreakdownPhase.STALLS,
    }
)
"""The phases that the engine measures; the others end or begin at the front end."""
PHASES = tuple(
    _rate(
        PHASE_KEYS[phase],
        name,
        Unit.SECONDS,
        Vantage.ENGINE if phase in ENGINE_PHASES else Vantage.FRONTEND,
        Better.NEITHER if phase is BreakdownPhase.UNKNOWN else Better.LOWER,
        NEGLIGIBLE_S,
    )
    for phase, name in PHASE_NAMES.items()
)
COST, GOOD_COST = "cost_per_mtok", "cost_per_good_mtok"
ENERGY = "joules_per_token"
SPENT = (
    _rate(COST, "cost/Mtok", Unit.NONE, Vantage.ENGINE, Better.LOWER),
    _rate(GOOD_COST, "cost/good", Unit.NONE, Vantage.FRONTEND, Better.LOWER),
)
"""Of a million output tokens, and of a million of those that held the objectives."""
MONEY = frozenset({COST, GOOD_COST})
"""Numbers in a currency."""
DERIVED = tuple(
    _rate(each.name, each.label, each.unit, Vantage.ENGINE, each.better)
    for each in numbers(OperatingPoint.mbu, OperatingPoint.mfu)
)
"""Of the batch of each step, by peaks; what GPUs measure has rows of its own."""


RATES = (
    _rate("output_tokens_per_s", "tokens/s", Unit.TOKENS_PER_SECOND, Vantage.ENGINE),
    _rate("goodput_per_s", "goodput", Unit.PER_SECOND, Vantage.FRONTEND),
    _rate("refused_share", "refused", Unit.SHARE, Vantage.FRONTEND, Better.LOWER),
    *(
        _rate(each.name, each.label, each.unit, Vantage.ENGINE, each.better)
        for each in numbers(Flow.prefix_hit_rate)
    ),
    _rate(
        "preemptions_per_request",
        "preempted",
        Unit.NONE,
        Vantage.ENGINE,
        Better.LOWER,
    ),
    # A slower engine has a fuller batch at the same load: neither good nor bad.
    _rate("batch_mean", "batch", Unit.REQUESTS, Vantage.ENGINE, Better.NEITHER),
    # Shorter drafts are accepted more often and bring less: neither good nor bad.
    *(
        _rate(each.name, each.label, each.unit, Vantage.ENGINE, Better.NEITHER)
        for each in numbers(Speculation.acceptance, Speculation.acceptance_length)
    ),
    _rate(
        "client.output_tokens_per_s",
        "tokens/s",
        Unit.TOKENS_PER_SECOND,
        Vantage.CLIENT,
    ),
    _rate("client.goodput_per_s", "goodput", Unit.PER_SECOND, Vantage.CLIENT),
)
_BY_KEY = {each.key: each for each in RATES}
GPU = (
    # Busy engines and wasteful ones both move much data: neither good nor bad.
    _rate(
        "hbm_gbps_mean",
        "HBM GB/s",
        Unit.GIGABYTES_PER_SECOND,
        Vantage.GPU,
        Better.NEITHER,
    ),
    _rate("hbm_share_mean", "HBM share", Unit.SHARE, Vantage.GPU, Better.NEITHER),
    _rate("sm_active_mean", "SM active", Unit.SHARE, Vantage.GPU, Better.NEITHER),
    _rate("power_w_mean", "power W", Unit.WATTS, Vantage.GPU, Better.NEITHER),
    _rate(ENERGY, "J/token", Unit.JOULES_PER_TOKEN, Vantage.GPU, Better.LOWER),
)

JUDGED: tuple[JudgedMetric, ...] = (
    *(each for source in FRONTEND for each in _of_distribution(source)),
    _BY_KEY["goodput_per_s"],
    _BY_KEY["refused_share"],
    *PHASES,
    *(each for source in ENGINE for each in _of_distribution(source)),
    _BY_KEY["output_tokens_per_s"],
    *SPENT,
    _BY_KEY["batch_mean"],
    _BY_KEY["prefix_hit_rate"],
    _BY_KEY["preemptions_per_request"],
    *DERIVED,
    _BY_KEY["acceptance"],
    _BY_KEY["acceptance_length"],
    *GPU,
    *(each for source in CLIENT for each in _of_distribution(source)),
    _BY_KEY["client.output_tokens_per_s"],
    _BY_KEY["client.goodput_per_s"],
)
KEYS = {each.key: each for each in JUDGED}
