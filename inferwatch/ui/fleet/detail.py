"""One server of the fleet: what it is, how long it takes, what is the matter."""

from collections.abc import Iterator, Sequence

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import (
    counted,
    format_bracket,
    format_count,
    format_duration,
    format_share,
)
from inferwatch.metrics.catalog import label_of
from inferwatch.metrics.fleet import FleetServer, percentile_of
from inferwatch.metrics.series.window import Bracket, Latency
from inferwatch.metrics.servers.server_state import ServerState
from inferwatch.ui.fleet.table import what_is_the_matter
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, fit, join_whole, ruled

SHOWN = ("ttft_s", "queue_s", "prefill_s", "tpot_s", "itl_s", "e2el_s")


class ServerDetail(Panel):
    """The server under the cursor."""

    DEFAULT_CSS = """
    ServerDetail { height: 5; margin-top: 1; }
    """

    _server: FleetServer | None = None

    def show(self, server: FleetServer | None) -> None:
        """Take the one that is pointed at."""
        self._server = server
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Heading, what it is, latencies, what is the matter."""
        del height
        server = self._server
        if server is None:
            return ()
        enter = (
            TextRun("enter", "accent", "screen.look_into"),
            TextRun(" all its screens", "muted", "screen.look_into"),
        )
        matter = what_is_the_matter(server) or _advice(server.state)
        rows = (
            join_whole(_identity(server), width - 2, "   "),
            join_whole(_latencies(server.state), width - 2, "   "),
            join_whole(_facts(server.state), width - 2, "   "),
            matter,
        )
        head = ruled((TextRun(server.name, "strong"),), enter, width)
        return [head, *(fit((TextRun("  "), *line), width) for line in rows)]


def _identity(server: FleetServer) -> Iterator[Line]:
    info = server.state.info
    if info is None:
        yield (TextRun(server.state.source),)
        return
    yield (TextRun(info.url or info.uds or server.state.source),)
    yield (TextRun(server.engine or ""),)
    yield (TextRun(", ".join(info.models[:3]), "muted"),)
    if server.ranks:
        yield (TextRun(counted(len(server.ranks), "rank"), "muted"),)
    if info.max_model_len is not None:
        yield _fact("max_model_len", f"{info.max_model_len:,}")


def _latencies(state: ServerState) -> Iterator[Line]:
    rows = {row.metric: row for row in state.latencies}
    for metric in SHOWN:
        row = rows.get(metric)
        if row is not None and row.quantiles.n:
            mean = format_duration(row.quantiles.mean).strip()
            high = _percentile(row)
            told = f"{mean} mean, {high} p99" if high else f"{mean} mean"
            yield _fact(label_of(metric), told)


def _percentile(row: Latency) -> str:
    value = percentile_of(row, "p99")
    if value is None:
        return ""
    if isinstance(value, Bracket):
        return format_bracket(value.low, value.high)
    mark = "~" if "p99" in row.quantiles.weak else ""
    return f"{mark}{format_duration(value).strip()}"


def _facts(state: ServerState) -> Iterator[Line]:
    ttft = next((row for row in state.latencies if row.metric == "ttft_s"), None)
    if ttft is not None and ttft.quantiles.n:
        count = format_count(ttft.quantiles.n).strip()
        yield _fact("TTFT of", f"{count} requests")
    if state.prefix_hit_rate is not None:
        yield _fact("prefix hits", format_share(state.prefix_hit_rate).strip())
    if state.preemptions is not None:
        yield _fact(label_of("flow.preemptions"), f"{state.preemptions:,}")
    if state.failed is not None:
        yield _fact(label_of("flow.failed"), f"{state.failed:,}")
    if state.round_trip_ns is not None:
        trip = format_duration(state.round_trip_ns / NS_PER_S).strip()
        yield _fact("round trip", trip)


def _advice(state: ServerState) -> Line:
    info = state.info
    return (TextRun(info.advice[0], "muted"),) if info and info.advice else ()


def _fact(label: str, value: str) -> Line:
    return (TextRun(f"{label} ", "muted"), TextRun(value))
