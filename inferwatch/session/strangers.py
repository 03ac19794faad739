"""Whether others use the engine: requests that are not of our load."""

from collectors.clock import NS_PER_S
from collectors.readings import AnyReading, EventKind, RequestEvent
from inferwatch.metrics.engine.outcomes import client_id

RECENT_NS = 30 * NS_PER_S


class Strangers:
    """Remembers when the engine last worked for someone else."""

    def __init__(self) -> None:
        self._our_runs: set[str] = set()
        self._live: set[str] = set()
        self._seen_ns: int | None = None
        self.informed = False
        """The front end tells whose requests come."""

    def own(self, run_id: str) -> None:
        """Requests whose ids begin so are ours."""
        self._our_runs.add(run_id)

    def hear(self, reading: AnyReading) -> None:
        """A reading of the engine's probe, in session time."""
        if not isinstance(reading, RequestEvent):
            return
        arrived = reading.kind is EventKind.ARRIVED
        self.informed = self.informed or arrived
        if arrived and not self._ours(reading.external_id):
            self._live.add(reading.request_id)
        elif reading.request_id not in self._live:
            return
        elif reading.kind is EventKind.FINISHED:
            self._live.discard(reading.request_id)
        self._seen_ns = max(self._seen_ns or reading.t_ns, reading.t_ns)

    def forget(self) -> None:
        """The engine is gone, and its requests with it."""
        self._live.clear()
        self._seen_ns = None

    def recent(self, now_ns: int) -> bool:
        """One of theirs runs, or did so a moment ago."""
        if self._live:
            return True
        return self._seen_ns is not None and now_ns - self._seen_ns < RECENT_NS

    def _ours(self, external_id: str | None) -> bool:
        run_id, _, index = client_id(external_id or "").rpartition("-")
        return index.isdecimal() and run_id in self._our_runs
