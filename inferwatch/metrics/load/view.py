"""A load run as screens know it: how far it is, and what it did over time."""

from dataclasses import dataclass
from enum import StrEnum

from inferwatch.metrics.series.window import Column


class RunState(StrEnum):
    """Where a load run is."""

    STARTING = "starting"
    WARMING_UP = "warming up"
    SENDING = "sending"
    DRAINING = "draining"
    """Everything was sent; what is in flight may end."""
    SILENT = "silent"
    """It did not end, and yet nothing is heard of it."""
    ENDED = "ended"

    @property
    def going_on(self) -> bool:
        """It has not ended, as far as one knows."""
        return self not in {RunState.SILENT, RunState.ENDED}


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCount:
    """Requests of a run that failed alike."""

    kind: str
    count: int
    first: str
    """What the first of them said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRun:
    """How far a load run is, and what became of its requests, of the whole run.

    While it sends, counts are as of the generator's last word, each second, so that
    sent is always what ended and what is in flight.
    """

    run_id: str
    state: RunState
    plan: str | None = None
    """As JSON, where the record tells it."""
    began_ns: int | None = None
    elapsed_s: float | None = None
    """Of sending, after the warm-up."""
    duration_s: float | None = None
    requests: int | None = None
    """What the plan asks for: so long, so many."""
    share: float | None = None
    """How much of the plan is done, 0-1; None for one without an end."""
    sent: int = 0
    begun: int = 0
    """Of ``requests``: those sent; of conversations: whose first turn has ended."""
    in_turns: bool = False
    """Its requests are turns of conversations."""
    in_flight: int | None = None
    succeeded: int = 0
    failed: int = 0
    aborted: int = 0
    """By us, at the end: no failure of the server."""
    unaccounted: int = 0
    """Sent, and nobody knows what became of them: their reports were lost."""
    held_back: int | None = None
    """Requests that left late because as many as allowed were in flight."""
    most_in_flight: int | None = None
    """So many are allowed; None in a closed loop."""
    done_per_s: float | None = None
    """Succeeded, from the first that was due to the last end."""
    tokens_per_s: float | None = None
    """Output tokens of those, likewise."""
    warmup: int = 0
    failures: tuple[FailureCount, ...] = ()
    """Most frequent first."""
    rate_per_s: float | None = None
    """Asked now; None in a closed loop."""
    users: int | None = None
    """Of a closed loop."""
    before: float | None = None
    """Rate or users before the last change; None when there was none."""
    changed_ns: int | None = None
    transport: str | None = None
    said: str = ""
    """What the generator said last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTimeline:
    """What the client saw of one run over time, in bins of equal length; None is a gap.

    The bins are those of the snapshot's timeline while the run goes on; once it has
    ended, and for the whole session, they reach from its start to its end.
    """

    start_ns: int = 0
    bin_ns: int = 1
    asked_per_s: Column = ()
    """At the end of the bin; the warm-up and the drain left out."""
    sent_per_s: Column = ()
    """Bursts included, the warm-up and the drain left out; told each second."""
    ttft_mean_s: Column = ()
    ttft_max_s: Column = ()
    itl_mean_s: Column = ()
    itl_max_s: Column = ()
