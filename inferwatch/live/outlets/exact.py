"""Exact numbers of each server, folded from the readings that are recorded.

They are folded apart from the Model: their counters only ever grow, as Prometheus
expects, and are kept by server for any number of servers.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log2
from typing import Any, NamedTuple

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import (
    ELSEWHERE,
    AnyReading,
    Contact,
    EngineInfo,
    EngineSample,
    GpuInfo,
    GpuSample,
    HostInfo,
    HostSample,
    Note,
    NoteKind,
    RefusalReason,
    Refusals,
    RequestEvent,
    RequestSpan,
    ServerInfo,
    Step,
    Totals,
    Vantage,
)
from collectors.servers.families import speculation_in
from inferwatch.live.outlets.hardware import HardwareNumbers
from inferwatch.metrics.requests.latencies import VANTAGES
from inferwatch.metrics.requests.refusals import LatestRefusals, counted_groups
from inferwatch.metrics.requests.request import Request
from inferwatch.metrics.requests.request_index import RequestIndex
from inferwatch.metrics.requests.request_row import RequestState
from inferwatch.metrics.requests.request_tracker import RequestTracker
from inferwatch.metrics.series.quantiles import Ints, of_weighted
from inferwatch.metrics.series.samples import RecentRows
from inferwatch.metrics.series.window import Quantiles, Window
from inferwatch.metrics.servers.counted import KIND
from inferwatch.metrics.servers.scraped_window import FAILED
from inferwatch.metrics.steps.speculation import MOST_POSITIONS

DRAFTS = ("drafts", "drafted_tokens", "accepted_tokens", "accepted_by_position")
"""Counters of speculative decoding, by probe or by scrape."""

# Histograms of durations, in exponential buckets and in buckets with round bounds.
#
# Both count the same values exactly: a percentile computed from them later is uncertain
# by the width of a bucket. Exponential histograms of many servers can be added up.

SCALE = 4
"""The OTLP scale: 16 buckets for each power of two, so that a bucket is 4.4% wide."""
PER_DOUBLING = 2**SCALE
LEAST_EXPONENT = -20
LEAST_S = 2.0**LEAST_EXPONENT
"""Shorter durations, of less than about a microsecond, go into the zero bucket."""
ROUND_S = tuple(
    round(digit * 10.0**power, 6)
    for power in range(-4, 3)
    for digit in (1, 1.5, 2, 3, 5, 7)
)
"""Round bounds from 0.1 ms to 700 s, for systems without exponential buckets."""


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """The contents of a histogram at one moment."""

    count: int
    sum_s: float
    zeros: int
    """How many were shorter than LEAST_S."""
    buckets: dict[int, int]
    """Counts by rising index: bucket i is above 2**((i-1)/16) and up to 2**(i/16)
    seconds."""
    least_s: float
    most_s: float
    at_most: tuple[int, ...]
    """How many were at most each bound of ROUND_S: Prometheus's ``le`` buckets."""

    @property
    def runs(self) -> list[tuple[int, list[int]]]:
        """Runs of adjacent buckets: the index of the first bucket, and their counts."""
        runs: list[tuple[int, list[int]]] = []
        for index, count in self.buckets.items():
            if runs and index == runs[-1][0] + len(runs[-1][1]):
                runs[-1][1].append(count)
            else:
                runs.append((index, [count]))
        return runs


class DurationHistogram:
    """Counts durations; adding one takes about a microsecond."""

    def __init__(self) -> None:
        self._count = 0
        self._sum_ns = 0
        self._zeros = 0
        self._least_ns: int | None = None
        self._most_ns = 0
        self._buckets: dict[int, int] = {}
        self._round = [0] * (len(ROUND_S) + 1)

    def add(self, value_ns: int, weight: int = 1) -> None:
        """Add ``weight`` durations of the same length."""
        value_s = value_ns / NS_PER_S
        self._count += weight
        self._sum_ns += value_ns * weight
        if self._least_ns is None or value_ns < self._least_ns:
            self._least_ns = value_ns
        self._most_ns = max(self._most_ns, value_ns)
        self._round[bisect_left(ROUND_S, value_s)] += weight
        if value_s < LEAST_S:
            self._zeros += weight
        else:
            index = ceil(log2(value_s) * PER_DOUBLING)
            self._buckets[index] = self._buckets.get(index, 0) + weight

    def distribution(self) -> HistogramSnapshot:
        """Return the contents as of now."""
        below, at_most = 0, []
        for count in self._round[:-1]:
            below += count
            at_most.append(below)
        return HistogramSnapshot(
            count=self._count,
            sum_s=self._sum_ns / NS_PER_S,
            zeros=self._zeros,
            buckets=dict(sorted(self._buckets.items())),
            least_s=(self._least_ns or 0) / NS_PER_S,
            most_s=self._most_ns / NS_PER_S,
            at_most=tuple(at_most),
        )


MOST_SERVERS = 10_000
WINDOW = Window.MINUTE
"""The window of the percentiles that are exposed as gauges."""
OURS = "inferwatch"
"""The role of inferwatch's own process in host samples."""
Counts = dict[str, int]


class RecentDurations:
    """Durations of the last minutes, for exact percentiles."""

    def __init__(self) -> None:
        self._rows = RecentRows(3, _forget)

    def add(self, t_ns: int, value_ns: int, weight: int) -> None:
        """Add ``weight`` durations of the same length at a moment."""
        self._rows.add((t_ns, value_ns, weight))

    def quantiles(self, now_ns: int) -> Quantiles:
        """Return the quantiles over the window that ends now."""
        _, values, weights = self._rows.later_than(now_ns - (WINDOW.value or 0))
        return of_weighted(values, weights, NS_PER_S)


def _forget(_: Ints) -> None:
    """Do nothing with expired rows: the histogram covers the whole session."""


class ServerLatency:
    """One latency of a server, over the whole session and over the last minutes."""

    def __init__(self, vantage: Vantage) -> None:
        self.vantage = vantage
        self.whole = DurationHistogram()
        self._recent = RecentDurations()

    def add(self, t_ns: int, value_ns: int, weight: int = 1) -> None:
        """Add ``weight`` durations of the same length at a moment."""
        self.whole.add(value_ns, weight)
        self._recent.add(t_ns, value_ns, weight)

    def lately(self, now_ns: int) -> Quantiles:
        """Return exact quantiles over the window that ends now."""
        return self._recent.quantiles(now_ns)


class RankState(NamedTuple):
    """The latest state of one rank of a server; None where nothing reports it."""

    running: int | None
    waiting: int | None
    kv_usage: float | None
    kv_used_blocks: int | None = None
    kv_cached_blocks: int | None = None
    kv_free_blocks: int | None = None


class ServerNumbers:
    """The exact numbers of one server: its latencies, counters and present state."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.model: str | None = None
        self.answers: bool | None = None
        self.latencies: dict[str, ServerLatency] = {}
        """By key, such as ``ttft_s``; the durations of steps are at ``step_s``."""
        self.counts: defaultdict[str, Counts] = defaultdict(lambda: defaultdict(int))
        """Counters by name, then by the value of their label: a rank, an outcome."""
        self.ranks: dict[str, RankState] = {}
        self.has_probe = False
        self.loop_lag_ns: int | None = None
        """The longest delay of the API server's event loop in the last report."""
        self._kv_blocks: dict[str, int] = {}
        self._refused = LatestRefusals()
        self._drafts: dict[tuple[str, str | None], dict[str, float]] = {}
        """What each rank's latest scrape told of speculative decoding."""
        self._counted: dict[tuple[str, str | None], dict[str, float]] = {}
        """What each rank's latest scrape counted of refused and failed requests."""
        self._gained: Counter[str] = Counter()
        """The same since the first scrape, over all ranks."""
        self._tracker = RequestTracker(RequestIndex(), self, self)

    # Called by the RequestTracker.

    def add(self, metric: str, t_ns: int, value_ns: int, weight: int = 1) -> None:
        """Add ``weight`` requests, or gaps between tokens, that took equally long."""
        self._latency(metric).add(t_ns, value_ns, weight)

    def _latency(self, metric: str) -> ServerLatency:
        latency = self.latencies.get(metric)
        if latency is None:
            vantage = VANTAGES.get(metric, Vantage.ENGINE)
            latency = self.latencies[metric] = ServerLatency(vantage)
        return latency

    def arrived(self, request: Request, t_ns: int) -> None:
        """Count a request's arrival, which front end and engine both report, once."""
        del t_ns
        if not request.arrival_counted:
            request.arrival_counted = True
            self.counts["requests"][""] += 1

    def ended(self, request: Request, state: RequestState, t_ns: int) -> None:
        """Count a request's end once, by the outcome that was reported first."""
        del t_ns
        if request.counted_as is None:
            request.counted_as = state
            self.counts["requests_ended"][state.value] += 1

    # Readings.

    def step(self, step: Step) -> None:
        if step.memberless:
            return  # its server counts all that it could tell
        self.has_probe = True
        self._tracker.step(step)
        self.add("step_s", step.end_ns, step.duration_ns)
        rank, counts = str(step.rank), self.counts
        counts["output_tokens"][rank] += step.output_tokens
        counts["prefill_tokens"][rank] += step.prefill_tokens
        counts["recomputed_tokens"][rank] += step.recomputed_tokens
        counts["preemptions"][rank] += len(step.preempted)
        counts["bound_ns"][step.bound_by.value] += step.duration_ns
        if step.prefix_queries is not None:
            counts["prefix_queries"][rank] += step.prefix_queries
            counts["prefix_hits"][rank] += step.prefix_hits or 0
        if step.drafted_tokens is not None:
            counts["drafts"][rank] += step.drafts or 0
            counts["drafted_tokens"][rank] += step.drafted_tokens
            counts["accepted_tokens"][rank] += step.accepted_tokens or 0
            by_position = step.accepted_by_position[:MOST_POSITIONS]
            for place, accepted in enumerate(by_position):
                counts["accepted_by_position"][str(place)] += accepted
        used, blocks = step.kv_used_blocks, self._kv_blocks.get(rank)
        self.ranks[rank] = RankState(
            running=step.running,
            waiting=step.waiting,
            kv_usage=used / blocks if used is not None and blocks else None,
            kv_used_blocks=used,
            kv_cached_blocks=step.kv_cached_blocks,
            kv_free_blocks=step.kv_free_blocks,
        )

    def event(self, event: RequestEvent) -> None:
        self.has_probe = True
        self._tracker.event(event)

    def info(self, info: EngineInfo) -> None:
        """Take the description of an engine, and begin its histograms at zero."""
        self.has_probe = True
        self.model, self.answers = info.model, True
        for metric in (*VANTAGES, "step_s"):  # a rate needs the zero at the start
            self._latency(metric)
        if info.num_kv_blocks is not None:
            self._kv_blocks[str(info.rank)] = info.num_kv_blocks

    def totals(self, totals: Totals) -> None:
        """Take a probe's counters: nothing else reports on an idle engine."""
        self._tracker.totals(totals)
        rank = str(totals.rank)
        spent = self.counts["probe_ns"]
        if totals.steps:  # a front end's cost does not slow steps
            spent[rank] = max(spent[rank], totals.probe_cost_ns)
        if totals.loop_lag_max_ns is not None:
            self.loop_lag_ns = totals.loop_lag_max_ns
        state = self.ranks.get(rank)
        if totals.running is not None and state is not None:
            self.ranks[rank] = state._replace(
                running=totals.running, waiting=totals.waiting
            )

    def refusals(self, told: Refusals) -> None:
        """Count the requests that an API server refused, by reason."""
        self.has_probe = True
        for each, new in self._refused.take(told):
            if each.route != ELSEWHERE:
                self.counts["requests_refused"][each.reason] += new

    def span(self, span: RequestSpan) -> None:
        """Count a request of the server's own trace, if the server has no probe."""
        if self.has_probe:
            return
        self.counts["requests"][""] += 1
        self.counts["requests_ended"][RequestState.FINISHED.value] += 1
        for metric, value_ns in (
            ("ttft_s", span.ttft_ns),
            ("queue_s", span.queue_ns),
            ("prefill_s", span.prefill_ns),
            ("e2el_s", span.e2el_ns),
        ):
            if value_ns is not None:
                self.add(metric, span.end_ns, value_ns)
        gaps = (span.output_tokens or 0) - 1
        if span.decode_ns is not None and gaps > 0:
            self.add("tpot_s", span.end_ns, span.decode_ns // gaps)
        self.counts["output_tokens"]["0"] += span.output_tokens or 0

    def sample(self, sample: EngineSample) -> None:
        """Take state and drafts from a scrape, unless the server has a probe."""
        self.model = self.model or sample.model
        if not self.has_probe:
            self._scraped_drafts(sample)
            self._scraped_refusals(sample)
            self.ranks[sample.rank] = RankState(
                running=sample.running,
                waiting=sample.waiting,
                kv_usage=sample.kv_usage,
            )

    def _scraped_drafts(self, sample: EngineSample) -> None:
        """Count drafts since the first scrape, or the server's restart."""
        key = sample.rank, sample.model
        told = speculation_in(sample.others)
        before, self._drafts[key] = self._drafts.get(key, told), told
        for name, value in told.items():
            gained = round(value - before.get(name, 0.0))
            field, _, place = name.partition("{")
            if field in DRAFTS:
                label = place.rstrip("}") or sample.rank
                self.counts[field][label] += gained if gained >= 0 else round(value)

    def _scraped_refusals(self, sample: EngineSample) -> None:
        """Count refused requests since the first scrape, or the server's restart.

        A failed one is known as such only once the engine counts it: until then it is
        counted by its status, and no counter is taken back.
        """
        kinds = (each for each in sample.others if each.startswith(KIND))
        told = {each: sample.others[each] for each in kinds}
        if not told:
            return
        told[FAILED] = sample.finished.get(FAILED, 0)
        key = sample.rank, sample.model
        before, self._counted[key] = self._counted.get(key), told
        if before is None:
            return
        for name, value in told.items():
            gained = round(value - before.get(name, 0.0))
            self._gained[name] += gained if gained >= 0 else round(value)
        counts = {k[len(KIND) : -1]: n for k, n in self._gained.items() if k != FAILED}
        by_reason = Counter[str]()
        for each in counted_groups(counts, self._gained[FAILED]):
            by_reason[each.reason or RefusalReason.OTHER] += each.count
        refused = self.counts["requests_refused"]
        for reason, count in by_reason.items():
            refused[reason] = max(refused[reason], count)

    def server(self, info: ServerInfo) -> None:
        self.model = self.model or next(iter(info.models), None)

    def contact(self, contact: Contact) -> None:
        """Keep whether the server answers; while it does not, its state is unknown."""
        self.answers = contact.answers
        if not contact.answers:
            self.ranks.clear()

    def note(self, note: Note) -> None:
        """Count dropped readings; after a loss of the engine its state is unknown."""
        if note.kind is NoteKind.DROPPED:
            self.counts["dropped"][""] += note.count or 0
            self._tracker.dropped(note)
        elif note.kind is NoteKind.LOST:
            self._tracker.lost(note)
            self.ranks.clear()
            self.answers, self.loop_lag_ns = False, None


class ExactNumbers:
    """Folds every reading of a session into the exact numbers of each server."""

    def __init__(self) -> None:
        self.servers: dict[str, ServerNumbers] = {}
        self.readings = 0
        self.own_cpu_s: float | None = None
        self.hardware = HardwareNumbers()
        self._take: dict[type, Callable[[ServerNumbers, Any], None]] = {
            Step: ServerNumbers.step,
            RequestEvent: ServerNumbers.event,
            EngineInfo: ServerNumbers.info,
            Totals: ServerNumbers.totals,
            Refusals: ServerNumbers.refusals,
            RequestSpan: ServerNumbers.span,
            EngineSample: ServerNumbers.sample,
            ServerInfo: ServerNumbers.server,
            Contact: ServerNumbers.contact,
        }
        self._take_hardware: dict[type, Callable[[Any], None]] = {
            GpuInfo: self.hardware.gpu_info,
            GpuSample: self.hardware.gpu_sample,
            HostInfo: self.hardware.host_info,
            HostSample: self._host,
        }

    def fold(self, reading: AnyReading) -> None:
        """Fold one reading, in session time and in order of receipt."""
        self.readings += 1
        take = self._take.get(type(reading))
        if take is not None:
            server = self.servers.get(reading.source) or self._new(reading)
            if server is not None:
                take(server, reading)
        elif isinstance(reading, Note):
            self._note(reading)
        elif hardware := self._take_hardware.get(type(reading)):
            hardware(reading)

    def _host(self, sample: HostSample) -> None:
        self.hardware.host_sample(sample)
        if not sample.source:
            own = [each.cpu_s for each in sample.processes if each.role == OURS]
            self.own_cpu_s = sum(own) if own else self.own_cpu_s

    def _note(self, note: Note) -> None:
        for server in self.servers.values():
            if note.source in {"", server.source}:
                server.note(note)

    def _new(self, reading: AnyReading) -> ServerNumbers | None:
        if len(self.servers) >= MOST_SERVERS or not reading.source:
            return None
        server = self.servers[reading.source] = ServerNumbers(reading.source)
        return server
