"""Those that a channel speaks for, in tests: they have nothing of their own to say."""

from collectors.contract.clock import monotonic_ns
from collectors.contract.readings import AnyReading, EngineInfo, Totals
from collectors.probe.hello import Role


class SilentOwner:
    """Nothing may fail there."""

    role = Role.CORE
    engine: EngineInfo | None = None

    def totals(self) -> Totals:
        return Totals(t_ns=monotonic_ns())

    def beat(self) -> list[AnyReading]:
        return []

    def report(self, text: str) -> None:
        raise AssertionError(text)

    def failed(self, error: Exception) -> None:
        raise error


class PatientOwner(SilentOwner):
    """Remembers what failed."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.reports: list[str] = []

    def report(self, text: str) -> None:
        self.reports.append(text)

    def failed(self, error: Exception) -> None:
        self.errors.append(error)
