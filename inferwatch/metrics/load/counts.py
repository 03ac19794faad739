"""What became of the requests of a run, counted as they end."""

import msgspec

from collectors.readings import Phase, RequestRecord
from inferwatch.metrics.load.book import ABORTED
from inferwatch.metrics.load.view import FailureCount

MOST_KINDS = 50


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """Requests at one moment; what set out has ended or is in flight."""

    sent: int = 0
    begun: int = 0
    """Requests that set out; of conversations: their first turns that have ended."""
    in_flight: int | None = None
    succeeded: int = 0
    failed: int = 0
    aborted: int = 0


class Counts(msgspec.Struct):
    """Requests that have ended, the warm-up's apart."""

    sent: int = 0
    succeeded: int = 0
    failed: int = 0
    aborted: int = 0
    warmup: int = 0
    begun: int = 0
    """First turns."""
    in_turns: bool = False
    """They are turns of conversations."""
    flown: int = 0
    """Sent in any phase."""
    by_kind: dict[str, FailureCount] = {}
    """Of failure."""

    def take(self, record: RequestRecord) -> None:
        """One more."""
        sent = record.sent_ns is not None
        self.flown += sent
        if record.phase is Phase.WARMUP:
            self.warmup += 1
            return
        self.sent += 1
        self.begun += record.turn in {None, 1}
        self.in_turns |= record.turn is not None
        if record.failure is None:
            self.succeeded += 1
        elif record.failure == ABORTED:
            self.aborted += 1
        else:
            self.failed += 1
            self._failed(record.failure, record.detail or "")

    def tally(self, in_flight: int | None, *, warming_up: bool = False) -> Tally:
        """As of now; what is in flight in a warm-up is the warm-up's."""
        flying = 0 if warming_up else in_flight or 0
        return Tally(
            sent=self.sent + flying,
            begun=self.begun + (0 if self.in_turns else flying),
            in_flight=in_flight,
            succeeded=self.succeeded,
            failed=self.failed,
            aborted=self.aborted,
        )

    def failures(self) -> tuple[FailureCount, ...]:
        """Most frequent first."""
        return tuple(
            sorted(self.by_kind.values(), key=lambda each: (-each.count, each.kind))
        )

    def _failed(self, kind: str, said: str) -> None:
        before = self.by_kind.get(kind)
        if before is None and len(self.by_kind) >= MOST_KINDS:
            return
        self.by_kind[kind] = FailureCount(
            kind=kind,
            count=1 if before is None else before.count + 1,
            first=said if before is None else before.first,
        )
