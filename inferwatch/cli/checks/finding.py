"""What a check of this host found: a value or a reason, and what would help."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Standing(StrEnum):
    """How it is with one thing that inferwatch can use."""

    WORKS = "works"
    LIMITED = "limited"
    """It works, but something of it is missing."""
    ABSENT = "absent"
    """Not here, which is no fault."""
    BROKEN = "broken"
    """Here, or needed, and it does not work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report."""

    name: str
    standing: Standing
    says: str
    """The value, or the reason why there is none."""
    fix: str = ""
    """What would enable it, or more of it."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """The same for machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Looks at one thing; whatever it meets becomes findings."""

    area: str
    name: str
    """Told while people wait for it, and where it fails itself."""
    find: Callable[[], Sequence[Finding]]
    limit_s: float = 5.0
    """Then nobody waits for it any longer."""
    too_long: str = "is the disk, the driver or the network hanging?"
    """What may be wrong if it takes longer."""


def works(name: str, says: str, **facts: object) -> Finding:
    """It can be used."""
    return Finding(name=name, standing=Standing.WORKS, says=says, facts=facts)


def limited(name: str, says: str, fix: str = "", **facts: object) -> Finding:
    """It can be used, with something missing."""
    return Finding(
        name=name, standing=Standing.LIMITED, says=says, fix=fix, facts=facts
    )


def absent(name: str, says: str, fix: str = "", **facts: object) -> Finding:
    """It is not here."""
    return Finding(name=name, standing=Standing.ABSENT, says=says, fix=fix, facts=facts)


def broken(name: str, says: str, fix: str = "", **facts: object) -> Finding:
    """It should work, and does not."""
    return Finding(name=name, standing=Standing.BROKEN, says=says, fix=fix, facts=facts)
