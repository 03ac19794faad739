"""What scrapes report for a window: of each server, and of all together.

Counters and sums of several servers are added, and their buckets merged; percentiles of
servers are never combined.
"""

from collections import Counter
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import replace
from functools import cached_property
from itertools import chain
from math import isnan
from operator import is_, itemgetter

import numpy as np
import numpy.typing as npt

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import Vantage
from collectors.servers.families import (
    CACHES,
    MEANS,
    POOLS,
    PREFILL,
    SCHEDULER,
    TIMES,
)
from inferwatch.metrics.requests.refusals import (
    LEAST_REFUSED,
    RefusedGroup,
    counted_groups,
    refused_count,
)
from inferwatch.metrics.requests.slo import Limit
from inferwatch.metrics.series.curves import Grid
from inferwatch.metrics.series.histograms import Floats, Pool
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.series.window import Latency, Window
from inferwatch.metrics.servers.counted import (
    CHARTED,
    FOLLOWED,
    KV_USAGE,
    RUNNING,
    SPECULATED,
    TIME,
    WAITING,
    WIDTH,
    Increase,
)
from inferwatch.metrics.servers.counted import LATENCIES as CHARTED_LATENCIES
from inferwatch.metrics.servers.imbalance import LASTS_NS, LEAST_SAMPLES, Key, Steady
from inferwatch.metrics.servers.scraped import STEPS, Gauges, ScrapedRank, ScrapedServer
from inferwatch.metrics.servers.server_counts import ServerCounts
from inferwatch.metrics.servers.server_state import ServerState, Via
from inferwatch.metrics.steps.counter import StepTotals, ratio
from inferwatch.metrics.steps.engines import known_sum
from inferwatch.metrics.steps.flow import LEAST_NS, Flow, KvState
from inferwatch.metrics.steps.speculation import Speculation, pooled, speculation

# Counters of servers over time: the columns of charts.
#
# A counter is known only at samples. Between two consecutive ones it is taken to
# have risen evenly, so that a bin narrower than the interval shows the interval's mean.
# Where it is unknown (before, after, across a restart or a loss) there is a gap.

Bools = npt.NDArray[np.bool_]
Column = tuple[float | None, ...]
Counts = tuple[int | None, ...]
LEAST_SHARE = 1e-6
"""Share of a bin, or of a value in it, below which it counts as nothing."""
GAUGES = (RUNNING, WAITING, KV_USAGE)


class ScrapedCharts:
    """The samples of several ranks, added up over one grid."""

    def __init__(self, ranks: Iterable[Sequence[Floats] | Floats], grid: Grid) -> None:
        self.grid = grid
        self._edges = grid.edges_ns().astype(np.float64)
        self._risen = np.full((grid.count + 1, WIDTH - FOLLOWED), np.nan)
        self._gauges = np.full((grid.count, len(GAUGES)), np.nan)
        self._exporters = np.zeros((grid.count, len(GAUGES)))
        """Number of ranks that export each gauge, by bin."""
        for rank in ranks:
            if len(rank):
                self._add(np.asarray(rank))

    def _add(self, rows: Floats) -> None:
        risen = _at(self._edges, rows)
        self._risen = _sum(self._risen, risen)
        followed = np.diff(risen[:, 0]) > 0
        gauges = _gauges_in(self._edges, rows, followed)
        self._exporters += ~np.isnan(gauges)
        self._gauges = _sum(self._gauges, gauges)

    @cached_property
    def _followed(self) -> Floats:
        """1 in bins where a rank was watched, else NaN."""
        watched = np.diff(self._risen[:, 0]) > LEAST_SHARE * self.grid.bin_ns
        return np.where(watched, 1.0, np.nan)

    def counted(self, name: str) -> Counts:
        """Return a counter of CHARTED by bin; rounding keeps the sum."""
        upto = self._risen[:, 1 + CHARTED.index(name)]
        return _whole(np.diff(np.round(upto)) * self._followed)

    def _prefilled(self) -> Counts:
        """Return prompt tokens without prefix cache hits, by bin."""
        every_hits = self.counted("prefix_hits")
        return tuple(
            prompt if prompt is None or hits is None else max(prompt - hits, 0)
            for prompt, hits in zip(
                self.counted("prompt_tokens"), every_hits, strict=True
            )
        )

    def mean(self, metric: str) -> Column:
        place = 1 + len(CHARTED) + 2 * CHARTED_LATENCIES.index(metric)
        spent, count = np.diff(self._risen[:, place : place + 2], axis=0).T
        with np.errstate(invalid="ignore", divide="ignore"):
            means = np.where(count > LEAST_SHARE, spent / count, np.nan)
        return _floats(means * self._followed)

    def _speculation(self) -> tuple[Column, Column]:
        """Return acceptance and acceptance length by bin; empty without drafts."""
        first = 1 + CHARTED.index(SPECULATED[0])
        risen = np.diff(self._risen[:, first : first + len(SPECULATED)], axis=0)
        drafts, drafted, accepted = np.where(risen > LEAST_SHARE, risen, np.nan).T
        if np.isnan(drafted).all():
            return (), ()
        known = np.where(np.isnan(drafted), np.nan, np.nan_to_num(accepted))
        return _floats(known / drafted), _floats(1 + known / drafts)

    def timeline(self, lost_ns: int | None, restarts_ns: Iterable[int]) -> Timeline:
        """Return the timeline; numbers that only a probe's steps show are gaps."""
        grid = self.grid
        end_ns = grid.start_ns + grid.bin_ns * grid.count
        running, waiting, usage = self._gauges.T
        with np.errstate(invalid="ignore", divide="ignore"):
            usage = usage / self._exporters[:, 2]
        unknown: tuple[None, ...] = (None,) * grid.count
        acceptance, acceptance_length = self._speculation()
        return Timeline(
            start_ns=grid.start_ns,
            bin_ns=grid.bin_ns,
            lost_ns=lost_ns,
            ttft_mean_s=self.mean("ttft_s"),
            ttft_max_s=unknown,
            itl_mean_s=self.mean("itl_s"),
            itl_max_s=unknown,
            batch_prefill=unknown,
            batch_decode=unknown,
            batch_max=unknown,
            waiting_max=_whole(waiting),
            prefill_tokens=self._prefilled(),
            output_tokens=self.counted("output_tokens"),
            kv_used_blocks=unknown,
            kv_cached_blocks=unknown,
            kv_free_blocks=unknown,
            step_mean_s=unknown,
            step_max_s=unknown,
            steps=(0,) * grid.count,
            bound_seqs=unknown,
            bound_tokens=unknown,
            bound_kv=unknown,
            bound_deferred=unknown,
            bound_other=unknown,
            step_heat=unknown,
            preemptions=self.counted("preemptions"),
            acceptance=acceptance,
            acceptance_length=acceptance_length,
            slowest_step=unknown,
            running_max=_whole(running),
            kv_usage=_floats(usage),
            restarts_ns=tuple(
                t_ns for t_ns in restarts_ns if grid.start_ns <= t_ns < end_ns
            ),
        )


def _at(edges: Floats, rows: Floats) -> Floats:
    """Return totals at each edge, interpolated between rows."""
    times, counts = rows[:, TIME], np.nan_to_num(rows[:, FOLLOWED:])
    after = np.clip(np.searchsorted(times, edges, "right"), 1, max(len(times) - 1, 1))
    before = after - 1
    after = np.minimum(after, len(times) - 1)
    took = np.maximum(times[after] - times[before], 1)
    share = np.clip((edges - times[before]) / took, 0, 1)[:, None]
    risen: Floats = counts[before] * (1 - share) + counts[after] * share
    risen[:, np.isnan(rows[-1, FOLLOWED:])] = np.nan
    return risen


def _gauges_in(edges: Floats, rows: Floats, followed: Bools) -> Floats:
    """Return the highest running and waiting and the last KV usage of each bin.

    A bin between two consecutive samples shows the earlier one.
    """
    times = rows[:, TIME]
    first = np.searchsorted(times, edges[:-1], "left")
    end = np.searchsorted(times, edges[1:], "left")
    inside = end > first
    latest = np.maximum(end - 1, 0)
    gauges: Floats = rows[latest][:, list(GAUGES)]
    starts = np.minimum(first, len(rows) - 1)
    highest = np.fmax.reduceat(rows[:, RUNNING:KV_USAGE], starts, axis=0)
    gauges[inside, :2] = highest[inside]
    gauges[~inside & ~followed] = np.nan
    return gauges


def _sum(one: Floats, other: Floats) -> Floats:
    return np.where(np.isnan(one), other, np.where(np.isnan(other), one, one + other))


def _whole(values: Floats) -> Counts:
    return tuple(None if isnan(value) else round(value) for value in values.tolist())


def _floats(values: Floats) -> Column:
    return tuple(None if isnan(value) else value for value in values.tolist())


LATENCIES = ("ttft_s", "queue_s", "prefill_s", "tpot_s", "itl_s", "e2el_s")
BLOCK_LIVES = ("block_lifetime_s", "block_idle_s", "block_reuse_gap_s")
LENGTHS = ("prompt_tokens", "output_tokens", STEPS)
ABORTED = "abort"
FAILED = "error"
LATELY_NS = 2 * NS_PER_S
"""Length of the window for present rates."""


class Gained:
    """The increases of several ranks in a window."""

    def __init__(self, increases: Sequence[Increase]) -> None:
        self.increases = increases
        self._pools: dict[str, Pool] = {}
        watched = (each.watched_ns for each in increases)
        self.watched_ns = round(max(watched, default=0.0))
        """The longest time that one of them was watched."""

    def of(self, name: str) -> int | None:
        """Return a counter's increase over all ranks; None where none has it."""
        return known_sum(each.of(name) for each in self.increases)

    def per_s(self, count: Callable[[Increase], float | None]) -> float | None:
        """Return the sum of the ranks' rates, each over the time it was watched."""
        rates = [
            counted * NS_PER_S / each.watched_ns
            for each in self.increases
            if each.watched_ns >= LEAST_NS and (counted := count(each)) is not None
        ]
        return sum(rates) if rates else None

    def total(self, name: str) -> float | None:
        """Return a counter's increase, which need not be whole, over all ranks."""
        totals = (each.total(name) for each in self.increases)
        known = [each for each in totals if each is not None]
        return sum(known) if known else None

    def means(
        self, metrics: Iterable[tuple[str, str, str]]
    ) -> Iterator[tuple[str, float]]:
        """Yield names and means of what gained values, by names of sum and count."""
        for name, summed, counted in metrics:
            for suffix in self._suffixes(counted):
                count = self.total(f"{counted}{suffix}")
                total = self.total(f"{summed}{suffix}")
                if count and total is not None:
                    yield _words(suffix) or name, total / count

    def mean(self, key: str) -> float | None:
        """Return the mean of a histogram; None without values."""
        return self.pool(key).quantiles.mean

    @property
    def phases(self) -> tuple[tuple[str, float], ...]:
        """Mean times of a request's phases, in order; empty unless all are known.

        vLLM counts them all as a request ends. Elsewhere decode is what the mean E2EL
        exceeds the mean TTFT by, of requests that are not quite the same.
        """
        e2el_s, queue_s = self.mean("e2el_s"), self.mean("queue_s")
        prefill_s, decode_s = self.mean("prefill_s"), self.mean("decode_s")
        if prefill_s is None:
            prefill_s = next((each for _, each in self.means(PREFILL)), None)
        ttft_s = self.mean("ttft_s")
        if decode_s is None and e2el_s is not None and ttft_s is not None:
            decode_s = max(e2el_s - ttft_s, 0.0)
        if e2el_s is None or queue_s is None or prefill_s is None or decode_s is None:
            return ()
        known = {"queue": queue_s, "prefill": prefill_s, "decode": decode_s}
        return (("API", max(e2el_s - sum(known.values()), 0.0)), *known.items())

    def shares(self, prefixes: Iterable[str]) -> tuple[tuple[str, float], ...]:
        """Return labels and shares of counters that begin so, the largest first."""
        gained = {
            suffix: self.total(f"{prefix[:-1]}{suffix}") or 0.0
            for prefix in prefixes
            for suffix in self._suffixes(prefix[:-1])
            if suffix
        }
        whole = sum(gained.values())
        ranked = sorted(gained.items(), key=itemgetter(1), reverse=True)
        return tuple((_words(suffix), part / whole) for suffix, part in ranked if part)

    def _suffixes(self, name: str) -> list[str]:
        """Return what follows a counter's name: nothing, or a label in braces."""
        return sorted(
            each.removeprefix(name)
            for each in self._names
            if each.startswith(name) and each[len(name) : len(name) + 1] in {"", "{"}
        )

    @cached_property
    def _names(self) -> set[str]:
        return {each for increase in self.increases for each in increase.names}

    def rate(self, name: str) -> float | None:
        return self.per_s(lambda each: each.of(name))

    def pool(self, key: str) -> Pool:
        pool = self._pools.get(key)
        if pool is None:
            parts = chain.from_iterable(each.histograms(key) for each in self.increases)
            pool = self._pools[key] = Pool(parts)
        return pool

    @cached_property
    def ended(self) -> dict[str, int]:
        ended: dict[str, int] = {}
        for each in self.increases:
            for how, count in each.finished.items():
                ended[how] = ended.get(how, 0) + count
        return ended

    @cached_property
    def refused(self) -> tuple[RefusedGroup, ...] | None:
        """Refused requests by route and status; None where no server counts them."""
        told = [each.refused for each in self.increases if each.refused]
        if not told:
            return None
        if not any(any(each.values()) for each in told):
            return ()
        counts: Counter[str] = Counter()
        for each in told:
            counts.update(each)
        return counted_groups(counts, self.ended.get(FAILED, 0))

    @cached_property
    def refused_count(self) -> int | None:
        """All refused requests; None where no server counts them."""
        return None if self.refused is None else refused_count(self.refused)

    @property
    def all_ended(self) -> int:
        """Requests that ended, in whatever way."""
        return sum(_ended(each) or 0 for each in self.increases)

    @property
    def finished(self) -> int | None:
        """Requests that were neither aborted nor failed."""
        return known_sum(map(_finished, self.increases))

    @property
    def batch_mean(self) -> float | None:
        """Output tokens per step; None where steps are not counted."""
        tokens = self.of("output_tokens")
        return None if tokens is None else ratio(tokens, self.pool(STEPS).n)

    @property
    def hit_rate(self) -> float | None:
        """Prefix cache hits / queries in tokens, 0-1; None where unknown."""
        hits, queries = self.of("prefix_hits"), self.of("prefix_queries")
        return None if hits is None or queries is None else ratio(hits, queries)


def _words(suffix: str) -> str:
    """Return a label's value as words: "{run_batch}" is run batch."""
    return suffix[1:-1].replace("_", " ")


def _in_all(per_s: float | None) -> int | None:
    """Return how many a rate makes in the time of the latest column."""
    return None if per_s is None else round(per_s * LATELY_NS / NS_PER_S)


def _ended(each: Increase) -> int | None:
    """Return ended requests; by the count of E2EL where no finish reason is counted."""
    return sum(each.finished.values()) if each.finished else each.count("e2el_s")


def _finished(each: Increase) -> int | None:
    if not each.finished:
        return each.count("e2el_s")
    ways = each.finished.items()
    return sum(count for how, count in ways if how not in {ABORTED, FAILED})


def _prefilled(each: Increase) -> int | None:
    """Return prompt tokens without prefix cache hits."""
    prompt, hits = each.of("prompt_tokens"), each.of("prefix_hits")
    return None if prompt is None else max(prompt - (hits or 0), 0)


def _arrived(each: Increase) -> float | None:
    """Return arrivals: ended requests plus the increase of those in flight."""
    ended = _ended(each)
    if ended is None or isnan(each.in_flight):
        return None
    return max(ended + each.in_flight, 0.0)


class ScrapedWindow:
    """Several servers at a moment, and their counts in the window that ends then."""

    def __init__(
        self,
        servers: Sequence[ScrapedServer],
        limits: Mapping[str, Limit],
        now_ns: int,
        window: Window,
    ) -> None:
        self.servers = servers
        self._limits = limits
        lost_ns = self.lost_ns
        now_ns = now_ns if lost_ns is None else min(now_ns, lost_ns)
        self.now_ns, self._window = now_ns, window
        self._ranks = [
            (server, name, rank, rank.counted.within(now_ns, window.value))
            for server in servers
            for (name, _), rank in server.ranks.items()
        ]

    @cached_property
    def gained(self) -> Gained:
        return Gained([each for *_, each in self._ranks if each is not None])

    @property
    def via(self) -> Via | None:
        """The best way in which samples are obtained; None before the first."""
        ways = {server.via for server in self.servers if server.ranks}
        return Via.SCRAPE if Via.SCRAPE in ways else next(iter(ways), None)

    @property
    def finished_at(self) -> set[str]:
        """Servers at which requests ended in the window."""
        return {
            server.source
            for server, _, _, increase in self._ranks
            if increase is not None and _finished(increase)
        }

    @property
    def last_token_ns(self) -> int | None:
        times_ns = [gauges.token_ns for gauges in self._answering]
        return max((each for each in times_ns if each is not None), default=None)

    @property
    def restarts_ns(self) -> list[int]:
        return sorted(chain.from_iterable(each.restarts_ns for each in self.servers))

    @cached_property
    def _answering(self) -> list[Gauges]:
        return [
            rank.gauges
            for server, _, rank, _ in self._ranks
            if server.answers and rank.gauges is not None
        ]

    @property
    def first_ns(self) -> int | None:
        begun = [rank.counted.first_ns for _, _, rank, _ in self._ranks]
        return min((each for each in begun if each is not None), default=None)

    @property
    def lost_ns(self) -> int | None:
        """When the last of the servers stopped answering; None while one answers."""
        since = [
            server.contact.t_ns
            for server in self.servers
            if server.contact is not None and not server.contact.answers
        ]
        return max(since) if since and len(since) == len(self.servers) else None

    def step_totals(self) -> StepTotals:
        gained = self.gained
        return StepTotals(
            count=gained.pool(STEPS).n,
            batch_mean=gained.batch_mean,
            output_tokens=gained.of("output_tokens") or 0,
            prefill_tokens=known_sum(map(_prefilled, gained.increases)) or 0,
        )

    def advice(self, probed: Collection[str]) -> tuple[str, ...]:
        """Return advice on how to measure more; servers in ``probed`` need none.

        Nor do those that are lost: first they must answer.
        """
        asked = [s for s in self.servers if s.answers] or self.servers
        infos = (s.info for s in asked if s.info and s.source not in probed)
        return tuple(dict.fromkeys(each for info in infos for each in info.advice))

    def charts(self, grid: Grid) -> ScrapedCharts:
        whole = self._window is Window.SESSION
        counted = [rank.counted for _, _, rank, _ in self._ranks]
        return ScrapedCharts(
            (each.session.rows if whole else each.recent for each in counted), grid
        )

    def flow(self) -> Flow:
        gained, now = self.gained, self._flow_now()
        mean_itl_s = gained.pool("itl_s").quantiles.mean
        return replace(
            now,
            arrivals_per_s=gained.per_s(_arrived),
            finished_per_s=gained.per_s(_finished),
            batch_mean=gained.batch_mean,
            prefill_tokens_per_s=gained.per_s(_prefilled),
            output_tokens_per_s=gained.rate("output_tokens"),
            tokens_per_s_per_user=1 / mean_itl_s if mean_itl_s else None,
            prefix_hit_rate=gained.hit_rate,
            finished=gained.finished or 0,
            failed=gained.ended.get(FAILED, 0),
            refused=gained.refused_count,
            aborted=gained.ended.get(ABORTED, 0),
            preemptions=gained.of("preemptions") or 0,
            ended=gained.ended,
        )

    @cached_property
    def _lately(self) -> Gained:
        """What the servers that answer have counted in the last two seconds."""
        return Gained(
            [
                increase
                for server, _, rank, _ in self._ranks
                if server.answers
                and (increase := rank.counted.within(self.now_ns, LATELY_NS))
            ]
        )

    def latest(self) -> Timeline | None:
        """Return one column of now; None once no server answers.

        A column of a chart may lack the servers that were asked just before or after.
        """
        if self.lost_ns is not None:
            return None
        now, lately = self._flow_now(), self._lately
        per_s = now.output_tokens_per_s_now
        prefilled_per_s = lately.per_s(_prefilled)
        return Timeline(
            start_ns=(self.now_ns // LATELY_NS - 1) * LATELY_NS,
            bin_ns=LATELY_NS,
            steps=(0,),
            running_max=(now.running,),
            waiting_max=(now.waiting,),
            kv_usage=(now.kv_usage,),
            output_tokens=(_in_all(per_s),),
            prefill_tokens=(_in_all(prefilled_per_s),),
            ttft_mean_s=(lately.pool("ttft_s").quantiles.mean,),
            itl_mean_s=(lately.pool("itl_s").quantiles.mean,),
        )

    def _flow_now(self) -> Flow:
        """Return present gauges of servers that answer, and the recent token rate."""
        gauges, lately = self._answering, self._lately
        return Flow(
            running=known_sum(each.running for each in gauges),
            waiting=known_sum(each.waiting for each in gauges),
            kv_usage=_mean(each.kv_usage for each in gauges),
            output_tokens_per_s_now=lately.rate("output_tokens"),
            adapters=known_sum(each.adapters for each in gauges),
            adapters_waiting=known_sum(each.adapters_waiting for each in gauges),
        )

    def kv(self) -> KvState:
        """Return the KV cache, as far as usage and the number of blocks are known."""
        gained = self.gained
        totals = [
            _blocks(server)
            for server, _, rank, _ in self._ranks
            if rank.peak_usage is not None  # totals of all ranks have no cache
        ]
        known = totals and None not in totals
        total = known_sum(totals) if known else None
        peaks = [
            _part(rank.peak_usage, _blocks(server))
            for server, _, rank, _ in self._ranks
        ]
        used = [
            _part(rank.gauges.kv_usage if rank.gauges else None, _blocks(server))
            for server, _, rank, _ in self._ranks
        ]
        tokens = {
            server.info.kv_block_tokens for server in self.servers if server.info
        } - {None}
        return KvState(
            total_blocks=total,
            used_blocks=known_sum(used) if known else None,
            peak_used_blocks=known_sum(peaks) if known else None,
            peak_usage=_mean(rank.peak_usage for _, _, rank, _ in self._ranks),
            block_tokens=tokens.pop() if len(tokens) == 1 else None,
            preemptions=gained.of("preemptions") or 0,
            prefix_queries=gained.of("prefix_queries") or 0,
            prefix_hits=gained.of("prefix_hits") or 0,
        )

    def speculation(self) -> Speculation | None:
        return pooled(
            _speculation(rank, increase) for _, _, rank, increase in self._ranks
        )

    @property
    def _exported(self) -> set[str]:
        """Names of the histograms that a server exports."""
        return {key for _, _, rank, _ in self._ranks for key in rank.counted.keys}

    def latencies(self, charts: ScrapedCharts | None = None) -> tuple[Latency, ...]:
        return _rows(self.gained, LATENCIES, self._exported, self._limits, charts)

    @property
    def refused(self) -> tuple[RefusedGroup, ...]:
        """Refused requests of the window by route and status."""
        return self.gained.refused or ()

    def refused_lately(self) -> tuple[float, tuple[RefusedGroup, ...]] | None:
        """Return the share of the last minute's requests that was refused, 0-1.

        None where none was.
        """
        if not any(rank.counted.has_refused for _, _, rank, _ in self._ranks):
            return None
        gained = self._last_minute
        refused = gained.refused or ()
        count = refused_count(refused)
        return (
            (count / (count + gained.all_ended), refused)
            if count >= LEAST_REFUSED
            else None
        )

    @cached_property
    def _last_minute(self) -> Gained:
        minute = Window.MINUTE.value
        within = (
            rank.counted.within(self.now_ns, minute) for _, _, rank, _ in self._ranks
        )
        return Gained([each for each in within if each is not None])

    def missed(self, target: float, *, with_refused: bool) -> Latency | None:
        """Return the latency that missed its objective the most in the last minute.

        Only what fewer than ``target`` of the requests can have held counts; a refused
        request held none.
        """
        if not self._limits:
            return None
        rows = _rows(self._last_minute, LATENCIES, {*self._limits}, self._limits)
        missed = [(each.met[1], n) for n, each in enumerate(rows) if each.met]
        most, n = min(missed, default=(1.0, 0))
        refused = self.refused_lately() if missed and with_refused else None
        answered = 1.0 - refused[0] if refused else 1.0
        if most * answered >= target or (met := rows[n].met) is None:
            return None
        return replace(rows[n], met=(met[0] * answered, met[1] * answered))

    def lengths(self) -> tuple[Latency, ...]:
        return _rows(self.gained, LENGTHS, self._exported)

    def server_counts(self) -> ServerCounts:
        """Return what the servers count of other caches, blocks, times and requests."""
        gained = self.gained
        looked_up = {
            name: (hits, queries)
            for name, (queried, found) in CACHES.items()
            if (queries := gained.of(queried))
            and (hits := gained.of(found)) is not None
        }
        pools = [each.pools for each in self._answering]
        lives = _rows(gained, BLOCK_LIVES, self._exported)
        return ServerCounts(
            pools=tuple(
                (name, usage)
                for name in POOLS
                if (usage := _mean(each.get(name) for each in pools)) is not None
            ),
            hit_rates=tuple(
                (name, hits / queries, queries)
                for name, (hits, queries) in looked_up.items()
            ),
            means=tuple(gained.means(MEANS)),
            times_s=tuple(gained.means(TIMES)),
            phases_s=gained.phases,
            scheduler=gained.shares(SCHEDULER),
            **{row.metric: row for row in lives if row.quantiles.n},
        )

    def steady(self) -> dict[Key, Steady]:
        span_ns = min(self._window.value or LASTS_NS, LASTS_NS)
        by_rank: dict[Key, list[Floats]] = {}
        for server, name, rank, _ in self._ranks:
            by_rank.setdefault((server.source, name), []).append(rank.counted.recent)
        return {
            key: _steady(moments, self.now_ns - span_ns)
            for key, moments in by_rank.items()
        }

    def states(self) -> tuple[ServerState, ...]:
        by_server: dict[str, dict[str, list[tuple[ScrapedRank, Increase | None]]]] = {}
        for server, name, rank, increase in self._ranks:
            by_rank = by_server.setdefault(server.source, {})
            gained, contact = increase, server.contact
            if contact is not None and not contact.answers:
                end_ns = min(self.now_ns, contact.t_ns)
                gained = rank.counted.within(end_ns, self._window.value)
            by_rank.setdefault(name, []).append((rank, gained))
        return tuple(
            self._state(server, name, ranks)
            for server in self.servers
            for name, ranks in by_server.get(server.source, {"0": []}).items()
        )

    def _state(
        self,
        server: ScrapedServer,
        name: str,
        ranks: Sequence[tuple[ScrapedRank, Increase | None]],
    ) -> ServerState:
        """Return the state of these ranks as one row.

        Rebuilt only after a change, as there can be hundreds.
        """
        made_of = (
            *(part for rank, increase in ranks for part in (rank.gauges, increase)),
            *(server.contact, server.info, server.round_trip_ns, self._limits),
            server.restarts_ns[-1] if server.restarts_ns else None,
        )
        before, state = server.states.get((name, self._window.value), ((), None))
        alike = len(before) == len(made_of) and all(map(is_, before, made_of))
        if state is None or not alike:
            state = self._made(server, name, ranks)
            server.states[name, self._window.value] = made_of, state
        return state

    def _made(
        self,
        server: ScrapedServer,
        name: str,
        ranks: Sequence[tuple[ScrapedRank, Increase | None]],
    ) -> ServerState:
        gained = Gained([each for _, each in ranks if each is not None])
        gauges = [rank.gauges for rank, _ in ranks if rank.gauges is not None]
        keys = {key for rank, _ in ranks for key in rank.counted.keys}
        arrivals = gained.per_s(_arrived)
        return ServerState(
            source=server.source,
            rank=name,
            info=server.info,
            via=server.via,
            answers=server.answers,
            why=server.contact.why if server.contact else None,
            last_ns=max((each.t_ns for each in gauges), default=None),
            restarted_ns=server.restarts_ns[-1] if server.restarts_ns else None,
            round_trip_ns=server.round_trip_ns,
            running=known_sum(each.running for each in gauges),
            waiting=known_sum(each.waiting for each in gauges),
            kv_usage=_mean(each.kv_usage for each in gauges),
            arrivals_per_s=gained.per_s(_ended) if arrivals is None else arrivals,
            output_tokens_per_s=gained.rate("output_tokens"),
            prefix_hit_rate=gained.hit_rate,
            failed=gained.ended.get(FAILED),
            refused=gained.refused_count,
            preemptions=gained.of("preemptions"),
            speculation=pooled(_speculation(*each) for each in ranks),
            latencies=_rows(gained, LATENCIES, keys, self._limits),
        )


def _rows(
    gained: Gained,
    keys: Iterable[str],
    exported: set[str],
    limits: Mapping[str, Limit] | None = None,
    charts: ScrapedCharts | None = None,
) -> tuple[Latency, ...]:
    """Return one row for each of ``keys`` in ``exported``, even if it is empty."""
    return tuple(
        _row(
            key,
            gained.pool(key),
            (limits or {}).get(key),
            charts.mean(key) if charts is not None else (),
        )
        for key in keys
        if key in exported
    )


def _row(key: str, pool: Pool, limit: Limit | None, trend: Column) -> Latency:
    return Latency(
        metric=key,
        vantage=Vantage.SCRAPE,
        quantiles=pool.quantiles,
        trend=trend,
        brackets=pool.brackets(interpolated=bool(trend)),
        objective_s=limit.below_s if limit else None,
        met=pool.share_within(limit.below_s) if limit else None,
    )


def _steady(moments: Sequence[Floats], since_ns: int) -> Steady:
    """Return recent medians of a rank's gauges, added up over its models."""
    spans = [each[each[:, TIME].searchsorted(since_ns, "right") :] for each in moments]
    whole = min(map(len, spans))
    if whole < LEAST_SAMPLES:
        return Steady()
    rows = sum(each[len(each) - whole :, RUNNING:FOLLOWED] for each in spans)
    middle = np.sort(rows, axis=0)[whole // 2].tolist()
    running, waiting, usage = (None if isnan(each) else each for each in middle)
    return Steady(
        running=running,
        waiting=waiting,
        kv_usage=None if usage is None else usage / len(moments),
    )


def _speculation(rank: ScrapedRank, gained: Increase | None) -> Speculation | None:
    """Return a rank's speculative decoding; None where it is off."""
    gauges = rank.gauges
    if gauges is not None and gauges.acceptance_length:
        return Speculation(
            vantage=Vantage.SCRAPE,
            acceptance=gauges.acceptance,
            acceptance_length=gauges.acceptance_length,
        )
    if not rank.counted.speculates:
        return None
    if gained is None:
        return Speculation(vantage=Vantage.SCRAPE)
    return speculation(
        vantage=Vantage.SCRAPE,
        drafts=gained.of("drafts"),
        drafted_tokens=gained.of("drafted_tokens"),
        accepted_tokens=gained.of("accepted_tokens"),
        accepted_by_position=gained.accepted_by_position,
    )


def _blocks(server: ScrapedServer) -> int | None:
    return server.info.num_kv_blocks if server.info is not None else None


def _part(share: float | None, blocks: int | None) -> int | None:
    return None if share is None or blocks is None else round(share * blocks)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
