"""The families of servers that can be watched, one module each.

Nobody else knows what they call their metrics.
"""

from collectors.servers.families.family import Answers, Family, models_of, text_of
from collectors.servers.families.llamacpp import LLAMACPP
from collectors.servers.families.openai import OPENAI
from collectors.servers.families.sglang import SGLANG
from collectors.servers.families.vllm import VLLM

FAMILIES = (VLLM, SGLANG, LLAMACPP, OPENAI)
IDENTIFY = (("/v1/models",),)
"""Tells which family a server without metrics is."""


def by_metrics(text: str) -> Family | None:
    """Whose metrics these are."""
    for family in FAMILIES:
        for prefix in family.prefixes:
            if text.startswith(prefix) or f"\n{prefix}" in text:
                return family
    return None


def by_answers(answers: Answers) -> Family | None:
    """Whose these answers are; None where nobody answered as an engine does."""
    owners = {text_of(each.get("owned_by")) for each in models_of(answers)}
    for family in FAMILIES:
        if family.name in owners:
            return family
    return OPENAI if models_of(answers) else None
