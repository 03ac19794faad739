"""The contents of a finding: its sentence, evidence, cost and knobs."""

from dataclasses import dataclass
from enum import StrEnum

from collectors.contract.clock import NS_PER_S


class Effort(StrEnum):
    """The effort that turning a knob takes, cheapest first."""

    NOW = "works now"
    RESTART = "needs a restart"
    OUTPUT = "changes model output"
    MEMORY = "risks memory"


class Subject(StrEnum):
    """Whose trouble a finding is."""

    ENGINE = "engine"
    TRAFFIC = "traffic"
    """The load that comes in: its objectives, aborts, where it is routed."""
    MEASURING = "measuring"
    """How far the numbers can be trusted; the engine may be well."""


SLIGHT = 0.05
"""Cost below which a finding does not change the verdict, 0-1."""
GRAVE = 0.3
"""Cost from which a finding counts as grave, 0-1."""
RESUMES_NS = 60 * NS_PER_S
"""Time within which a finding that ended and begins again is the same one."""
NO_LONGER = "no longer"
"""What a note of a finding that ended says after its title."""
TAKEN_BACK = "taken back, its readings only came late"
"""What a note of a finding that was none says after its title."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """An observation, and where to look at it."""

    text: str
    """One sentence with numbers."""
    page: str | None = None
    """NAME of the screen that shows it, such as overview, requests or steps."""
    t_ns: int | None = None
    """The moment to look at; None for now."""
    key: str | None = None
    """The request to look at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """A setting or action to change, in which direction, and at what price."""

    text: str
    """What to do, as an imperative sentence."""
    flag: str | None = None
    """The flag as vLLM spells it: ``--max-num-seqs``."""
    present: str | None = None
    """Its present value as the engine reports it; None where unknown."""
    expected: str
    """The effect to expect, and its direction."""
    effort: tuple[Effort, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A diagnosis that holds."""

    name: str
    """Stable identifier, such as ``kv_bound``; the same in JSON, notes and tests."""
    title: str
    """Two or three words."""
    sentence: str
    """What is wrong at present, with numbers; of one server or of many."""
    since_ns: int
    cost: float
    """Share of the SLO or of throughput lost, 0-1; findings are ranked by it."""
    cost_text: str
    """The cost in words, with what it is a share of."""
    evidence: tuple[Evidence, ...]
    """At least one piece."""
    knobs: tuple[Knob, ...] = ()
    """Knobs that need no restart come first."""
    sources: tuple[str, ...] = ()
    """The affected servers; empty where there is only one."""
    subject: Subject = Subject.ENGINE


@dataclass(frozen=True, slots=True, kw_only=True)
class PastFinding:
    """A diagnosis that held in this session and no longer does."""

    name: str
    title: str
    sentence: str
    """The sentence as last shown."""
    since_ns: int
    until_ns: int
    cost: float
    sources: tuple[str, ...] = ()
    subject: Subject = Subject.ENGINE
    knobs: tuple[Knob, ...] = ()
    """As last shown."""


def is_told(cost_text: str, sentence: str) -> bool:
    """Return whether a finding's sentence has the number that it costs.

    >>> is_told("50% of the host's cores", "Others use 50% of 2 cores")
    True
    """
    return cost_text.partition(" ")[0] in sentence
