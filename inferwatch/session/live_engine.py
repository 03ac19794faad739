"""What watching asks of an engine, whoever started it."""

from typing import Protocol

from collectors.readings import Endpoint


class LiveEngine(Protocol):
    """An engine that answers, as :class:`embedded_engine.launch.Engine` is one."""

    @property
    def engine_id(self) -> str:
        """What its probes are called by."""
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
        """Its living processes with a role."""
        ...

    async def wait(self) -> str:
        """Return when it has died: why."""
        ...

    async def stop(self) -> None:
        """End it."""
        ...
