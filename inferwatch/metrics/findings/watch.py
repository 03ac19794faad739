"""The findings of one Model: of a single engine, or of several servers together."""

from collections import deque
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import EngineInfo, Note, NoteKind, Totals
from inferwatch.metrics.causes.cause import SlowRequests
from inferwatch.metrics.findings.diagnosis import Diagnosis, FindingCost
from inferwatch.metrics.findings.every import DIAGNOSES, OF_ALL, OF_COUNTS
from inferwatch.metrics.findings.facts import NOTHING, Around, Facts, now
from inferwatch.metrics.findings.finding import (
    Evidence,
    Finding,
    Knob,
    PastFinding,
    Subject,
)
from inferwatch.metrics.findings.gather import JudgedMoment, Sources, facts_of
from inferwatch.metrics.findings.tracker import FindingTracker, SavedFindings, ranked
from inferwatch.metrics.series.samples import CounterTotals
from inferwatch.metrics.servers.counted_requests import counted_requests

EVERY = ("ttft_s", "tpot_s", "itl_s", "e2el_s")


class Imbalance(Diagnosis):
    """Requests wait at one server while another has room."""

    NAME, TITLE = "imbalance", "uneven load"
    SUBJECT = Subject.TRAFFIC
    MANY = "are loaded unevenly"
    MISSES = EVERY
    LEAST_WAITING = 4
    SPARE = 0.5
    """Running requests / those of the fullest server, below which a server has room."""

    def __init__(self, facts_by_source: Mapping[str, Facts | None]) -> None:
        self._facts = {
            source: facts for source, facts in facts_by_source.items() if facts
        }

    def holds(self, facts: Facts) -> FindingCost | None:
        del facts
        full, idle = self._full(), self._idle()
        if not full or not idle:
            return None
        waiting = sum(self._facts[each].waiting or 0 for each in full)
        if waiting < self.LEAST_WAITING * len(full):
            return None
        running = sum(each.running or 0 for each in self._facts.values())
        share = waiting / (waiting + running)
        return FindingCost(
            share, f"{share:.0%} of all requests wait where they need not"
        )

    def sentence(self, facts: Facts) -> str:
        del facts
        full, idle = self._full(), self._idle()
        waiting = sum(self._facts[each].waiting or 0 for each in full)
        return (
            f"{waiting:,} wait at {_named(full)} while {_named(idle)} "
            f"{'has' if len(idle) == 1 else 'have'} room"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        return tuple(
            Evidence(
                text=f"{source}: {self._facts[source].waiting:,} waiting, "
                f"{self._facts[source].running:,} running",
                page="fleet",
                t_ns=facts.now_ns,
            )
            for source in [*self._full(), *self._idle()][:4]
        )

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        del facts
        return (
            now(
                "Route by requests in flight, not in turn or by a fixed key",
                "TTFT falls where they wait; tokens/s rise",
            ),
        )

    def _most(self) -> int:
        return max((each.running or 0 for each in self._facts.values()), default=0)

    def _full(self) -> list[str]:
        return sorted(
            source
            for source, each in self._facts.items()
            if (each.waiting or 0) >= self.LEAST_WAITING
        )

    def _idle(self) -> list[str]:
        most = self._most()
        return sorted(
            source
            for source, each in self._facts.items()
            if not each.waiting
            and each.running is not None
            and each.running < self.SPARE * most
        )


def _named(sources: list[str]) -> str:
    if len(sources) <= 2:
        return " and ".join(sources)
    return f"{len(sources):,} servers"


MOST_LOSSES = 32
MOST_DROPS = 64
DROPS_NS = 60 * NS_PER_S
MOST_COMPILATIONS = 64
COMPILATIONS_NS = 60 * NS_PER_S
MANY = {each.NAME: each.MANY for each in DIAGNOSES}


class SavedWatch(msgspec.Struct, array_like=True):
    """A FindingWatch as checkpoints keep it."""

    tracker: SavedFindings
    up_ns: int | None
    lost: list[tuple[int, str]]
    dropped: list[tuple[int, int]]
    heard_ns: int | None
    lost_source: str | None = None
    compilations: list[Note] = []


class FindingWatch:
    """Judges the engine of a Model at each tick."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self.tracker = FindingTracker()
        self._up_ns: int | None = None
        self._lost: deque[tuple[int, str]] = deque(maxlen=MOST_LOSSES)
        self._lost_source: str | None = None
        self._heard_ns: int | None = None
        self._dropped: deque[tuple[int, int]] = deque(maxlen=MOST_DROPS)
        self._compilations: deque[Note] = deque(maxlen=MOST_COMPILATIONS)

    def info(self, info: EngineInfo) -> None:
        if self._up_ns is None or self._is_lost:
            self._up_ns = max(info.t_ns, 0)

    @property
    def _is_lost(self) -> bool:
        """Whether nothing came up since the last loss."""
        return bool(self._lost) and self._lost[-1][0] >= (self._up_ns or 0)

    def totals(self, totals: Totals) -> None:
        """Record when an engine process was last heard of."""
        self._heard_ns = max(self._heard_ns or 0, totals.t_ns)

    def note(self, note: Note) -> None:
        """Record lost engines and dropped readings.

        One loss may be told by several: by the probe, and as its server is asked.
        """
        if note.kind is NoteKind.LOST:
            if not self._is_lost:
                self._lost.append((note.t_ns, note.text))
            self._lost_source = note.source
        elif note.kind is NoteKind.STARTED and note.source == self._lost_source:
            self._up_ns = max(note.t_ns, 0) if self._is_lost else self._up_ns
        elif note.kind is NoteKind.DROPPED:
            self._dropped.append((note.t_ns, note.count or 1))
        elif note.kind is NoteKind.COMPILATION:
            self._compilations.append(note)

    def tick(
        self,
        now_ns: int,
        began_ns: int | None,
        lately: tuple[CounterTotals, SlowRequests | None],
        around: Around,
        servers: Mapping[str, "FindingWatch"],
    ) -> None:
        """Judge this tick by the steps of ten seconds and slow requests of a minute.

        The watches of ``servers`` must have been ticked first.
        """
        scraped, probed = self._sources.scraped, self._sources.engines.sources
        counted = counted_requests(scraped, probed, now_ns)
        judges = counted is not None or around.client_why is not None
        if began_ns is None and not judges and not self.tracker.watches:
            return
        around = replace(around, dropped=self._dropped_lately(now_ns))
        moment = JudgedMoment(
            now_ns=now_ns,
            began_ns=began_ns,
            steps=lately[0],
            slow=lately[1],
            up_ns=began_ns if self._up_ns is None else self._up_ns,
            lost=tuple(self._lost),
            heard_ns=self._heard_ns,
            counted=counted,
            compilations=tuple(
                each
                for each in self._compilations
                if each.t_ns > now_ns - COMPILATIONS_NS
            ),
        )
        facts = facts_of(self._sources, moment, around)
        if servers:
            by_source = {source: each.facts for source, each in servers.items()}
            of_all = (*OF_COUNTS, *OF_ALL, Imbalance(by_source))
            self.tracker.tick(_without_probes(facts), of_all)
        else:
            self.facts = facts
            known = began_ns is not None
            self.tracker.tick(facts, DIAGNOSES if known else (*OF_COUNTS, *OF_ALL))

    facts: Facts | None = None
    """Facts of the latest tick; not saved."""

    def findings(self, servers: Mapping[str, "FindingWatch"]) -> tuple[Finding, ...]:
        """Return present findings, costliest first; equal ones are merged."""
        if not servers:
            return self.tracker.all()
        by_name: dict[str, list[Finding]] = {}
        for source, each in servers.items():
            for finding in each.findings({}):
                one = replace(finding, sources=(source,))
                by_name.setdefault(finding.name, []).append(one)
        pooled = [_merged(each, len(servers)) for each in by_name.values()]
        others = (each for each in self.tracker.all() if each.name not in by_name)
        return ranked([*others, *pooled])

    def ended(self, servers: Mapping[str, "FindingWatch"]) -> tuple[PastFinding, ...]:
        """Return the findings of all servers that ended, by their end."""
        ended = list(self.tracker.ended)
        for source, each in servers.items():
            findings = each.tracker.ended
            ended += [replace(past, sources=(source,)) for past in findings]
        return tuple(sorted(ended, key=lambda each: (each.until_ns, each.name)))

    def saved(self) -> SavedWatch:
        return SavedWatch(
            tracker=self.tracker.saved(),
            up_ns=self._up_ns,
            lost=list(self._lost),
            dropped=list(self._dropped),
            compilations=list(self._compilations),
            heard_ns=self._heard_ns,
            lost_source=self._lost_source,
        )

    def restore(self, saved: SavedWatch) -> None:
        self.tracker.restore(saved.tracker)
        self._up_ns = saved.up_ns
        self._lost.extend(saved.lost)
        self._dropped.extend(saved.dropped)
        self._compilations.extend(saved.compilations)
        self._heard_ns = saved.heard_ns
        self._lost_source = saved.lost_source

    def _dropped_lately(self, now_ns: int) -> int:
        return sum(n for t_ns, n in self._dropped if t_ns > now_ns - DROPS_NS)


def _without_probes(facts: Facts) -> Facts:
    """Return the facts without what probes tell, which servers are judged by singly."""
    refused = facts.counted.refused if facts.counted else ()
    return replace(facts, refused=refused, outcomes=NOTHING, steps=NOTHING)


def _merged(findings: list[Finding], servers: int) -> Finding:
    """Merge the same finding of several servers, with the sentence of the costliest."""
    worst = ranked(findings)[0]
    names = tuple(sorted(each.sources[0] for each in findings))
    cost = sum(each.cost for each in findings) / servers
    if len(findings) == 1:
        sentence = f"{names[0]}: {worst.sentence}"
    else:
        many = MANY.get(worst.name, worst.title)
        sentence = (
            f"{len(findings):,} of {servers:,} servers {many}; "
            f"worst {worst.sources[0]}: {worst.sentence}"
        )
    return replace(
        worst,
        sentence=sentence,
        since_ns=min(each.since_ns for each in findings),
        cost=cost,
        cost_text=f"{worst.cost_text}; {cost:.0%} of the fleet's",
        sources=names,
    )
