"""The supported server families, one module each; any other server is described here.

Metric names of a server are known here and nowhere else.
"""

from collections.abc import Mapping
from itertools import count

from collectors.servers.families.family import (
    Answers,
    Labels,
    ServerFacts,
    ServerFamily,
    model_names,
    models_of,
    text_of,
)
from collectors.servers.families.llamacpp import LLAMACPP
from collectors.servers.families.sglang import SGLANG
from collectors.servers.families.vllm import VLLM

LOAD = "It has no metrics we know: a load run measures what its users would see."


def _any_openai_server(answers: Answers, _: Labels | None) -> ServerFacts:
    return ServerFacts(models=model_names(answers), advice=[LOAD])


OPENAI = ServerFamily(
    name="openai", title="OpenAI-compatible", describe=_any_openai_server
)
"""Any OpenAI-compatible server: its model list, and nothing more."""
FAMILIES = (VLLM, SGLANG, LLAMACPP, OPENAI)
SPECULATION = {
    what: family.short(name)
    for family in FAMILIES
    for what, name in family.speculation.items()
}
"""Keys of ``others`` on speculative decoding: families that count it name it alike."""
BY_POSITION = "accepted_by_position"
CACHES = {
    name: (family.short(queries), family.short(hits))
    for family in FAMILIES
    for name, (queries, hits) in family.caches.items()
}
"""Names in ``EngineSample.others`` of queries and hits, by cache."""


def _sum_and_count(family: ServerFamily, metric: str) -> tuple[str, str]:
    return f"{family.short(metric)}_sum", f"{family.short(metric)}_count"


MEANS = tuple(
    (name, *_sum_and_count(family, metric))
    for family in FAMILIES
    for name, metric in family.means.items()
)
"""What is counted, and the names in ``EngineSample.others`` of its sum and count."""
TIMES = tuple(
    (name, *_sum_and_count(family, metric))
    for family in FAMILIES
    for name, metric in family.times.items()
)
"""The same of times, in seconds; of one with a label, what precedes its value."""
PREFILL = tuple(
    ("prefill", f"{summed}{{{stage}}}", f"{counted}{{{stage}}}")
    for family in FAMILIES
    for metric, stage in [family.prefill]
    for summed, counted in [_sum_and_count(family, metric)]
    if metric
)
"""Like TIMES, the time in which prompts are computed."""
SCHEDULER = tuple(
    f"{family.short(family.scheduler)}{{" for family in FAMILIES if family.scheduler
)
"""How names in ``EngineSample.others`` begin that count a scheduler's seconds."""
POOLS = {
    name: family.short(metric)
    for family in FAMILIES
    for name, metric in family.pools.items()
}
"""Names in ``EngineSample.others`` of usage, by pool of a hybrid model's cache."""
KV_EVENTS = [each.kv_events for each in FAMILIES if each.kv_events]
"""How publishers of KV cache events are found, best first."""
STEPS = [each.steps for each in FAMILIES if each.steps]
"""The same of steps."""
IDENTIFY = (("/v1/models",),)
"""Paths that identify a server without metrics."""


def speculation_in(others: Mapping[str, float]) -> dict[str, float]:
    """What a sample's ``others`` tell of speculative decoding, by field.

    Accepted tokens by position have the position in braces.
    """
    told = {what: others[key] for what, key in SPECULATION.items() if key in others}
    if told:
        key = SPECULATION[BY_POSITION]
        for place in count():
            accepted = others.get(f"{key}{{{place}}}")
            if accepted is None:
                break
            told[f"{BY_POSITION}{{{place}}}"] = accepted
    return told


def by_metrics(text: str) -> ServerFamily | None:
    """The family whose metric prefix occurs in a ``/metrics`` page."""
    for family in FAMILIES:
        for prefix in family.prefixes:
            if text.startswith(prefix) or f"\n{prefix}" in text:
                return family
    return None


def by_answers(answers: Answers) -> ServerFamily | None:
    """The family that owns the listed models; None if no models are listed."""
    owners = {text_of(each.get("owned_by")) for each in models_of(answers)}
    for family in FAMILIES:
        if family.name in owners:
            return family
    return OPENAI if models_of(answers) else None
