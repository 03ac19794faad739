"""Parses and formats fields of a plan, each written in one line.

A length is ``32``, ``32-128`` or ``lognormal:MEDIAN,SIGMA``, a class of requests
``name=chat share=0.98 prompt=200-800 output=100 slo="ttft_s<0.5 tpot_s<50ms"``, also
``chat: share=0.98 ... priority=0``, and rates over time are

=====================  ==========================================================
``0:5 30:20 60:20``    5/s, rising to 20/s within 30 s, then constant
``ramp:5,50,60``       from 5/s to 50/s within 60 s, then constant
``steps:10,5,20,40``   5/s, 20/s, 40/s for 10 s each; the last continues
``onoff:40,5,10``      40/s for 5 s, nothing for 10 s, repeated
``onoff:40,5,10,2``    the same, with 2/s in between
=====================  ==========================================================
"""

import json
import math
import re
import shlex
from collections.abc import Callable
from typing import Any

import msgspec

from inferwatch.errors import UsageError
from inferwatch.loadgen.plan.lengths import Empirical, LogNormal, Range
from inferwatch.loadgen.plan.option import RATE, Bounds
from inferwatch.loadgen.plan.rates import RateSeries, on_off, ramp, steps
from inferwatch.metrics.requests.slo import parse_slo
from inferwatch.quantities import count_of, duration_s, rate_per_s

RATES_GRAMMAR = (
    "write SECONDS:RATE points as '0:5 30:20 60:20', ramp:FROM,TO,SECONDS, "
    "steps:SECONDS,RATE,RATE,... or onoff:RATE,SECONDS,PAUSE[,RATE]"
)


def read_rates(text: str) -> RateSeries:
    """Parse rates over time.

    Raises:
        ValueError: the text is malformed; the message shows the syntax.
    """
    name, colon, listed = text.strip().partition(":")
    shape = SHAPES.get(name.strip()) if colon else None
    try:
        if shape is None:
            return RateSeries(points=tuple(map(_point, text.split())))
        return shape(_numbers(listed))
    except RateError:
        raise
    except (ValueError, TypeError) as error:
        is_explained = str(error).startswith("rates:")
        why = str(error) if is_explained else f"cannot read {text!r}: {RATES_GRAMMAR}"
        raise RateError(why) from error


class RateError(ValueError):
    """A line is not a rate series; the message can be shown to users."""


def _point(text: str) -> tuple[float, float]:
    at_s, _, rate = text.partition(":")
    return _number(at_s), _number(rate)


def _numbers(listed: str) -> list[float]:
    return [_number(each) for each in listed.split(",")]


def _number(text: str) -> float:
    """A time or a rate, with or without its unit: ``60s`` is 60, ``20/s`` is 20."""
    value = rate_per_s(text) if "/" in text else duration_s(text)
    if value is None:
        value = float(text)  # raises ValueError for what is not a number at all
    if not 0 <= value < 1e9:
        raise RateError(f"{text.strip()!r} is not a time or rate: {RATES_GRAMMAR}")
    return value


def _ramp(numbers: list[float]) -> RateSeries:
    begin, end, over_s = numbers
    return ramp(begin, end, over_s)


def _steps(numbers: list[float]) -> RateSeries:
    each_s, *rates = numbers
    if not each_s or not rates:
        raise RateError(f"steps need a length and rates: {RATES_GRAMMAR}")
    return steps(rates, each_s)


def _on_off(numbers: list[float]) -> RateSeries:
    rate, on_s, off_s, *between = numbers
    (off_rate,) = between or [0.0]
    if not on_s or not rate:
        raise RateError(f"onoff needs a rate and its length: {RATES_GRAMMAR}")
    return on_off(rate, on_s, off_s, off_rate)


SHAPES: dict[str, Callable[[list[float]], RateSeries]] = {
    "ramp": _ramp,
    "steps": _steps,
    "onoff": _on_off,
}


# Lengths.

_LOGNORMAL = re.compile(r"lognormal:(\d*\.?\d+[kKmM]?),(\d*\.?\d+)")


def read_lengths(text: str) -> dict[str, Any]:
    """Parse the lengths of prompts, responses or conversations, as plain data.

    Raises:
        ValueError: the text is malformed.
    """
    first, dash, last = text.partition("-")
    low, high = count_of(first), count_of(last if dash else first)
    if low is not None and high is not None:
        return uniform(low, high)
    if match := _LOGNORMAL.fullmatch(text):
        median = float(count_of(match[1]) or match[1])
        return {"type": "lognormal", "median": median, "sigma": float(match[2])}
    raise ValueError(f"{text!r} is not N, LOW-HIGH or lognormal:MEDIAN,SIGMA")


def uniform(low: int, high: int) -> dict[str, Any]:
    """A ``Range`` as plain data."""
    return {"type": "uniform", "low": low, "high": high}


# A class of requests.

CLASS_GRAMMAR = (
    "'name=chat share=0.98 prompt=200-800 output=100 slo=\"ttft_s<0.5\" priority=0'"
)
MOST_SAID = 40
"""Letters of a priority that a message shows."""


def read_priority(text: str) -> int:
    """Parse a priority.

    Raises:
        ValueError: it is not a whole number.
    """
    try:
        return int(text)
    except ValueError:
        said = text if len(text) <= MOST_SAID else f"{text[:MOST_SAID]}…"
        raise ValueError(
            f"the priority {said!r} is not a whole number; lower ones go first"
        ) from None


CLASS_KEYS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "name": ("name", str),
    "share": ("share", float),
    "prompt": ("prompt_tokens", read_lengths),
    "output": ("output_tokens", read_lengths),
    "slo": ("slo", str),
    "priority": ("priority", read_priority),
}
CLASS_OPTIONAL = {"slo", "priority"}


def read_class(text: str) -> dict[str, Any]:
    """Parse the fields of a ``RequestClass``.

    Raises:
        ValueError: the text is malformed; the message shows the syntax.
    """
    try:
        given = _class_parts(text)
        return {
            CLASS_KEYS[key][0]: CLASS_KEYS[key][1](value)
            for key, value in given.items()
        }
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}; write {CLASS_GRAMMAR}") from error


def _class_parts(text: str) -> dict[str, str]:
    words = shlex.split(text)
    if words and words[0].endswith(":") and "=" not in words[0]:
        words[0] = f"name={words[0].removesuffix(':')}"
    parts = [part.partition("=") for part in words]
    given = {key: value for key, _, value in parts}
    if unknown := given.keys() - CLASS_KEYS.keys():
        raise ValueError(f"there is no {min(unknown)!r}")
    if missing := CLASS_KEYS.keys() - CLASS_OPTIONAL - given.keys():
        raise ValueError(f"{min(missing)} is missing")
    return given


# Everything else.


def read_object(text: str) -> dict[str, Any]:
    """Parse JSON for the body of each request.

    Raises:
        ValueError: the text is not a JSON object.
    """
    try:
        document = json.loads(text, parse_constant=_no_number)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(document, dict):
        raise ValueError(f"{text[:80]!r} is not a JSON object")  # noqa: TRY004 - a flag's text
    return document


def _no_number(name: str) -> None:
    raise ValueError(f"JSON has no {name}")


def read_groups(text: str) -> dict[str, int]:
    """Parse shared prefixes, written as ``4x512``.

    Raises:
        ValueError: the text is malformed.
    """
    groups, _, tokens = map(count_of, text.partition("x"))
    if groups is None or tokens is None:
        raise ValueError(f"{text!r} is not GROUPSxTOKENS, such as 4x512")
    return {"groups": groups, "tokens": tokens}


def read_number(
    text: str, bounds: Bounds, *, whole: bool, optional: bool
) -> float | None:
    """Parse a number of the form; the plan checks its upper bound.

    Raises:
        ValueError: the text is not a number.
    """
    if not text and optional:
        return None
    if not text:
        raise ValueError("needs a number")
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        raise ValueError("must be whole" if whole else "not a number") from None
    if not math.isfinite(value):
        raise ValueError("not a number")
    zero = bounds.hold(0)
    if value < 0 or (value == 0 and not zero):
        raise ValueError("no less than 0" if zero else "must be above 0")
    return value


def read_rate_row(text: str) -> dict[str, Any]:
    """Parse what the form has as rate: a number, or rates over time."""
    if ":" in text:
        try:
            rates = msgspec.to_builtins(read_rates(text))
        except (UsageError, ValueError):  # its message is too long for the form
            raise ValueError("write 0:5 30:20 or ramp:1,9,60") from None
        return {"rates": rates, "rate_per_s": None}
    rate = read_number(text, RATE, whole=False, optional=True)
    return {"rates": None, "rate_per_s": rate}


def rate_row(plan: Any) -> str:  # noqa: ANN401 - a plan's fields, which import this
    """A plan's rate or rates in the form's syntax."""
    if plan.rates is None:
        return written(plan.rate_per_s)
    return " ".join(f"{at_s:g}:{rate:g}" for at_s, rate in plan.rates.points)


def read_slo(text: str) -> str | None:
    """Return objectives as text, which the plan validates; empty text means none."""
    return text or None


def read_slo_row(text: str) -> dict[str, Any]:
    """Parse what the form has as objectives, validating them at once."""
    return {"slo": str(parse_slo(text)) if text else None}


def written(value: object) -> str:
    """A field's value in the form's syntax."""
    if isinstance(value, Range):
        low, high = value.low, value.high
        return f"{low}" if low == high else f"{low}-{high}"
    if isinstance(value, LogNormal):
        return f"lognormal:{value.median:g},{value.sigma:g}"
    if isinstance(value, Empirical):
        return "as seen"
    if value is None:
        return ""
    return f"{value:g}" if isinstance(value, float) else f"{value}"
