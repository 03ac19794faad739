"""The verdict on scraped servers: the worst of those that answer, and which it is.

They are lost only if none answers: while one of them does, the others go on.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import BoundBy
from inferwatch.formatting import (
    bound_text,
    counted,
    format_duration,
    format_round_duration,
)
from inferwatch.metrics.causes.cause import SLOW_S
from inferwatch.metrics.requests.latencies import LATENCIES
from inferwatch.metrics.requests.refusals import RefusedGroup
from inferwatch.metrics.series.window import Latency
from inferwatch.metrics.servers.scraped import (
    CAPACITY,
    DEFERRED,
    KV,
    Gauges,
    ScrapedServer,
)
from inferwatch.metrics.servers.scraped_window import Gained
from inferwatch.metrics.steps.engines import known_sum
from inferwatch.metrics.steps.flow import Flow
from inferwatch.metrics.steps.health import (
    MANY_PREEMPTIONS,
    MINUTE_NS,
    Health,
    Verdict,
    of_last,
)

CAUSES = {
    DEFERRED: bound_text(BoundBy.DEFERRED),
    KV: bound_text(BoundBy.KV),
    CAPACITY: f"{bound_text(BoundBy.SEQS)} or {bound_text(BoundBy.TOKENS)}",
}
"""What requests queue for, by its flag."""
STALL_LEAST_NS = 5 * NS_PER_S
STALL_INTERVALS = 3
"""Consecutive samples without progress that mean stalled."""
REFUSED_SHARE = 0.05
"""Share of refused requests from which it counts, 0-1."""
NAMED = 3
"""Largest number of lost servers to name."""


def verdict_of(
    servers: Sequence[ScrapedServer],
    flow: Flow,
    now_ns: int,
    missed: Latency | None = None,
    refused: tuple[float, Sequence[RefusedGroup]] | None = None,
) -> Verdict:
    """Return the verdict; ``missed`` is a latency whose objective is missed.

    ``refused`` is the share of the last minute's requests that was refused.
    """
    verdict = _verdict_on_all(servers, flow, now_ns)
    if refused is not None and refused[0] >= REFUSED_SHARE and _well(verdict):
        share, groups = refused
        said = f"{share:.0%} of the last minute's requests were refused"
        return Verdict(
            health=Health.DEGRADED,
            sentence=f"{said} ({groups[0].place}); {verdict.sentence}",
            now=verdict.health,
        )
    if missed is None or missed.met is None or not _well(verdict):
        return verdict
    within = format_duration(missed.objective_s).strip()
    label = LATENCIES[missed.metric].label
    most = f"at most {missed.met[1]:.0%} of the last minute's requests"
    return Verdict(
        health=Health.DEGRADED,
        sentence=f"{most} had {label} within {within}; {verdict.sentence}",
        now=verdict.health,
    )


def stuck_since_ns(
    servers: Sequence[ScrapedServer], probed: Collection[str]
) -> dict[str, int]:
    """Return since when servers without a probe make no progress, by source."""
    found: dict[str, int] = {}
    for each in servers:
        if each.answers and each.source not in probed:
            stalled = _stalled([one for one in each.gauges if one.work], None, None)
            if stalled is not None and stalled.since_ns is not None:
                found[each.source] = stalled.since_ns
    return found


def _verdict_on_all(
    servers: Sequence[ScrapedServer], flow: Flow, now_ns: int
) -> Verdict:
    answering = [server for server in servers if server.answers]
    lost = [server for server in servers if server.answers is False]
    if not answering:
        return _none_answers(servers, lost)
    each = [(server, _verdict(server, now_ns)) for server in answering]
    worst = max(each, key=lambda pair: list(Health).index(pair[1].health))
    sentence = _sentence(worst, each, flow)
    if lost:
        names = ", ".join(server.name for server in lost[:NAMED])
        more = f" and {len(lost) - NAMED} more" if len(lost) > NAMED else ""
        sentence += f" · no answer from {names}{more}"
    return replace(worst[1], sentence=sentence)


def _sentence(
    worst: tuple[ScrapedServer, Verdict],
    each: Sequence[tuple[ScrapedServer, Verdict]],
    flow: Flow,
) -> str:
    """Return a sentence on one server; of several, on all or those with a problem."""
    server, verdict = worst
    if len(each) == 1:
        return (
            f"{verdict.sentence}{_rate(flow)}" if _well(verdict) else verdict.sentence
        )
    if not _well(verdict):
        return f"{server.name}: {verdict.sentence}"
    if verdict.health is Health.IDLE:
        return f"{counted(len(each), 'server')}, nothing running, nothing waiting"
    work = _work(flow.running, flow.waiting)
    return f"{counted(len(each), 'server')}: {work}{_rate(flow)}"


def _well(verdict: Verdict) -> bool:
    return verdict.health in {Health.HEALTHY, Health.IDLE}


def _none_answers(
    servers: Sequence[ScrapedServer], lost: Sequence[ScrapedServer]
) -> Verdict:
    if not lost:
        names = ", ".join(server.name for server in servers[:NAMED])
        return _made(Health.STARTING, f"asking {names}", None)
    since = [server.contact.t_ns for server in lost if server.contact]
    if len(lost) == 1:
        (server,) = lost
        why = server.contact.why if server.contact else None
        text = f"{server.name} does not answer" + (f": {why}" if why else "")
    else:
        text = f"none of {len(servers)} servers answers"
    return _made(Health.LOST, text, max(since, default=None))


def _verdict(server: ScrapedServer, now_ns: int) -> Verdict:
    """Return the verdict on a server that answers."""
    gauges = server.gauges
    if not gauges:
        since_ns = server.contact.t_ns if server.contact else None
        return _made(Health.HEALTHY, "it answers", since_ns)
    running = known_sum(each.running for each in gauges)
    waiting = known_sum(each.waiting for each in gauges)
    if running is None and waiting is None:
        since_ns = server.contact.t_ns if server.contact else None
        return _made(
            Health.HEALTHY, "it answers, and tells nothing of its work", since_ns
        )
    busy = [each for each in gauges if each.work]
    if all(each.asleep for each in gauges):
        waits = f"; {waiting:,} waiting" if waiting else ""
        return _made(Health.IDLE, f"asleep{waits}", None)
    trouble = _stalled(busy, running, waiting)
    trouble = trouble or _queueing(server, waiting, now_ns, working=bool(busy))
    trouble = trouble or _preempting(server, now_ns, working=bool(busy))
    if trouble is not None:
        return trouble
    if not busy:
        since_ns = max(each.idle_since_ns or each.t_ns for each in gauges)
        return _made(Health.IDLE, "nothing running, nothing waiting", since_ns)
    return _healthy(busy, running, waiting)


def _stalled(
    busy: Sequence[Gauges], running: int | None, waiting: int | None
) -> Verdict | None:
    """Return the verdict if a rank has work but makes no progress; else None."""
    stuck = [each for each in busy if _stuck_ns(each) is not None]
    if not stuck:
        return None
    since_ns = max(each.progress_ns or 0 for each in stuck)
    quiet_ns = max(each.t_ns for each in stuck) - since_ns
    text = f"{_work(running, waiting)}: no token for {quiet_ns / NS_PER_S:.1f} s"
    return _made(Health.STALLED, text, since_ns)


def _stuck_ns(each: Gauges) -> int | None:
    """Return how long there was no progress, if that is long; else None."""
    if each.asleep or not each.tells_progress or each.progress_ns is None:
        return None
    quiet_ns = each.t_ns - each.progress_ns
    least_ns = max(STALL_LEAST_NS, STALL_INTERVALS * each.interval_ns)
    return quiet_ns if quiet_ns >= least_ns else None


def _queueing(
    server: ScrapedServer, waiting: int | None, now_ns: int, *, working: bool
) -> Verdict | None:
    """Return the verdict if requests have queued in the last minute; else None."""
    gauges = server.gauges
    last_ns = max(each.t_ns for each in gauges)
    queueing = [
        each
        for each in gauges
        if each.queueing_since_ns is not None and each.queued.within(last_ns)
    ]
    if not queueing:
        return None
    since = (each.queueing_since_ns for each in queueing)
    since_ns = min(t_ns for t_ns in since if t_ns is not None)
    queued_ns = max(sum(each.queued.within(last_ns)) for each in queueing)
    watched = [each.watched_since_ns for each in gauges]
    began_ns = min((t_ns for t_ns in watched if t_ns is not None), default=last_ns)
    whole_ns = min(max(last_ns - began_ns, NS_PER_S), MINUTE_NS)
    usage = max((each.kv_usage or 0.0 for each in gauges), default=0.0)
    full = f", KV {usage:.0%} used" if usage else ""
    share = of_last(queued_ns / whole_ns, whole_ns)
    cause = _cause(queueing, last_ns)
    mostly = f", mostly {cause}" if cause else ""
    p99 = _p99(_minute(server, now_ns))
    return Verdict(
        health=Health.QUEUEING,
        sentence=f"{share}{mostly}; now {waiting or 0:,} waiting{full}{p99}",
        since_ns=since_ns,
        now=Health.HEALTHY if working else Health.IDLE,
    )


def _cause(gauges: Sequence[Gauges], now_ns: int) -> str:
    """Return what requests queued for most of the time, as far as gauges tell it."""
    waited_ns: Counter[str] = Counter()
    for each in gauges:
        for cause, spans in each.queued_for.items():
            waited_ns[cause] += sum(spans.within(now_ns))
    return CAUSES.get(max(waited_ns, key=lambda each: waited_ns[each], default=""), "")


def _preempting(server: ScrapedServer, now_ns: int, *, working: bool) -> Verdict | None:
    """Return the verdict if preemptions came with slow first tokens; else None."""
    times_ns = [each.preempted_ns for each in server.gauges]
    if not any(t_ns is not None and t_ns > now_ns - MINUTE_NS for t_ns in times_ns):
        return None
    minute = _minute(server, now_ns)
    preemptions = minute.of("preemptions") or 0
    if preemptions < MANY_PREEMPTIONS:
        return None
    worst = minute.pool("ttft_s").brackets().p99
    if worst is None or worst.low < SLOW_S:
        return None
    return Verdict(
        health=Health.DEGRADED,
        sentence=f"{counted(preemptions, 'preemption')} in the last "
        f"{minute.watched_ns / NS_PER_S:.0f} s: KV blocks are short{_p99(minute)}",
        now=Health.HEALTHY if working else Health.IDLE,
    )


def _minute(server: ScrapedServer, now_ns: int) -> Gained:
    """Return what a server counted in the last minute."""
    within = (each.counted.within(now_ns, MINUTE_NS) for each in server.ranks.values())
    return Gained([each for each in within if each is not None])


def _p99(minute: Gained) -> str:
    """Return the bucket of the p99 TTFT, which is all that is known of the worst."""
    worst = minute.pool("ttft_s").brackets().p99
    if worst is None:
        return ""
    bound = "> " if worst.high is None else "≤ "
    end_s = worst.low if worst.high is None else worst.high
    return f"; TTFT p99 of the minute {bound}{format_round_duration(end_s)}"


def _healthy(
    busy: Sequence[Gauges], running: int | None, waiting: int | None
) -> Verdict:
    since = [max(each.busy_since_ns or 0, each.calm_since_ns or 0) for each in busy]
    return _made(Health.HEALTHY, _work(running, waiting), max(since))


def _work(running: int | None, waiting: int | None) -> str:
    queue = f"{waiting:,} waiting" if waiting else "none waiting"
    return f"{running or 0:,} running, {queue}"


def _rate(flow: Flow) -> str:
    per_s = flow.output_tokens_per_s_now
    return f", {per_s:,.0f} tok/s" if per_s and flow.running else ""


def _made(health: Health, sentence: str, since_ns: int | None) -> Verdict:
    return Verdict(health=health, sentence=sentence, since_ns=since_ns)
