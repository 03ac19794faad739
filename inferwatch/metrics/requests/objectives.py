"""The objectives that ``--slo`` sets for a watched server, overall and by class.

    ttft_s<1 tpot_s<50ms; chat: ttft_s<0.5; batch: e2el_s<60; target=0.99

A clause without a name applies to every request that no named clause applies to; one
with a name applies only to the requests of that class. The class of a request is its
class in a load's mix, else the header that is grouped by, its LoRA or its priority: the
first of these that a clause names. The target is the share of the requests that must be
good. A request that the API server refused is not good, unless ``refused=left out``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from inferwatch.errors import UsageError
from inferwatch.metrics.requests.slo import DEFAULT_SHARE, Slo, parse_slo

MOST_CLASSES = 32
ALL = ""
"""The name of the clause without a class."""
TARGET = "target="
LEFT_OUT = "refused=left out"
"""The clause by which refused requests are not judged."""


@dataclass(frozen=True, slots=True)
class Objectives:
    """The clauses of ``--slo``; requests to which none applies are not judged."""

    every: Slo | None = None
    classes: Mapping[str, Slo] = field(default_factory=dict)
    target: float = DEFAULT_SHARE
    """Share of the requests that must be good, between 0 and 1."""
    leaves_out_refused: bool = False
    """Whether refused requests are not judged."""

    def of(self, names: Iterable[str | None]) -> tuple[str, Slo] | None:
        """Return the first clause that one of these names matches, if any."""
        for name in names:
            slo = self.classes.get(name) if name is not None else None
            if name is not None and slo is not None:
                return name, slo
        return None if self.every is None else (ALL, self.every)

    @property
    def limits(self) -> str:
        """The limits in the syntax of ``--slo``, without the target."""
        named = [f"{name}: {slo}" for name, slo in self.classes.items()]
        return "; ".join([*([str(self.every)] if self.every else []), *named])

    def __str__(self) -> str:
        """Return the objectives as in ``--slo``, without the default target."""
        target = [] if self.target == DEFAULT_SHARE else [f"{TARGET}{self.target:g}"]
        refused = [LEFT_OUT] if self.leaves_out_refused else []
        return "; ".join([self.limits, *target, *refused])


def parse_objectives(text: str) -> Objectives:
    """Parse the objectives of ``--slo``.

    Raises:
        UsageError: it cannot be parsed; the message says what is accepted.
    """
    every: Slo | None = None
    classes: dict[str, Slo] = {}
    clauses = text.rstrip().removesuffix(";").split(";")
    targets = [each for each in clauses if each.strip().startswith(TARGET)]
    left_out = [each for each in clauses if each.strip() == LEFT_OUT]
    others = [each for each in clauses if each not in (*targets, *left_out)]
    for clause in others or [""]:
        name, slo = _clause(clause)
        if name in classes or (name == ALL and every is not None):
            whose = f"class {name!r}" if name else "all requests"
            raise UsageError(
                f"--slo: two clauses are for {whose}: put their limits into one"
            )
        if name == ALL:
            every = slo
        else:
            classes[name] = slo
    if len(classes) > MOST_CLASSES:
        raise UsageError(f"--slo: more than {MOST_CLASSES} classes")
    objectives = Objectives(every, classes, leaves_out_refused=bool(left_out))
    if len(targets) > 1:
        raise UsageError("--slo: the target is given twice")
    return with_target(objectives, _number(targets[0])) if targets else objectives


def with_target(objectives: Objectives, target: float) -> Objectives:
    """Return the objectives with another target.

    Raises:
        UsageError: it is not between 0 and 1.
    """
    if not 0 < target < 1:
        raise UsageError(
            f"--slo: the target is a share of requests between 0 and 1, such as 0.99, "
            f"not {target:g}: at 1 nothing may ever be missed"
        )
    return replace(objectives, target=target)


def _number(clause: str) -> float:
    text = clause.strip().removeprefix(TARGET).strip()
    try:
        percent = text.endswith("%")
        return float(text.removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        raise UsageError(
            f"--slo: {text!r} is not a target: write target=0.99"
        ) from None


def _clause(text: str) -> tuple[str, Slo]:
    """Return the class and the limits of a clause.

    A colon before the first limit ends the class.
    """
    head = text.partition("<")[0]
    name, colon, _ = head.rpartition(":")
    if colon and not name.strip():
        raise UsageError(f"--slo: no class before the colon of {text.strip()!r}")
    slo = parse_slo(text[len(name) + len(colon) :])
    return name.strip(), slo
