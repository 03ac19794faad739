"""Predicts a recorded load under other settings, and prints that."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from collectors.contract.readings import AnyReading
from inferwatch.cli.say import RowsProgress, say, say_damage, say_json
from inferwatch.errors import UsageError
from inferwatch.record.connections import reading
from inferwatch.record.lookup.recorded_readings import chosen_readings
from inferwatch.record.sessions.sessions import SessionRow, find
from inferwatch.studies.what_if.heard import KINDS
from inferwatch.studies.what_if.prediction import predict
from inferwatch.studies.what_if.priorities import read_priorities, with_priorities
from inferwatch.studies.what_if.recorded import recorded_run
from inferwatch.studies.what_if.setting import (
    SettingChange,
    combined,
    policies_asked,
)
from inferwatch.studies.what_if.table import as_json, text

PATIENCE = 1_000
"""How many readings are read between two updates of the progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfOptions:
    """The options of ``inferwatch what-if``, as the user gave them."""

    max_num_seqs: tuple[int, ...] = ()
    max_num_batched_tokens: tuple[int, ...] = ()
    kv_blocks: tuple[int, ...] = ()
    rate: tuple[float, ...] = ()
    policy: tuple[str, ...] = ()
    priorities: tuple[str, ...] = ()
    """Lines of ``NAME=N ...``."""
    source: str | None = None
    as_json: bool = False

    def changes(self) -> list[SettingChange]:
        """Return a change for each combination of values.

        Raises:
            UsageError: nothing is to be changed, or there are too many combinations.
        """
        changes = combined(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            kv_blocks=self.kv_blocks,
            rate=self.rate,
            policy=policies_asked(self.policy, given=bool(self.priorities)),
        )
        if not changes:
            raise UsageError(
                "what if what? Give one of --max-num-seqs, --max-num-batched-tokens, "
                "--kv-blocks, --rate, --scheduling-policy, --priority"
            )
        return changes

    def given(self) -> dict[str, int]:
        """Return the priorities by name.

        Raises:
            UsageError: a line is malformed.
        """
        return read_priorities(" ".join(self.priorities)) if self.priorities else {}


def tell_what_if(path: Path, session: str, options: WhatIfOptions) -> int:
    """Print the predictions; return 1 if none could be made.

    Raises:
        InferwatchError: there is no such session, or nothing to predict from.
    """
    changes, given = options.changes(), options.given()
    row = find(path, session)
    with closing(RowsProgress()) as progress, reading(path) as connection:
        connection.execute("BEGIN")
        readings = chosen_readings(connection, row.session, KINDS)
        run = recorded_run(_watched(readings, row, progress), options.source)
        run = with_priorities(run, given)
        result = predict(run, changes, lambda n: progress.at("simulating", n, None))
    if options.as_json:
        say_json(as_json(result, row.id))
    else:
        say(text(result, row.id))
    say_damage(path)
    return int(all(each.outcome is None for each in result.predictions))


def _watched(
    readings: Iterator[AnyReading], row: SessionRow, progress: RowsProgress
) -> Iterator[AnyReading]:
    for place, each in enumerate(readings):
        if not place % PATIENCE:
            progress.at(f"reading {row.id}", place, row.readings)
        yield each
