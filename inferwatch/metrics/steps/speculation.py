"""Speculative decoding: tokens drafted, accepted and thrown away, by position too."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Annotated

from collectors.contract.readings import Step, Vantage
from inferwatch.metrics.number import Better, Number, Unit, piece
from inferwatch.metrics.series.samples import Counters, CounterTotals
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.steps.counter import MOST_TOKENS, ratio
from inferwatch.metrics.steps.engines import known_sum

METHOD, LOOKAHEAD = "speculative_method", "num_speculative_tokens"
"""Settings of the engine that tell whether and how far it speculates."""


@piece("speculation", Vantage.ENGINE)
class Speculation:
    """Speculative decoding over the window; there is none where it is off."""

    vantage: Vantage = Vantage.ENGINE
    """engine: the steps of a probe; scrape: differences of a server's counters."""
    method: str | None = None
    """How tokens are drafted, such as ngram or eagle; None where only counters tell."""
    num_speculative_tokens: int | None = None
    """The most tokens of a draft, as configured; None where not told."""
    drafts: Annotated[
        int | None,
        Number(
            "drafts",
            "Drafts",
            "How often the drafted tokens of a request were verified in a step.",
        ),
    ] = None
    """None in records of schema 11 and before, and where a server only tells rates."""
    drafted_tokens: Annotated[
        int | None,
        Number(
            "drafted",
            "Drafted tokens",
            "Tokens that were drafted, and verified by the model.",
            unit=Unit.TOKENS,
        ),
    ] = None
    accepted_tokens: Annotated[
        int | None,
        Number(
            "accepted",
            "Accepted tokens",
            "Drafted tokens that the model agreed with, and that came out.",
            unit=Unit.TOKENS,
            better=Better.HIGHER,
        ),
    ] = None
    acceptance: Annotated[
        float | None,
        Number(
            "acceptance",
            "Acceptance",
            "Share of the drafted tokens that were accepted.",
            unit=Unit.SHARE,
            better=Better.HIGHER,
        ),
    ] = None
    acceptance_length: Annotated[
        float | None,
        Number(
            "acceptance length",
            "Acceptance length",
            "Tokens that a draft brings: those accepted, and the one that verifying "
            "them yields anyway; vLLM's mean acceptance length.",
            unit=Unit.TOKENS,
            better=Better.HIGHER,
        ),
    ] = None
    accepted_by_position: Annotated[
        tuple[int, ...],
        Number(
            "accepted by position",
            "Accepted tokens by position",
            "Drafted tokens accepted, by their position in the draft.",
            unit=Unit.TOKENS,
            better=Better.HIGHER,
        ),
    ] = ()
    """Empty where not told."""
    acceptance_by_position: Annotated[
        tuple[float, ...],
        Number(
            "by position",
            "Acceptance by position",
            "Share of the drafts whose token at a position was accepted, the first "
            "position first. Where it is low, a draft is longer than it needs to be.",
            unit=Unit.SHARE,
            better=Better.HIGHER,
        ),
    ] = ()

    @property
    def wasted_tokens(
        self,
    ) -> Annotated[
        int | None,
        Number(
            "wasted",
            "Wasted tokens",
            "Drafted tokens that were verified and thrown away.",
            unit=Unit.TOKENS,
            better=Better.LOWER,
        ),
    ]:
        """Drafted tokens that were not accepted; None where unknown."""
        if self.drafted_tokens is None or self.accepted_tokens is None:
            return None
        return self.drafted_tokens - self.accepted_tokens


def speculation(  # noqa: PLR0913  all keyword-only: what a server tells of it
    *,
    vantage: Vantage,
    drafts: int | None,
    drafted_tokens: int | None,
    accepted_tokens: int | None,
    accepted_by_position: Sequence[int] = (),
    method: str | None = None,
    num_speculative_tokens: int | None = None,
) -> Speculation:
    """Return what follows from the counts of a window."""
    drafted, accepted = drafted_tokens or 0, accepted_tokens or 0
    return Speculation(
        vantage=vantage,
        method=method,
        num_speculative_tokens=num_speculative_tokens,
        drafts=drafts,
        drafted_tokens=drafted_tokens,
        accepted_tokens=accepted_tokens,
        acceptance=None if accepted_tokens is None else ratio(accepted, drafted),
        acceptance_length=1 + accepted / drafts if drafts else None,
        accepted_by_position=tuple(accepted_by_position),
        acceptance_by_position=tuple(each / drafts for each in accepted_by_position)
        if drafts
        else (),
    )


def pooled(parts: Iterable[Speculation | None]) -> Speculation | None:
    """Return the speculation of several ranks or servers; None where it is off."""
    on = [each for each in parts if each is not None]
    if len(on) < 2:
        return on[0] if on else None
    scraped = any(each.vantage is Vantage.SCRAPE for each in on)
    vantage = Vantage.SCRAPE if scraped else on[0].vantage
    methods = {each.method for each in on}
    lengths = {each.num_speculative_tokens for each in on}
    counted = [each for each in on if each.drafted_tokens is not None]
    if not counted:
        return Speculation(
            vantage=vantage,
            acceptance=_mean(each.acceptance for each in on),
            acceptance_length=_mean(each.acceptance_length for each in on),
        )
    longest = max(len(each.accepted_by_position) for each in counted)
    drafts = [each.drafts for each in counted]
    return speculation(
        vantage=vantage,
        drafts=None if None in drafts else known_sum(drafts),
        drafted_tokens=known_sum(each.drafted_tokens for each in counted),
        accepted_tokens=known_sum(each.accepted_tokens for each in counted),
        accepted_by_position=[
            sum(
                each.accepted_by_position[place]
                for each in counted
                if place < len(each.accepted_by_position)
            )
            for place in range(longest)
        ],
        method=methods.pop() if len(methods) == 1 else None,
        num_speculative_tokens=lengths.pop() if len(lengths) == 1 else None,
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


MOST_POSITIONS = 32
"""The longest draft whose positions are counted: vLLM's suffix decoding has as many."""
POSITIONS = tuple(f"position {place}" for place in range(MOST_POSITIONS))
COUNTED = ("drafts", "drafted_tokens", "accepted_tokens", "computed_tokens", *POSITIONS)
"""``computed_tokens`` are all that steps with drafts computed."""
NO_POSITIONS = (0,) * MOST_POSITIONS


class SpeculationCounter:
    """Counts drafts of the steps that verified some; others cost nothing."""

    def __init__(self) -> None:
        self.counters = Counters(*COUNTED)

    def add(self, step: Step) -> None:
        """Count a step with drafts."""
        by_position = step.accepted_by_position[:MOST_POSITIONS]
        counts = (
            step.drafts or 0,
            step.drafted_tokens or 0,
            step.accepted_tokens or 0,
            step.prefill_tokens + step.decode_tokens,
            *by_position,
        )
        bounded = (
            min(max(each, 0), MOST_TOKENS) for each in counts
        )  # a row is of int64
        self.counters.add(step.end_ns, *bounded, *NO_POSITIONS[len(by_position) :])

    def over(
        self, now_ns: int, window: Window, settings: Mapping[str, object]
    ) -> Speculation | None:
        """Return the speculation of a window; None where it is off."""
        total = self.counters.over(now_ns, window)
        if not self._is_on(now_ns, total, settings):
            return None
        sums, method = total.sums, settings.get(METHOD)
        most = settings.get(LOOKAHEAD)
        positions = _positions(total, most)
        old = bool(sums["drafted_tokens"]) and not sums["drafts"]
        return speculation(
            vantage=Vantage.ENGINE,
            drafts=None if old else sums["drafts"],
            drafted_tokens=sums["drafted_tokens"],
            accepted_tokens=sums["accepted_tokens"],
            accepted_by_position=() if old else positions,
            method=None if method is None else str(method),
            num_speculative_tokens=most if isinstance(most, int) else None,
        )

    def _is_on(
        self, now_ns: int, total: CounterTotals, settings: Mapping[str, object]
    ) -> bool:
        """Return whether the engine is set to speculate, or did in the window.

        Where its setting is not told, one draft in the session tells.
        """
        if total.rows or settings.get(METHOD) is not None:
            return True
        if METHOD in settings:
            return False
        return self.counters.over(now_ns, Window.SESSION).rows > 0


def _positions(total: CounterTotals, most: object) -> list[int]:
    """Return accepted tokens by position, up to the longest draft that is possible."""
    counts = [total.sums[name] for name in POSITIONS]
    reached = max((n for n, count in enumerate(counts, 1) if count), default=0)
    configured = most if isinstance(most, int) else 0
    return counts[: max(reached, min(configured, MOST_POSITIONS))]
