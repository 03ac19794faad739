"""What batch sizes cost and bring, and where the scheduler stood still."""

from collectors.contract.readings import Vantage
from inferwatch.metrics.catalog.metric import Metric, Unit, metrics

BATCH_CURVE = metrics(
    "batch_curve.",
    Vantage.ENGINE,
    Metric(
        key="points",
        abbr="by batch",
        title="Batching efficiency",
        unit=Unit.NONE,
        definition=(
            "Mean time of a step, and tokens a second while such steps run, by the "
            "requests in it; only steps that decode alone, each from its batch up to "
            "the next one's. Where tokens a second no longer grow, a larger batch "
            "only makes everybody slower."
        ),
        formula="time / steps; tokens out / time, by batch",
    ),
    Metric(
        key="now_batch",
        abbr="now",
        title="Batch now",
        unit=Unit.REQUESTS,
        definition="Where on that curve the engine works: requests per step of late.",
        span="2 s",
        formula="(prefill + decode requests) / steps",
    ),
    Metric(
        key="prefill_steps",
        abbr="mixed",
        title="Mixed steps",
        unit=Unit.STEPS,
        definition="Steps of the window that prefilled too: the curve leaves them out.",
        formula="steps with prefill requests",
    ),
)

STALL = metrics(
    "stall.",
    Vantage.ENGINE,
    Metric(
        key="kind",
        abbr="stall",
        title="Stalls",
        unit=Unit.NONE,
        definition=(
            "How the scheduler stood still or failed somebody. gap: no step was under "
            "way, though there was work, for over 20 ms and four usual steps. decode "
            "slowed: while prompts were computed, tokens came at under a quarter of "
            "the running median rate, over a tenth of a second. starved: a request "
            "waited over 1 s while ten later ones were taken, or ran and was left out "
            "of ten steps and 200 ms."
        ),
        formula="from steps and the engine's events; at most the latest 50",
    ),
    Metric(
        key="start_ns",
        abbr="from",
        title="Start of a stall",
        unit=Unit.NANOSECONDS,
        definition="Session time at which it began.",
        formula="end of the step before, or when the request came",
    ),
    Metric(
        key="end_ns",
        abbr="to",
        title="End of a stall",
        unit=Unit.NANOSECONDS,
        definition="Session time at which it was over, or was last seen to go on.",
        formula="the step or event that ended it",
    ),
    Metric(
        key="evidence",
        abbr="evidence",
        title="Evidence of a stall",
        unit=Unit.NONE,
        definition="The numbers that make it one, in a sentence.",
        formula="from the steps in it",
    ),
    Metric(
        key="step",
        abbr="step",
        title="Step of a stall",
        unit=Unit.NONE,
        definition="The step after a gap, or the longest one in it.",
        formula="index of the step",
    ),
    Metric(
        key="key",
        abbr="request",
        title="Who starved",
        unit=Unit.NONE,
        definition="The request that was passed over.",
        formula="source and id",
    ),
)
