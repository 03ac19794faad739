"""The phases of a request, for bars and details."""

from collections.abc import Sequence

from collectors.contract.clock import NS_PER_S
from inferwatch.metrics.requests.request_row import RequestRow, RequestState
from inferwatch.ui.kit.renderables.bars import Phase

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
"""Phase of a live request, whose time is still growing."""
BEFORE_FIRST_TOKEN = (
    RequestState.ARRIVED,
    RequestState.QUEUED,
    RequestState.PREFILL,
)
PHASE_INKS = {
    "API": "muted",
    "queue": "waiting",
    "prefill": "prefill",
    "decode": "decode",
}
PHASE_GLYPHS = "·░⣿█"
"""One glyph per phase, so that they differ without colour."""


def phases(row: RequestRow, now_ns: int) -> list[Phase]:
    """Return the request's phases so far with their seconds, in order."""
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


def length_s(spent: Sequence[Phase]) -> float:
    return sum(seconds or 0.0 for _, seconds, _ in spent)
