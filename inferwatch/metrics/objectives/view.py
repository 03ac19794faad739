"""The objectives as screens show them."""

from typing import Annotated

from collectors.contract.readings import Vantage
from inferwatch.metrics.number import NOW, Better, Number, Unit, piece


@piece("slo_class")
class ClassState:
    """The state of one class of requests."""

    name: Annotated[
        str,
        Number("class", "Class", "The class that a clause of the objectives names."),
    ]
    slo: Annotated[
        str, Number("SLO", "Objectives of a class", "What its requests are to hold.")
    ]
    judged: Annotated[
        int,
        Number(
            "judged", "Judged requests of a class", "Of this class.", unit=Unit.REQUESTS
        ),
    ] = 0
    good: Annotated[
        int,
        Number(
            "good",
            "Good requests of a class",
            "Of this class.",
            unit=Unit.REQUESTS,
            better=Better.HIGHER,
        ),
    ] = 0


@piece("slo")
class SloState:
    """How the requests that ended in the window meet the objectives."""

    slo: Annotated[
        str,
        Number(
            "SLO", "Objectives", "What each request is to hold, all at once.", span=NOW
        ),
    ]
    """In the syntax of ``--slo``."""
    target: Annotated[
        float,
        Number(
            "target",
            "Target",
            "Share of the requests that must be good.",
            unit=Unit.SHARE,
            span=NOW,
        ),
    ]
    vantage: Annotated[
        Vantage,
        Number(
            "seen by",
            "Judged where",
            "Who measured: TTFT and E2EL are the front end's, TPOT and gaps the "
            "engine's.",
        ),
    ]
    judged: Annotated[
        int,
        Number(
            "judged",
            "Judged requests",
            "Requests that ended and of which it is known.",
            unit=Unit.REQUESTS,
        ),
    ] = 0
    good: Annotated[
        int,
        Number(
            "good",
            "Good requests",
            "Requests that held every objective at once.",
            unit=Unit.REQUESTS,
            better=Better.HIGHER,
        ),
    ] = 0
    good_tokens: Annotated[
        int | None,
        Number(
            "good tokens",
            "Tokens of good requests",
            "Output tokens of requests that held every objective at once.",
            unit=Unit.TOKENS,
            better=Better.HIGHER,
        ),
    ] = 0
    """None where one of them is unknown."""
    ended_tokens: Annotated[
        int,
        Number(
            "ended tokens",
            "Tokens of ended requests",
            "Output tokens of all requests that ended, good, bad or undetermined, as "
            "far as they were told.",
            unit=Unit.TOKENS,
        ),
    ] = 0
    undetermined: Annotated[
        int,
        Number(
            "open",
            "Undetermined requests",
            "Ended, neither good nor bad: the client left before a limit was broken, "
            "or what would tell was not seen.",
            unit=Unit.REQUESTS,
            better=Better.LOWER,
        ),
    ] = 0
    goodput_per_s: Annotated[
        float | None,
        Number(
            "goodput",
            "Goodput",
            "Good requests a second.",
            unit=Unit.PER_SECOND,
            better=Better.HIGHER,
        ),
    ] = None
    missed: Annotated[
        dict[str, int] | None,
        Number(
            "missed",
            "Missed objectives",
            "Requests that missed each metric; failed ones are bad by themselves, and "
            "a request may miss several.",
            unit=Unit.REQUESTS,
            better=Better.LOWER,
        ),
    ] = None
    """Number of requests by missed metric, with ``failed``."""
    burn: Annotated[
        float | None,
        Number(
            "burn",
            "Error budget burn",
            "How fast the error budget is spent: above 1 more requests are bad than "
            "the target allows.",
            better=Better.LOWER,
        ),
    ] = None
    """Share of bad requests / share allowed."""
    burn_long: Annotated[
        float | None,
        Number(
            "burn 1 h",
            "Error budget burn of an hour",
            "The same over an hour, or the session where that is shorter.",
            better=Better.LOWER,
            span="the last hour",
        ),
    ] = None
    budget_left: Annotated[
        float | None,
        Number(
            "budget",
            "Error budget left",
            "Of the session's error budget; below 0 it is spent.",
            unit=Unit.SHARE,
            better=Better.HIGHER,
            span="the whole session",
        ),
    ] = None
    missed_since_ns: Annotated[
        int | None,
        Number(
            "missed since",
            "Missed since",
            "Since when too few requests are good: of the last minute, or of five "
            "where fewer than five ended, for five seconds.",
            span=NOW,
        ),
    ] = None
    """None while the target is met."""
    classes: Annotated[
        tuple[ClassState, ...],
        Number(
            "by class",
            "Objectives by class",
            "Those of a clause of their own: by class of a load, header, LoRA or "
            "priority, the first that a clause names.",
        ),
    ] = ()

    @property
    def share(self) -> float | None:
        return self.good / self.judged if self.judged else None

    @property
    def met(self) -> bool | None:
        """Whether the share of good requests reaches the target.

        None before any request was judged.
        """
        share = self.share
        return None if share is None else share >= self.target
