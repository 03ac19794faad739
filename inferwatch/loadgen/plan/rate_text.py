"""Rates by time as people write them, in one line.

=====================  ==========================================================
``0:5 30:20 60:20``    5/s, rising to 20/s in 30 s, which goes on
``ramp:5,50,60``       from 5/s to 50/s in 60 s, which goes on
``steps:10,5,20,40``   every 10 s the next: 5/s, 20/s, 40/s, which goes on
``onoff:40,5,10``      40/s for 5 s, nothing for 10 s, and again
``onoff:40,5,10,2``    the same, with 2/s in between
=====================  ==========================================================
"""

from collections.abc import Callable

from inferwatch.loadgen.plan.rates import RateSeries, on_off, ramp, steps

GRAMMAR = (
    "write SECONDS:RATE points as '0:5 30:20 60:20', ramp:FROM,TO,SECONDS, "
    "steps:SECONDS,RATE,RATE,... or onoff:RATE,SECONDS,PAUSE[,RATE]"
)


def read_rates(text: str) -> RateSeries:
    """What a line says.

    Raises:
        ValueError: it says nothing we know; the message says what would.
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
        known = str(error).startswith("rates:")
        why = str(error) if known else f"cannot read {text!r}: {GRAMMAR}"
        raise RateError(why) from error


class RateError(ValueError):
    """A line that says no rates; the message is fit to show."""


def _point(text: str) -> tuple[float, float]:
    at_s, _, rate = text.partition(":")
    return _number(at_s), _number(rate)


def _numbers(listed: str) -> list[float]:
    return [_number(each) for each in listed.split(",")]


def _number(text: str) -> float:
    """With or without its unit: ``60s`` is 60, ``20/s`` is 20."""
    found = float(text.strip().removesuffix("/s").removesuffix("s"))
    if not 0 <= found < 1e9:
        raise RateError(f"{text.strip()!r} is no time or rate: {GRAMMAR}")
    return found


def _ramp(numbers: list[float]) -> RateSeries:
    begin, end, over_s = numbers
    return ramp(begin, end, over_s)


def _steps(numbers: list[float]) -> RateSeries:
    each_s, *rates = numbers
    if not each_s or not rates:
        raise RateError(f"steps need a length and rates: {GRAMMAR}")
    return steps(rates, each_s)


def _on_off(numbers: list[float]) -> RateSeries:
    rate, on_s, off_s, *between = numbers
    (off_rate,) = between or [0.0]
    if not on_s or not rate:
        raise RateError(f"onoff needs a rate and its length: {GRAMMAR}")
    return on_off(rate, on_s, off_s, off_rate)


SHAPES: dict[str, Callable[[list[float]], RateSeries]] = {
    "ramp": _ramp,
    "steps": _steps,
    "onoff": _on_off,
}
