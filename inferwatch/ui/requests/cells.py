"""The columns of the request table: what each writes and from which width on."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from collectors.clock import NS_PER_S
from inferwatch.formatting import format_count, format_duration
from inferwatch.metrics.catalog import label_of
from inferwatch.metrics.snapshot import RequestRow, RequestState
from inferwatch.ui.shared.renderables.text import TextRun, cells
from inferwatch.ui.shared.renderables.waterfall import Phase
from inferwatch.visible import visible

STATES = {
    RequestState.ARRIVED: ("·", "muted"),
    RequestState.QUEUED: ("◔", "waiting"),
    RequestState.PREFILL: ("◑", "prefill"),
    RequestState.DECODE: ("●", "decode"),
    RequestState.PREEMPTED: ("◌", "warn"),
    RequestState.FINISHED: ("✓", "muted"),
    RequestState.ABORTED: ("⊘", "muted"),
    RequestState.FAILED: ("✖", "bad"),
}
RUNNING = {
    RequestState.ARRIVED: "API",
    RequestState.QUEUED: "queue",
    RequestState.PREFILL: "prefill",
    RequestState.DECODE: "decode",
}
"""The phase a live request is in: its time goes on."""
PHASE_INKS = {
    "API": "muted",
    "queue": "waiting",
    "prefill": "prefill",
    "decode": "decode",
}
ID_WIDTH = 14


class Cell(NamedTuple):
    """A column that is not stretched."""

    key: str
    """As in :data:`inferwatch.ui.requests.order.SORTS`."""
    title: str
    width: int
    from_width: int
    write: Callable[[RequestRow, int], TextRun]


def _seconds(name: str, width: int = 9) -> Callable[[RequestRow, int], TextRun]:
    def write(row: RequestRow, now_ns: int) -> TextRun:
        del now_ns
        value = getattr(row, name)
        return cells(
            format_duration(value).strip(),
            width,
            "faint" if value is None else "",
            right=True,
        )

    return write


def _state(row: RequestRow, now_ns: int) -> TextRun:
    del now_ns
    glyph, ink = STATES[row.state]
    return cells(f" {glyph} {row.state.value}", 13, ink)


def _prompt(row: RequestRow, now_ns: int) -> TextRun:
    del now_ns
    return cells(format_count(row.prompt_tokens).strip(), 7, right=True)


def _output(row: RequestRow, now_ns: int) -> TextRun:
    del now_ns
    return cells(format_count(row.output_tokens).strip(), 7, right=True)


def _e2el(row: RequestRow, now_ns: int) -> TextRun:
    """While it lives, its age with a ``+``: it will be at least that."""
    if row.e2el_s is None and row.state.live:
        age = format_duration(max(now_ns - row.arrived_ns, 0) / NS_PER_S).strip()
        return cells(f"{age}+", 10, "muted", right=True)
    return cells(f"{format_duration(row.e2el_s).strip()} ", 10, right=True)


def _preemptions(row: RequestRow, now_ns: int) -> TextRun:
    del now_ns
    ink = "warn" if row.preemptions else "faint"
    return cells(str(row.preemptions), 5, ink, right=True)


def _reason(row: RequestRow, now_ns: int) -> TextRun:
    del now_ns
    return cells(f"  {row.reason or ''}", 10, "muted")


STATE = Cell("state", " state", 13, 0, _state)
CELLS: Sequence[Cell] = (
    Cell("prompt", label_of("request.prompt_tokens"), 7, 0, _prompt),
    Cell("output", label_of("request.output_tokens"), 7, 0, _output),
    Cell("queue", label_of("request.queue_s"), 9, 0, _seconds("queue_s")),
    Cell("ttft", label_of("request.ttft_s"), 9, 0, _seconds("ttft_s")),
    Cell("tpot", label_of("request.tpot_s"), 9, 0, _seconds("tpot_s")),
    Cell("itl", label_of("request.itl_last_s"), 9, 96, _seconds("itl_last_s")),
    Cell("itl_max", label_of("request.itl_max_s"), 9, 110, _seconds("itl_max_s")),
    Cell("e2el", "E2EL ", 10, 0, _e2el),
    Cell("preemptions", label_of("request.preemptions"), 5, 110, _preemptions),
    Cell("reason", "  reason", 10, 100, _reason),
)


def short_id(row: RequestRow, width: int) -> str:
    """What tells requests apart: ids share their beginning, so it goes first."""
    name = visible(row.external_id or row.request_id)
    for prefix in ("chatcmpl-", "cmpl-"):
        name = name.removeprefix(prefix)
    return name if len(name) <= width else f"…{name[-max(width - 1, 1) :]}"


def phases(row: RequestRow, now_ns: int) -> list[Phase]:
    """The intervals of a request so far, in the order they happened."""
    api_s = None
    if row.ttft_s is not None and row.queue_s is not None and row.prefill_s is not None:
        api_s = max(row.ttft_s - row.queue_s - row.prefill_s, 0.0)
    spent = {
        "API": api_s,
        "queue": row.queue_s,
        "prefill": row.prefill_s,
        "decode": row.decode_s,
    }
    now_in = RUNNING.get(row.state)
    if now_in is not None and spent[now_in] is None:
        known_s = sum(seconds for seconds in spent.values() if seconds is not None)
        spent[now_in] = max((now_ns - row.arrived_ns) / NS_PER_S - known_s, 0.0)
    return [(name, seconds, PHASE_INKS[name]) for name, seconds in spent.items()]
