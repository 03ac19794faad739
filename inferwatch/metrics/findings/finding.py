"""What a finding says, whatever it is about."""

from dataclasses import dataclass
from enum import StrEnum


class Effort(StrEnum):
    """What turning a knob takes, the cheapest first."""

    NOW = "works now"
    RESTART = "needs a restart"
    OUTPUT = "changes model output"
    MEMORY = "risks memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was seen, and where to look at it."""

    text: str
    """One sentence with its numbers."""
    page: str | None = None
    """NAME of the screen that shows it: overview, requests, steps, kv, hardware …"""
    t_ns: int | None = None
    """The moment to look at; None: now."""
    key: str | None = None
    """The request to look at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """What to turn, which way, and the price of it."""

    text: str
    """What to do, in an imperative sentence."""
    flag: str | None = None
    """Exactly as vLLM spells it: ``--max-num-seqs``."""
    present: str | None = None
    """What it is set to, as the engine told; None where it did not."""
    expected: str
    """What should change, and which way."""
    effort: tuple[Effort, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A diagnosis that holds."""

    name: str
    """Which: ``kv_bound``; the same in JSON, notes and tests."""
    title: str
    """In two or three words."""
    sentence: str
    """As of now, with its numbers; of one server or of many."""
    since_ns: int
    cost: float
    """Share of the SLO or of throughput it takes, 0-1: they are ranked by it."""
    cost_text: str
    """The same in words, with what it is a share of."""
    evidence: tuple[Evidence, ...]
    """At least one piece."""
    knobs: tuple[Knob, ...] = ()
    """What needs no restart first."""
    sources: tuple[str, ...] = ()
    """The servers it is about; empty where there is only one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastFinding:
    """A diagnosis that held in this session and no longer does."""

    name: str
    title: str
    sentence: str
    """As it was last told."""
    since_ns: int
    until_ns: int
    cost: float
    sources: tuple[str, ...] = ()
