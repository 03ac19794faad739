"""Any OpenAI-compatible server: its model list, and nothing more."""

from collectors.servers.families.family import (
    Answers,
    Facts,
    Family,
    Labels,
    model_names,
)

LOAD = "It has no metrics we know: a load run measures what its users would see."


def _describe(answers: Answers, _: Labels | None) -> Facts:
    return Facts(
        models=model_names(answers),
        advice=[LOAD],
    )


OPENAI = Family(name="openai", title="OpenAI-compatible", describe=_describe)
