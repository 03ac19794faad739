"""A session as a trace, in one pass over its readings."""

from collections.abc import Callable
from typing import Any

from collectors.readings import (
    HostSample,
    LoadEvent,
    LoadPlanned,
    Note,
    NoteKind,
    RequestEvent,
    RequestRecord,
    Step,
    Totals,
)
from inferwatch.export.perfetto.engine import Engines
from inferwatch.export.perfetto.lives import Lives
from inferwatch.export.perfetto.others import Client, Session
from inferwatch.export.perfetto.trace import Trace
from inferwatch.export.recording import Recording
from inferwatch.export.tables import EVERYWHEN, Span
from inferwatch.export.target import Target

BOOKMARKS = "SELECT t_ns, text FROM bookmarks WHERE session = ? ORDER BY t_ns"


def write_perfetto(
    recording: Recording, target: Target, span: Span = EVERYWHEN
) -> None:
    """One JSON file; what lies outside the span is left out."""
    with target.file() as out:
        trace = Trace(out, recording.start_monotonic_ns, span)
        trace.open(_about(recording))
        _Writer(trace).follow(recording)
        trace.close()


class _Writer:
    """Knows which reading is drawn by whom."""

    def __init__(self, trace: Trace) -> None:
        self._session = Session(trace)
        self._engines = Engines(trace)
        self._lives = Lives(trace)
        client = Client(trace)
        self._draw: dict[type, Callable[[Any], None]] = {
            Step: self._step,
            RequestEvent: self._lives.event,
            Totals: self._engines.totals,
            Note: self._note,
            LoadPlanned: self._session.planned,
            LoadEvent: self._session.load,
            HostSample: self._session.host,
            RequestRecord: client.record,
        }

    def follow(self, recording: Recording) -> None:
        """To the end of the record."""
        number = recording.session.session
        for t_ns, text in recording.connection.execute(BOOKMARKS, (number,)):
            self._session.bookmark(text, t_ns)
        for reading in recording.readings():
            draw = self._draw.get(type(reading))
            if draw is not None:
                draw(reading)
        self._lives.cut()
        self._engines.close()

    def _step(self, step: Step) -> None:
        self._engines.step(step)
        self._lives.step(step)

    def _note(self, note: Note) -> None:
        self._session.note(note)
        if note.kind is NoteKind.LOST:
            self._lives.cut(note.source)


def _about(recording: Recording) -> dict[str, object]:
    row = recording.session
    return {
        "made_by": f"inferwatch {row.inferwatch_version}",
        "session": row.id,
        "name": row.name,
        "model": row.model,
        "started_unix_ns": row.started_ns,
        "clock": "CLOCK_MONOTONIC of the host",
    }
