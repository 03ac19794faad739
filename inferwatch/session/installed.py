"""Whether an engine of ours can be had at all."""

from importlib.util import find_spec

from embedded_engine.errors import NOT_INSTALLED
from inferwatch.errors import SourceError


def require_vllm() -> None:
    """Refuse before a session begins or the terminal is taken.

    Found, not imported, which takes seconds: what fails later the engine tells.

    Raises:
        SourceError: it is not installed.
    """
    if find_spec("vllm") is None:
        raise SourceError(
            f"{NOT_INSTALLED} (a recorded engine: inferwatch demo --sample)"
        )
