"""In the place of vLLM, where only the life of its process matters.

With this folder on ``PYTHONPATH``, the worker of an engine finds us when it imports
vLLM: it is up within a second and answers completions, but nobody probes it.
"""

import socket
import sys
from types import ModuleType
from typing import Any

from inferwatch.loadgen.truth.server import TruthServer


def serve() -> None:
    """Take the two flags that tell where to listen, and leave the others.

    Raises:
        ValueError: of a block size that a kernel cannot have.
    """
    asked = dict(zip(sys.argv, sys.argv[1:], strict=False))
    sizes = [each.partition("=")[2] for each in sys.argv if "--block-size" in each]
    if sizes and int(sizes[-1]) % 16:
        raise ValueError(f"{sizes[-1]} is not a block size")
    if path := asked.get("--uds"):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
    else:
        listener = socket.create_server((asked["--host"], int(asked["--port"])))
    TruthServer(listener).serve()


class Registry:
    """Takes any model."""

    @staticmethod
    def register_model(name: str, model: object) -> None:
        """Nothing is ever loaded."""


def _stand_in(name: str, **names: Any) -> None:
    module = ModuleType(f"{__name__}.{name}")
    module.__dict__.update(names)
    sys.modules[module.__name__] = module


for package in ("entrypoints", "entrypoints.cli", "model_executor"):
    _stand_in(package)
_stand_in("entrypoints.cli.serve")
_stand_in("entrypoints.cli.main", main=serve)
_stand_in("model_executor.models")
_stand_in("model_executor.models.llama", LlamaForCausalLM=object)
_stand_in("model_executor.models.registry", ModelRegistry=Registry)
