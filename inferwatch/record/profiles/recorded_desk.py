"""Reads the profiles of a recorded session; it has no engine to profile."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from collectors.contract.readings import (
    Endpoint,
    EngineInfo,
    GpuInfo,
    MeasuredPeak,
    ModelConfig,
    Profile,
)
from inferwatch.errors import StorageError, UsageError
from inferwatch.feed import ProfileProgress, Recall, TakenProfile
from inferwatch.metrics.floor.rank import StepNeeds
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.metrics.steps.engines import Key
from inferwatch.metrics.steps.profiles import ProfileLog, SessionProfile
from inferwatch.profiles.report import ProfileReport
from inferwatch.record.connections import reading
from inferwatch.record.file.trace_folder import traces_folder
from inferwatch.record.lookup.recorded_readings import chosen_readings
from inferwatch.record.profiles.shelf import LOOK_AGAIN_S, OnProgress, ProfileShelf
from inferwatch.record.sessions.sessions import SessionRow

NO_ENGINE = "this is a recorded session: there is no engine to profile"
COSTS = (EngineInfo, Endpoint, ModelConfig, GpuInfo, MeasuredPeak)
"""What decides what a step costs."""


class RecordedProfileDesk:
    """The :class:`inferwatch.feed.ProfileDesk` of a recorded session.

    Profiles are read of the record itself, as a trace may have been imported after the
    session's end.
    """

    progress = ProfileProgress()

    def __init__(
        self, path: Path, session: SessionRow, now_ns: Callable[[], int], recall: Recall
    ) -> None:
        """``recall`` looks up steps of the whole session."""
        self.traces_folder: Path | None = traces_folder(path, session.id)
        self.steps_recall = recall
        self._path, self._session, self._now_ns = path, session, now_ns
        self._known: tuple[SessionProfile, ...] = ()
        self._looked_s = -LOOK_AGAIN_S
        self.shelf = ProfileShelf(self)

    @property
    def profiles_known(self) -> Sequence[SessionProfile]:
        """All of the session; none if the record cannot be read."""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_AGAIN_S:
            return self._known
        log = ProfileLog(most=None)
        with suppress(StorageError), reading(self._path) as connection:
            for each in chosen_readings(connection, self._session.session, [Profile]):
                if isinstance(each, Profile):
                    log.take(each)
        self._looked_s, self._known = now_s, log.every
        return self._known

    @property
    def profiles_shown(self) -> Sequence[SessionProfile]:
        """Those that were over at the moment shown."""
        now_ns = self._now_ns()
        return [
            each
            for each in self.profiles_known
            if (ended_ns := each.ended_ns) is not None and ended_ns <= now_ns
        ]

    @property
    def step_needs(self) -> dict[Key, StepNeeds]:
        """What steps cost, by what the session tells of its engines at last."""
        model = Model()
        with suppress(StorageError), reading(self._path) as connection:
            for each in chosen_readings(connection, self._session.session, COSTS):
                model.fold(each)
        asked = SnapshotQuery(
            Window.TEN_SECONDS, requests=False, client=False, needs=True
        )
        return dict(model.snapshot(self._now_ns(), asked).step_needs or {})

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
