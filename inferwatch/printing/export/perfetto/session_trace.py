"""A session as a trace, in one pass over its readings.

Counters are on top, then the session's events, steps, requests, and the client's view
of requests. Requests' slots, GPUs and hosts have modules of their own.
"""

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import (
    EngineSample,
    GpuInfo,
    GpuSample,
    HostInfo,
    HostSample,
    LiveLimits,
    LoadEvent,
    LoadPlanned,
    Note,
    NoteKind,
    Profile,
    RequestEvent,
    RequestRecord,
    Step,
    Totals,
)
from inferwatch.metrics.steps.live_limits import LIMITS, LimitChanges, values_of
from inferwatch.printing.destination import Destination
from inferwatch.printing.export.perfetto.hardware_tracks import GpuTracks, HostTracks
from inferwatch.printing.export.perfetto.profile_tracks import ProfileTracks
from inferwatch.printing.export.perfetto.request_tracks import LINGER_NS, RequestTracks
from inferwatch.printing.export.perfetto.trace_format import (
    Args,
    Slots,
    Trace,
    TraceTrack,
    TrackOrder,
)
from inferwatch.printing.export.recording import Recording, note_text
from inferwatch.printing.export.tables import EVERYWHEN, TimeRange
from inferwatch.record.file.trace_folder import traces_folder

IDLE_NS = 50_000_000
"""With no step for longer than this, the batch was empty in between."""
RATE_NS = NS_PER_S
"""Tokens are counted over this long for their rate."""

Values = Mapping[str, int | None]
SESSION = "session"


def write_perfetto(
    recording: Recording,
    destination: Destination,
    span: TimeRange = EVERYWHEN,
    *,
    profile_traces: bool = True,
) -> None:
    """Write one JSON file, with the traces of profiles; only what is in the span."""
    with destination.file() as out:
        trace = Trace(out, recording.start_monotonic_ns, span)
        trace.open(_about(recording))
        folder = traces_folder(recording.database, recording.session.id)
        _Writer(trace, folder if profile_traces else None).follow(recording)
        trace.close()


class _Writer:
    """Passes each reading to the tracks that show it."""

    def __init__(self, trace: Trace, traces: Path | None) -> None:
        """Write to a trace; without a folder the traces of profiles are left out."""
        self._session = SessionTracks(trace)
        self._profiles = None if traces is None else ProfileTracks(trace, traces)
        self._engines = EngineTracks(trace)
        self._requests = RequestTracks(trace)
        self._client = ClientTracks(trace)
        self._servers = ServerCounters(trace)
        self._gpus, self._hosts = GpuTracks(trace), HostTracks(trace)
        self._draw: dict[type, Callable[[Any], None]] = {
            Step: self._step,
            RequestEvent: self._requests.event,
            Totals: self._engines.totals,
            Note: self._note,
            LoadPlanned: self._session.planned,
            LoadEvent: self._session.load,
            LiveLimits: self._limits,
            GpuInfo: self._gpus.info,
            GpuSample: self._gpus.sample,
            HostInfo: self._hosts.info,
            HostSample: self._hosts.sample,
            RequestRecord: self._client.record,
            EngineSample: self._servers.sample,
        }
        if self._profiles is not None:
            self._draw[Profile] = self._profiles.profile

    def follow(self, recording: Recording) -> None:
        for t_ns, text in recording.bookmarks:
            self._session.bookmark(text, t_ns)
        for reading in recording.readings():
            draw = self._draw.get(type(reading))
            if draw is not None:
                draw(reading)
        self._requests.cut()
        self._client.close()
        self._engines.close()
        self._gpus.close()
        if self._profiles is not None:
            self._profiles.write()

    def _step(self, step: Step) -> None:
        self._engines.step(step)
        self._requests.step(step)

    def _limits(self, limits: LiveLimits) -> None:
        self._session.limits(limits)
        self._engines.limits(limits)

    def _note(self, note: Note) -> None:
        self._session.note(note)
        if note.kind is NoteKind.LOST:
            self._requests.cut(note.source)


def _about(recording: Recording) -> dict[str, object]:
    row = recording.session
    return {
        "made_by": f"inferwatch {row.inferwatch_version}",
        "session": row.id,
        "name": row.name,
        "model": row.model,
        "started_unix_ns": row.started_ns,
        "clock": "CLOCK_MONOTONIC of the host",
    }


@dataclass(slots=True, kw_only=True)
class RankTracks:
    """The track of an engine rank, and the current values of its counters."""

    track: TraceTrack
    counters: int
    """The process id of its counters."""
    end_ns: int | None = None
    """The end of its latest step."""
    shown: dict[str, Values] = field(default_factory=dict)
    second: int | None = None
    """The index of the RATE_NS interval in which tokens are counted."""
    tokens: dict[str, int] = field(default_factory=dict)


class EngineTracks:
    """Tracks of engines: a slice per step, and counters when they change."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._ranks: dict[tuple[str, int], RankTracks] = {}

    def step(self, step: Step) -> None:
        rank = self._rank(step.source, step.rank)
        begin_ns = step.end_ns - step.duration_ns  # steps may overlap, slices may not
        if step.memberless and rank.end_ns is not None:
            begin_ns = max(begin_ns, min(rank.end_ns, step.end_ns))
        if rank.end_ns is not None and begin_ns - rank.end_ns > IDLE_NS:
            self._show(rank, "batch", rank.end_ns, {"prefill": 0, "decode": 0})
        self._trace.slice(
            rank.track, _kind(step), (begin_ns, step.end_ns), _step_facts(step)
        )
        batch = {"prefill": step.prefill_requests, "decode": step.decode_requests}
        self._show(rank, "batch", begin_ns, batch)
        queue = {"running": step.running, "waiting": step.waiting}
        self._show(rank, "requests", begin_ns, queue)
        kv = {
            "used": step.kv_used_blocks,
            "cached": step.kv_cached_blocks,
            "free": step.kv_free_blocks,
        }
        self._show(rank, "KV blocks", step.end_ns, kv)
        if not step.memberless:
            self._count(rank, step)
        rank.end_ns = step.end_ns

    def limits(self, limits: LiveLimits) -> None:
        rank = self._rank(limits.source, limits.rank)
        values = dict(zip(LIMITS, values_of(limits), strict=True))
        self._show(rank, "limits", limits.t_ns, values)

    def totals(self, totals: Totals) -> None:
        """Write the queue's counters, which an idle engine reports as well."""
        rank = self._ranks.get((totals.source, totals.rank))
        if rank is not None and totals.loop_lag_max_ns is not None:
            late = {"worst": totals.loop_lag_max_ns / 1e6}
            name = "API server's event loop late, ms"
            self._trace.counter(rank.counters, name, totals.t_ns, late)
        if rank is None or totals.t_ns < (rank.end_ns or 0):
            return
        if totals.running is not None:
            queue = {"running": totals.running, "waiting": totals.waiting}
            self._show(rank, "requests", totals.t_ns, queue)

    def close(self) -> None:
        for rank in self._ranks.values():
            self._write_rate(rank)
            if rank.end_ns is not None:
                self._show(rank, "batch", rank.end_ns, {"prefill": 0, "decode": 0})

    def _rank(self, source: str, number: int) -> RankTracks:
        rank = self._ranks.get((source, number))
        if rank is None:
            name = f"engine {source}" + (f" rank {number}" if number else "")
            rank = RankTracks(
                counters=self._trace.process(f"{name}, counters", TrackOrder.COUNTERS),
                track=self._trace.track(name, "steps", TrackOrder.STEPS),
            )
            self._ranks[source, number] = rank
        return rank

    def _show(self, rank: RankTracks, counter: str, t_ns: int, values: Values) -> None:
        if rank.shown.get(counter) != values:
            rank.shown[counter] = values
            known = {k: v for k, v in values.items() if v is not None}
            if known:
                self._trace.counter(rank.counters, counter, t_ns, known)

    def _count(self, rank: RankTracks, step: Step) -> None:
        second = step.end_ns // RATE_NS
        if second != rank.second:
            self._write_rate(rank)
            rank.second, rank.tokens = second, {"output": 0, "prefill": 0}
        rank.tokens["output"] += step.output_tokens
        rank.tokens["prefill"] += step.prefill_tokens

    def _write_rate(self, rank: RankTracks) -> None:
        """Write the token rate of a second at its start, and zero at its end."""
        if rank.second is not None:
            start_ns = rank.second * RATE_NS
            nothing = {"output": 0, "prefill": 0}
            self._trace.counter(rank.counters, "tokens/s", start_ns, rank.tokens)
            self._trace.counter(rank.counters, "tokens/s", start_ns + RATE_NS, nothing)


class ServerCounters:
    """Counters from servers' metrics endpoints."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._before: dict[tuple[str, str, str | None], EngineSample] = {}

    def sample(self, sample: EngineSample) -> None:
        """Write the gauges, and the token rates since the previous sample."""
        rank = f" rank {sample.rank}" if sample.rank != "0" else ""
        name = f"server {sample.source}{rank}, counters"
        pid, t_ns = self._trace.process(name, TrackOrder.COUNTERS), sample.t_ns
        queue = {"running": sample.running, "waiting": sample.waiting}
        used = {} if sample.kv_usage is None else {"used": round(sample.kv_usage, 4)}
        for counter, values in (("requests", queue), ("KV", used)):
            known = {k: v for k, v in values.items() if v is not None}
            if known:
                self._trace.counter(pid, counter, t_ns, known)
        key = (sample.source, sample.rank, sample.model)
        before = self._before.get(key)
        self._before[key] = sample
        if before is not None and (rates := _rates_since(before, sample)):
            self._trace.counter(pid, "tokens/s", before.t_ns, rates)


def _rates_since(before: EngineSample, now: EngineSample) -> dict[str, float]:
    """Token rates per second; those whose counter or clock went back are missing."""
    counts = (
        ("output", before.output_tokens, now.output_tokens),
        ("prompt", before.prompt_tokens, now.prompt_tokens),
    )
    took_ns = now.t_ns - before.t_ns
    return {
        name: round((after - then) * NS_PER_S / took_ns, 2)
        for name, then, after in counts
        if took_ns > 0 and then is not None and after is not None and after >= then
    }


def _kind(step: Step) -> str:
    if step.prefill_requests and step.decode_requests:
        return "prefill + decode"
    return "prefill" if step.prefill_requests else "decode"


def _step_facts(step: Step) -> dict[str, object]:
    return {
        "step": step.index,
        "prefill_requests": step.prefill_requests,
        "decode_requests": step.decode_requests,
        "prefill_tokens": step.prefill_tokens,
        "output_tokens": None if step.memberless else step.output_tokens,
        "bound_by": None if step.memberless else step.bound_by,
        "deferred_by": step.deferred_by,
        "waiting": step.waiting,
        "preempted": len(step.preempted) or None,
        "recomputed_tokens": step.recomputed_tokens or None,
        "graph_mode": step.graph_mode,
    }


class ClientTracks:
    """Tracks of the load generator's requests, written some time after each ended."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._slots: dict[str, Slots] = {}
        """Slots of each load run."""
        self._ended: list[tuple[int, int, RequestRecord]] = []
        """End time, order of arrival and record, as a heap."""
        self._count = 0

    def record(self, record: RequestRecord) -> None:
        """Add a request that has ended, and write those that ended well before it."""
        end_ns = _moments(record)[-1][1]
        self._count += 1
        heapq.heappush(self._ended, (end_ns, self._count, record))
        while self._ended[0][0] <= end_ns - LINGER_NS:
            self._write(heapq.heappop(self._ended)[2])

    def close(self) -> None:
        while self._ended:
            self._write(heapq.heappop(self._ended)[2])

    def _write(self, record: RequestRecord) -> None:
        moments = _moments(record)
        whole = (moments[0][1], moments[-1][1])
        if not self._trace.shows(*whole):
            return
        slots = self._slots.get(record.source)
        if slots is None:
            slots = Slots(self._trace, f"client {record.source}", TrackOrder.CLIENT)
            self._slots[record.source] = slots
        track = slots.take(*whole)
        facts = {
            "phase": record.phase,
            "class": record.class_name,
            "prompt_tokens": record.prompt_tokens,
            "output_tokens": record.output_tokens,
            "failure": record.failure,
            "detail": record.detail,
        }
        self._trace.slice(track, record.external_id, whole, facts)
        for (name, start_ns), (_, end_ns) in pairwise(moments):
            self._trace.slice(track, name, (start_ns, end_ns), {})


def _moments(record: RequestRecord) -> list[tuple[str, int]]:
    """The known stages of a request with their starts, in ascending order."""
    stages = (
        ("wait in the client", record.intended_ns),
        ("wait for the first token", record.sent_ns),
        ("stream", record.first_token_ns),
        ("wait for the end", record.last_token_ns),
        ("end", record.end_ns),
    )
    moments: list[tuple[str, int]] = []
    for name, t_ns in stages:
        if t_ns is not None:
            latest = moments[-1][1] if moments else t_ns
            moments.append((name, max(t_ns, latest)))
    return moments


class SessionTracks:
    """The session's own tracks: notes, load events and bookmarks."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._tracks: dict[str, TraceTrack] = {}
        self._changes = LimitChanges()

    def limits(self, limits: LiveLimits) -> None:
        text = self._changes.said(limits)
        if text is not None:
            facts = {"change": limits.change, "by": limits.by, "kept": limits.kept}
            self._instant("limits", text, limits.t_ns, facts)

    def note(self, note: Note) -> None:
        self._instant("notes", note_text(note), note.t_ns, {"kind": note.kind})

    def planned(self, planned: LoadPlanned) -> None:
        text = f"load plan {planned.plan}"
        self._instant("notes", text, planned.t_ns, {"kind": NoteKind.STARTED})

    def load(self, event: LoadEvent) -> None:
        rate, users = event.rate_per_s, event.users
        facts = {"rate_per_s": rate, "users": users, "text": event.text}
        self._instant("load", event.kind, event.t_ns, facts)

    def bookmark(self, text: str, t_ns: int) -> None:
        self._instant("bookmarks", text, t_ns, {})

    def _instant(self, track: str, name: str, t_ns: int, args: Args) -> None:
        if not self._trace.shows(t_ns, t_ns):
            return
        if track not in self._tracks:
            self._tracks[track] = self._trace.track(SESSION, track, TrackOrder.SESSION)
        self._trace.instant(self._tracks[track], name, t_ns, args)
