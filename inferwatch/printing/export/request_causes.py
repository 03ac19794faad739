"""Why each request of a session was late, in a row each: parts of its TTFT in seconds.

Nothing of this is recorded: the Model tells it of the readings, as it does on screens.
"""

from collections.abc import Iterator
from typing import Any

from collectors.contract.readings import EventKind, RequestEvent
from inferwatch.errors import StorageError
from inferwatch.metrics.causes.cause import TTFT_CAUSES
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.requests.request_index import MOST_ROWS
from inferwatch.metrics.requests.request_row import RequestRow
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.printing.export.recording import Recording
from inferwatch.record.file.sqlite import RECOVER
from inferwatch.record.tables.table import UNREADABLE

REQUEST_CAUSES = "request_causes"
FACTS = (
    "arrived_ns",
    "request_id",
    "external_id",
    "state",
    "class_name",
    "lora",
    "priority",
    "header",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "preemptions",
    "ttft_s",
    "cause",
)
COLUMNS = (
    *FACTS,
    *(f"{cause.name.lower()}_s" for cause in TTFT_CAUSES),
    "itl_max_s",
    "itl_cause",
)
LOOK_EVERY = MOST_ROWS // 4
"""Requests that end: the Model has rows of the latest of them only."""


def request_causes(recording: Recording) -> Iterator[tuple[Any, ...]]:
    """The rows, of requests that have not ended too; about in order of arrival.

    Raises:
        StorageError: what is recorded makes no sense.
    """
    try:
        yield from _told(recording)
    except UNREADABLE as error:
        raise StorageError(
            f"the record is damaged: why requests were late cannot be told; {RECOVER}"
        ) from error


def _told(recording: Recording) -> Iterator[tuple[Any, ...]]:
    model, ended = Model(), 0
    known: dict[str, RequestRow] = {}
    for reading in recording.readings():
        model.fold(reading)
        if isinstance(reading, RequestEvent) and reading.kind is EventKind.FINISHED:
            ended += 1
            if ended % LOOK_EVERY == 0:
                known, before = _rows(model, recording), known
                yield from (_row(before[key]) for key in before if key not in known)
    known, before = _rows(model, recording), known
    yield from (_row(before[key]) for key in before if key not in known)
    yield from map(_row, known.values())


def _rows(model: Model, recording: Recording) -> dict[str, RequestRow]:
    """All that the Model has, the first to arrive first."""
    now_ns = recording.session.duration_ns
    shown = model.snapshot(now_ns, SnapshotQuery(Window.TEN_SECONDS, client=False))
    return {row.key: row for row in reversed(shown.requests)}


def _row(row: RequestRow) -> tuple[Any, ...]:
    """Parts are zero where the TTFT is explained without them, else unknown."""
    parts = dict(row.ttft_parts)
    nothing = 0.0 if parts else None
    return (
        *(getattr(row, name) for name in FACTS),
        *(parts.get(cause, nothing) for cause in TTFT_CAUSES),
        row.itl_max_s,
        row.itl_cause,
    )
