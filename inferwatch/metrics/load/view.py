"""A load run as screens show it: its progress, and charts."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from collectors.contract.readings import Vantage
from inferwatch.metrics.number import NOW, Better, Number, Unit, piece
from inferwatch.metrics.series.window import Column


class RunState(StrEnum):
    """The state of a load run."""

    STARTING = "starting"
    WARMING_UP = "warming up"
    SENDING = "sending"
    DRAINING = "draining"
    """Everything was sent; requests in flight may end."""
    SILENT = "silent"
    """It did not end, but no longer reports."""
    ENDED = "ended"

    @property
    def going_on(self) -> bool:
        """Whether the run is not over, as far as known."""
        return self not in {RunState.SILENT, RunState.ENDED}


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCount:
    """Failed requests of one kind."""

    kind: str
    count: int
    first: str
    """The error text of the first."""


@piece("run", Vantage.CLIENT, span="the whole run")
class LoadRun:
    """The progress of a load run, and the outcomes of all its requests.

    While it sends, counts are as of the generator's last report, each second, so that
    sent is always ended + in flight.
    """

    run_id: Annotated[
        str,
        Number(
            "run", "Run", "The name of the run; the ids of its requests begin with it."
        ),
    ]
    state: Annotated[
        RunState,
        Number(
            "state",
            "State",
            "Starting, warming up, sending, draining (all is sent, some answers are "
            "still coming), ended, or silent (it has not ended, but nothing is heard "
            "of it).",
            span=NOW,
        ),
    ]
    plan: Annotated[
        str | None, Number("plan", "Plan", "The load plan that the run follows.")
    ] = None
    """As JSON, if recorded."""
    began_ns: Annotated[
        int | None,
        Number(
            "began",
            "Began",
            "Session time at which the run began.",
            unit=Unit.NANOSECONDS,
        ),
    ] = None
    elapsed_s: Annotated[
        float | None,
        Number(
            "elapsed",
            "Elapsed",
            "How long the run has been sending; the warm-up does not count.",
            unit=Unit.SECONDS,
        ),
    ] = None
    duration_s: Annotated[
        float | None,
        Number("of", "Duration", "How long the plan says to send.", unit=Unit.SECONDS),
    ] = None
    requests: Annotated[
        int | None,
        Number(
            "of",
            "Requests asked for",
            "How many requests the plan says to send.",
            unit=Unit.REQUESTS,
        ),
    ] = None
    share: Annotated[
        float | None,
        Number(
            "done",
            "Progress",
            "How much of the plan's duration or requests is done.",
            unit=Unit.SHARE,
        ),
    ] = None
    """None for a plan without an end."""
    sent: Annotated[
        int,
        Number(
            "sent",
            "Sent",
            "Requests that were sent, without the warm-up; reported once a second.",
            unit=Unit.REQUESTS,
        ),
    ] = 0
    begun: Annotated[
        int,
        Number(
            "of the plan",
            "Requests of the plan",
            "The requests that were sent; where the plan counts conversations, those "
            "whose first turn has ended.",
            unit=Unit.REQUESTS,
        ),
    ] = 0
    in_turns: Annotated[
        bool,
        Number(
            "turns",
            "Requests are turns",
            "Whether the requests of the run are turns of conversations.",
        ),
    ] = False
    in_flight: Annotated[
        int | None,
        Number(
            "in flight",
            "In flight",
            "Requests that were sent and have not ended; reported once a second.",
            unit=Unit.REQUESTS,
            span=NOW,
        ),
    ] = None
    succeeded: Annotated[
        int,
        Number(
            "done",
            "Succeeded",
            "Requests of the run that were answered in full.",
            unit=Unit.REQUESTS,
            better=Better.HIGHER,
        ),
    ] = 0
    failed: Annotated[
        int,
        Number(
            "failed",
            "Failed",
            "Requests of the run that failed; those we aborted do not count.",
            unit=Unit.REQUESTS,
            better=Better.LOWER,
        ),
    ] = 0
    aborted: Annotated[
        int,
        Number(
            "aborted",
            "Aborted",
            "Requests that we cut off at the end of the run; they say nothing about "
            "the server.",
            unit=Unit.REQUESTS,
        ),
    ] = 0
    unaccounted: Annotated[
        int,
        Number(
            "unaccounted",
            "Unaccounted",
            "Requests that were sent, but whose outcome is unknown because reports of "
            "it were lost.",
            unit=Unit.REQUESTS,
        ),
    ] = 0
    held_back: Annotated[
        int | None,
        Number(
            "held back",
            "Held back",
            "Requests that were sent late because as many as the plan allows were in "
            "flight.",
            unit=Unit.REQUESTS,
        ),
    ] = None
    most_in_flight: Annotated[
        int | None,
        Number(
            "at most",
            "At most in flight",
            "How many requests the plan allows to be in flight at once.",
            unit=Unit.REQUESTS,
        ),
    ] = None
    """None in a closed loop."""
    done_per_s: Annotated[
        float | None,
        Number(
            "done",
            "Done per second",
            "Requests answered in full per second, from the time the first was due to "
            "the end of the last.",
            unit=Unit.PER_SECOND,
            better=Better.HIGHER,
        ),
    ] = None
    tokens_per_s: Annotated[
        float | None,
        Number(
            "tok/s",
            "Output tokens per second",
            "Output tokens per second of the requests that were answered in full.",
            unit=Unit.PER_SECOND,
            better=Better.HIGHER,
        ),
    ] = None
    warmup: Annotated[
        int,
        Number(
            "warm-up",
            "Warm-up requests",
            "Requests that only warmed up the engine; no other number counts them.",
            unit=Unit.REQUESTS,
        ),
    ] = 0
    failures: Annotated[
        tuple[FailureCount, ...],
        Number(
            "failures",
            "Failures",
            "Failed requests by kind, with the message of the first of each kind.",
            better=Better.LOWER,
        ),
    ] = ()
    """Most frequent first."""
    rate_per_s: Annotated[
        float | None,
        Number(
            "asked",
            "Asked rate",
            "The rate that is asked for now.",
            unit=Unit.PER_SECOND,
            span=NOW,
        ),
    ] = None
    """None in a closed loop."""
    users: Annotated[
        int | None,
        Number(
            "users",
            "Users",
            "Users of a closed loop: each sends the next request once answered.",
            span=NOW,
        ),
    ] = None
    """None in an open loop."""
    before: Annotated[
        float | None,
        Number(
            "before",
            "Before",
            "The rate, or the number of users, before the last change.",
        ),
    ] = None
    """None if there was none."""
    changed_ns: Annotated[
        int | None,
        Number(
            "changed",
            "Changed",
            "Session time of the last change of rate or users.",
            unit=Unit.NANOSECONDS,
        ),
    ] = None
    transport: Annotated[
        str | None,
        Number(
            "transport",
            "Transport",
            "What carries the requests: raw (our own HTTP/1.1, time-stamped by the "
            "kernel) or httpx.",
        ),
    ] = None
    said: Annotated[
        str,
        Number("said", "Said", "The latest message of the load generator.", span=NOW),
    ] = ""


@piece("client_timeline", Vantage.CLIENT, span="each column")
class ClientTimeline:
    """Charts of one run in bins of equal length; None is a gap.

    The bins are those of the snapshot's timeline while the run goes on; once it has
    ended, and for the whole session, they span the run.
    """

    start_ns: Annotated[
        int,
        Number(
            "start",
            "Start",
            "Session time at which the first column begins.",
            unit=Unit.NANOSECONDS,
        ),
    ] = 0
    bin_ns: Annotated[
        int,
        Number(
            "bin", "Bin", "How much time each column covers.", unit=Unit.NANOSECONDS
        ),
    ] = 1
    asked_per_s: Annotated[
        Column,
        Number(
            "asked",
            "Asked rate",
            "The rate asked for at the end of the column; a closed loop has none.",
            unit=Unit.PER_SECOND,
        ),
    ] = ()
    """Without warm-up and drain."""
    sent_per_s: Annotated[
        Column,
        Number(
            "sent",
            "Sent",
            "Requests sent per second in the column; bursts count, warm-up and drain "
            "do not. Reported once a second.",
            unit=Unit.PER_SECOND,
        ),
    ] = ()
    ttft_mean_s: Annotated[
        Column,
        Number(
            "TTFT",
            "TTFT, mean",
            "Mean TTFT, from the time a request was due, of the first chunks in the "
            "column.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ] = ()
    ttft_max_s: Annotated[
        Column,
        Number(
            "TTFT max",
            "TTFT, worst",
            "Worst TTFT, from the time a request was due, of the first chunks in the "
            "column.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ] = ()
    itl_mean_s: Annotated[
        Column,
        Number(
            "ITL",
            "ITL, mean",
            "Mean gap between chunks in the column, of requests that have ended.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ] = ()
    itl_max_s: Annotated[
        Column,
        Number(
            "ITL max",
            "ITL, worst",
            "Longest gap between chunks in the column, of requests that have ended.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ] = ()
