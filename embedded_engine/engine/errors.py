"""What can go wrong with an engine of ours; every message is fit to show.

EngineError
├── EngineMissingError    vLLM is not installed, or cannot be imported
├── ModelNotFoundError    there is no model at its path
├── PortTakenError        somebody else listens there
├── FlagError             a flag that inferwatch has to know itself
├── NoSuchEngineError     no served engine of that id lives
└── EngineDiedError       it ended by itself, or was killed
"""

NOT_INSTALLED = "vllm is not installed: pip install 'inferwatch[engine]'"


class EngineError(Exception):
    """The engine cannot be had; the message says why and what to do."""


class EngineMissingError(EngineError):
    """vLLM is not installed, or cannot be imported."""


class ModelNotFoundError(EngineError):
    """There is no model at its path."""


class PortTakenError(EngineError):
    """The port or socket is taken: somebody else listens there."""


class FlagError(EngineError):
    """A flag was passed through to vLLM that inferwatch has to know itself."""


class NoSuchEngineError(EngineError):
    """No served engine of that id lives."""


class EngineDiedError(EngineError):
    """It ended by itself, or was killed, before it was of use."""
