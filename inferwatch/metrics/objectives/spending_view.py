"""The cost of tokens in money and energy, as screens show it."""

from typing import Annotated

from inferwatch.metrics.number import NOW, Better, Number, Unit, piece


@piece("spending")
class Spending:
    """Cost per million output tokens and energy per token; None without a price."""

    currency: Annotated[
        str, Number("currency", "Currency", "Of all prices.", span=NOW)
    ] = "$"
    per_hour: Annotated[
        float | None,
        Number(
            "per hour",
            "Cost of an hour",
            "What an hour costs: of the engine's GPUs, of the host where it has none, "
            "or of the energy that they took.",
            better=Better.LOWER,
        ),
    ] = None
    per_mtok: Annotated[
        float | None,
        Number(
            "per Mtok",
            "Cost of a million output tokens",
            "What a million output tokens cost; prompts are paid with them.",
            better=Better.LOWER,
        ),
    ] = None
    per_mtok_good: Annotated[
        float | None,
        Number(
            "per good Mtok",
            "Cost of a million good tokens",
            "What a million output tokens of requests cost that held their objectives.",
            better=Better.LOWER,
        ),
    ] = None
    read_from: Annotated[
        str | None,
        Number(
            "by",
            "Which price",
            "Which price it is by: hours of GPUs or of the host, electricity.",
            span=NOW,
        ),
    ] = None
    joules_per_prefill_token: Annotated[
        float | None,
        Number(
            "J/prompt token",
            "Energy of a prompt token",
            "Energy of the boards for each token of prefill.",
            unit=Unit.JOULES_PER_TOKEN,
            better=Better.LOWER,
        ),
    ] = None
    joules_per_decode_token: Annotated[
        float | None,
        Number(
            "J/decode token",
            "Energy of a decode token",
            "Energy of the boards for each token of decode.",
            unit=Unit.JOULES_PER_TOKEN,
            better=Better.LOWER,
        ),
    ] = None
