"""Names of requests as tables show them."""


def without_prefix(name: str) -> str:
    """Return an id without what vLLM puts before all of them.

    >>> without_prefix("chatcmpl-7"), without_prefix("cmpl-load-9e5378-586-0")
    ('7', 'load-9e5378-586-0')
    """
    return name.removeprefix("chatcmpl-").removeprefix("cmpl-")
