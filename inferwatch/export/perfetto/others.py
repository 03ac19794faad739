"""What is neither request nor step: the load's view, notes, the host."""

from itertools import pairwise

from collectors.clock import NS_PER_S
from collectors.readings import (
    HostSample,
    LoadEvent,
    LoadPlanned,
    Note,
    NoteKind,
    ProcessUsage,
    RequestRecord,
)
from inferwatch.export.perfetto.trace import Args, Trace, Track

SESSION = "session"


class Client:
    """The load generator's requests, each on a track of its own."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def record(self, record: RequestRecord) -> None:
        """A complete request."""
        moments = _moments(record)
        whole = (moments[0][1], moments[-1][1])
        if not self._trace.shows(*whole):
            return
        group = f"client {record.source}"
        track = self._trace.track(group, record.external_id)
        facts = {
            "phase": record.phase,
            "class": record.class_name,
            "prompt_tokens": record.prompt_tokens,
            "output_tokens": record.output_tokens,
            "failure": record.failure,
            "detail": record.detail,
        }
        self._trace.slice(track, "request", whole, facts)
        for (name, start_ns), (_, end_ns) in pairwise(moments):
            self._trace.slice(track, name, (start_ns, end_ns), {})


def _moments(record: RequestRecord) -> list[tuple[str, int]]:
    """What begins when, as far as it is known, never going back."""
    told = (
        ("wait in the client", record.intended_ns),
        ("wait for the first token", record.sent_ns),
        ("stream", record.first_token_ns),
        ("wait for the end", record.last_token_ns),
        ("end", record.end_ns),
    )
    moments: list[tuple[str, int]] = []
    for name, t_ns in told:
        if t_ns is not None:
            latest = moments[-1][1] if moments else t_ns
            moments.append((name, max(t_ns, latest)))
    return moments


class Session:
    """Notes, load events and bookmarks as instants; the host as counters."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._tracks: dict[str, Track] = {}
        self._before: dict[int, tuple[int, ProcessUsage]] = {}

    def note(self, note: Note) -> None:
        """Something worth remembering."""
        self._instant("notes", note.text, note.t_ns, {"kind": note.kind})

    def planned(self, planned: LoadPlanned) -> None:
        """What the load that follows was asked to do."""
        asked = f"load plan {planned.plan}"
        self._instant("notes", asked, planned.t_ns, {"kind": NoteKind.STARTED})

    def load(self, event: LoadEvent) -> None:
        """The load began, changed or ended."""
        rate, users = event.rate_per_s, event.users
        asked = {"rate_per_s": rate, "users": users, "text": event.text}
        self._instant("load", event.kind, event.t_ns, asked)

    def bookmark(self, text: str, t_ns: int) -> None:
        """Somebody marked it."""
        self._instant("bookmarks", text, t_ns, {})

    def host(self, sample: HostSample) -> None:
        """Shares of a core since the sample before, by role."""
        shares: dict[str, float] = {}
        for usage in sample.processes:
            earlier = self._before.get(usage.pid)
            self._before[usage.pid] = (sample.t_ns, usage)
            if earlier is not None and sample.t_ns > earlier[0]:
                elapsed_s = (sample.t_ns - earlier[0]) / NS_PER_S
                share = (usage.cpu_s - earlier[1].cpu_s) / elapsed_s
                shares[usage.role] = shares.get(usage.role, 0.0) + share
        if shares:
            pid = self._trace.process(SESSION)
            rounded = {role: round(share, 4) for role, share in shares.items()}
            self._trace.counter(pid, "CPU, cores", sample.t_ns, rounded)

    def _instant(self, track: str, name: str, t_ns: int, args: Args) -> None:
        if not self._trace.shows(t_ns, t_ns):
            return
        if track not in self._tracks:
            self._tracks[track] = self._trace.track(SESSION, track)
        self._trace.instant(self._tracks[track], name, t_ns, args)
