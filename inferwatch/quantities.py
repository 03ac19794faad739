"""Reads durations, sizes, rates and counts as people write them, in one place.

Whoever asks says what may follow: which bounds it has, and what to write instead.
"""

import re
from math import isfinite

_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_PARTS = {"ms": 1e3, "us": 1e6, "µs": 1e6}
"""Units below a second: how many make one."""
_BYTES = {"mb": 10**6, "gb": 10**9}
TIME_UNITS = (*_SECONDS, *_PARTS)
TIME_UNIT = "|".join(sorted(filter(None, TIME_UNITS), key=len, reverse=True))
"""The pattern of a unit of time, in lower case."""
_TIMES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_TIMES |= {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
"""The suffixes of vLLM: 2k is 2000, 2K is 2048."""
_COUNT = re.compile(r"([0-9]{1,15}(?:\.[0-9]*)?|\.[0-9]+)([kKmMgG]?)")
_QUANTITY = re.compile(r"([0-9]{1,15}(?:\.[0-9]*)?|\.[0-9]+)\s*([^\W\d]*)")


def quantity(text: str) -> tuple[float, str] | None:
    """Parse a number and its unit, which is put in lower case; None if it is neither.

    >>> quantity("1.5 GB"), quantity("30"), quantity("-1s")
    ((1.5, 'gb'), (30.0, ''), None)
    """
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or not isfinite(number := float(match[1])):
        return None
    return number, match[2].lower()


def in_seconds(number: float, unit: str) -> float:
    """Convert a number of one of `TIME_UNITS` to seconds."""
    return number / _PARTS[unit] if unit in _PARTS else number * _SECONDS[unit]


def duration_s(text: str) -> float | None:
    """Parse a duration, in seconds if it has no unit; None if it is no duration.

    >>> duration_s("90"), duration_s("35ms"), duration_s("2 h"), duration_s("10m")
    (90.0, 0.035, 7200.0, 600.0)
    >>> duration_s("5GB"), duration_s("soon")
    (None, None)
    """
    amount = quantity(text)
    return in_seconds(*amount) if amount and amount[1] in TIME_UNITS else None


def size_bytes(text: str) -> int | None:
    """Parse a size in decimal units into bytes; None if it is no size.

    >>> size_bytes("5GB"), size_bytes("1.5 mb"), size_bytes("500M"), size_bytes("500")
    (5000000000, 1500000, None, None)
    """
    number, unit = quantity(text) or (0.0, "")
    return round(number * _BYTES[unit]) if unit in _BYTES else None


def count_of(text: str) -> int | None:
    """Parse a whole number, with a suffix as `vllm serve` has it; None if it is none.

    >>> count_of("512"), count_of("32k"), count_of("32K"), count_of("1.5k")
    (512, 32000, 32768, 1500)
    >>> count_of("1.5"), count_of("-1"), count_of("32 apples")
    (None, None, None)
    """
    match = _COUNT.fullmatch(text.strip())
    number = float(match[1]) * _TIMES[match[2]] if match else 0.5
    return int(number) if number == int(number) else None


def rate_per_s(text: str) -> float | None:
    """Parse a rate, per second if it has no unit; None if it is no rate.

    >>> rate_per_s("20"), rate_per_s("20/s"), rate_per_s("30 / min"), rate_per_s("a")
    (20.0, 20.0, 0.5, None)
    >>> rate_per_s("20/5s"), rate_per_s("20/"), rate_per_s("5m")
    (None, None, None)
    """
    number, slash, unit = (each.strip().lower() for each in text.partition("/"))
    amount = quantity(number)
    if not amount or amount[1] or (slash and unit not in (*filter(None, TIME_UNITS),)):
        return None
    return amount[0] / (in_seconds(1, unit) if slash else 1)
