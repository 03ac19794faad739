"""Where an engine comes from: started for us, or found running.

A source gives one *life* after another: the identity that the probe will use, known
before the engine is up, and then the engine itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from collectors.readings import Note
from embedded_engine.config import EngineConfig
from embedded_engine.engine_file import EngineFile
from embedded_engine.launch import Engine
from inferwatch.session.live_engine import LiveEngine

OnStage = Callable[[Note], None]


class EngineSource(Protocol):
    """How to get the engine to watch."""

    @property
    def served(self) -> bool:
        """It outlives us."""
        ...

    @property
    def can_restart(self) -> bool:
        """We can give it another life."""
        ...

    @property
    def log_path(self) -> Path | None:
        """Where the engine of the current life logs."""
        ...

    def next_life(self) -> str:
        """The engine id of the coming life."""
        ...

    async def open(self, on_stage: OnStage) -> LiveEngine:
        """The engine, up and answering.

        Raises:
            EngineError: it did not come up; the message has the cause.
        """
        ...


@dataclass(slots=True)
class StartedEngine:
    """An engine we start; each life has a configuration of its own."""

    configure: Callable[[], EngineConfig]
    served: bool = False
    can_restart: bool = True
    _config: EngineConfig | None = None

    @property
    def log_path(self) -> Path | None:
        """Known before the engine is up."""
        return self._config.log_path if self._config else None

    def next_life(self) -> str:
        """Configure the coming life."""
        self._config = self.configure()
        return self._config.engine_id

    async def open(self, on_stage: OnStage) -> LiveEngine:
        """Start it."""
        config = self._config or self.configure()
        return await Engine.start(config, on_stage)


@dataclass(slots=True)
class FoundEngine:
    """A served engine that runs already."""

    file: EngineFile
    served: bool = True
    can_restart: bool = False

    @property
    def log_path(self) -> Path | None:
        """As the engine file says."""
        return Path(self.file.log_path)

    def next_life(self) -> str:
        """It has the one it has."""
        return self.file.engine_id

    async def open(self, on_stage: OnStage) -> LiveEngine:  # noqa: ARG002 - it is up
        """Find it by its engine file."""
        return Engine.adopt(self.file.engine_id)
