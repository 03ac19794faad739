"""Reads the steps that servers publish, one message a pass of the model.

SGLang publishes them over ZeroMQ with ``--enable-forward-pass-metrics``, and workers of
NVIDIA's Dynamo in the same encoding. A message tells how many requests were in a step
and how long the GPU took, not whose tokens they were, and has no time: a step ends when
its message comes. Between two steps an idle server says that it is alive.
"""

from typing import Annotated

import msgspec

from collectors.contract.clock import NS_PER_S, SessionClock
from collectors.contract.readings import AnyReading, BoundBy, Note, NoteKind, Step
from collectors.servers.families import STEPS
from collectors.servers.families.family import MOST_RANKS
from collectors.servers.published import NONSENSE, PublishedStream

VERSION = 1
"""Version of the encoding that is known."""
LONGEST_S = 3600.0
"""Longest step that is believed."""
MOST_STEP_BYTES = 1 << 16
MOST = 1 << 53
"""Largest number that is believed."""
MOST_VERSIONS = 4
"""Unknown versions reported."""
SAY_EVERY_NS = 10 * NS_PER_S
"""Missed steps are counted, and told so often at most."""

Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]


class Requests(msgspec.Struct, gc=False):
    """Requests of a step, or those in its queue; fields not named here are skipped."""

    num_prefill_requests: Count = 0
    sum_prefill_tokens: Count = 0
    sum_prefill_kv_tokens: Count = 0
    num_decode_requests: Count = 0
    sum_decode_kv_tokens: Count = 0


class ForwardPass(msgspec.Struct, gc=False):
    """One pass of the model, as it is published."""

    version: int
    wall_time: float
    scheduled_requests: Requests
    queued_requests: Requests
    dp_rank: Annotated[int, msgspec.Meta(ge=0, lt=MOST_RANKS)] = 0


class Version(msgspec.Struct, gc=False):
    """The part of a message that every version has."""

    version: int


_pass = msgspec.msgpack.Decoder(ForwardPass)
_version = msgspec.msgpack.Decoder(Version)


class RankSteps:
    """Makes steps of one publisher's messages, and counts those that were missed."""

    def __init__(self, clock: SessionClock, source: str) -> None:
        self.expected = 0
        self.interrupted = False
        self._clock, self._source = clock, source
        self._anew = True
        """The next message is the first one of a process that is heard."""
        self._missed, self._say_ns = 0, 0
        self._unknown: set[int] = set()
        """Reported versions of messages that cannot be read."""

    def begins_anew(self, number: int) -> None:
        """Numbers that do not rise are those of a restarted server."""
        restarted = number < self.expected
        if self.interrupted and number != self.expected:
            restarted = True
        self.interrupted = False
        if restarted:
            self._anew = True

    def take(self, number: int, payload: bytes, *, live: bool) -> list[AnyReading]:
        """The step of a message, if it is one."""
        del live  # nothing is replayed
        if len(payload) > MOST_STEP_BYTES:
            return []  # the next message will show that this one is missing
        try:
            version = _version.decode(payload).version
            if version != VERSION:
                return self._not_known(version)
            told = _pass.decode(payload)
        except NONSENSE:
            return []
        if not self._anew:
            self._missed += max(number - self.expected, 0)
            self._missed = min(self._missed, MOST)
        self._anew, self.expected = False, number + 1
        now_ns = self._clock.now_ns()
        step = self._step(number, told, now_ns)
        return [*self._gaps(now_ns), *([step] if step else [])]

    def nothing_yet(self) -> list[AnyReading]:
        """Steps are not replayed."""
        return []

    def _step(self, number: int, told: ForwardPass, now_ns: int) -> Step | None:
        """The step; None for a sign of life, or a time that cannot be."""
        batch, queue = told.scheduled_requests, told.queued_requests
        requests = batch.num_prefill_requests + batch.num_decode_requests
        if not (requests and 0 < told.wall_time < LONGEST_S):  # False for NaN
            return None
        waiting = queue.num_prefill_requests + queue.num_decode_requests
        duration_ns = round(told.wall_time * NS_PER_S)
        return Step(
            source=self._source,
            rank=told.dp_rank,
            index=number,
            start_ns=now_ns - duration_ns,
            end_ns=now_ns,
            duration_ns=duration_ns,
            prefill_requests=batch.num_prefill_requests,
            decode_requests=batch.num_decode_requests,
            prefill_tokens=batch.sum_prefill_tokens,
            decode_tokens=batch.num_decode_requests,
            running=requests,
            waiting=waiting,
            bound_by=BoundBy.OTHER if waiting else BoundBy.NOTHING,
            memberless=True,
            context_tokens=batch.sum_prefill_kv_tokens + batch.sum_decode_kv_tokens,
        )

    def _gaps(self, now_ns: int) -> list[AnyReading]:
        """A note on missed steps, now and then."""
        if not self._missed or now_ns < self._say_ns:
            return []
        missed, self._missed = self._missed, 0
        self._say_ns = now_ns + SAY_EVERY_NS
        text = f"steps of {self._source} were published faster than they were read"
        note = Note(
            source=self._source,
            t_ns=now_ns,
            kind=NoteKind.DROPPED,
            text=text,
            count=missed,
        )
        return [note]

    def _not_known(self, version: int) -> list[AnyReading]:
        """A note that the steps cannot be read, once a version."""
        if version in self._unknown or len(self._unknown) >= MOST_VERSIONS:
            return []
        self._unknown.add(version)
        text = (
            f"steps of {self._source} are in version {version} of their encoding, of "
            f"which version {VERSION} is known: they are not read"
        )
        now_ns = self._clock.now_ns()
        note = Note(source=self._source, t_ns=now_ns, kind=NoteKind.PROBE, text=text)
        return [note]


class StepStream(PublishedStream):
    """A collector of the steps that one server publishes."""

    WHAT = "steps"
    FOUND_BY = STEPS

    def _reader(self, rank: int, *, same_host: bool) -> RankSteps:
        del rank, same_host  # a message has its rank, and no time
        return RankSteps(self._clock, self.server.source)
