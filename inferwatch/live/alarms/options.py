"""What people ask of rules; light, for the command line reads it before all else."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmOptions:
    """What people asked for."""

    record_on: str | None = None
    """Rules: what led to them is recorded, nothing else."""
    alert: str | None = None
    """Rules that are only told."""
    keep_s: float = 300.0
    keep_bytes: int = 256_000_000
    record_after_s: float = 60.0
    """A recording ends when no rule has held for so long."""
    on_alert: tuple[str, ...] = ()
    """A command and its arguments."""
    alert_every_s: float = 60.0
    """Of one rule, at most one alert in so long."""

    @property
    def any(self) -> bool:
        """There is a rule."""
        return self.record_on is not None or self.alert is not None
