"""Interprets the results of scenarios.

Separate from their declarations, because the generator and ``--help`` do not need the
arithmetic.
"""

from collections.abc import Callable, Mapping

from inferwatch.loadgen.scenarios.scenario import (
    ABANDON,
    BURST,
    CACHE_COLD,
    INTERFERENCE,
)
from inferwatch.metrics.load.scenarios.abandon import tell_abandon
from inferwatch.metrics.load.scenarios.burst import tell_burst
from inferwatch.metrics.load.scenarios.cache_cold import tell_cache_cold
from inferwatch.metrics.load.scenarios.evidence import ScenarioEvidence, ScenarioFinding
from inferwatch.metrics.load.scenarios.interference import tell_interference

TELLS: Mapping[str, Callable[[ScenarioEvidence], ScenarioFinding]] = {
    INTERFERENCE.name: tell_interference,
    ABANDON.name: tell_abandon,
    BURST.name: tell_burst,
    CACHE_COLD.name: tell_cache_cold,
}


def finding_of(name: str | None, evidence: ScenarioEvidence) -> ScenarioFinding | None:
    """The finding of a scenario's run; None for an unknown scenario."""
    tell = TELLS.get(name or "")
    return tell(evidence) if tell is not None else None
