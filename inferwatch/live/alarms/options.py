"""The options of alarm rules; light, as the command line reads it before all else."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmOptions:
    """The options of alarm rules, as the user gave them."""

    record_on: str | None = None
    """Rules that begin a recording; nothing else is recorded."""
    alert: str | None = None
    """Rules that only alert."""
    keep_s: float = 300.0
    keep_bytes: int = 256_000_000
    record_after_s: float = 60.0
    """A recording ends when no rule has held for this long."""
    on_alert: tuple[str, ...] = ()
    """The command that each alert runs, with its arguments."""
    alert_every_s: float = 60.0
    """One rule alerts at most once in this time."""

    @property
    def any(self) -> bool:
        return self.record_on is not None or self.alert is not None
