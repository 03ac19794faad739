"""The verdict on scraped servers: the worst of those that answer, and which it is.

They are lost only if none answers: while one of them does, the others go on.
"""

from collections.abc import Sequence
from dataclasses import replace

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import counted, format_duration
from inferwatch.metrics.requests.latencies import LATENCIES
from inferwatch.metrics.requests.refusals import RefusedGroup
from inferwatch.metrics.series.window import Latency
from inferwatch.metrics.servers.scraped import Gauges, ScrapedServer
from inferwatch.metrics.steps.engines import known_sum
from inferwatch.metrics.steps.flow import Flow
from inferwatch.metrics.steps.health import MINUTE_NS, Health, Verdict, of_last

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
    missed: Latency | None = None,
    refused: tuple[float, Sequence[RefusedGroup]] | None = None,
) -> Verdict:
    """Return the verdict; ``missed`` is a latency whose objective is missed.

    ``refused`` is the share of the last minute's requests that was refused.
    """
    verdict = _verdict_on_all(servers, flow)
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


def _verdict_on_all(servers: Sequence[ScrapedServer], flow: Flow) -> Verdict:
    answering = [server for server in servers if server.answers]
    lost = [server for server in servers if server.answers is False]
    if not answering:
        return _none_answers(servers, lost)
    each = [(server, _verdict(server)) for server in answering]
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


def _verdict(server: ScrapedServer) -> Verdict:
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
    trouble = _stalled(busy, running, waiting)
    trouble = trouble or _queueing(gauges, waiting, working=bool(busy))
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
    since_ns = max(each.progress_ns or each.t_ns for each in stuck)
    quiet_ns = max(each.t_ns for each in stuck) - since_ns
    text = f"{_work(running, waiting)}: no token for {quiet_ns / NS_PER_S:.1f} s"
    return _made(Health.STALLED, text, since_ns)


def _stuck_ns(each: Gauges) -> int | None:
    """Return how long there was no progress, if that is long; else None."""
    if not each.tells_progress or each.progress_ns is None:
        return None
    quiet_ns = each.t_ns - each.progress_ns
    least_ns = max(STALL_LEAST_NS, STALL_INTERVALS * each.interval_ns)
    return quiet_ns if quiet_ns >= least_ns else None


def _queueing(
    gauges: Sequence[Gauges], waiting: int | None, *, working: bool
) -> Verdict | None:
    """Return the verdict if requests have queued in the last minute; else None."""
    now_ns = max(each.t_ns for each in gauges)
    queued = [
        (each.queueing_since_ns, sum(spans))
        for each in gauges
        if each.queueing_since_ns is not None and (spans := each.queued.within(now_ns))
    ]
    if not queued:
        return None
    since_ns = min(since_ns for since_ns, _ in queued)
    queued_ns = max(queued_ns for _, queued_ns in queued)
    watched = [each.watched_since_ns for each in gauges]
    began_ns = min((t_ns for t_ns in watched if t_ns is not None), default=now_ns)
    whole_ns = min(max(now_ns - began_ns, NS_PER_S), MINUTE_NS)
    usage = max((each.kv_usage or 0.0 for each in gauges), default=0.0)
    full = f", KV {usage:.0%} used" if usage else ""
    share = of_last(queued_ns / whole_ns, whole_ns)
    return Verdict(
        health=Health.QUEUEING,
        sentence=f"{share}; now {waiting or 0:,} waiting{full}",
        since_ns=since_ns,
        now=Health.HEALTHY if working else Health.IDLE,
    )


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
