"""The reference a snapshot is compared with: a session, a baseline, or yesterday."""

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from collectors.contract.clock import NS_PER_S
from inferwatch.errors import UsageError
from inferwatch.formatting import format_clock, wall_clock
from inferwatch.metrics.configuration import Configuration
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.record.replay.checkpoint_builder import CheckpointBuilder
from inferwatch.record.replay.seekable_session import SeekableSession
from inferwatch.record.sessions.sessions import SessionRow, list_sessions, pick

YESTERDAY = "yesterday"
BASELINE = "baseline"
"""Also the command whose sessions hold a baseline."""
DAY_NS = int(timedelta(days=1).total_seconds()) * NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A recorded snapshot to compare with, and what it shows."""

    title: str
    """``s12``, or ``s12 yesterday 03:12``."""
    span: str
    """The span that it covers, in words."""
    snapshot: Snapshot
    session: str | None = None
    """The id of its session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferencePlace:
    """The moment, the session and the window of a reference."""

    session: SessionRow
    t_ns: int
    window: Window
    title: str
    span: str


def reference_place(
    database: Path,
    wanted: str,
    *,
    wall_ns: int,
    but: str | None = None,
    shown: Configuration | None = None,
) -> ReferencePlace:
    """Return the place of ``yesterday``, ``baseline``, or a session by its name.

    ``wall_ns`` is the Unix time of what is shown, ``but`` the id of its session, which
    cannot be its own reference, and ``shown`` the configuration to find a baseline for.

    Raises:
        UsageError: there is no recording of that time, or no baseline.
        StorageError: no such session, or the file cannot be read.
    """
    rows = [row for row in list_sessions(database) if row.id != but]
    if wanted == YESTERDAY:
        return _yesterday(rows, wall_ns - DAY_NS)
    if wanted == BASELINE and BASELINE not in {row.name for row in rows}:
        return _baseline(rows, shown)
    row = pick(rows, wanted, database)
    return _whole(row, f"{row.id} {row.name}" if row.name else row.id)


def _whole(row: SessionRow, title: str) -> ReferencePlace:
    whole = format_clock(row.duration_ns).strip()
    return ReferencePlace(
        session=row,
        t_ns=row.duration_ns,
        window=Window.SESSION,
        title=title,
        span=f"all {whole} of it",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineMatch:
    """The latest baseline of a model, of the same configuration if there is one."""

    row: SessionRow
    exact: bool
    """Whether all that is known of the configurations is equal; else only the model
    is."""

    @property
    def title(self) -> str:
        """The session's id, and how well it matches."""
        what = "this configuration" if self.exact else "this model, otherwise set up"
        return f"{self.row.id}, baseline of {what}"


def baseline_of(
    rows: Iterable[SessionRow], configuration: Configuration | None
) -> BaselineMatch | None:
    """Return the latest baseline of the same configuration, else of the same model."""
    baselines = [row for row in rows if row.command == BASELINE]
    if configuration is None:
        return None
    for tag, exact in (
        (configuration.exact_tag, True),
        (configuration.model_tag, False),
    ):
        matches = [row for row in baselines if tag in row.tags.split()]
        if matches:
            latest = max(matches, key=lambda row: row.started_ns)
            return BaselineMatch(row=latest, exact=exact)
    return None


def _baseline(
    rows: list[SessionRow], configuration: Configuration | None
) -> ReferencePlace:
    match = baseline_of(rows, configuration)
    if match is None:
        of = f" of {configuration.model}" if configuration else ""
        raise UsageError(
            f"no baseline{of} is kept: `inferwatch baseline URL` makes one"
        )
    return _whole(match.row, match.title)


def _yesterday(rows: list[SessionRow], then_ns: int) -> ReferencePlace:
    for row in rows:
        t_ns = then_ns - row.started_ns
        if 0 < t_ns <= row.duration_ns:
            window = Window.FIVE_MINUTES
            clock = wall_clock(then_ns)
            return ReferencePlace(
                session=row,
                t_ns=t_ns,
                window=window,
                title=f"{row.id} {YESTERDAY} {clock}",
                span=f"{window.label} up to {clock}",
            )
    then = datetime.fromtimestamp(then_ns / NS_PER_S).astimezone()
    raise UsageError(f"nothing was recorded on {then:%Y-%m-%d at %H:%M}")


def read_reference(
    database: Path, place: ReferencePlace, *, source: str | None = None
) -> Reference:
    """Return the snapshot at the reference's place; takes as long as a seek.

    Raises:
        StorageError: the file cannot be read.
    """
    path = CheckpointBuilder(database, place.session).path
    with closing(SeekableSession(database, place.session, path)) as seekable:
        seekable.seek(place.t_ns, lambda: False)
        if seekable.damage:
            raise UsageError(seekable.damage)
        snapshot = seekable.snapshot(
            SnapshotQuery(place.window, requests=False, client=False, source=source)
        )
    return Reference(
        title=place.title, span=place.span, snapshot=snapshot, session=place.session.id
    )
