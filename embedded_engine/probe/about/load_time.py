"""How long a worker took to load its weights, as vLLM itself logs it."""

import logging

from embedded_engine.probe import vllm_names as names

SECONDS: dict[str, float] = {}
"""By the message that said so; workers are asked for it, in their processes."""


class _Listener(logging.Handler):
    """Remembers two messages of many: a look-up each, and nothing is formatted."""

    def emit(self, record: logging.LogRecord) -> None:
        """A message of vLLM's."""
        place = names.LOADED.get(str(record.msg))
        if place is None or not isinstance(record.args, tuple):
            return
        seconds = record.args[place] if place < len(record.args) else None
        if isinstance(seconds, float):
            SECONDS[str(record.msg)] = seconds


def listen() -> None:
    """From now on, in this process."""
    logging.getLogger(names.LOGGER).addHandler(_Listener(logging.INFO))


def load_s() -> float | None:
    """What loading took here; None where it was not said."""
    return next((SECONDS[each] for each in names.LOADED if each in SECONDS), None)
