"""One pass over a session's readings: everything the page shows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from collectors.clock import NS_PER_S
from collectors.readings import (
    LoadPlanned,
    Note,
    NoteKind,
    RequestEvent,
    RequestRecord,
    Step,
    TokenTimes,
    Totals,
)
from inferwatch.export.html.client import Client
from inferwatch.export.html.curves import Distribution, Distributions
from inferwatch.export.recording import Recording
from inferwatch.metrics.engine.outcomes import Outcomes
from inferwatch.metrics.engine.request_index import RequestIndex
from inferwatch.metrics.engine.request_tracker import RequestTracker
from inferwatch.metrics.model import Model
from inferwatch.metrics.snapshot import Snapshot, Window

BOOKMARKS = "SELECT t_ns, text FROM bookmarks WHERE session = ? ORDER BY t_ns"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """A whole session, folded."""

    snapshot: Snapshot
    server: dict[str, Distribution]
    client: Client
    plans: list[LoadPlanned]
    bookmarks: tuple[tuple[int, str], ...]


def gather(recording: Recording) -> Gathered:
    """Fold all readings; as of the session's end, as a replay shows it."""
    model, distributions = Model(), Distributions()
    lives = RequestTracker(RequestIndex(), distributions, Outcomes())
    client = Client(max(recording.session.duration_ns, NS_PER_S))
    plans: list[LoadPlanned] = []
    heard = _listeners(lives, client) | {LoadPlanned: plans.append}
    for reading in recording.readings():
        model.fold(reading)
        if hear := heard.get(type(reading)):
            hear(reading)
    number = recording.session.session
    now_ns = recording.session.duration_ns
    return Gathered(
        snapshot=model.snapshot(now_ns, Window.SESSION, requests=False, client=True),
        server=distributions.of,
        client=client,
        plans=plans,
        bookmarks=tuple(recording.connection.execute(BOOKMARKS, (number,))),
    )


def _listeners(
    lives: RequestTracker, client: Client
) -> dict[type, Callable[[Any], object]]:
    """Who wants which readings, beside the Model."""

    def note(note: Note) -> None:
        if note.kind is NoteKind.DROPPED:
            lives.dropped(note)
        elif note.kind is NoteKind.LOST:
            lives.lost(note)

    return {
        Step: lives.step,
        RequestEvent: lives.event,
        Totals: lives.totals,
        Note: note,
        RequestRecord: client.record,
        TokenTimes: client.times,
    }
