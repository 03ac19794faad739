"""A whole session as one JSON object, and as text."""

from dataclasses import asdict
from typing import Protocol

from msgspec import to_builtins

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import BoundBy, LiveLimits
from embedded_engine.engine.logs import redacted
from inferwatch.formatting import (
    UNKNOWN,
    bound_text,
    counted,
    format_count,
    format_duration,
    format_durations,
    format_figure,
    format_nines,
    format_rate,
    format_share,
)
from inferwatch.limits.roofline import CHECK, MEASURE_AGAIN
from inferwatch.metrics.cache.prefix_cache import PrefixCache
from inferwatch.metrics.configuration import ENGINE_SETTINGS, OF_ENGINE
from inferwatch.metrics.findings.finding import Finding, PastFinding, Subject, is_told
from inferwatch.metrics.floor.peaks import BY_MEASURE
from inferwatch.metrics.floor.view import Bound
from inferwatch.metrics.load.client_run import ClientView
from inferwatch.metrics.load.client_verdict import client_words
from inferwatch.metrics.number import Number, numbers
from inferwatch.metrics.objectives.spending_view import Spending
from inferwatch.metrics.requests.latencies import LATENCIES
from inferwatch.metrics.requests.slo import UNANSWERED
from inferwatch.metrics.servers.server_counts import ServerCounts
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.flow import Flow
from inferwatch.metrics.steps.health import TROUBLES
from inferwatch.metrics.steps.live_limits import LIMITS
from inferwatch.printing.summary.breakdown import breakdown_row
from inferwatch.printing.summary.causes import cause_lines, cause_rows
from inferwatch.printing.summary.hardware import hardware_lines, hardware_rows
from inferwatch.printing.summary.latencies import (
    Summary,
    latency_row,
    latency_rows,
    latency_tables,
    quantiles_row,
)
from inferwatch.printing.summary.load import doubts
from inferwatch.printing.summary.refused import refused_lines, refused_rows
from inferwatch.printing.summary.servers import server_head, server_lines, server_rows
from inferwatch.printing.summary.speculation import speculation_lines, speculation_row
from inferwatch.printing.summary.stacks import stacks_row
from inferwatch.printing.summary.startup import startup_lines, startup_row
from inferwatch.printing.summary.tenants import rows_of_several
from inferwatch.printing.text import named_line
from inferwatch.visible import visible


def slo_rows(snapshot: Snapshot) -> Summary:
    """SLO attainment as JSON; None without objectives."""
    state = snapshot.slo
    if state is None:
        return {"slo": None}
    rows = asdict(state) | {"share": state.share, "met": state.met}
    return {"slo": rows}


def spending_rows(snapshot: Snapshot) -> Summary:
    """Cost and energy as JSON; None if neither prices nor energy are known."""
    spending = snapshot.spending
    return {"spending": None if spending is None else asdict(spending)}


def spending_lines(summary: Summary) -> list[str]:
    """Lines on what tokens cost, and how much energy they took."""
    spending = summary["spending"]
    if spending is None:
        return []
    prices = [
        f"{spending['currency']}{_figure_text(spending, each)}"
        for each in numbers(
            Spending.per_mtok, Spending.per_mtok_good, Spending.per_hour
        )
        if spending[each.name] is not None
    ]
    energy = [
        _figure_text(spending, each)
        for each in numbers(
            Spending.joules_per_prefill_token, Spending.joules_per_decode_token
        )
        if spending[each.name] is not None
    ]
    by = f"by {spending['read_from']}" if spending["read_from"] else ""
    cost = [*prices, by if prices else f"not known {by}"] if by else []
    return [
        named_line(name, ", ".join(parts))
        for name, parts in (("cost", cost), ("energy", energy))
        if parts
    ]


def _figure_text(spending: Summary, number: Number) -> str:
    return f"{format_figure(spending[number.name]).strip()} {number.label}"


def slo_lines(summary: Summary) -> list[str]:
    """Lines on SLO attainment: one for all requests and one for each class."""
    slo = summary["slo"]
    if slo is None:
        return []
    classes = [
        named_line("", f"{each['name']}: {_good(each)}  {each['slo']}")
        for each in slo["classes"]
    ]
    return [
        named_line("SLO", _verdict(slo)),
        named_line("", f"{slo['slo']}{_misses(slo)}"),
        *classes,
    ]


def _verdict(slo: Summary) -> str:
    target = f"target {format_nines(slo['target'])}"
    if slo["met"] is None and not slo["judged"]:
        text = "not judged"
    else:
        text = "met" if slo["met"] else "MISSED"
    if slo["judged"]:
        text += f": {_good(slo)}"
    open_ = f", {slo['undetermined']:,} open" if slo["undetermined"] else ""
    return f"{text}{open_}, {target}"


def _good(slo: Summary) -> str:
    n, good = slo["judged"], slo["good"]
    share = f" ({format_nines(good / n)})" if n else ""
    return f"{good:,} of {n:,} good{share}"


def _misses(slo: Summary) -> str:
    """Missed objectives, the most frequent first."""
    missed = sorted((slo["missed"] or {}).items(), key=lambda each: -each[1])
    words = [f"{n:,} {_name(metric)}" for metric, n in missed]
    return f", missed by {', '.join(words)}" if words else ""


def _name(metric: str) -> str:
    return metric if metric in UNANSWERED else LATENCIES[metric].label


def limits_rows(snapshot: Snapshot) -> Summary:
    """Roofline limits as JSON, named as their fields."""
    limits = snapshot.limits
    if limits is None:
        return {"limits": None}
    rows = to_builtins(limits)
    rows["peak"] |= {"ridge": limits.peak.ridge}
    curve = limits.curve
    rows["curve"] = curve and {
        "knee_requests": curve.knee,
        "compute_bound_from_requests": curve.compute_bound_from,
    }
    return {"limits": rows}


def limits_lines(summary: Summary) -> list[str]:
    """Lines on step times, their floors, and steps faster than their floor."""
    limits = summary["limits"]
    if limits is None:
        return []
    lines = [
        named_line(name, _against_floor(limits[name]))
        for name in ("decode", "prefill")
        if limits[name] is not None and limits[name]["floor_s"] is not None
    ]
    impossible = limits["impossible"]
    if impossible is not None:
        steps, worst = counted(impossible["steps"], "step"), impossible["worst_ratio"]
        verdict = f"{steps} faster than possible, {worst:.2f}x at worst:"
        measured = limits["peak"]["read_from"] == BY_MEASURE
        why = MEASURE_AGAIN if measured else CHECK
        lines += [named_line("impossible", verdict), named_line("", why)]
    return lines


def _against_floor(point: Summary) -> str:
    step, floor = format_durations([point["step_s"], point["floor_s"]])
    by_floor = point["bound"] not in {None, Bound.OVERHEAD}
    bound = f"by {point['bound']}" if by_floor else None
    used = [
        f"{name.upper()} {format_share(point[name]).strip()}"
        for name in ("mbu", "mfu")
        if point[name] is not None
    ]
    first = " ".join(x for x in (f"floor {floor.strip()}", bound) if x)
    over = [] if by_floor or point["bound"] is None else ["overhead-bound"]
    return ", ".join([f"{step.strip()} a step", first, *over, *used])


MOST_PAST = 5
"""The number of past findings in the text."""


def finding_rows(snapshot: Snapshot) -> Summary:
    """The verdict, then current findings by cost, then past ones."""
    verdict = snapshot.verdict
    since_ns = verdict.since_ns
    return {
        "verdict": {
            "health": verdict.health,
            "now": verdict.at_present,
            "sentence": redacted(verdict.headline),
            "since_s": None if since_ns is None else since_ns / NS_PER_S,
        },
        "findings": [
            *(_row(each) for each in (*snapshot.findings, *snapshot.trust)),
            *(_past_row(each) for each in reversed(snapshot.past_findings)),
        ],
    }


def _row(finding: Finding) -> Summary:
    return {
        "name": finding.name,
        "title": finding.title,
        "subject": finding.subject,
        "sentence": redacted(finding.sentence),
        "since_s": finding.since_ns / NS_PER_S,
        "until_s": None,
        "cost": finding.cost,
        "cost_text": finding.cost_text,
        "sources": list(finding.sources),
        "evidence": [
            {
                "text": each.text,
                "page": each.page,
                "t_s": None if each.t_ns is None else each.t_ns / NS_PER_S,
                "request": each.key,
            }
            for each in finding.evidence
        ],
        "knobs": [
            {
                "text": each.text,
                "flag": each.flag,
                "present": each.present,
                "expected": each.expected,
                "effort": [str(effort) for effort in each.effort],
            }
            for each in finding.knobs
        ],
    }


def _past_row(past: PastFinding) -> Summary:
    return {
        "name": past.name,
        "title": past.title,
        "subject": past.subject,
        "sentence": redacted(past.sentence),
        "since_s": past.since_ns / NS_PER_S,
        "until_s": past.until_ns / NS_PER_S,
        "cost": past.cost,
        "sources": list(past.sources),
    }


def finding_lines(summary: Summary) -> list[str]:
    """Lines on current findings with remedies, then on past ones."""
    findings, verdict = summary["findings"], summary["verdict"]
    lines = []
    if verdict["health"] in TROUBLES:
        lines.append(f"{verdict['health'].upper()} {verdict['sentence']}")
    for each in [one for one in findings if one["until_s"] is None]:
        trust = "· trust:" if each["subject"] == Subject.MEASURING else "▲"
        told = is_told(each["cost_text"], each["sentence"])
        cost = "" if told else f" ({each['cost_text']})"
        lines.append(f"{trust} {each['title']}: {each['sentence']}{cost}")
        lines += [f"  ↻ {_knob(knob)}" for knob in each["knobs"][:2]]
    over = [one for one in findings if one["until_s"] is not None]
    for each in over[:MOST_PAST]:
        lasted = format_duration(each["until_s"] - each["since_s"]).strip()
        lines.append(f"· for {lasted}, {each['title']}: {each['sentence']}")
    if len(over) > MOST_PAST:
        lines.append(f"· and {len(over) - MOST_PAST} more that are over")
    if (stacks := summary.get("stacks")) is not None:
        lines.append(f"· when it stalled: {stacks['sentence']}")
    return [visible(line) for line in lines]


def _knob(knob: Summary) -> str:
    price = ", ".join(knob["effort"])
    if knob["flag"] is None:
        return f"{knob['text']} ({price})"
    return f"{knob['flag']}, now {knob['present'] or UNKNOWN}: {knob['text']} ({price})"


RUN_COUNTS = ("sent", "succeeded", "failed", "aborted", "warmup")
ENGINE_FIELDS = ("model", "vllm_version", "device", "num_kv_blocks", *OF_ENGINE)
LIVE_FIELDS = (
    "rank",
    "version",
    "change",
    "max_num_seqs",
    "max_num_batched_tokens",
    "start_max_num_seqs",
    "start_max_num_batched_tokens",
    "in_force",
    "by",
    "kept",
    "fixed",
)


class HasUnrecorded(Protocol):
    """Reports how many readings were not recorded."""

    @property
    def unrecorded(self) -> int: ...


def summarise(
    snapshot: Snapshot, session_id: str | None, record: HasUnrecorded | None = None
) -> Summary:
    """The JSON object of a headless watch; names are those of the fields."""
    flow, cost = snapshot.flow, snapshot.cost
    kv, steps = snapshot.kv, snapshot.steps
    peak = kv.peak_used_blocks
    return {
        "session_id": session_id,
        "window_s": snapshot.covered_ns / NS_PER_S,
        "engine": _engine(snapshot),
        "live_limits": [_live(each) for each in snapshot.live_limits],
        "requests": {
            "finished": flow.finished,
            "finished_as_sent": flow.finished_as_sent,
            "failed": flow.failed,
            "refused": flow.refused,
            "aborted": flow.aborted,
            "running": flow.running,
            "waiting": flow.waiting,
            **_adapters(flow),
        },
        "refused": refused_rows(snapshot.refused),
        **latency_rows(snapshot.latencies),
        "steps": {
            "count": steps.count,
            "batch_mean": steps.batch_mean,
            "batch_max": steps.batch_max,
            "duration_s": quantiles_row(steps.duration_s),
            "share_by_bound": dict(steps.share_by_bound),
            "steps_by_bound": dict(steps.steps_by_bound),
            "share_by_deferral": dict(steps.share_by_deferral),
            "gap_share": steps.gap_share,
            "share_by_graph": dict(steps.share_by_graph),
            "padded_share": steps.padded_share,
        },
        "output_tokens_per_s": flow.output_tokens_per_s,
        "prompt_tokens_per_s": flow.prefill_tokens_per_s,
        "kv_peak_usage": (
            kv.peak_usage if peak is None else share(peak, kv.total_blocks)
        ),
        "kv_peak_blocks": peak,
        "preemptions": flow.preemptions,
        "dropped_readings": cost.dropped_readings,
        "unrecorded_readings": (
            cost.unrecorded_readings if record is None else record.unrecorded
        ),
        "self_cpu_s": cost.self_cpu_s,
        "client": _client(snapshot.client),
        "load_runs": load_runs(snapshot.client),
        "via": snapshot.via,
        "servers": server_rows(snapshot),
        "advice": list(snapshot.advice),
        "prefix_cache": _prefix_cache(snapshot.prefix_cache),
        "speculation": speculation_row(snapshot.speculation),
        "startup": startup_row(snapshot.startup),
        **_server_counts(snapshot.server_counts),
        **cause_rows(snapshot),
        "breakdown": breakdown_row(snapshot.breakdown),
        **rows_of_several(snapshot.tenants, snapshot.spending),
        **slo_rows(snapshot),
        **spending_rows(snapshot),
        **limits_rows(snapshot),
        **hardware_rows(snapshot),
        **finding_rows(snapshot),
        "stacks": stacks_row(snapshot.stacks),
    }


def _adapters(flow: Flow) -> Summary:
    """The LoRA adapters in use and waited for; nothing where LoRA is off."""
    if flow.adapters is None:
        return {}
    return {"adapters": flow.adapters, "adapters_waiting": flow.adapters_waiting}


def _prefix_cache(cache: PrefixCache | None) -> Summary | None:
    """Prefix cache statistics from KV events; None if there are no events."""
    if cache is None:
        return None
    return asdict(cache) | {"lifetime_s": quantiles_row(cache.lifetime_s)}


def _server_counts(counts: ServerCounts) -> Summary:
    """What only a scraped server counts; nothing where none does."""
    if counts == ServerCounts():
        return {}
    lives = (counts.block_lifetime_s, counts.block_idle_s, counts.block_reuse_gap_s)
    return {
        "server_counts": {
            "pools": dict(counts.pools),
            "hit_rates": {
                name: {"hit_rate": hit_rate, "queries": queries}
                for name, hit_rate, queries in counts.hit_rates
            },
            "means": dict(counts.means),
            "times_s": dict(counts.times_s),
            "phases_s": dict(counts.phases_s),
            "scheduler": dict(counts.scheduler),
            **{each.metric: latency_row(each) for each in lives if each is not None},
        }
    }


def share(part: int | None, whole: int | None) -> float | None:
    """A share, 0-1; None if either number is unknown."""
    return None if part is None or not whole else part / whole


def _engine(snapshot: Snapshot) -> Summary | None:
    """The first rank's facts; all ranks of an engine share them."""
    if not snapshot.engines:
        return None
    info = snapshot.engines[0]
    return {
        "engine_id": info.source,
        "ranks": len(snapshot.engines),
        **{name: getattr(info, name) for name in ENGINE_FIELDS},
        **{name: snapshot.settings.get(name) for name in ENGINE_SETTINGS},
        "model": _served_name(snapshot) or info.model,
    }


def _live(limits: LiveLimits) -> Summary:
    fields = {name: getattr(limits, name) for name in LIVE_FIELDS}
    since_s = limits.t_ns / NS_PER_S
    return {"engine_id": limits.source, **fields, "since_s": since_s}


def _served_name(snapshot: Snapshot) -> str | None:
    """The model name that clients use, rather than the engine's path."""
    return snapshot.endpoints[-1].model if snapshot.endpoints else None


def _client(client: ClientView | None) -> Summary | None:
    if client is None or client.run is None:
        return None
    counts = {name: getattr(client.run, name) for name in RUN_COUNTS}
    return {**counts, **client_verdict(client), **latency_rows(client.latencies)}


def load_runs(client: ClientView | None) -> list[Summary]:
    if client is None:
        return []
    return [
        {
            "number": view.number,
            "run_id": view.run.run_id,
            "state": view.run.state,
            "asked_per_s": view.asked_mean_per_s,
            "users": view.users,
            "achieved_per_s": view.achieved_per_s,
            "done_per_s": view.run.done_per_s,
            "output_tokens_per_s": view.run.tokens_per_s,
            **(_client(view) or {}),
            "in_flight": view.run.in_flight,
            "unaccounted": view.run.unaccounted,
            "held_back": view.run.held_back,
            "slo": view.slo,
            "judged": view.judged,
            "good": view.good,
        }
        for view in client.runs
        if view.run is not None
    ]


def client_verdict(client: ClientView) -> Summary:
    """Whether the client was fast enough for the latencies it reports."""
    return {
        "verdict": client.verdict,
        "reasons": list(client.reasons),
        "cause": client.cause,
    }


def summary_text(summary: Summary) -> str:
    blocks = [
        _head(summary),
        _facts(summary),
        latency_tables("server", summary),
        server_lines(summary["servers"]),
        finding_lines(summary),
        *_client_blocks(summary["load_runs"]),
        _foot(summary),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _head(summary: Summary) -> list[str]:
    engine = summary["engine"] or {}
    what = f"{engine.get('model', 'no engine')}"
    if engine:
        what += f" · vLLM {engine['vllm_version']}"
        what += f" · {engine['device']}" if engine["device"] else ""
    elif summary["servers"]:
        what = server_head(summary["servers"])
    session = summary["session_id"]
    kept = f"session {session}" if session else "not recorded"
    return [visible(what), f"{summary['window_s']:.1f} s watched · {kept}"]


def _facts(summary: Summary) -> list[str]:
    requests, steps = summary["requests"], summary["steps"]
    bound = {k: v for k, v in steps["share_by_bound"].items() if k != "nothing" and v}
    reasons = sorted(steps["share_by_deferral"].items(), key=lambda each: -each[1])
    deferral = ", ".join(reason for reason, _ in reasons) or None
    shares = ", ".join(
        f"{bound_text(BoundBy(each), deferral)} {share:.0%}"
        for each, share in bound.items()
    )
    nothing = "nothing" if steps["share_by_bound"] else "–"
    usage = summary["kv_peak_usage"]
    peak = "–" if usage is None else f"{usage:.0%}"
    return [
        *_lowered(summary["live_limits"]),
        _line("requests", requests["finished"], f"finished{_as_sent(requests)}")
        + _part(requests["failed"], "failed")
        + _part(requests["aborted"], "aborted")
        + _ours(summary["load_runs"]),
        *refused_lines(summary["refused"]),
        _line("tokens/s", summary["output_tokens_per_s"], "out")
        + _part(summary["prompt_tokens_per_s"], "prompt"),
        _line("steps", steps["count"], "")
        + _part(steps["batch_mean"], "batch, mean")
        + _part(steps["batch_max"], "at most"),
        named_line("bound by", f"{shares} of the time" if shares else nothing),
        f"{'KV peak':<10}{peak:>7}"
        + _counted(summary["kv_peak_blocks"], "block")
        + _counted(summary["preemptions"], "preemption"),
        *_cached(summary["prefix_cache"]),
        *speculation_lines(summary),
        *startup_lines(summary),
        *cause_lines(summary),
        *slo_lines(summary),
        *spending_lines(summary),
        *limits_lines(summary),
        *hardware_lines(summary),
    ]


def _lowered(limits: list[Summary]) -> list[str]:
    """One line per rank whose limits are below those at start."""
    return [
        named_line("limits", ", ".join(_lower(each)))
        for each in limits
        if each["in_force"]
    ]


def _lower(limits: Summary) -> list[str]:
    lower = [
        f"{name} {limits[name]:,} of {limits[f'start_{name}']:,}"
        for name in LIMITS
        if limits[name] < limits[f"start_{name}"]
    ]
    return [*lower, *([f"by {limits['by']}"] if limits["by"] else [])]


def _cached(cache: Summary | None) -> list[str]:
    if cache is None:
        return []
    return [
        _line("KV events", cache["blocks"], "blocks cached")
        + _part(cache["stored"], "stored")
        + _part(cache["evicted"], "evicted")
        + _part(cache["stored_again"], "stored again")
    ]


def _client_blocks(runs: list[Summary]) -> list[list[str]]:
    """Each load run's client latencies, and whether its client was fast enough."""
    named = len(runs) > 1
    return [
        block
        for run in runs
        for block in (
            [*([run_line(run)] if named else []), *latency_tables("client", run)],
            [client_words(run["verdict"]), *doubts(run)],
        )
    ]


def run_line(run: Summary) -> str:
    rate = run["asked_per_s"]
    load = "" if rate is None else f" at {format_rate(rate).strip()}/s"
    counts = [f"{run['sent']:,} sent", f"{run['succeeded']:,} done"]
    counts += [f"{run[name]:,} {name}" for name in ("failed", "aborted") if run[name]]
    return visible(f"load {run['number']}, {run['run_id']}{load}: {', '.join(counts)}")


def _foot(summary: Summary) -> list[str]:
    own = summary["self_cpu_s"]
    cost = "–" if own is None else f"{own:.1f} s"
    lost = summary["dropped_readings"], summary["unrecorded_readings"]
    return [
        (
            f"{counted(lost[0], 'reading')} lost, {lost[1]:,} unrecorded · "
            f"inferwatch used {cost} CPU"
        ),
        "~ fewer samples than the percentile needs: 10/(1-p)",
        *(f"→ {visible(each)}" for each in summary["advice"]),
    ]


def _line(name: str, number: float | None, what: str) -> str:
    return named_line(name, what, _number(number))


def _part(number: float | None, what: str) -> str:
    return f"{_number(number)} {what}"


def _counted(number: int | None, noun: str) -> str:
    return _part(number, noun if number == 1 else f"{noun}s")


def _as_sent(requests: Summary) -> str:
    """Text with the number of requests sent; empty if each gave one sequence."""
    sent = requests["finished_as_sent"]
    if sent is None or sent == requests["finished"]:
        return ""
    return f" sequences of {counted(sent, 'request')}"


def _ours(runs: list[Summary]) -> str:
    aborted = sum(run["aborted"] for run in runs)
    return f", {aborted:,} of them by our load" if aborted else ""


def _number(number: float | None) -> str:
    return format_rate(number) if isinstance(number, float) else format_count(number)
