"""The sessions of a file, looked up step by step."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from inferwatch.formatting import short_name
from inferwatch.metrics.load.client_verdict import ClientVerdict
from inferwatch.record.connections import reading
from inferwatch.record.repair.recovery import damage_of
from inferwatch.record.sessions.sessions import SessionRow, list_sessions
from inferwatch.record.sessions.sizes import (
    SessionSizes,
    SessionSummary,
    sizes_in,
    summarise,
)
from inferwatch.record.tables.session_state import SessionState
from inferwatch.studies.compare.reading.configuration import (
    LOAD,
    Configuration,
    configuration,
)
from inferwatch.studies.compare.reading.hardware import gpu_means
from inferwatch.studies.compare.reading.requests import ClientRequests
from inferwatch.studies.compare.reading.session_reader import client_verdict

Known = tuple[int, int]
"""A session and its number of readings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSession:
    """A session and what is known of it so far."""

    row: SessionRow
    size_bytes: int | None = None
    """An estimate."""
    summary: SessionSummary | None = None
    """None until it was looked up."""

    @property
    def recording(self) -> bool:
        return self.row.state is SessionState.RECORDING

    @property
    def title(self) -> str:
        return self.row.called

    @property
    def model(self) -> str:
        """The name of the session's model without its folder."""
        return short_name(self.row.model or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPreview:
    """What a preview shows besides row and summary."""

    settings: Configuration = field(default_factory=dict)
    notes: tuple[tuple[int, str], ...] = ()
    """Moments and texts, with bookmarks, oldest first."""
    client: ClientVerdict = field(default_factory=ClientVerdict)
    row: SessionRow | None = None
    """The session as of the same read, so that counts of both agree."""
    requests: int = 0
    """Requests of load runs, without warm-up."""
    gpus: Mapping[str, float] = field(default_factory=dict)
    """GPU means by metric."""

    @property
    def load(self) -> dict[str, str]:
        return {
            name.removeprefix(LOAD): value
            for name, value in self.settings.items()
            if name.startswith(LOAD) and value is not None
        }


NOTES = (
    "SELECT t_ns, text FROM notes WHERE session = ?1 AND text NOT LIKE 'load plan {%' "
    "UNION ALL SELECT t_ns, text FROM bookmarks WHERE session = ?1 ORDER BY t_ns"
)


def preview(path: Path, row: SessionRow) -> SessionPreview:
    """Read the preview of a session, which is slow.

    Raises:
        StorageError: the file cannot be read.
    """
    with reading(path) as connection:
        client = ClientRequests(connection, row.session)
        return SessionPreview(
            settings=configuration(connection, row),
            notes=tuple(connection.execute(NOTES, (row.session,))),
            client=client_verdict(connection, row.session, client),
            row=next((r for r in list_sessions(path) if r.session == row.session), row),
            requests=len(client),
            gpus=gpu_means(connection, row.session, row.duration_ns),
        )


@dataclass
class SessionIndex:
    """The sessions of one file. Slow methods say so and belong in a thread."""

    path: Path
    rows: list[SessionRow] = field(default_factory=list)
    sizes: SessionSizes | None = None
    damage: str | None = None
    _summaries: dict[int, tuple[int, SessionSummary]] = field(default_factory=dict)
    _sized: frozenset[Known] | None = None

    def look(self) -> None:
        """Read the list of sessions in the file, which is slow.

        Raises:
            StorageError: the file cannot be read.
        """
        if not self.path.exists():
            self.rows, self.sizes = [], None
            return
        self.rows = list_sessions(self.path, bin_too=True)
        damage = damage_of(self.path)
        self.damage = None
        if damage is not None and damage.is_loss:
            self.damage = f"the file is damaged: {damage.losses}"

    def measure(self) -> None:
        """Estimate the sizes of sessions if they can have changed, which is slow.

        Raises:
            StorageError: the file cannot be read.
        """
        ended = frozenset(
            (row.session, row.readings)
            for row in self.rows
            if row.state is not SessionState.RECORDING
        )
        if self.rows and (self.sizes is None or ended != self._sized):
            self.sizes, self._sized = sizes_in(self.path), ended

    def unknown(self) -> Iterator[SessionRow]:
        """Yield sessions without a summary, newest first."""
        for row in self.rows:
            if row.session not in self._summaries:
                yield row

    def recording(self) -> Iterator[SessionRow]:
        """Yield sessions that have grown since their summary."""
        for row in self.rows:
            summary = self._summaries.get(row.session)
            if summary is not None and summary[0] != row.readings:
                yield row

    def summarise(self, row: SessionRow) -> None:
        """Read the summary of a session, for what its row lacks; slow.

        Raises:
            StorageError: the file cannot be read.
        """
        self._summaries[row.session] = row.readings, summarise(self.path, row.session)

    def listed(self) -> list[ListedSession]:
        of = self.sizes.of if self.sizes else {}
        return [
            ListedSession(
                row=row,
                size_bytes=of.get(row.session),
                summary=self._summaries.get(row.session, (0, None))[1],
            )
            for row in self.rows
        ]
