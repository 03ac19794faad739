"""What ``inferwatch serve`` watches: any model, any flag of ``vllm serve``."""

from pathlib import Path

from embedded_engine.config import EngineConfig, new_engine_id
from embedded_engine.logs import new_log_path
from inferwatch.session.installed import require_vllm
from inferwatch.session.sources import StartedEngine


def serve_source(
    model: str,
    flags: tuple[str, ...],
    *,
    host: str,
    port: int | None,
    uds: Path | None,
    hostage: bool,
) -> StartedEngine:
    """An engine of the user's choice; unless a hostage, it outlives the screen.

    Raises:
        SourceError: vLLM is not installed.
    """
    require_vllm()

    def configure() -> EngineConfig:
        engine_id = new_engine_id()
        return EngineConfig(
            model=model,
            flags=flags,
            host=host,
            port=port,
            uds=uds,
            engine_id=engine_id,
            log_path=new_log_path(engine_id),
            hostage=hostage,
        )

    return StartedEngine(configure=configure, served=not hostage)
