"""Has an engine profile some of its steps, on all its ranks or on none.

The profile ends when its client is closed; see :mod:`collectors.probe.profiling`.
"""

import asyncio
from pathlib import Path
from typing import Self

from collectors.contract.collector import CollectorError, SourceLostError
from collectors.contract.runtime_dir import PROFILING_END
from collectors.probe.control_connection import (
    GONE,
    ControlConnection,
    NotOursError,
    control_sockets,
    shown,
    this_process,
)
from collectors.probe.profiling import (
    DEFAULT_S,
    DIRECTORY_FLAG,
    FLAG,
    MOST_BYTES,
    STEPS,
    SWITCH_S,
    ProfileAction,
    ProfileAnswer,
    ProfileRequest,
)

NO_PROFILER = (
    "vLLM was started without its profiler: restart it with `inferwatch serve "
    f"--profiler`, or add {FLAG} {DIRECTORY_FLAG}/some/directory to `vllm serve` with "
    "the probe beside it"
)
NOT_OURS = "only the user whom the engine runs as may profile it"


class NoProfilerError(CollectorError):
    """The engine cannot be profiled."""


class ProfileRefusedError(CollectorError):
    """The engine refused to begin a profile."""


class ProfileControl:
    """A client that begins a profile, and ends it when it is closed."""

    def __init__(self, engine_id: str, *, by: str | None = None) -> None:
        self.engine_id = engine_id
        self.by = by or this_process()
        """Name of this client, which the engine reports to others."""
        self._ranks: dict[Path, ControlConnection] = {}
        self._turn = asyncio.Lock()

    @classmethod
    async def open(cls, engine_id: str, *, by: str | None = None) -> Self:
        """Connect to all ranks.

        Raises:
            NoProfilerError: the engine cannot be profiled.
            CollectorError: a rank is unreachable.
        """
        made = cls(engine_id, by=by)
        try:
            await made._connect()
        except BaseException:
            await made.close()
            raise
        return made

    async def start(
        self,
        *,
        steps: int = STEPS,
        most_s: float = DEFAULT_S,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """Begin a profile on all ranks; if one refuses, end it on the others.

        Raises:
            ProfileRefusedError: a rank refused.
            CollectorError: a rank is unreachable.
        """
        wanted = ProfileRequest(
            action=ProfileAction.START,
            steps=steps,
            most_s=most_s,
            most_bytes=max(most_bytes // max(len(self._ranks), 1), 1),
            by=self.by,
        )
        async with self._turn:
            begun: list[ControlConnection] = []
            try:
                for rank in self._ranks.values():
                    _raise_if_refused(await rank.ask(wanted, ProfileAnswer))
                    begun.append(rank)
            except BaseException as error:
                is_refusal = isinstance(error, ProfileRefusedError)
                # To hang up ends it, whatever became of us.
                for each in begun if is_refusal else self._ranks.values():
                    each.hang_up()
                raise

    async def state(self) -> tuple[ProfileAnswer, ...]:
        """How the profile goes, by rank; those that are lost are left out.

        An engine may be silent as long as it takes to switch its profiler on or off.

        Raises:
            CollectorError: no rank is reachable.
        """
        return await self._ask(ProfileAction.GET, SWITCH_S)

    async def stop(self) -> tuple[ProfileAnswer, ...]:
        """End the profile at once; what has come by then is kept.

        Raises:
            CollectorError: no rank is reachable.
        """
        return await self._ask(ProfileAction.STOP, SWITCH_S)

    async def close(self) -> None:
        """Disconnect, which ends a profile that is on; safe to call twice."""
        for each in self._ranks.values():
            each.hang_up()
        self._ranks.clear()

    async def _ask(
        self, action: ProfileAction, within_s: float
    ) -> tuple[ProfileAnswer, ...]:
        """Ask all ranks at once; forget those that are lost."""
        request = ProfileRequest(action=action, by=self.by)
        async with self._turn:
            asked = {
                path: asyncio.create_task(rank.ask(request, ProfileAnswer, within_s))
                for path, rank in self._ranks.items()
            }
            await asyncio.gather(*asked.values(), return_exceptions=True)
        answers: list[ProfileAnswer] = []
        why: CollectorError = SourceLostError(GONE)
        for path, each in asked.items():
            try:
                answers.append(each.result())
            except CollectorError as error:
                why = error
                self._ranks.pop(path, None)
        if not answers:
            raise why
        return tuple(sorted(answers, key=lambda each: each.rank))

    async def _connect(self) -> None:
        paths = await asyncio.to_thread(control_sockets, self.engine_id, PROFILING_END)
        if not paths:
            raise NoProfilerError(NO_PROFILER)
        for path in paths:
            try:
                self._ranks[path] = await ControlConnection.connect(path)
            except NotOursError as error:
                raise NoProfilerError(NOT_OURS) from error
            except SourceLostError:
                continue  # left behind by a rank that died
        if not self._ranks:
            raise SourceLostError(GONE)


def _raise_if_refused(answer: ProfileAnswer) -> None:
    if answer.refused is not None:
        raise ProfileRefusedError(shown(answer.refused))


def can_profile(engine_id: str) -> bool:
    """Whether the engine has, or had, sockets for profiles."""
    try:
        return bool(control_sockets(engine_id, PROFILING_END))
    except CollectorError:
        return False
