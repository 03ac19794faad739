"""Errors of engines we start; every message can be shown to users.

EngineError
├── EngineMissingError    vLLM is not installed, or cannot be imported
├── ModelNotFoundError    there is no model at the given path
├── PortTakenError        another process listens on the port or socket
├── FlagError             a flag that inferwatch sets itself
├── NoSuchEngineError     there is no served engine with the given id
└── EngineDiedError       it ended or was killed
"""

NOT_INSTALLED = "vllm is not installed: pip install 'inferwatch[engine]'"


class EngineError(Exception):
    """The engine is unavailable; the message says why and what to do."""


class EngineMissingError(EngineError):
    """vLLM is not installed, or cannot be imported."""


class ModelNotFoundError(EngineError):
    """There is no model at the given path."""


class PortTakenError(EngineError):
    """Another process listens on the port or socket."""


class FlagError(EngineError):
    """A flag passed through to vLLM is one that inferwatch sets itself."""


class NoSuchEngineError(EngineError):
    """There is no served engine with the given id."""


class EngineDiedError(EngineError):
    """The engine ended or was killed before it could be used."""
