"""What the words in readings can be: enumerations, as strings."""

from enum import StrEnum


class Vantage(StrEnum):
    """Who measured. Two vantages are never mixed under one label."""

    CLIENT = "client"
    FRONTEND = "frontend"
    ENGINE = "engine"
    SCRAPE = "scrape"
    GPU = "gpu"


class BoundBy(StrEnum):
    """Why the head of the queue was not scheduled in a step."""

    NOTHING = "nothing"
    SEQS = "seqs"
    TOKENS = "tokens"
    KV = "kv"
    OTHER = "other"


class EventKind(StrEnum):
    """The moments of a request's life that are reported as events.

    Front end: arrived, first_token, finished. Engine: added (queued), scheduled
    (first time), finished. Engine-side tokens are in the steps, preemptions too.
    """

    ARRIVED = "arrived"
    FIRST_TOKEN = "first_token"
    ADDED = "added"
    SCHEDULED = "scheduled"
    FINISHED = "finished"


class NoteKind(StrEnum):
    """What a note is about."""

    STAGE = "stage"
    STARTED = "started"
    LOST = "lost"
    RESTARTED = "restarted"
    STOPPED = "stopped"
    DROPPED = "dropped"
    PROBE = "probe"
    RECORDER = "recorder"
    BOOKMARK = "bookmark"


class LoadKind(StrEnum):
    """What a load generator did."""

    STARTED = "started"
    WARMUP_ENDED = "warmup_ended"
    RATE = "rate"
    BURST = "burst"
    DRAINING = "draining"
    """Nothing more is sent; what is in flight may end."""
    STOPPED = "stopped"


class Phase(StrEnum):
    """Which part of a load run a client request belongs to; warm-up is excluded."""

    WARMUP = "warmup"
    STEADY = "steady"
    BURST = "burst"
