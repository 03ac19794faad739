"""Reads the profiles of a recorded session; it has no engine to profile."""

from collections.abc import Callable, Sequence
from pathlib import Path

from inferwatch.errors import UsageError
from inferwatch.feed import ProfileProgress, Recall, TakenProfile
from inferwatch.metrics.floor.rank import StepNeeds
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.metrics.steps.engines import Key
from inferwatch.metrics.steps.profiles import SessionProfile
from inferwatch.profiles.report import ProfileReport
from inferwatch.record.profiles.folder import traces_folder
from inferwatch.record.profiles.shelf import OnProgress, ProfileShelf

NO_ENGINE = "this is a recorded session: there is no engine to profile"


class RecordedProfileDesk:
    """The :class:`inferwatch.feed.ProfileDesk` of a recorded session.

    Only what was profiled up to the moment shown is known.
    """

    progress = ProfileProgress()

    def __init__(
        self,
        path: Path,
        session_id: str,
        snapshot: Callable[[SnapshotQuery], Snapshot],
        recall: Recall,
    ) -> None:
        self.traces_folder: Path | None = traces_folder(path, session_id)
        self.steps_recall = recall
        self._snapshot = snapshot
        self.shelf = ProfileShelf(self)

    @property
    def profiles_shown(self) -> Sequence[SessionProfile]:
        """Those up to the moment shown."""
        return self._asked(needs=False).profiles

    profiles_known = profiles_shown

    @property
    def step_needs(self) -> dict[Key, StepNeeds]:
        """What steps cost, as of the moment shown."""
        return dict(self._asked(needs=True).step_needs or {})

    @property
    def unavailable(self) -> str | None:
        """Why no profile can begin: always, as nothing runs."""
        return NO_ENGINE

    @property
    def taken(self) -> Sequence[TakenProfile]:
        """The session's profiles up to the moment shown, oldest first."""
        return self.shelf.taken

    async def begin(self, steps: int | None = None) -> None:
        """Refuse: nothing runs.

        Raises:
            UsageError: always.
        """
        del steps
        raise UsageError(NO_ENGINE)

    async def stop(self) -> None:
        """Do nothing: no profile is on."""

    async def report(
        self, key: str, on_progress: OnProgress | None = None
    ) -> ProfileReport:
        """Read a profile's traces; a second time it is there at once.

        Raises:
            UsageError: there is no such profile.
            StorageError: its traces are gone, or cannot be read.
        """
        return await self.shelf.report(key, on_progress)

    def _asked(self, *, needs: bool) -> Snapshot:
        return self._snapshot(
            SnapshotQuery(Window.TEN_SECONDS, requests=False, client=False, needs=needs)
        )
