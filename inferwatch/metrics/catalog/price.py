"""What tokens cost, in money and energy."""

from inferwatch.metrics.catalog.metric import NOW, Better, Metric, Unit, metrics

SPENDING = metrics(
    "spending.",
    None,
    Metric(
        key="currency",
        abbr="currency",
        title="Currency",
        unit=Unit.NONE,
        definition="Of all prices.",
        formula="--currency",
        span=NOW,
    ),
    Metric(
        key="per_hour",
        abbr="per hour",
        title="Cost of an hour",
        unit=Unit.NONE,
        better=Better.LOWER,
        definition=(
            "What an hour costs: of the engine's GPUs, of the host where it has none, "
            "or of the energy that they took."
        ),
        formula="--gpu-hour x GPUs, or --kwh x mean power",
    ),
    Metric(
        key="per_mtok",
        abbr="per Mtok",
        title="Cost of a million output tokens",
        unit=Unit.NONE,
        better=Better.LOWER,
        definition="What a million output tokens cost; prompts are paid with them.",
        formula="cost of an hour / output tokens of an hour",
    ),
    Metric(
        key="per_mtok_good",
        abbr="per good Mtok",
        title="Cost of a million good tokens",
        unit=Unit.NONE,
        better=Better.LOWER,
        definition=(
            "What a million output tokens of requests cost that held their objectives."
        ),
        formula=(
            "cost of a million output tokens x tokens of requests that ended / those "
            "of good ones"
        ),
    ),
    Metric(
        key="read_from",
        abbr="by",
        title="Which price",
        unit=Unit.NONE,
        definition="Which price it is by: hours of GPUs or of the host, electricity.",
        formula="the flags",
        span=NOW,
    ),
    Metric(
        key="joules_per_prefill_token",
        abbr="J/prompt token",
        title="Energy of a prompt token",
        unit=Unit.JOULES_PER_TOKEN,
        better=Better.LOWER,
        definition="Energy of the boards for each token of prefill.",
        formula=(
            "mean power of each column by the share of its steps' time that prefilled "
            "(a mixed step by its tokens; idle columns left out) / prefill tokens"
        ),
    ),
    Metric(
        key="joules_per_decode_token",
        abbr="J/decode token",
        title="Energy of a decode token",
        unit=Unit.JOULES_PER_TOKEN,
        better=Better.LOWER,
        definition="Energy of the boards for each token of decode.",
        formula="likewise, by the rest of that time / decode tokens",
    ),
)
