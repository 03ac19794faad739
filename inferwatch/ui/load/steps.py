"""A tenth more, a tenth less: of a rate, or of the users of a closed loop."""

from dataclasses import dataclass

from inferwatch.ui.load.status import changed

STEP = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked of the generator, and what was before."""

    value: float
    users: bool = False
    before: float | None = None
    since_ns: int = 0


def after(asked: Asked, by: int, now_ns: int) -> Asked:
    """A step on; one there and one back lead home."""
    value = asked.value
    if asked.users:
        step = max(round(value * (STEP - 1)), 1) if by > 0 else _back(value)
        wanted = max(value + by * step, 1.0)
    else:
        wanted = float(f"{value * STEP**by:.4g}")
    before = asked.value if asked.before is None else asked.before
    return Asked(value=wanted, users=asked.users, before=before, since_ns=now_ns)


def wish_of(asked: Asked) -> str:
    """As it is told until the generator follows."""
    if asked.before is None:
        return ""
    return changed(asked.before, asked.value, users=asked.users) + "  …"


def _back(users: float) -> float:
    """The step that a step up would have taken from there."""
    return max(round(users * (1 - 1 / STEP)), 1)
