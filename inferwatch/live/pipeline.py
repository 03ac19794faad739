"""The one path that every reading takes: it is numbered, recorded and folded."""

from collections.abc import Sequence
from pathlib import Path

from collectors.contract.collector import Collector, Listener
from collectors.contract.readings import AnyReading, Note, NoteKind, Tick
from inferwatch.feed import FlightState, RecordState
from inferwatch.live.recent_readings import RecentReadings
from inferwatch.metrics.findings.finding import (
    NO_LONGER,
    TAKEN_BACK,
    Finding,
    PastFinding,
)
from inferwatch.metrics.findings.tracker import is_told_otherwise
from inferwatch.metrics.load.receipt_clock import ReceiptClock
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.objectives.view import SloState
from inferwatch.metrics.series.saving import CheckpointPace
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.metrics.steps.profiles import SessionProfile
from inferwatch.record.checkpoints.checkpoints import (
    UNSAVABLE,
    Checkpoint,
    no_checkpoints,
)
from inferwatch.record.flight.flight_recorder import FlightRecorder
from inferwatch.record.writing.recorder import Recorder


class Pipeline:
    """Gives each reading its ordinal, records it and folds it into the Model."""

    def __init__(
        self,
        model: Model,
        recorder: Recorder | FlightRecorder | None = None,
        listener: Listener | None = None,
    ) -> None:
        self._model = model
        self._recorder = recorder
        self._listener = listener
        """Called with every reading, of all sources."""
        self.recent = RecentReadings()
        """The latest readings, for lookups of single steps and requests."""
        self._ordinal = 0
        self._receipts = ReceiptClock()
        self._pace = CheckpointPace()
        self._trouble_noted = False
        self._noted: dict[str, Finding] = {}
        """Findings that hold and whose beginning was noted, by name."""

    def take(self, readings: Sequence[AnyReading]) -> None:
        for reading in readings:
            self._ordinal += 1
            if self._recorder is not None:
                self._recorder.put(self._ordinal, reading)
            self._model.fold(reading)
            self.recent.take(reading)
            if self._listener is not None:
                self._listener(reading)
            t_ns = self._receipts.take(reading)
            if self._recorder is not None and self._pace.due(reading, t_ns):
                self._keep(self._recorder, t_ns)

    def _keep(self, recorder: Recorder | FlightRecorder, t_ns: int) -> None:
        """Record a checkpoint of the Model, without which a replay is slow."""
        trouble = recorder.keeps_no_more
        if recorder.keeps:
            try:
                saved = self._model.saved()
                recorder.keep(Checkpoint(self._ordinal, t_ns, saved))
            except UNSAVABLE as error:
                trouble = no_checkpoints(error)
        if trouble is not None and not self._trouble_noted:
            self._trouble_noted = True
            self.take([Note(t_ns=t_ns, kind=NoteKind.RECORDER, text=trouble)])

    async def pump(self, collector: Collector) -> None:
        """Take everything that a collector reports, until it ends or fails."""
        async for batch in collector.batches():
            self.take(batch)

    def tick(self, now_ns: int) -> None:
        """Take a tick, a moment that replay can stop at, and note changed findings."""
        self.take([Tick(t_ns=now_ns)])
        self._note_findings(now_ns)

    def _note_findings(self, now_ns: int) -> None:
        """Note which findings began to hold by this tick, and which ended.

        A note is of the time since which its finding holds. One that another explains
        as well is noted neither when it begins nor, if the other took over, when it
        ends.
        """
        findings = {each.name: each for each in self._model.findings}
        fresh = [each for name, each in findings.items() if name not in self._noted]
        gone = [each for name, each in self._noted.items() if name not in findings]
        others: list[Finding | PastFinding] = [*findings.values(), *gone]
        others += self._model.past_findings if fresh else ()
        began = [each for each in fresh if not is_told_otherwise(each, others)]
        notes = [(each.since_ns, f"{each.title}: {each.sentence}") for each in began]
        untrue = self._model.untrue if gone else ()
        notes += [
            (
                now_ns,
                f"{each.title}: {TAKEN_BACK if each.name in untrue else NO_LONGER}",
            )
            for each in gone
            if not is_told_otherwise(each, findings.values())
        ]
        for each in gone:
            del self._noted[each.name]
        self._noted |= {each.name: each for each in began}
        kind = NoteKind.FINDING
        self.take([Note(t_ns=t_ns, kind=kind, text=text) for t_ns, text in notes])

    def snapshot(self, now_ns: int, query: SnapshotQuery) -> Snapshot:
        """Return a snapshot as of now, of all servers or of one source."""
        record = self.record
        self._model.unrecorded_readings = record.unrecorded if record else 0
        return self._model.snapshot(now_ns, query)

    @property
    def slo_missed_since_ns(self) -> int | None:
        """The time since which too few requests are good; None while enough are."""
        return self._model.slo_missed_since_ns

    def slo(self, now_ns: int, window: Window) -> SloState | None:
        """Return how many requests hold their objectives; cheaper than a snapshot."""
        return self._model.slo(now_ns, window, window.value or now_ns, None)

    def stalls(self, now_ns: int) -> dict[str, int]:
        """Return since when engines are stalled, by source; cheap, too."""
        return self._model.stalls_now(now_ns)

    @property
    def notes(self) -> tuple[Note, ...]:
        """The latest notes, oldest first; cheaper than a snapshot of a fleet."""
        return self._model.notes

    @property
    def profiles(self) -> tuple[SessionProfile, ...]:
        """The latest profiles, oldest first; cheaper than a snapshot, too."""
        return self._model.profiles

    @property
    def record(self) -> RecordState | None:
        """The state of the recorder; None when nothing is recorded."""
        recorder = self._recorder
        if recorder is None:
            return None
        health = recorder.health
        return RecordState(
            session_id=recorder.session_id,
            file_bytes=health.file_bytes,
            grown_bytes=health.grown_bytes,
            written=health.written,
            unrecorded=health.unrecorded,
            message=health.message,
            flight=_flight(recorder) if isinstance(recorder, FlightRecorder) else None,
        )

    @property
    def database(self) -> Path | None:
        """The record's file; None for a flight recorder, whose times are its own."""
        recorder = self._recorder
        return recorder.path if isinstance(recorder, Recorder) else None

    @property
    def ended_ns(self) -> int | None:
        """When the record ended; None if there is none, or it goes on."""
        return None if self._recorder is None else self._recorder.ended_ns

    def close(self) -> None:
        """Write what is pending and close the record; may take a moment."""
        if self._recorder is not None:
            self._recorder.close()


def _flight(recorder: FlightRecorder) -> FlightState:
    return FlightState(
        keep_s=recorder.kept.keep_s,
        kept_s=recorder.kept.covered_s,
        kept_bytes=recorder.kept.bytes,
        cut_short=recorder.kept.cut_short,
        sessions=recorder.sessions,
        because=recorder.because,
        since_ns=recorder.since_ns,
    )
