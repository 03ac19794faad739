"""Checks in its own process whether vLLM is installed with all methods we hook.

``python -m embedded_engine.probe.check`` prints one line of JSON.
"""

import importlib
import json

from embedded_engine.probe.hooks import owner_of
from embedded_engine.probe.vllm_names import (
    ENGINE_METHODS,
    FRONT_METHODS,
    RESPONSE_METHODS,
    STATE_METHODS,
    VERSION,
    WORKER_METHODS,
)


def main() -> None:
    """Import vLLM as a server does, and look up each method."""
    module, attribute = VERSION
    version = getattr(importlib.import_module(module), attribute, "?")
    methods = [
        *ENGINE_METHODS.values(),
        *FRONT_METHODS.values(),
        *RESPONSE_METHODS.values(),
        *STATE_METHODS.values(),
        *WORKER_METHODS.values(),
    ]
    missing = [
        f"{method.owner.partition(':')[2]}.{method.name}: {method.loses}"
        for method in methods
        if (owner := owner_of(method)) is None or method.name not in vars(owner)
    ]
    result = {"version": str(version), "hooks": len(methods), "missing": missing}
    print(json.dumps(result))  # noqa: T201 - for whoever started us


if __name__ == "__main__":
    main()
