"""A load run: how far it is, and what became of its requests."""

from collectors.contract.readings import Vantage
from inferwatch.metrics.catalog.metric import Better, Metric, Unit, metrics

RUN = metrics(
    "run.",
    Vantage.CLIENT,
    Metric(
        key="run_id",
        abbr="run",
        title="Run",
        unit=Unit.NONE,
        definition="The name of the run; the ids of its requests begin with it.",
        formula="source of its readings",
    ),
    Metric(
        key="state",
        abbr="state",
        title="State",
        unit=Unit.NONE,
        definition=(
            "Starting, warming up, sending, draining (all is sent, some answers are "
            "still coming), ended, or silent (it has not ended, but nothing is heard "
            "of it)."
        ),
        formula="load events",
        span="now",
    ),
    Metric(
        key="plan",
        abbr="plan",
        title="Plan",
        unit=Unit.NONE,
        definition="The load plan that the run follows.",
        formula="the note of the plan",
    ),
    Metric(
        key="began_ns",
        abbr="began",
        title="Began",
        unit=Unit.NANOSECONDS,
        definition="Session time at which the run began.",
        formula="first load event",
    ),
    Metric(
        key="elapsed_s",
        abbr="elapsed",
        title="Elapsed",
        unit=Unit.SECONDS,
        definition="How long the run has been sending; the warm-up does not count.",
        formula="load events",
    ),
    Metric(
        key="duration_s",
        abbr="of",
        title="Duration",
        unit=Unit.SECONDS,
        definition="How long the plan says to send.",
        formula="the plan",
    ),
    Metric(
        key="requests",
        abbr="of",
        title="Requests asked for",
        unit=Unit.REQUESTS,
        definition="How many requests the plan says to send.",
        formula="the plan",
    ),
    Metric(
        key="share",
        abbr="done",
        title="Progress",
        unit=Unit.SHARE,
        definition="How much of the plan's duration or requests is done.",
        formula="elapsed / duration or sent / requests",
    ),
    Metric(
        key="sent",
        abbr="sent",
        title="Sent",
        unit=Unit.REQUESTS,
        definition=(
            "Requests that were sent, without the warm-up; reported once a second."
        ),
        formula="ended and in flight",
    ),
    Metric(
        key="begun",
        abbr="of the plan",
        title="Requests of the plan",
        unit=Unit.REQUESTS,
        definition=(
            "The requests that were sent; where the plan counts conversations, those "
            "whose first turn has ended."
        ),
        formula="sent, or first turns that ended",
    ),
    Metric(
        key="in_turns",
        abbr="turns",
        title="Requests are turns",
        unit=Unit.NONE,
        definition="Whether the requests of the run are turns of conversations.",
        formula="turn of its requests",
    ),
    Metric(
        key="in_flight",
        abbr="in flight",
        title="In flight",
        unit=Unit.REQUESTS,
        definition=(
            "Requests that were sent and have not ended; reported once a second."
        ),
        formula="client samples",
        span="now",
    ),
    Metric(
        key="succeeded",
        abbr="done",
        title="Succeeded",
        unit=Unit.REQUESTS,
        better=Better.HIGHER,
        definition="Requests of the run that were answered in full.",
        formula="request records without failure",
    ),
    Metric(
        key="failed",
        abbr="failed",
        title="Failed",
        unit=Unit.REQUESTS,
        better=Better.LOWER,
        definition="Requests of the run that failed; those we aborted do not count.",
        formula="request records with a failure",
    ),
    Metric(
        key="aborted",
        abbr="aborted",
        title="Aborted",
        unit=Unit.REQUESTS,
        definition=(
            "Requests that we cut off at the end of the run; they say nothing about "
            "the server."
        ),
        formula="request records",
    ),
    Metric(
        key="unaccounted",
        abbr="unaccounted",
        title="Unaccounted",
        unit=Unit.REQUESTS,
        definition=(
            "Requests that were sent, but whose outcome is unknown because reports of "
            "it were lost."
        ),
        formula="sent - done - failed - aborted - in flight",
    ),
    Metric(
        key="held_back",
        abbr="held back",
        title="Held back",
        unit=Unit.REQUESTS,
        definition=(
            "Requests that were sent late because as many as the plan allows were in "
            "flight."
        ),
        formula="client samples",
    ),
    Metric(
        key="most_in_flight",
        abbr="at most",
        title="At most in flight",
        unit=Unit.REQUESTS,
        definition="How many requests the plan allows to be in flight at once.",
        formula="the plan",
    ),
    Metric(
        key="done_per_s",
        abbr="done",
        title="Done per second",
        unit=Unit.PER_SECOND,
        better=Better.HIGHER,
        definition=(
            "Requests answered in full per second, from the time the first was due to "
            "the end of the last."
        ),
        formula="done / span",
    ),
    Metric(
        key="tokens_per_s",
        abbr="tok/s",
        title="Output tokens per second",
        unit=Unit.PER_SECOND,
        better=Better.HIGHER,
        definition=(
            "Output tokens per second of the requests that were answered in full."
        ),
        formula="output tokens / span",
    ),
    Metric(
        key="warmup",
        abbr="warm-up",
        title="Warm-up requests",
        unit=Unit.REQUESTS,
        definition=(
            "Requests that only warmed up the engine; no other number counts them."
        ),
        formula="request records of the warm-up phase",
    ),
    Metric(
        key="rate_per_s",
        abbr="asked",
        title="Asked rate",
        unit=Unit.PER_SECOND,
        definition="The rate that is asked for now.",
        formula="latest load event with a rate",
        span="now",
    ),
    Metric(
        key="users",
        abbr="users",
        title="Users",
        unit=Unit.NONE,
        definition="Users of a closed loop: each sends the next request once answered.",
        formula="latest load event of a closed loop",
        span="now",
    ),
    Metric(
        key="before",
        abbr="before",
        title="Before",
        unit=Unit.NONE,
        definition="The rate, or the number of users, before the last change.",
        formula="load events",
    ),
    Metric(
        key="changed_ns",
        abbr="changed",
        title="Changed",
        unit=Unit.NANOSECONDS,
        definition="Session time of the last change of rate or users.",
        formula="load events",
    ),
    Metric(
        key="failures",
        abbr="failures",
        title="Failures",
        unit=Unit.NONE,
        better=Better.LOWER,
        definition=(
            "Failed requests by kind, with the message of the first of each kind."
        ),
        formula="request records",
    ),
    Metric(
        key="transport",
        abbr="transport",
        title="Transport",
        unit=Unit.NONE,
        definition=(
            "What carries the requests: raw (our own HTTP/1.1, time-stamped by the "
            "kernel) or httpx."
        ),
        formula="client samples",
    ),
    Metric(
        key="said",
        abbr="said",
        title="Said",
        unit=Unit.NONE,
        definition="The latest message of the load generator.",
        formula="latest load event",
        span="now",
    ),
    span="the whole run",
)
