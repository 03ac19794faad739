"""A load run: how far it is, and what became of its requests."""

from dataclasses import replace

from collectors.readings import Vantage
from inferwatch.metrics.catalog.metric import Better, Unit, metrics

LOW, HIGH, NEITHER = Better.LOWER, Better.HIGHER, Better.NEITHER
S, PER_S, NONE = Unit.SECONDS, Unit.PER_SECOND, Unit.NONE
REQUESTS, SHARE, NS = Unit.REQUESTS, Unit.SHARE, Unit.NANOSECONDS

_OF_RUN = metrics(
    "run.",
    Vantage.CLIENT,
    (
        "run_id",
        "run",
        "Run",
        NONE,
        NEITHER,
        "The name of the run; the ids of its requests begin so.",
        "source of its readings",
    ),
    (
        "state",
        "state",
        "State",
        NONE,
        NEITHER,
        (
            "Starting, warming up, sending, draining (all is sent, answers may "
            "end), ended, or silent: not ended, and yet nothing is heard of it."
        ),
        "load events",
    ),
    (
        "plan",
        "plan",
        "Plan",
        NONE,
        NEITHER,
        "The load plan that is followed.",
        "the note of the plan",
    ),
    (
        "began_ns",
        "began",
        "Began",
        NS,
        NEITHER,
        "Session time at which the run began.",
        "first load event",
    ),
    (
        "elapsed_s",
        "elapsed",
        "Elapsed",
        S,
        NEITHER,
        "How long the run has been sending, its warm-up left out.",
        "load events",
    ),
    (
        "duration_s",
        "of",
        "Duration",
        S,
        NEITHER,
        "How long the plan sends.",
        "the plan",
    ),
    (
        "requests",
        "of",
        "Requests asked for",
        REQUESTS,
        NEITHER,
        "How many requests the plan sends.",
        "the plan",
    ),
    (
        "share",
        "done",
        "Progress",
        SHARE,
        NEITHER,
        "How much of the plan's duration or requests is done.",
        "elapsed / duration or sent / requests",
    ),
    (
        "sent",
        "sent",
        "Sent",
        REQUESTS,
        NEITHER,
        (
            "Requests of the run that were sent, warm-up left out, as of the "
            "generator's last word, each second."
        ),
        "ended and in flight",
    ),
    (
        "begun",
        "of the plan",
        "Of the requests that the plan asks for",
        REQUESTS,
        NEITHER,
        (
            "As sent; where the plan counts conversations, those whose first turn "
            "has ended."
        ),
        "sent, or first turns that ended",
    ),
    (
        "in_turns",
        "turns",
        "Requests are turns",
        NONE,
        NEITHER,
        "The requests of the run are turns of conversations.",
        "turn of its requests",
    ),
    (
        "in_flight",
        "in flight",
        "In flight",
        REQUESTS,
        NEITHER,
        (
            "Requests that were sent and have not ended, as of the generator's "
            "last word, each second."
        ),
        "client samples",
    ),
    (
        "succeeded",
        "done",
        "Succeeded",
        REQUESTS,
        HIGH,
        "Requests of the run that were answered in full.",
        "request records without failure",
    ),
    (
        "failed",
        "failed",
        "Failed",
        REQUESTS,
        LOW,
        "Requests of the run that failed, those that we aborted left out.",
        "request records with a failure",
    ),
    (
        "aborted",
        "aborted",
        "Aborted",
        REQUESTS,
        NEITHER,
        (
            "Requests that we cut off at the end of the run; they say nothing of "
            "the server."
        ),
        "request records",
    ),
    (
        "warmup",
        "warm-up",
        "Warm-up requests",
        REQUESTS,
        NEITHER,
        "Requests that only warmed the engine up; they count in nothing else.",
        "request records of the warm-up phase",
    ),
    (
        "rate_per_s",
        "asked",
        "Asked rate",
        PER_S,
        NEITHER,
        "The rate that is asked now.",
        "latest load event with a rate",
    ),
    (
        "users",
        "users",
        "Users",
        NONE,
        NEITHER,
        "Users of a closed loop: each asks again when answered.",
        "latest load event of a closed loop",
    ),
    (
        "before",
        "before",
        "Before",
        NONE,
        NEITHER,
        "Rate or users before the last change.",
        "load events",
    ),
    (
        "changed_ns",
        "changed",
        "Changed",
        NS,
        NEITHER,
        "Session time of the last change of rate or users.",
        "load events",
    ),
    (
        "failures",
        "failures",
        "Failures",
        NONE,
        LOW,
        "Failed requests by kind, with what the first of each said.",
        "request records",
    ),
    (
        "transport",
        "transport",
        "Transport",
        NONE,
        NEITHER,
        (
            "What carries the requests: raw (HTTP/1.1 of our own, stamped by the "
            "kernel) or httpx."
        ),
        "client samples",
    ),
    (
        "said",
        "said",
        "Said",
        NONE,
        NEITHER,
        "What the load generator said last.",
        "latest load event",
    ),
    span="the whole run",
)

_NOW = {"run.state", "run.in_flight", "run.rate_per_s", "run.users", "run.said"}
RUN = tuple(
    replace(metric, span="now") if metric.key in _NOW else metric for metric in _OF_RUN
)
