"""What a watching command was told to do."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """The options that every watching command shares."""

    headless: bool = False
    duration_s: float | None = None
    """Counted from the moment the engine is up."""
    as_json: bool = False
    name: str | None = None
    database: Path | None = None
    """None: the default one."""
    record: bool = True
