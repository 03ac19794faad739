"""What a check reports: a value or a reason, and what would help."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class CheckStatus(StrEnum):
    """The state of one thing that inferwatch can use."""

    WORKS = "works"
    LIMITED = "limited"
    """It works, but a part is missing."""
    ABSENT = "absent"
    """It is not here, which is no fault."""
    BROKEN = "broken"
    """It is here, or needed, and does not work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One line of the doctor's report."""

    name: str
    standing: CheckStatus
    says: str
    """The value, or the reason why there is none."""
    fix: str = ""
    """What the user can do to enable it, or more of it."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """The same facts, for the JSON output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Looks at one thing of this host, and reports findings."""

    area: str
    name: str
    """Shown while the check takes long, and when it fails itself."""
    find: Callable[[], Sequence[CheckResult]]
    limit_s: float = 5.0
    """When the check is abandoned."""
    too_long: str = "is the disk, the driver or the network hanging?"
    """What may be wrong when it takes longer."""


def works(name: str, says: str, **facts: object) -> CheckResult:
    """Return a check's result: the named thing can be used."""
    return CheckResult(name=name, standing=CheckStatus.WORKS, says=says, facts=facts)


def limited(name: str, says: str, fix: str = "", **facts: object) -> CheckResult:
    """Return a check's result: the named thing can be used, but a part is missing."""
    return CheckResult(
        name=name, standing=CheckStatus.LIMITED, says=says, fix=fix, facts=facts
    )


def absent(name: str, says: str, fix: str = "", **facts: object) -> CheckResult:
    """Return a check's result: the named thing is not here."""
    return CheckResult(
        name=name, standing=CheckStatus.ABSENT, says=says, fix=fix, facts=facts
    )


def broken(name: str, says: str, fix: str = "", **facts: object) -> CheckResult:
    """Return a check's result: the named thing should work, and does not."""
    return CheckResult(
        name=name, standing=CheckStatus.BROKEN, says=says, fix=fix, facts=facts
    )
