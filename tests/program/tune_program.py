"""The command ``inferwatch tune``, started in a home of its own."""

import json
import subprocess
from typing import Any

from inferwatch.record.connections import reading
from inferwatch.studies.tune.running.journal import StoredTune, stored_tune
from tests.program.conftest import PROGRAM, Home

LOAD = ("--rate=8", "--trial=2", "--warmup=0.5", "--output-tokens=8-24", "--seed=3")
GOAL = ("--slo", "ttft_s<5", "--repeats=2")
TOOK_S = 150.0


class Tune:
    """The command, started in a home."""

    def __init__(self, home: Home, *arguments: str) -> None:
        self.home = home
        self.process = subprocess.Popen(
            [*PROGRAM, "tune", "--json", *arguments],
            env=home.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ended(self) -> tuple[int, dict[str, Any], str]:
        """Its exit status, what it printed, and what it said."""
        printed, said = self.process.communicate(timeout=TOOK_S)
        return self.process.returncode, json.loads(printed or "{}"), said

    def trials(self) -> int:
        """So many are in the record."""
        stored = stored_in(self.home)
        return len(stored.records) if stored else 0


def stored_in(home: Home) -> StoredTune | None:
    """The only tune of a home."""
    if not home.database.exists():
        return None
    with reading(home.database) as connection:
        found = connection.execute("SELECT max(tune_id) FROM tunes").fetchone()
    return stored_tune(home.database, found[0]) if found[0] else None
