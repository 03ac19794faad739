"""Faults, each with what nearly is one; what is planted is known, second by second."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import merge

from msgspec import structs

from collectors.contract.readings import (
    AnyReading,
    BoundBy,
    ClientSample,
    Deferral,
    EngineInfo,
    GpuSample,
    HostInfo,
    HostSample,
    LoadEvent,
    LoadKind,
    Note,
    NoteKind,
    Phase,
    ProcessUsage,
    Refusal,
    RefusalReason,
    Refusals,
    RequestEvent,
    RequestRecord,
    Step,
    Tick,
    WatchedSlo,
)
from tests.inferwatch.metrics.findings.simulated_engine import MS, Engine, S
from tests.inferwatch.metrics.scripted_hardware import gpu_info, uuid

SECONDS = 40
Told = Callable[[], Iterable[AnyReading]]


@dataclass(frozen=True)
class Fault:
    """What is done to a session, and what it is to be called."""

    what: str
    finding: str
    told: Told
    from_s: float = 0
    """Since when it is there."""


def moment(reading: AnyReading) -> int:
    """When a reading is told: the last moment in it."""
    return max(getattr(reading, name) or 0 for name in type(reading).INSTANTS)


def alone(engine: Engine, seconds: float = SECONDS) -> Told:
    """Of one engine, and nothing else is known."""
    return lambda: replace(engine).run(seconds)


def drafting(told: Told, by_position: Sequence[float]) -> Told:
    """The same of an engine that drafts: so many are accepted up to each position."""

    def drafted() -> Iterator[AnyReading]:
        for reading in told():
            if not isinstance(reading, Step) or not reading.decode_requests:
                yield reading
                continue
            drafts = reading.decode_requests
            accepted = [round(share * drafts) for share in by_position]
            yield structs.replace(
                reading,
                decode_tokens=drafts * (1 + len(by_position)),
                drafts=drafts,
                drafted_tokens=drafts * len(by_position),
                accepted_tokens=sum(accepted),
                accepted_by_position=accepted,
            )

    return drafted


def together(
    *streams: Callable[[], Iterable[AnyReading]], seconds: float = SECONDS
) -> Told:
    """Everything in the order of time, with ticks of its own."""

    def told() -> Iterator[AnyReading]:
        each = [
            sorted((r for r in s() if not isinstance(r, Tick)), key=moment)
            for s in streams
        ]
        ticks = [Tick(t_ns=n * S) for n in range(1, round(seconds) + 1)]
        return merge(*each, ticks, key=moment)

    return told


def late(
    readings: Iterable[AnyReading], from_s: int, until_s: int, *, ticks: bool = True
) -> Iterator[AnyReading]:
    """What is read of the engine when we do not run for a while.

    The first of it comes after two more ticks, the rest after a third. With ``ticks``,
    these come late as well.
    """
    held: list[AnyReading] = []
    for each in readings:
        t_s = moment(each) / S
        if isinstance(each, Tick):
            if ticks and from_s < t_s < until_s:
                continue
            yield each
            if t_s == until_s + 1:
                yield from (r for r in held if moment(r) <= until_s * S)
                held = [r for r in held if moment(r) > until_s * S]
            elif t_s == until_s + 2:
                yield from held
                held = []
        elif held or from_s < t_s <= until_s:
            held.append(each)
        else:
            yield each


def host(
    others: float = 0.2,
    core: float = 0.9,
    throttled: float = 0.0,
    cores: int = 8,
    used: float = 0.3,
) -> Callable[[], Iterator[AnyReading]]:
    """A host of so many cores, with an engine and with other work."""

    def told() -> Iterator[AnyReading]:
        yield HostInfo(t_ns=0, name="host", memory_bytes=1 << 34)
        for n in range(SECONDS):
            roles = {"core": (100, core), "api": (101, 0.1), "inferwatch": (50, 0.05)}
            yield HostSample(
                t_ns=n * S,
                cores=cores,
                busy_s=n * min(cores, others + core + 0.15),
                memory_used_bytes=round(used * (1 << 34)),
                processes=[
                    ProcessUsage(
                        pid=pid,
                        role=role,
                        cpu_s=n * share,
                        rss_bytes=1,
                        throttled_s=n * throttled if role == "core" else 0.0,
                    )
                    for role, (pid, share) in roles.items()
                ],
            )

    return told


def gpu(share: float, mhz: int, reason: str = "thermal") -> Told:
    """A GPU whose clocks are held down for a share of the time."""

    def told() -> Iterator[AnyReading]:
        yield gpu_info(0)
        for n in range(1, SECONDS):
            yield GpuSample(
                source=uuid(0),
                t_ns=n * S,
                sm_clock_mhz=mhz,
                power_w=690.0,
                power_limit_w=700.0,
                temperature_c=88,
                throttled_ns={reason: round(n * S * share)},
            )

    return told


def client(cpu: float) -> Told:
    """A load generator that uses so much of the one core it can use."""

    def told() -> Iterator[AnyReading]:
        yield LoadEvent(source="load-1", t_ns=1, kind=LoadKind.STARTED)
        for n in range(1, SECONDS):
            for index in range(5):
                at_ns = (n - 1) * S + index * 100 * MS
                yield RequestRecord(
                    source="load-1",
                    index=5 * n + index,
                    external_id=f"c{5 * n + index}",
                    phase=Phase.STEADY,
                    intended_ns=at_ns,
                    sent_ns=at_ns + MS,
                    first_token_ns=at_ns + 80 * MS,
                    last_token_ns=at_ns + 400 * MS,
                    end_ns=at_ns + 401 * MS,
                    output_tokens=20,
                )
            yield ClientSample(
                source="load-1",
                t_ns=n * S,
                span_ns=S,
                transport="raw",
                sends=5,
                tokens=500,
                reads=500,
                kernel_stamps=500,
                send_lag_p50_ns=MS,
                send_lag_p99_ns=2 * MS,
                send_lag_max_ns=2 * MS,
                recv_lag_p50_ns=10_000,
                recv_lag_p99_ns=100_000,
                recv_lag_max_ns=100_000,
                cpu_s=cpu,
                in_flight=4,
            )

    return told


def notes(kind: NoteKind, *at_s: float, count: int | None = None) -> Told:
    """Of the engine, at these moments."""

    def told() -> Iterator[AnyReading]:
        for second in at_s:
            yield Note(
                source="engine-1",
                t_ns=round(second * S),
                kind=kind,
                text="exit code -9\nTraceback (most recent call last):",
                count=count,
            )

    return told


def lives(*until_s: float) -> Told:
    """An engine that dies at these moments, and is started anew."""

    def told() -> Iterator[AnyReading]:
        begins_s = 0.0
        for end_s in until_s:
            yield from replace(HEALTHY, starts_s=begins_s).run(end_s - begins_s)
            yield from notes(NoteKind.LOST, end_s)()
            begins_s = end_s + 3
        yield from replace(HEALTHY, starts_s=begins_s).run(SECONDS - begins_s)

    return told


def failing(share: float) -> Told:
    """A part of the requests ends in an error."""

    def told() -> Iterator[AnyReading]:
        for reading in replace(HEALTHY).run(SECONDS):
            if (
                isinstance(reading, RequestEvent)
                and reading.reason == "stop"
                and int(reading.request_id[1:]) % 100 < 100 * share
            ):
                yield structs.replace(reading, reason="error")
            else:
                yield reading

    return told


def refusing(count: int, every_s: int = 1) -> Told:
    """Prompts that are too long, beside those that are not."""

    def told() -> Iterator[AnyReading]:
        made = 0
        for reading in replace(HEALTHY).run(SECONDS):
            yield reading
            if isinstance(reading, Step) and reading.end_ns > made * every_s * S:
                long = Refusal(
                    route="/v1/completions",
                    method="POST",
                    status=400,
                    reason=RefusalReason.TOO_LONG,
                    count=(made + 1) * count,
                    new=count,
                    asked_tokens=3_100,
                    allowed_tokens=2_048,
                )
                yield Refusals(
                    source=reading.source, t_ns=reading.end_ns, pid=1, refused=[long]
                )
                made += 1

    return told


def deferred(share: float, reason: str | None = None) -> Told:
    """Steps in which all that wait are passed over."""

    def told() -> Iterator[AnyReading]:
        busy = replace(HEALTHY, max_num_seqs=2, rate_per_s=5)
        for reading in busy.run(SECONDS):
            if isinstance(reading, Step) and reading.bound_by is BoundBy.SEQS:
                held = reading.index % 100 < 100 * share
                bound = BoundBy.DEFERRED if held else BoundBy.NOTHING
                why = reason if held else None
                yield structs.replace(reading, bound_by=bound, deferred_by=why)
            else:
                yield reading

    return told


def compiled(*at_s: float, took_s: float) -> Told:
    """At each of these moments the engine begins to compile while it serves."""

    def told() -> Iterator[AnyReading]:
        for second in at_s:
            yield Note(
                source="engine-1",
                t_ns=round(second * S),
                kind=NoteKind.COMPILATION,
                text="compiled while serving: torch.compile 0/3",
                duration_ns=round(took_s * S),
            )

    return told


def with_slo(slo: str, engine: Engine) -> Told:
    """Requests that are to hold it."""
    return together(
        lambda: iter([WatchedSlo(t_ns=0, slo=slo)]), lambda: replace(engine).run(60)
    )


def not_told(engine: Engine) -> Told:
    """Attached late: what the engine is was told before."""

    def told() -> Iterator[AnyReading]:
        late = replace(engine, starts_s=3_000).run(SECONDS)
        return (each for each in late if not isinstance(each, EngineInfo))

    return told


HEALTHY = Engine()
SMALL_BATCH = Engine(max_num_seqs=2, rate_per_s=5)
LONG = Engine(
    prompt=lambda r: 12_000 if r.random() < 0.2 else 60,
    output=lambda _: 200,
    kv_blocks=20_000,
    max_num_batched_tokens=8_192,
    rate_per_s=5,
)
BEHIND = Engine(
    prompt=lambda r: 20_000 if r.random() < 0.15 else 60,
    kv_blocks=20_000,
    max_num_batched_tokens=512,
    rate_per_s=4,
)
RANKED = Engine(
    max_num_seqs=2,
    rate_per_s=5,
    priority=lambda r: 10 if r.random() < 0.1 else 0,
)
SHARED = Engine(
    max_num_batched_tokens=512,
    kv_blocks=20_000,
    prompt=lambda r: 12_000 if r.random() < 0.15 else 80,
    rate_per_s=8,
    header_of=lambda prompt: "bulk" if prompt > 1_000 else "chat",
)
PROMPTS = Engine(prompt=lambda _: 1_000, token_s=0.0003, rate_per_s=1.5)

PLANTED = (
    Fault("max_num_seqs of 2", "batch_too_small", alone(SMALL_BATCH)),
    Fault(
        "max_num_seqs of 8, a rising rate",
        "batch_too_small",
        alone(Engine(max_num_seqs=8, rate_per_s=lambda t_s: 2 + t_s / 3)),
    ),
    Fault("the same, attached late", "batch_too_small", not_told(SMALL_BATCH)),
    Fault(
        "the same, and an objective",
        "batch_too_small",
        with_slo("ttft_s<0.5", SMALL_BATCH),
    ),
    Fault("a KV cache of 960 tokens", "kv_bound", alone(Engine(kv_blocks=60))),
    Fault(
        "a KV cache too small for long prompts",
        "kv_bound",
        alone(Engine(kv_blocks=400, prompt=lambda _: 1_500, rate_per_s=6)),
    ),
    Fault(
        "sequences and KV blocks that bind by turns",
        "kv_bound",
        alone(
            Engine(
                max_num_seqs=14,
                kv_blocks=460,
                rate_per_s=12,
                prompt=lambda r: r.choice((60, 200, 600, 1_000)),
            ),
            seconds=36,
        ),
    ),
    Fault(
        "outputs that outgrow the KV cache",
        "preemptions",
        alone(
            Engine(
                kv_blocks=200,
                rate_per_s=6,
                prompt=lambda _: 30,
                output=lambda r: r.randint(300, 600),
            )
        ),
    ),
    Fault(
        "a budget of 64 tokens a step",
        "token_budget",
        alone(Engine(max_num_batched_tokens=64, rate_per_s=20)),
    ),
    Fault("short prompts behind long ones", "head_of_line", alone(BEHIND)),
    Fault("a flood of better priority", "starved_priority", alone(RANKED)),
    Fault("a tenant with long prompts", "noisy_tenant", alone(SHARED)),
    Fault("long prompts mixed in", "prefill_stalls_decode", alone(LONG)),
    Fault(
        "drafts that nobody accepts",
        "low_acceptance",
        drafting(alone(Engine(rate_per_s=8)), (0.4, 0.1, 0.1, 0.0)),
    ),
    Fault("a host that is late between steps", "host_bound", alone(Engine(gap_s=0.02))),
    Fault(
        "an engine that stops", "stopped", alone(Engine(stands_still=lambda t: t > 20))
    ),
    Fault(
        "an engine that stops and whose processes idle",
        "stopped",
        together(
            lambda: Engine(stands_still=lambda t: t > 20).run(SECONDS), host(core=0.0)
        ),
    ),
    Fault(
        "pauses of a second, every five",
        "stalls",
        alone(Engine(stands_still=lambda t: t % 5 > 4)),
    ),
    Fault(
        "clients that give up",
        "aborts",
        alone(Engine(patience_s=lambda r: 1 if r.random() < 0.5 else 99)),
    ),
    Fault("requests that fail", "failures", failing(0.2)),
    Fault("prompts that are too long", "refused", refusing(1)),
    Fault("a slow front end", "front_end", alone(Engine(api_s=0.2))),
    Fault(
        "prefix caching off",
        "prefix_caching_off",
        alone(replace(PROMPTS, prefix_caching=False)),
    ),
    Fault(
        "prompts that no longer begin alike",
        "unstable_prefix",
        alone(replace(PROMPTS, hits_until_s=70, hits=lambda _: 0.8), 150),
        from_s=70,
    ),
    Fault("deferred requests", "deferred", deferred(0.9)),
    Fault("grammars that are compiled", "deferred", deferred(0.9, Deferral.GRAMMAR)),
    Fault(
        "an engine that compiles while it serves",
        "compiling",
        together(lambda: replace(HEALTHY).run(30), compiled(18, 21, 24, took_s=1)),
    ),
    Fault(
        "others on all cores",
        "host_busy",
        together(lambda: replace(HEALTHY).run(SECONDS), host(others=7.5)),
    ),
    Fault(
        "memory of the host that is nearly used up",
        "host_memory",
        together(lambda: replace(HEALTHY).run(SECONDS), host(used=0.97)),
    ),
    Fault(
        "a CPU quota",
        "cpu_quota",
        together(lambda: replace(HEALTHY).run(SECONDS), host(throttled=0.4)),
    ),
    Fault(
        "a GPU that is too hot",
        "throttled",
        together(lambda: replace(HEALTHY).run(SECONDS), gpu(0.9, 1_100)),
    ),
    Fault(
        "a power limit",
        "throttled",
        together(lambda: replace(HEALTHY).run(SECONDS), gpu(0.8, 1_300, "power_cap")),
    ),
    Fault(
        "a load generator at its limit",
        "client_bound",
        together(lambda: replace(HEALTHY).run(SECONDS), client(0.99)),
    ),
    Fault(
        "an engine that dies",
        "lost",
        together(lambda: replace(HEALTHY).run(30), notes(NoteKind.LOST, 30)),
    ),
    Fault("an engine that dies again and again", "restart_loop", lives(15, 30)),
    Fault(
        "readings that never come",
        "dropped",
        together(
            lambda: replace(HEALTHY).run(SECONDS),
            notes(NoteKind.DROPPED, 20, 25, 30, count=40),
        ),
    ),
    Fault(
        "inferwatch without a core for five seconds",
        "late",
        lambda: late(replace(HEALTHY).run(SECONDS), 20, 25),
    ),
    Fault(
        "all requests at one of two servers",
        "imbalance",
        together(
            lambda: Engine(source="a", max_num_seqs=8, rate_per_s=12).run(SECONDS),
            lambda: Engine(source="b", rate_per_s=0.2).run(SECONDS),
        ),
    ),
    Fault(
        "one of three servers that is late between steps",
        "host_bound",
        together(
            *(
                lambda n=n: Engine(
                    source=f"s{n}", seed=n, gap_s=0.02 if n == 1 else 0.0002
                ).run(SECONDS)
                for n in range(3)
            )
        ),
    ),
)

NEARLY = (
    Fault(
        "a batch that is just large enough",
        "batch_too_small",
        alone(Engine(max_num_seqs=24, rate_per_s=5)),
    ),
    Fault(
        "a burst of three seconds",
        "batch_too_small",
        alone(Engine(max_num_seqs=16, rate_per_s=lambda t: 40 if 20 < t < 23 else 2)),
    ),
    Fault(
        "queues that hold the objective",
        "batch_too_small",
        with_slo("ttft_s<500", SMALL_BATCH),
    ),
    Fault("a KV cache with room", "kv_bound", alone(Engine(kv_blocks=2_000))),
    Fault("a preemption now and then", "preemptions", alone(Engine(kv_blocks=400))),
    Fault(
        "a budget that suffices",
        "token_budget",
        alone(Engine(max_num_batched_tokens=512)),
    ),
    Fault(
        "prompts of similar lengths",
        "head_of_line",
        alone(replace(BEHIND, prompt=lambda r: r.choice((1_000, 3_000)))),
    ),
    Fault(
        "the same flood, first come, first served",
        "starved_priority",
        alone(replace(RANKED, by_priority=False)),
    ),
    Fault(
        "two tenants that ask for alike",
        "noisy_tenant",
        alone(
            replace(
                SHARED,
                prompt=lambda r: r.choice((800, 801)),
                header_of=lambda prompt: f"{prompt}",
            )
        ),
    ),
    Fault(
        "long prompts of the only tenant",
        "noisy_tenant",
        alone(replace(SHARED, header_of=lambda _: "all")),
    ),
    Fault(
        "priorities with room for all",
        "starved_priority",
        alone(replace(RANKED, max_num_seqs=24)),
    ),
    Fault(
        "prompts that fit into a step",
        "prefill_stalls_decode",
        alone(replace(LONG, prompt=lambda r: r.choice((200, 400)))),
    ),
    Fault("small gaps", "host_bound", alone(Engine(gap_s=0.002))),
    Fault(
        "drafts accepted in half",
        "low_acceptance",
        drafting(alone(Engine(rate_per_s=8)), (0.7, 0.6, 0.4, 0.3)),
    ),
    Fault(
        "a pause of a second",
        "stopped",
        alone(Engine(stands_still=lambda t: 20 < t < 21)),
    ),
    Fault(
        "a pause of a second, once",
        "stalls",
        alone(Engine(stands_still=lambda t: 20 < t < 21)),
    ),
    Fault(
        "a client that gives up now and then",
        "aborts",
        alone(Engine(patience_s=lambda r: 1 if r.random() < 0.05 else 99)),
    ),
    Fault("a request that fails", "failures", failing(0.01)),
    Fault("a refusal now and then", "refused", refusing(1, every_s=20)),
    Fault("a quick front end", "front_end", alone(Engine(api_s=0.008))),
    Fault(
        "prefix caching off, short prompts",
        "prefix_caching_off",
        alone(Engine(prompt=lambda _: 100, prefix_caching=False)),
    ),
    Fault(
        "prompts that still begin alike",
        "unstable_prefix",
        lambda: replace(PROMPTS, hits=lambda _: 0.8).run(120),
    ),
    Fault("random prompts of one length", "unstable_prefix", alone(PROMPTS, 120)),
    Fault("a few deferred requests", "deferred", deferred(0.2)),
    Fault(
        "a compilation of a second",
        "compiling",
        together(lambda: replace(HEALTHY).run(60), compiled(35, took_s=1)),
    ),
    Fault(
        "a compilation that four workers tell of",
        "compiling",
        together(
            lambda: replace(HEALTHY).run(60),
            compiled(35, 35.01, 35.02, 35.03, took_s=1),
        ),
    ),
    Fault(
        "a host that the engine keeps busy",
        "host_busy",
        together(
            lambda: replace(HEALTHY).run(SECONDS), host(core=7.7, others=0.1, cores=8)
        ),
    ),
    Fault(
        "a host with some memory left",
        "host_memory",
        together(lambda: replace(HEALTHY).run(SECONDS), host(used=0.93)),
    ),
    Fault(
        "a quota that is hardly reached",
        "cpu_quota",
        together(lambda: replace(HEALTHY).run(SECONDS), host(throttled=0.02)),
    ),
    Fault(
        "clocks a little below their best",
        "throttled",
        together(lambda: replace(HEALTHY).run(SECONDS), gpu(0.9, 1_930)),
    ),
    Fault(
        "a load generator with time to spare",
        "client_bound",
        together(lambda: replace(HEALTHY).run(SECONDS), client(0.3)),
    ),
    Fault("one death", "restart_loop", lives(20)),
    Fault(
        "one death told by the probe and by the server",
        "restart_loop",
        together(lives(20), notes(NoteKind.LOST, 20.7)),
    ),
    Fault(
        "two servers that share the load",
        "imbalance",
        together(
            lambda: Engine(source="a", rate_per_s=2).run(SECONDS),
            lambda: Engine(source="b", seed=9, rate_per_s=2).run(SECONDS),
        ),
    ),
)
