"""Any OpenAI-compatible server: its model list, and nothing more."""

from collectors.servers.families.family import (
    Answers,
    Labels,
    ServerFacts,
    ServerFamily,
    model_names,
)

LOAD = "It has no metrics we know: a load run measures what its users would see."


def _describe(answers: Answers, _: Labels | None) -> ServerFacts:
    return ServerFacts(
        models=model_names(answers),
        advice=[LOAD],
    )


OPENAI = ServerFamily(name="openai", title="OpenAI-compatible", describe=_describe)
