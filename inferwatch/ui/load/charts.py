"""The charts of a load: what its client saw."""

from collections.abc import Callable, Sequence

from inferwatch.formatting import format_duration, format_rate
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.shared.chart_plan import ChartPlan, Series
from inferwatch.ui.shared.renderables.blocks import Texture


def _client(name: str) -> Callable[[Snapshot], Sequence[float | None]]:
    """A column of the client's timeline; none where there is no load."""

    def values(snapshot: Snapshot) -> Sequence[float | None]:
        if snapshot.client is None:
            return ()
        column: Sequence[float | None] = getattr(snapshot.client.timeline, name)
        return column

    return values


def _latency(title: str, note: str, name: str) -> ChartPlan:
    return ChartPlan(
        title=title,
        note=note,
        unit="s",
        stacked=False,
        series=(
            Series(
                label="mean",
                ink="mean",
                texture=Texture.SOLID,
                values=_client(f"{name}_mean_s"),
                show=format_duration,
            ),
            Series(
                label="max",
                ink="worst",
                texture=Texture.DOTTED,
                values=_client(f"{name}_max_s"),
                fold=max,
                show=format_duration,
            ),
        ),
    )


_SENT = Series(
    label="sent",
    ink="output",
    texture=Texture.SOLID,
    values=_client("sent_per_s"),
    show=format_rate,
)
_ASKED = Series(
    label="asked",
    ink="waiting",
    texture=Texture.DOTTED,
    values=_client("asked_per_s"),
    show=format_rate,
)
RATE = ChartPlan(
    title="rate",
    note="client, requests/s",
    stacked=False,
    series=(_SENT, _ASKED),
)
TTFT = _latency("TTFT", "client, from due time", "ttft")
ITL = _latency("ITL", "client, between chunks", "itl")
