"""Where an engine comes from: started by us, or found running.

A source can give its engine repeatedly: first the id that the engine's probes will use,
known before it is up, and then the engine itself.
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

GRAPH_METRICS = ("--cudagraph-metrics", "--no-cudagraph-metrics")
"""vLLM then tells of each step in which CUDA graph it ran, and how much was padded."""
OnStage = Callable[[Note], None]


class LiveEngine(Protocol):
    """An engine that answers, like :class:`embedded_engine.engine.launch.Engine`."""

    @property
    def engine_id(self) -> str:
        """The id that the engine's probes use."""
        ...

    @property
    def url(self) -> str | None:
        """The engine's URL; None when it listens on a Unix socket."""
        ...

    @property
    def endpoint(self) -> Endpoint:
        """The engine's address as a reading, stamped now."""
        ...

    def processes(self) -> list[tuple[int, str]]:
        """Return the engine's living processes as (pid, role)."""
        ...

    def busy_threads(self) -> int:
        """Return how many threads the engine keeps busy under load."""
        ...

    async def wait(self) -> str:
        """Wait until the engine has died, and return the reason."""
        ...

    async def stop(self) -> None:
        """End the engine's processes."""
        ...


class EngineSource(Protocol):
    """Gives the engine to watch, and gives it again after it was lost."""

    @property
    def served(self) -> bool:
        """Whether the engine outlives this process."""
        ...

    @property
    def can_restart(self) -> bool:
        """Whether a lost engine can be started again."""
        ...

    @property
    def log_path(self) -> Path | None:
        """The engine's log file; None while that is not known."""
        ...

    def prepare(self) -> str:
        """Prepare the next start, and return the engine id of that start."""
        ...

    async def open(self, on_stage: OnStage) -> LiveEngine:
        """Return the engine once it is up and answers.

        Raises:
            EngineError: it did not come up; the message says why.
        """
        ...


@dataclass(slots=True)
class StartedEngine:
    """An engine that we start, each time with a new configuration."""

    configure: Callable[[], EngineConfig]
    served: bool = False
    can_restart: bool = True
    _config: EngineConfig | None = None

    @property
    def log_path(self) -> Path | None:
        """The log file of the configured start, known before the engine is up."""
        return self._config.log_path if self._config else None

    def prepare(self) -> str:
        self._config = self.configure()
        return self._config.engine_id

    async def open(self, on_stage: OnStage) -> LiveEngine:
        config = self._config or self.configure()
        if config.notice:
            on_stage(Note(kind=NoteKind.HOST, text=config.notice, t_ns=monotonic_ns()))
        return await Engine.start(config, on_stage)


@dataclass(slots=True)
class FoundEngine:
    """A served engine that was running before this process."""

    file: EngineFile
    served: bool = True
    can_restart: bool = False

    @classmethod
    def of(cls, engine_id: str) -> Self:
        """Return the running engine with that id.

        Raises:
            SourceError: no such engine runs.
        """
        try:
            return cls(find_engine(engine_id))
        except NoSuchEngineError as error:
            raise SourceError(str(error)) from error

    @property
    def log_path(self) -> Path | None:
        return Path(self.file.log_path)

    def prepare(self) -> str:
        return self.file.engine_id

    async def open(self, on_stage: OnStage) -> LiveEngine:  # noqa: ARG002 - it is up
        """Adopt the engine by its engine file."""
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
    """Return an engine of the user's choice; without ``hostage`` it outlives us.

    Raises:
        SourceError: vLLM is not installed.
        UsageError: the options cannot work: no such model, or the port is taken.
    """
    require_vllm()
    if not {each.partition("=")[0] for each in flags} & {*GRAPH_METRICS}:
        flags = (GRAPH_METRICS[0], *flags)

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
    """Check that vLLM is installed before a session begins or the screen opens.

    It is only located, as importing takes seconds; the log shows import errors.

    Raises:
        SourceError: vLLM is not installed.
    """
    if find_spec("vllm") is None:
        raise SourceError(
            f"{NOT_INSTALLED} (to see a recorded one: inferwatch demo --sample)"
        )
