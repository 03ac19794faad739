"""Attached servers in a summary, each by itself."""

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import counted, format_rate, format_share
from inferwatch.metrics.servers.server_state import ServerState
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.printing.summary.latencies import Summary, latency_rows
from inferwatch.printing.summary.speculation import speculation_row
from inferwatch.visible import visible

MOST_LINES = 20
NUMBERS = (
    "running",
    "waiting",
    "kv_usage",
    "arrivals_per_s",
    "output_tokens_per_s",
    "prefix_hit_rate",
    "failed",
    "preemptions",
)


def server_rows(snapshot: Snapshot) -> list[Summary]:
    return [_server(state, snapshot.now_ns) for state in snapshot.servers]


def _server(state: ServerState, now_ns: int) -> Summary:
    info, round_trip_ns = state.info, state.round_trip_ns
    return {
        "source": state.source,
        "rank": state.rank,
        "name": info.name if info else state.source,
        "family": info.family if info else None,
        "version": info.version if info else None,
        "models": list(info.models) if info else [],
        "url": info.url if info else None,
        "uds": info.uds if info else None,
        "via": state.via,
        "answers": state.answers,
        "why": state.why,
        "age_s": _ago(state.last_ns, now_ns),
        "restarted_ago_s": _ago(state.restarted_ns, now_ns),
        "round_trip_s": None if round_trip_ns is None else round_trip_ns / NS_PER_S,
        **{name: getattr(state, name) for name in NUMBERS},
        "speculation": speculation_row(state.speculation),
        **latency_rows(state.latencies),
        "remark": state.remark,
    }


def _ago(then_ns: int | None, now_ns: int) -> float | None:
    return None if then_ns is None else (now_ns - then_ns) / NS_PER_S


def server_head(servers: list[Summary]) -> str:
    if len({server["source"] for server in servers}) > 1:
        names = len({server["source"] for server in servers})
        models = {model for server in servers for model in server["models"]}
        of = f" of {models.pop()}" if len(models) == 1 else ""
        return visible(f"{counted(names, 'server')}{of}")
    server = servers[0]
    words = [*server["models"][:1], _engine(server), server["name"], server["via"]]
    return visible(" · ".join(word for word in words if word))


def _engine(server: Summary) -> str:
    family, version = server["family"], server["version"]
    return " ".join(word for word in (family, version) if word)


def server_lines(servers: list[Summary]) -> list[str]:
    """One line per server if there are several, and why one does not answer."""
    listed = servers if len(servers) > 1 else [s for s in servers if not s["answers"]]
    lines = [_line(server) for server in listed[:MOST_LINES]]
    left = len(listed) - len(lines)
    return lines + ([f"and {left} more: --json has them all"] if left else [])


def _line(server: Summary) -> str:
    rank = f" rank {server['rank']}" if server["rank"] != "0" else ""
    name = f"{server['name']}{rank}"
    if not server["answers"]:
        return visible(f"{name:<24} no answer: {server['why'] or 'none came'}")
    running, waiting = server["running"], server["waiting"]
    words = [
        f"{'–' if running is None else running} running",
        f"{'–' if waiting is None else waiting} waiting",
        f"KV {format_share(server['kv_usage']).strip()}",
        f"{format_rate(server['output_tokens_per_s']).strip()} tok/s",
        *([server["remark"]] if server["remark"] else []),
    ]
    return visible(f"{name:<24} {'  '.join(words)}")
