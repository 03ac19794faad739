"""Plain objects of ours as bytes, and back: no bytes can make it do anything else.

For state that is small and of many kinds. Nothing but our own classes, readings and a
few containers is ever made from such bytes, whoever wrote them.
"""

import io
import pickle
from typing import Any

import msgspec

PROTOCOL = 5
OURS = ("inferwatch.metrics.", "collectors.readings")
OTHERS = {
    ("collections", "deque"),
    ("collections", "Counter"),
    ("collections", "OrderedDict"),
    ("builtins", "set"),
    ("builtins", "frozenset"),
    ("msgspec._utils", "rebuild"),
}


class UnsealError(msgspec.MsgspecError):
    """These are not bytes that we sealed."""


class _Unpickler(pickle.Unpickler):
    """Knows few names, all harmless."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401  as the base class
        """Classes of ours, and those containers."""
        if (module, name) in OTHERS:
            return super().find_class(module, name)
        if module.startswith(OURS) and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type) and found.__module__ == module:
                return found
        raise UnsealError(f"{module}.{name} has no place here")


def seal(content: object) -> bytes:
    """As bytes."""
    return pickle.dumps(content, PROTOCOL)


def unseal(sealed: bytes) -> Any:  # noqa: ANN401  whoever sealed it knows
    """What was sealed.

    Raises:
        UnsealError: something else was.
    """
    try:
        return _Unpickler(io.BytesIO(sealed)).load()
    except UnsealError:
        raise
    except Exception as error:  # a strange pickle may end in any of them
        raise UnsealError(f"unreadable: {error!r}") from error
