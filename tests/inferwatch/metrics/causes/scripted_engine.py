"""A scheduler in script: what it does to each request is known to the nanosecond."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from collectors.contract.readings import (
    AnyReading,
    EventKind,
    RequestEvent,
    Step,
    Vantage,
)

ENGINE = "engine-1"
MS = 1_000_000


@dataclass
class Script:
    """Steps of one rank, one after the other, and the events of its requests."""

    rank: int = 0
    source: str = ENGINE
    now_ns: int = 0
    index: int = 0
    told: list[AnyReading] = field(default_factory=list)

    def ordinal(self, number: int) -> int:
        return (self.rank << 40) + number

    def event(
        self, kind: EventKind, number: int, t_ns: int, *, front: bool, **more: Any
    ) -> None:
        self.told.append(
            RequestEvent(
                source=self.source,
                t_ns=t_ns,
                kind=kind,
                vantage=Vantage.FRONTEND if front else Vantage.ENGINE,
                request_id=f"r{self.rank}-{number}",
                ordinal=None if front else self.ordinal(number),
                **more,
            )
        )

    def arrive(self, number: int, t_ns: int, api_ns: int = 1_000, **more: Any) -> None:
        """At the front end, and a moment later in the queue."""
        self.event(EventKind.ARRIVED, number, t_ns, front=True, **more)
        self.event(EventKind.ADDED, number, t_ns + api_ns, front=False)

    def step(
        self,
        members: dict[int, int],
        ms: float = 5,
        *,
        produced: dict[int, int] | None = None,
        first: tuple[int, ...] = (),
        prefill: int | None = None,
        **more: Any,
    ) -> Step:
        """Requests and their tokens; who produces nothing is said, else one token.

        Those with more than one token prefill. The first of ``first`` is scheduled.
        """
        start_ns = self.now_ns
        self.now_ns += round(ms * MS)
        for number in first:
            self.event(EventKind.SCHEDULED, number, start_ns, front=False)
        prefills = {n: tokens for n, tokens in members.items() if tokens > 1}
        tokens = sum(prefills.values()) if prefill is None else prefill
        step = Step(
            source=self.source,
            rank=self.rank,
            index=self.index,
            start_ns=start_ns,
            end_ns=self.now_ns,
            duration_ns=self.now_ns - start_ns,
            prefill_requests=len(prefills),
            decode_requests=len(members) - len(prefills),
            prefill_tokens=tokens,
            decode_tokens=len(members) - len(prefills),
            running=len(members),
            members=[self.ordinal(each) for each in members],
            scheduled=list(members.values()),
            produced=[(produced or {}).get(each, 1) for each in members],
            preempted=[self.ordinal(each) for each in more.pop("preempted", ())],
            **more,
        )
        self.index += 1
        self.told.append(step)
        return step

    def sent(self, number: int, late_ns: int = 100_000) -> None:
        """The front end has its first token."""
        t_ns = self.now_ns + late_ns
        self.event(EventKind.FIRST_TOKEN, number, t_ns, front=True)

    def finish(self, number: int, reason: str = "stop", **more: Any) -> None:
        """Engine and front end are done with it."""
        kind, ended = EventKind.FINISHED, {"reason": reason, **more}
        self.event(kind, number, self.now_ns, front=False, **ended)
        self.event(kind, number, self.now_ns + 100_000, front=True, **ended)

    def decode(self, *members: int, steps: int = 30, ms: float = 5) -> None:
        """Steps of usual work."""
        for _ in range(steps):
            self.step(dict.fromkeys(members, 1), ms)

    def running(self, *members: int) -> "Script":
        """With some that decode, for a while."""
        for number in members:
            self.arrive(number, self.now_ns)
        self.now_ns += 2_000
        self.step(dict.fromkeys(members, 20), first=members)
        for number in members:
            self.sent(number)
        self.decode(*members)
        return self

    def __iter__(self) -> Iterator[AnyReading]:
        return iter(self.told)
