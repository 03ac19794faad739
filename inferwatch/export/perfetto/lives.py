"""Requests as tracks: queue, prefill and decode inside the request as a whole."""

from dataclasses import dataclass, field

from collectors.readings import EventKind, RequestEvent, Step, Vantage
from inferwatch.export.perfetto.trace import Trace


@dataclass(slots=True, kw_only=True)
class Life:
    """A request whose end has not been seen."""

    request_id: str
    first_ns: int
    last_ns: int
    ordinal: int | None = None
    phases: list[tuple[str, int, int]] = field(default_factory=list)
    phase: tuple[str, int] | None = None
    """What goes on, and since when."""
    stepped: bool = False
    """It was in a step that we know."""
    marks: list[tuple[str, int]] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)
    seen: set[Vantage] = field(default_factory=set)
    """Who tells of it; it has ended when all of them said so."""
    ended: set[Vantage] = field(default_factory=set)

    def enter(self, phase: str | None, t_ns: int) -> None:
        """What went on ends here; None: nothing begins."""
        if self.phase is not None:
            name, since_ns = self.phase
            t_ns = max(t_ns, since_ns)
            self.phases.append((name, since_ns, t_ns))
        self.phase = None if phase is None else (phase, t_ns)
        self.reach(t_ns)

    def reach(self, t_ns: int) -> None:
        """It lasts from before this moment to after it."""
        self.first_ns = min(self.first_ns, t_ns)
        self.last_ns = max(self.last_ns, t_ns)


QUEUE, PREFILL, DECODE = "queue", "prefill", "decode"
PREEMPTED, AGAIN = "preempted", "prefill again"
UNSEEN = "running, unseen"
NEXT = {PREFILL: DECODE, AGAIN: DECODE, UNSEEN: DECODE}
FACTS = (
    *("external_id", "prompt_tokens", "cached_tokens", "max_tokens"),
    *("temperature", "output_tokens", "preemptions", "reason"),
)


LINGER_NS = 2_000_000_000
"""Front end and engine are separate streams: one may tell the end before the other
begins."""


class Lives:
    """Follows live requests; each is written a while after it has ended."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._lives: dict[tuple[str, str], Life] = {}
        self._members: dict[tuple[str, int], Life] = {}
        self._waiting: dict[tuple[str, str], int] = {}
        """Ended, as far as is known, and when."""

    def event(self, event: RequestEvent) -> None:
        """A moment of a request's life."""
        key = (event.source, event.request_id)
        life = self._lives.get(key)
        if life is None:
            if event.kind is EventKind.FINISHED:
                return  # it has been written, or never began here
            life = Life(
                request_id=event.request_id, first_ns=event.t_ns, last_ns=event.t_ns
            )
            self._lives[key] = life
        self._learn(life, event)
        life.reach(event.t_ns)
        self._move(life, event)
        if life.ended >= life.seen:
            self._waiting[key] = event.t_ns
        self._settle(event.t_ns)

    def step(self, step: Step) -> None:
        """Tokens came out, or requests lost their place."""
        for ordinal in step.preempted:
            life = self._members.get((step.source, ordinal))
            if life is not None and life.phase is not None:
                life.enter(PREEMPTED, step.start_ns)
                life.marks.append((PREEMPTED, life.last_ns))
        for ordinal, produced in zip(step.members, step.produced, strict=True):
            life = self._members.get((step.source, ordinal))
            if life is None or life.phase is None:
                continue
            life.reach(step.end_ns)
            if not life.stepped and life.phase[0] == PREFILL:
                name, since_ns = life.phase
                seen = since_ns == step.start_ns  # else its first steps escaped us
                life.phase = (name if seen else UNSEEN, since_ns)
            life.stepped = True
            if life.phase[0] == PREEMPTED:
                life.enter(AGAIN, step.start_ns)
            if produced and life.phase[0] in NEXT:
                life.enter(NEXT[life.phase[0]], step.end_ns)

    def cut(self, source: str | None = None) -> None:
        """The engine was lost, or the record ends: so do its requests."""
        for key in list(self._lives):
            if source in {None, key[0]}:
                life = self._lives[key]
                if not life.ended >= life.seen:
                    life.facts["unfinished"] = True
                self._end(key)

    def _settle(self, now_ns: int) -> None:
        """Write what nobody will add to any more."""
        while self._waiting:
            key, ended_ns = next(iter(self._waiting.items()))
            if ended_ns > now_ns - LINGER_NS:
                return
            del self._waiting[key]
            life = self._lives.get(key)
            if life is not None and life.ended >= life.seen:
                self._end(key)

    def _learn(self, life: Life, event: RequestEvent) -> None:
        life.seen.add(event.vantage)
        for name in FACTS:
            value = getattr(event, name)
            if value is not None:
                life.facts[name] = value
        if event.ordinal is not None and life.ordinal is None:
            life.ordinal = event.ordinal
            self._members[event.source, event.ordinal] = life

    @staticmethod
    def _move(life: Life, event: RequestEvent) -> None:
        match event.kind:
            case EventKind.ADDED:
                life.enter(QUEUE, event.t_ns)
            case EventKind.SCHEDULED:
                life.enter(PREFILL, event.t_ns)
            case EventKind.FIRST_TOKEN:
                life.marks.append(("first token at the API server", event.t_ns))
            case EventKind.FINISHED:
                life.ended.add(event.vantage)
                if event.vantage is Vantage.ENGINE:
                    life.enter(None, event.t_ns)

    def _end(self, key: tuple[str, str]) -> None:
        source, _ = key
        life = self._lives.pop(key)
        self._waiting.pop(key, None)
        if life.ordinal is not None:
            self._members.pop((source, life.ordinal), None)
        if life.phase is not None:
            life.enter(None, life.last_ns)
        if self._trace.shows(life.first_ns, life.last_ns):
            self._write(source, life)

    def _write(self, source: str, life: Life) -> None:
        name = str(life.facts.get("external_id") or life.request_id)
        track = self._trace.track(f"requests of {source}", name)
        whole = (life.first_ns, life.last_ns)
        facts = {"request_id": life.request_id, **life.facts}
        self._trace.slice(track, "request", whole, facts)
        for phase, start_ns, end_ns in life.phases:
            self._trace.slice(track, phase, (start_ns, end_ns), {})
        for mark, t_ns in sorted(life.marks, key=lambda each: each[1]):
            self._trace.instant(track, mark, t_ns, {})
