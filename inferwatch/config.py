"""Settings: flags first, then a few ``INFERWATCH_`` variables, then these defaults."""

import os
from dataclasses import dataclass
from pathlib import Path

from inferwatch.storage.location import default_database


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """What every watching command accepts."""

    headless: bool = False
    duration_s: float | None = None
    as_json: bool = False
    name: str | None = None
    database: Path | None = None
    record: bool = True

    @property
    def database_path(self) -> Path:
        """Where this session is recorded."""
        return self.database or default_database()


def color_wanted() -> bool:
    """Colour unless NO_COLOR is set (https://no-color.org)."""
    return not os.environ.get("NO_COLOR")
