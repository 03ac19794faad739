"""Where an engine comes from: started for us, or found running.

A source gives an engine as often as it is asked: first the id that its probes will
use, known before the engine is up, and then the engine itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, Self

from collectors.contract.clock import monotonic_ns
from collectors.contract.readings import Endpoint, Note, NoteKind
from embedded_engine.engine.config import EngineConfig, cpu_defaults, new_engine_id
from embedded_engine.engine.engine_file import EngineFile, find_engine
from embedded_engine.engine.errors import NOT_INSTALLED, EngineError, NoSuchEngineError
from embedded_engine.engine.launch import Engine, check
from embedded_engine.engine.logs import new_log_path
from embedded_engine.probe_settings import ProbeSettings
from inferwatch.errors import SourceError, UsageError

OnStage = Callable[[Note], None]


class LiveEngine(Protocol):
    """An engine that answers, like :class:`embedded_engine.engine.launch.Engine`."""

    @property
    def engine_id(self) -> str:
        """The id that its probes use."""
        ...

    @property
    def url(self) -> str | None:
        """Where it listens; None when on a Unix socket."""
        ...

    @property
    def endpoint(self) -> Endpoint:
        """Where it listens, as a reading of this moment."""
        ...

    def processes(self) -> list[tuple[int, str]]:
        """Its living processes, each with its role."""
        ...

    def busy_threads(self) -> int:
        """How many threads it keeps busy while there is something to do."""
        ...

    async def wait(self) -> str:
        """Return when it has died: why."""
        ...

    async def stop(self) -> None:
        """End it."""
        ...


class EngineSource(Protocol):
    """Gives the engine that is watched, and gives it again after it was lost."""

    @property
    def served(self) -> bool:
        """The engine outlives us."""
        ...

    @property
    def can_restart(self) -> bool:
        """A lost engine can be started again."""
        ...

    @property
    def log_path(self) -> Path | None:
        """Where the engine logs; None when that is not known."""
        ...

    def prepare(self) -> str:
        """Prepare the next start: the engine id it will have."""
        ...

    async def open(self, on_stage: OnStage) -> LiveEngine:
        """The engine, up and answering.

        Raises:
            EngineError: it did not come up; the message has the cause.
        """
        ...


@dataclass(slots=True)
class StartedEngine:
    """An engine that we start; each start has a configuration of its own."""

    configure: Callable[[], EngineConfig]
    served: bool = False
    can_restart: bool = True
    _config: EngineConfig | None = None

    @property
    def log_path(self) -> Path | None:
        """Known before the engine is up."""
        return self._config.log_path if self._config else None

    def prepare(self) -> str:
        """Configure the next start."""
        self._config = self.configure()
        return self._config.engine_id

    async def open(self, on_stage: OnStage) -> LiveEngine:
        """Start it."""
        config = self._config or self.configure()
        if config.notice:
            on_stage(Note(kind=NoteKind.HOST, text=config.notice, t_ns=monotonic_ns()))
        return await Engine.start(config, on_stage)


@dataclass(slots=True)
class FoundEngine:
    """A served engine that was running before us."""

    file: EngineFile
    served: bool = True
    can_restart: bool = False

    @classmethod
    def of(cls, engine_id: str) -> Self:
        """The one of that id.

        Raises:
            SourceError: it is gone.
        """
        try:
            return cls(find_engine(engine_id))
        except NoSuchEngineError as error:
            raise SourceError(str(error)) from error

    @property
    def log_path(self) -> Path | None:
        """As the engine file says."""
        return Path(self.file.log_path)

    def prepare(self) -> str:
        """The id that the engine has already."""
        return self.file.engine_id

    async def open(self, on_stage: OnStage) -> LiveEngine:  # noqa: ARG002 - it is up
        """Find it by its engine file."""
        return Engine.adopt(self.file.engine_id)


def serve_source(  # noqa: PLR0913 - as the command line has them
    model: str,
    flags: tuple[str, ...],
    *,
    host: str,
    port: int | None,
    uds: Path | None,
    hostage: bool,
    probe: ProbeSettings,
) -> StartedEngine:
    """An engine of the user's choice; unless a hostage, it outlives the screen.

    Raises:
        SourceError: vLLM is not installed.
        UsageError: what was asked for cannot be: no such model, the port is taken.
    """
    require_vllm()

    def configure() -> EngineConfig:
        engine_id = new_engine_id()
        env, notice = cpu_defaults(flags)
        return EngineConfig(
            model=model,
            flags=flags,
            host=host,
            port=port,
            uds=uds,
            engine_id=engine_id,
            log_path=new_log_path(engine_id),
            hostage=hostage,
            env=env,
            probe=probe,
            notice=notice,
        )

    try:
        check(configure())
    except EngineError as error:
        raise UsageError(str(error)) from error
    return StartedEngine(configure=configure, served=not hostage)


def require_vllm() -> None:
    """Refuse before a session begins or the terminal is taken.

    Found, not imported, which takes seconds: what fails later the engine tells.

    Raises:
        SourceError: it is not installed.
    """
    if find_spec("vllm") is None:
        raise SourceError(
            f"{NOT_INSTALLED} (to see a recorded one: inferwatch demo --sample)"
        )
