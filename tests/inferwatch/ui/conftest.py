"""A scripted session: frozen snapshots that look like a busy engine, and never vary."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import sin
from pathlib import Path
from random import Random

import pytest
from syrupy.assertion import SnapshotAssertion
from textual.pilot import Pilot

from collectors.contract.readings import (
    BoundBy,
    Endpoint,
    EngineInfo,
    MetricsPage,
    Note,
    NoteKind,
    Step,
    Vantage,
)
from inferwatch.errors import StorageError, UsageError
from inferwatch.feed import (
    CanarySwitch,
    Feed,
    FeedState,
    LimitDesk,
    LoadDesk,
    Mark,
    MarkKind,
    ProfileDesk,
    ProfileProgress,
    RecordState,
    TakenProfile,
)
from inferwatch.metrics.causes.cause import (
    TTFT_CAUSES,
    Cause,
    Parts,
    SlowGroup,
    SlowRequests,
)
from inferwatch.metrics.hardware.own_cost import Cost
from inferwatch.metrics.hardware.view import Hardware
from inferwatch.metrics.requests.request_row import RequestRow, RequestState
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.series.window import Latency, Quantiles, Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.metrics.steps.counter import StepTotals
from inferwatch.metrics.steps.flow import Flow, KvState
from inferwatch.metrics.steps.health import Health, Verdict
from inferwatch.metrics.story.story import RequestStory
from inferwatch.profiles.report import ProfileReport
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.pages import SessionPage
from inferwatch.ui.terminal import terminal
from inferwatch.ui.view import View
from tests.inferwatch.ui.pictures import Pictures, pictures_of
from tests.inferwatch.ui.quiet import quick_styles, quiet_pilots
from tests.inferwatch.ui.typed_keys import handed_out

S = 1_000_000_000
NOW_NS = 195 * S + 320_000_000
BLOCKS = 448
BINS = 120
LOG = (
    "INFO 11-20 03:09:24 [core.py:101] Initializing a V1 LLM engine (v0.32.0)",
    "INFO 11-20 03:09:26 [kv_cache_utils.py:1305] GPU KV cache size: 7,168 tokens",
    "INFO 11-20 03:09:27 [api_server.py:1876] vLLM API server on 127.0.0.1:8000",
    "WARNING 11-20 03:10:02 [scheduler.py:512] Request cmpl-77 is preempted",
    'INFO:     127.0.0.1:51324 - "POST /v1/completions HTTP/1.1" 200 OK',
    "ERROR 11-20 03:12:41 [core.py:866] EngineCore encountered a fatal error.",
)


def burst(i: int) -> float:
    """Load comes in waves of 40 bins, the queue at their crest."""
    return max(sin(i / 40 * 6.283), 0.0)


@cache
def timeline(window: Window = Window.MINUTE, now_ns: int = NOW_NS) -> Timeline:
    """Columns of a busy minute, with a gap where nothing ran."""
    bin_ns = (window.value or 200 * S) // BINS
    end = now_ns // bin_ns + 1
    chance = Random(7)
    noise = [chance.random() for _ in range(BINS)]
    crest = [burst(i) for i in range(BINS)]
    idle = range(22, 27)

    def column(value: Callable[[int], float]) -> tuple[float | None, ...]:
        return tuple(None if i in idle else round(value(i), 4) for i in range(BINS))

    def counts(value: Callable[[int], float]) -> tuple[int | None, ...]:
        return tuple(None if i in idle else int(value(i)) for i in range(BINS))

    used = [
        int(BLOCKS * min(0.35 + 0.6 * crest[i] + 0.08 * noise[i], 1))
        for i in range(BINS)
    ]
    cached = [int((BLOCKS - each) * 0.7) for each in used]
    return Timeline(
        start_ns=(end - BINS) * bin_ns,
        bin_ns=bin_ns,
        ttft_mean_s=column(lambda i: 0.06 + 0.5 * crest[i] ** 2 + 0.03 * noise[i]),
        ttft_max_s=column(lambda i: 0.11 + 1.1 * crest[i] ** 2 + 0.3 * noise[i]),
        itl_mean_s=column(lambda i: 0.008 + 0.004 * crest[i]),
        itl_max_s=column(lambda i: 0.012 + 0.03 * noise[i]),
        batch_prefill=column(lambda i: 0.4 + 1.9 * noise[i] * crest[i]),
        batch_decode=column(lambda i: 9 + 14 * crest[i] + 2 * noise[i]),
        batch_max=counts(lambda i: 14 + 15 * crest[i]),
        waiting_max=counts(lambda i: max(22 * (crest[i] - 0.45), 0)),
        prefill_tokens=counts(lambda i: 900 + 2600 * crest[i] * noise[i]),
        output_tokens=counts(
            lambda i: (
                (520 + 560 * crest[i] + 80 * noise[i]) * (0.64 if i == BINS - 1 else 1)
            )
        ),
        kv_used_blocks=counts(lambda i: used[i]),
        kv_cached_blocks=counts(lambda i: cached[i]),
        kv_free_blocks=counts(lambda i: BLOCKS - used[i] - cached[i]),
        step_mean_s=column(lambda i: 0.0075 + 0.004 * crest[i]),
        step_max_s=column(lambda i: 0.011 + 0.02 * noise[i] * (1 + crest[i])),
        steps=tuple(0 if i in idle else 50 + int(9 * noise[i]) for i in range(BINS)),
        bound_seqs=column(lambda i: 0.1 * crest[i]),
        bound_tokens=column(lambda i: 0.22 * noise[i]),
        bound_kv=column(lambda i: 0.55 * crest[i]),
        bound_other=column(lambda i: 0.03 if i % 9 == 0 else 0.0),
        preemptions=counts(lambda i: 3 * crest[i] if noise[i] > 0.6 else 0),
        slowest_step=tuple(
            None
            if i in idle
            else slow_step(i, (end - BINS + i) * bin_ns, noise[i], used[i])
            for i in range(BINS)
        ),
    )


def slow_step(i: int, t_ns: int, noise: float, used: int) -> Step:
    took_ns = int((0.011 + 0.02 * noise) * S)
    return Step(
        index=24_000 + 57 * i,
        start_ns=t_ns,
        end_ns=t_ns + took_ns,
        duration_ns=took_ns,
        prefill_requests=2,
        decode_requests=12,
        prefill_tokens=612,
        decode_tokens=12,
        running=14,
        waiting=int(9 * burst(i)),
        bound_by=BoundBy.KV if burst(i) > 0.5 else BoundBy.NOTHING,
        kv_used_blocks=used,
        kv_cached_blocks=40,
        kv_free_blocks=BLOCKS - used - 40,
    )


def quantiles(scale: float, n: int, *weak: str) -> Quantiles:
    return Quantiles(
        n=n,
        mean=scale * 1.2,
        p50=scale,
        p90=scale * 2.1,
        p95=scale * 2.9,
        p99=scale * 5.2,
        max=scale * 9.7,
        weak=weak,
    )


def latencies(line: Timeline) -> tuple[Latency, ...]:
    front, engine = Vantage.FRONTEND, Vantage.ENGINE
    return (
        Latency(
            metric="ttft_s",
            vantage=front,
            quantiles=quantiles(0.082, 546, "p99"),
            trend=line.ttft_max_s,
        ),
        Latency(
            metric="queue_s",
            vantage=engine,
            quantiles=quantiles(0.011, 546, "p99"),
            trend=line.waiting_max,
        ),
        Latency(
            metric="prefill_s",
            vantage=engine,
            quantiles=quantiles(0.041, 546, "p99"),
            trend=line.step_max_s,
        ),
        Latency(
            metric="tpot_s",
            vantage=engine,
            quantiles=quantiles(0.0091, 539, "p99"),
            trend=line.itl_mean_s,
        ),
        Latency(
            metric="itl_s",
            vantage=engine,
            quantiles=quantiles(0.0087, 61_240),
            trend=line.itl_max_s,
        ),
        Latency(
            metric="e2el_s",
            vantage=front,
            quantiles=quantiles(1.02, 539, "p99"),
            trend=line.ttft_max_s,
        ),
    )


def name(i: int) -> str:
    return f"{7919 * (i + 3) % 65536:04x}{104729 * (i + 1) % 65536:04x}"


CAUSES = (
    Cause.QUEUE_KV,
    Cause.PREFILL,
    Cause.QUEUE_KV,
    Cause.PREFILL_SHARED,
    Cause.QUEUE_SEQS,
    Cause.API,
    Cause.QUEUE_TOKENS,
)
CLASSES = ("chat", "rag", "batch")


def parts(cause: Cause, queue: float, prefill: float) -> Parts:
    """Of a TTFT: what it went to above all first has what the others leave."""
    spent = {Cause.API: 0.002, Cause.PREFILL: prefill, Cause.SEND: 0.002}
    spent[cause] = spent.get(cause, 0.0) + queue
    return tuple((each, spent[each]) for each in TTFT_CAUSES if each in spent)


@cache
def requests(now_ns: int) -> tuple[RequestRow, ...]:
    """Sixty requests, the first eighteen of them alive."""
    live = (
        RequestState.QUEUED,
        RequestState.PREFILL,
        RequestState.DECODE,
        RequestState.DECODE,
    )
    rows = []
    for i in range(60):
        state = live[i % 4] if i < 18 else RequestState.FINISHED
        if i in {5, 23}:
            state = RequestState.PREEMPTED if i == 5 else RequestState.ABORTED
        began, done = state is not RequestState.QUEUED, not state.live
        decoding = began and state is not RequestState.PREFILL
        tokens = (17 * i) % 90 + 4 if decoding else 0
        queue, prefill = 0.004 + 0.03 * (i % 7), 0.021 + 0.011 * (i % 5)
        spent = parts(CAUSES[i % 7], queue, prefill)
        main = max(spent, key=lambda part: part[1])[0]
        rows.append(
            RequestRow(
                key=f"demo:{i}",
                request_id=f"cmpl-{name(i)}-0-9f2c",
                external_id=f"cmpl-{name(i)}-0",
                ordinal=400 - i,
                state=state,
                arrived_ns=now_ns - (i + 1) * 290_000_000,
                added_ns=now_ns - (i + 1) * 290_000_000 + 4_000_000,
                prompt_tokens=60 + (37 * i) % 400,
                cached_tokens=16 * (i % 4),
                output_tokens=tokens,
                max_tokens=96,
                temperature=0.7,
                queue_s=queue if began else None,
                prefill_s=prefill if decoding else None,
                ttft_s=queue + prefill + 0.004 if decoding else None,
                tpot_s=0.008 + 0.0004 * (i % 9) if decoding else None,
                itl_last_s=0.0079 if decoding else None,
                itl_max_s=0.013 + 0.004 * (i % 6) if decoding else None,
                decode_s=tokens * 0.0091 if decoding else None,
                e2el_s=queue + prefill + tokens * 0.0091 if done else None,
                preemptions=1 if i in {5, 30} else 0,
                reason=("abort" if i == 23 else "stop" if i % 3 else "length")
                if done
                else None,
                cause=main if decoding else CAUSES[i % 7],
                ttft_parts=spent if decoding else (),
                itl_cause=Cause.LONG_PREFILL if decoding and i % 6 == 5 else None,
                lora="sql-adapter" if i % 9 == 4 else None,
                priority=i % 3,
                header=f"team-{'ab'[i % 2]}",
                class_name=CLASSES[i % 3],
            )
        )
    return tuple(rows)


SLOWEST = SlowRequests(
    n=6,
    of=546,
    from_s=0.71,
    is_p99=True,
    ttft_s=5.1,
    groups=(
        SlowGroup(
            cause=Cause.QUEUE_KV,
            requests=4,
            share=0.61,
            worst_key="demo:40",
            worst_ttft_s=1.23,
        ),
        SlowGroup(
            cause=Cause.PREFILL_SHARED,
            requests=1,
            share=0.22,
            worst_key="demo:33",
            worst_ttft_s=0.91,
        ),
        SlowGroup(
            cause=Cause.PREFILL,
            requests=1,
            share=0.15,
            worst_key="demo:21",
            worst_ttft_s=0.74,
        ),
        SlowGroup(
            cause=Cause.UNKNOWN,
            requests=0,
            share=0.02,
            worst_key="demo:21",
            worst_ttft_s=0.74,
        ),
    ),
    worst_key="demo:40",
    worst_ttft_s=1.23,
)
"""What most of the slowest waited for."""
ENGINE = EngineInfo(
    t_ns=8 * S,
    pid=4242,
    model="inferwatch/tiny-llama",
    vllm_version="0.32.0",
    device="cpu",
    num_kv_blocks=BLOCKS,
    kv_block_tokens=16,
    max_num_seqs=32,
    max_num_batched_tokens=2048,
    max_model_len=2048,
    tensor_parallel=1,
)
STAGES = (
    ("model made", 1.4),
    ("process up", 3.1),
    ("plug-in in API server", 5.6),
    ("plug-in in EngineCore", 8.2),
)
LOST = """\
EngineCore (pid 4242) was killed by SIGKILL (by hand, or because memory ran out)
INFO 11-20 03:12:40 [loggers.py:257] Avg generation throughput: 1180.2 tokens/s
ERROR 11-20 03:12:41 [core_client.py:597] EngineCore_DP0 died unexpectedly
ERROR 11-20 03:12:41 [async_llm.py:540] AsyncLLM output_handler failed.
vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."""


def notes(*extra: Note) -> tuple[Note, ...]:
    return (
        *(
            Note(t_ns=int(at * S), kind=NoteKind.STAGE, text=text)
            for text, at in STAGES
        ),
        *extra,
    )


@cache
def snapshot(window: Window = Window.MINUTE, now_ns: int = NOW_NS) -> Snapshot:
    line = timeline(window, now_ns)
    return Snapshot(
        now_ns=now_ns,
        window=window,
        covered_ns=min(window.value or now_ns, now_ns),
        verdict=Verdict(
            health=Health.QUEUEING,
            sentence="35% of the last 60 s, mostly KV blocks, then max_num_seqs; "
            "worst TTFT 3.31 s",
            now=Health.HEALTHY,
            since_ns=now_ns - 4 * S,
        ),
        engines=(ENGINE,),
        endpoints=(
            Endpoint(
                t_ns=9 * S, pid=4240, model=ENGINE.model, url="http://127.0.0.1:8000"
            ),
        ),
        hardware=Hardware(no_gpu="no NVIDIA driver"),
        last_token_ns=now_ns - 8_000_000,
        flow=Flow(
            arrivals_per_s=9.1,
            finished_per_s=8.9,
            prompt_tokens_p50=231,
            waiting=7,
            oldest_wait_s=0.41,
            kv_usage=0.96,
            running=23,
            batch_mean=17.4,
            prefill_tokens_per_s=2120.0,
            output_tokens_per_s=1180.4,
            tokens_per_s_per_user=112.6,
            budget_usage=0.07,
            prefix_hit_rate=0.42,
            step_s=quantiles(0.0091, 6100),
            finished=539,
            aborted=1,
            preemptions=4,
        ),
        latencies=latencies(line),
        timeline=line,
        latest_step=line.slowest_step[-1],
        steps=StepTotals(
            count=6100,
            batch_mean=17.4,
            batch_max=32,
            duration_s=quantiles(0.0091, 6100),
            share_by_bound={
                BoundBy.NOTHING: 0.71,
                BoundBy.SEQS: 0.04,
                BoundBy.TOKENS: 0.06,
                BoundBy.KV: 0.18,
                BoundBy.OTHER: 0.01,
            },
            output_tokens=70_824,
            prefill_tokens=127_200,
            recomputed_tokens=1_284,
        ),
        kv=KvState(
            total_blocks=BLOCKS,
            used_blocks=251,
            cached_blocks=138,
            free_blocks=59,
            peak_used_blocks=448,
            block_tokens=16,
            preemptions=4,
            recomputed_tokens=1_284,
            prefix_queries=127_200,
            prefix_hits=53_424,
        ),
        requests=requests(now_ns),
        slowest=SLOWEST,
        cost=Cost(
            self_cpu_s=5.1,
            self_cpu_share=0.031,
            process_cpu_share={
                "api": 0.34,
                "core": 0.71,
                "load": 0.12,
                "inferwatch": 0.031,
            },
            probe_us_per_step=6.1,
        ),
        notes=notes(),
    )


MARKS = (
    Mark(t_ns=22 * S, kind=MarkKind.LOAD, text="load of 9.1 req/s began"),
    Mark(t_ns=61 * S, kind=MarkKind.PREEMPTION, text="3 requests preempted"),
    Mark(t_ns=97 * S, kind=MarkKind.SLO, text="TTFT above 500 ms for 12% of requests"),
    Mark(t_ns=120 * S, kind=MarkKind.STALL, text="no step for 1.4 s, 9 running"),
    Mark(t_ns=121 * S, kind=MarkKind.OTHER, text="probe: 2 readings lost"),
    Mark(t_ns=150 * S, kind=MarkKind.BOOKMARK, text="the p99 broke here"),
)


@dataclass
class ScriptedPlayback:
    """Goes where it is told at once; remembers what it was told."""

    latest_ns: int = NOW_NS
    position_ns: int = NOW_NS
    goes_on: bool = False
    at_live: bool = False
    playing: bool = False
    speed: float = 1.0
    seeking: bool = False
    opening: bool = False
    cannot_seek: str | None = None
    shape: Timeline | None = field(
        default_factory=lambda: timeline(Window.SESSION, NOW_NS)
    )
    marks: tuple[Mark, ...] = MARKS
    told: list[str] = field(default_factory=list)
    gate: asyncio.Event | None = None
    """Seeks wait for it, where there is one."""

    @property
    def span_ns(self) -> tuple[int, int]:
        return (0, self.latest_ns)

    def play(self) -> None:
        self.told.append("play")
        self.playing = True

    def pause(self) -> None:
        self.told.append("pause")
        if self.at_live:
            self.position_ns = self.latest_ns
        self.playing, self.at_live = False, False

    def set_speed(self, speed: float) -> None:
        self.speed = speed

    async def seek(self, t_ns: int) -> None:
        self.told.append(f"seek {t_ns / S:g}")
        self.at_live = False
        if self.gate is not None:
            self.seeking = True
            await self.gate.wait()
            self.seeking = False
        self.position_ns = t_ns

    async def step(self, count: int) -> None:
        self.told.append(f"step {count}")
        self.playing = self.at_live = False
        self.position_ns += 9_000_000 * count

    async def go_live(self) -> None:
        self.told.append("live")
        self.position_ns = self.latest_ns
        self.at_live = self.playing = self.goes_on

    def bookmarks(self) -> Sequence[Mark]:
        return [each for each in self.marks if each.kind is MarkKind.BOOKMARK]

    async def bookmark(self, text: str, t_ns: int | None = None) -> None:
        t_ns = self.position_ns if t_ns is None else t_ns
        mark = Mark(t_ns=t_ns, kind=MarkKind.BOOKMARK, text=text)
        self.marks = tuple(sorted((*self.marks, mark), key=lambda each: each.t_ns))


@dataclass
class ScriptedRecall:
    """Tells prepared steps and stories; counts what it is asked."""

    told: Sequence[Step] = ()
    stories: dict[str, RequestStory] = field(default_factory=dict)
    pages: Sequence[MetricsPage] = ()
    asked: list[str] = field(default_factory=list)

    async def steps(
        self, start_ns: int, end_ns: int, source: str | None = None
    ) -> Sequence[Step]:
        self.asked.append(f"steps {start_ns} {end_ns} {source}")
        return [each for each in self.told if start_ns < each.end_ns <= end_ns]

    async def request(self, key: str) -> RequestStory | None:
        self.asked.append(f"request {key}")
        return self.stories.get(key)

    async def metrics_pages(
        self, start_ns: int, end_ns: int, source: str
    ) -> Sequence[MetricsPage]:
        self.asked.append(f"pages {start_ns} {end_ns} {source}")
        return [each for each in self.pages if start_ns < each.t_ns <= end_ns]


def assert_folding_thread() -> None:
    """A Model is asked on the thread that fills it; another would end a stream."""
    assert threading.current_thread() is threading.main_thread()


class NoProfiles:
    """No profile was taken, and none can be."""

    unavailable: str | None = "vLLM was started without its profiler"
    progress = ProfileProgress()
    taken: Sequence[TakenProfile] = ()

    async def begin(self, steps: int | None = None) -> None:
        """Refuse."""
        del steps
        raise UsageError("vLLM was started without its profiler")

    async def stop(self) -> None:
        """Do nothing."""

    async def report(self, key: str) -> ProfileReport:
        """Refuse."""
        raise StorageError(f"the traces of {key} are gone")


@dataclass
class ScriptedFeed:
    """Plays one frozen moment; counts what it is asked to do."""

    state: FeedState = FeedState.LIVE
    served: bool = False
    no_log: str = "nothing is logged yet"
    foreign: bool = False
    """Served by somebody else."""
    playback: ScriptedPlayback | None = None
    load_desk: LoadDesk | None = None
    limit_desk: LimitDesk | None = None
    profile_desk: ProfileDesk = field(default_factory=NoProfiles)
    canary: CanarySwitch | None = None
    recall: ScriptedRecall = field(default_factory=ScriptedRecall)
    can_restart: bool = False
    record: RecordState | None = field(
        default_factory=lambda: RecordState(
            session_id="s17", grown_bytes=2_200_000, written=41_022
        )
    )
    at_ns: int = NOW_NS
    change: Callable[[Snapshot], Snapshot] = lambda made: made
    asked: list[str] = field(default_factory=list)

    def now_ns(self) -> int:
        return self.at_ns

    def wall_text(self, t_ns: int, *, ms: bool = False) -> str:
        """The session began at 03:09:26, wherever the test runs."""
        s = 3 * 3600 + 9 * 60 + 26 + t_ns // S
        text = f"{s // 3600:02}:{s // 60 % 60:02}:{s % 60:02}"
        return f"{text}.{t_ns % S // 1_000_000:03}" if ms else text

    def snapshot(self, query: SnapshotQuery) -> Snapshot:
        rows = "with" if query.requests else "without"
        self.asked.append(
            f"snapshot {query.window.name} {rows} requests"
            + (" and client" if query.client else "")
            + (" and hardware" if query.hardware else "")
            + (f" of {query.source}" if query.source else "")
        )
        assert_folding_thread()
        playback = self.playback
        elsewhere = playback is not None and not playback.at_live
        at_ns = playback.position_ns if playback and elsewhere else self.at_ns
        made = snapshot(query.window, at_ns)
        made = self.change(made if query.requests else replace(made, requests=()))
        return made if query.latest else replace(made, latest=None)

    def present(self, source: str | None = None) -> Snapshot:
        del source
        assert_folding_thread()
        return self.change(replace(snapshot(now_ns=self.at_ns), requests=()))

    def look_closely(self, on: bool) -> None:
        self.asked.append(f"look closely: {on}")

    def log_tail(self, lines: int) -> list[str]:
        return list(LOG[-lines:])

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def restart(self) -> None:
        self.asked.append("restart")

    @property
    def starts(self) -> bool:
        return not self.foreign

    @property
    def can_stop(self) -> bool:
        return self.served and not self.foreign and self.state is FeedState.LIVE

    async def stop_engine(self) -> None:
        self.asked.append("stop")


def starting(feed: ScriptedFeed) -> ScriptedFeed:
    """Ten seconds into a start."""
    feed.state, feed.at_ns = FeedState.STARTING, 10 * S + 400_000_000
    feed.change = lambda made: Snapshot(
        now_ns=made.now_ns,
        window=made.window,
        covered_ns=made.now_ns,
        verdict=Verdict(health=Health.STARTING, sentence="the engine is starting"),
        notes=notes(),
    )
    return feed


def untouched(feed: ScriptedFeed) -> ScriptedFeed:
    """An engine that is served, and that nobody has asked anything yet."""
    feed.served = True
    feed.change = lambda made: Snapshot(
        now_ns=made.now_ns,
        window=made.window,
        covered_ns=3 * S,
        verdict=Verdict(
            health=Health.IDLE,
            sentence="nothing running, nothing waiting",
            since_ns=NOW_NS - 3 * S,
        ),
        engines=made.engines,
        endpoints=made.endpoints,
        gpus=made.gpus,
        hosts=made.hosts,
        hardware=made.hardware,
        flow=Flow(running=0, waiting=0),
        kv=KvState(
            total_blocks=BLOCKS,
            used_blocks=0,
            cached_blocks=0,
            free_blocks=BLOCKS,
            block_tokens=16,
        ),
        cost=made.cost,
        notes=made.notes,
    )
    return feed


def lost(feed: ScriptedFeed) -> ScriptedFeed:
    """Two seconds after the engine was killed."""
    feed.state, feed.can_restart = FeedState.LOST, True
    died = Note(t_ns=NOW_NS - 2 * S, kind=NoteKind.LOST, text=LOST)
    feed.change = lambda made: replace(
        made,
        verdict=Verdict(
            health=Health.LOST,
            sentence=LOST,
            since_ns=NOW_NS - 2 * S,
        ),
        last_token_ns=None,
        flow=replace(
            made.flow, waiting=None, oldest_wait_s=None, kv_usage=None, running=None
        ),
        kv=replace(made.kv, used_blocks=None, cached_blocks=None, free_blocks=None),
        timeline=replace(made.timeline, lost_ns=NOW_NS - 2 * S),
        cost=replace(made.cost, process_cpu_share={"load": 0.12, "inferwatch": 0.031}),
        notes=notes(died),
    )
    return feed


@pytest.fixture(scope="session", autouse=True)
def quiet() -> Iterator[None]:
    """Screens are waited for by what they do, not by what the machine does."""
    with pytest.MonkeyPatch.context() as patience, quiet_pilots(), quick_styles():
        patience.setattr(terminal, "KEY_PATIENCE_S", 30.0)  # on a busy machine
        yield


@pytest.fixture(autouse=True)
def pinned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same terminal and the same home for every test."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


@pytest.fixture
def feed() -> ScriptedFeed:
    return ScriptedFeed()


@pytest.fixture
def starting_feed() -> ScriptedFeed:
    return starting(ScriptedFeed())


@pytest.fixture
def lost_feed() -> ScriptedFeed:
    return lost(ScriptedFeed())


@pytest.fixture
def untouched_feed() -> ScriptedFeed:
    return untouched(ScriptedFeed())


@pytest.fixture
def replayed_feed() -> ScriptedFeed:
    """A recorded session, paused in its middle."""
    playback = ScriptedPlayback(position_ns=130 * S)
    return ScriptedFeed(state=FeedState.REPLAYING, playback=playback)


@pytest.fixture
def watched_feed() -> ScriptedFeed:
    """A session that goes on, with a past to go back to."""
    playback = ScriptedPlayback(goes_on=True, at_live=True, playing=True)
    return ScriptedFeed(playback=playback)


def app_on(screen: str, feed: Feed) -> InferwatchApp:
    """It begins there, so that it need not make the overview first."""
    return InferwatchApp(SessionPage(feed, View(screen=screen)))


@pytest.fixture
def app(feed: ScriptedFeed) -> InferwatchApp:
    return InferwatchApp(SessionPage(feed))


Text = Callable[[InferwatchApp, str], list[str]]


@pytest.fixture
def text_of() -> Text:
    """Reads the rows of a widget as they stand on the screen."""

    def rows(app: InferwatchApp, selector: str) -> list[str]:
        widget = app.screen.query_one(selector)
        return [widget.render_line(y).text for y in range(widget.size.height)]

    return rows


@pytest.fixture
def pictures(snapshot: SnapshotAssertion, request: pytest.FixtureRequest) -> Pictures:
    """Compares an app with its pictures at several sizes."""
    return pictures_of(snapshot, request.node)


Settle = Callable[[Pilot[None]], Awaitable[None]]


@pytest.fixture
def settle() -> Settle:
    """Lets the screen in sight take and draw the present snapshot."""

    async def wait(pilot: Pilot[None]) -> None:
        await handed_out(pilot)
        app = pilot.app
        assert isinstance(app, InferwatchApp)
        app.look()
        await pilot.pause()

    return wait


async def until(holds: Callable[[], object]) -> None:
    """Wait until something of another task holds."""
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - it is not ours to signal
            await asyncio.sleep(0.01)


class NothingRecalled:
    """A Recall that finds nothing, for sessions that keep nothing."""

    async def steps(
        self, start_ns: int, end_ns: int, source: str | None = None
    ) -> Sequence[Step]:
        del start_ns, end_ns, source
        return ()

    async def request(self, key: str) -> RequestStory | None:
        del key
        return None
