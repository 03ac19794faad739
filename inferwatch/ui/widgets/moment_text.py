"""Parse a moment of a session as typed: ``12:03:40``, ``+90s``, a bookmark's text."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from collectors.contract.clock import NS_PER_S
from inferwatch.errors import UsageError
from inferwatch.feed import Mark
from inferwatch.quantities import TIME_UNIT, in_seconds
from inferwatch.visible import visible

UNDERSTOOD = "12:03:40, 1:30 or 90s from the start, +90s or -5m from here, 50%, end"
"""The accepted forms, in one line."""
MOST_NAMED = 5
"""Most bookmarks that an error lists."""
DAY_S = 24 * 3600
_PART = rf"(\d+(?:\.\d+)?)\s*({TIME_UNIT}|)"
_SPAN = re.compile(rf"([+-]?)\s*((?:{_PART}\s*)+)")
_CLOCK = re.compile(r"(\d{1,2}):(\d\d):(\d\d)")
_MINUTES = re.compile(r"(\d+):(\d\d(?:\.\d+)?)")
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The range and clock that a typed moment refers to."""

    start_ns: int
    end_ns: int
    here_ns: int
    """Origin of ``+90s``."""
    wall_text: Callable[[int], str]
    """Formats session time as local time, HH:MM:SS."""
    bookmarks: Sequence[Mark] = ()


def moment_of(text: str, scale: Scale) -> int:
    """Return the session time of a typed moment, else of the bookmark with that text.

    Raises:
        UsageError: it is neither, or outside the session, or in several bookmarks.
    """
    typed = text.strip().lower()
    moments = list(_meanings(typed, scale))
    inside = (t_ns for t_ns in moments if scale.start_ns <= t_ns <= scale.end_ns)
    for t_ns in inside:
        return t_ns
    if moments and typed[:1] in {"+", "-"}:  # past an end means that end
        return min(max(moments[0], scale.start_ns), scale.end_ns)
    found = _bookmarked(text.strip().casefold(), scale.bookmarks)
    if len(found) == 1:
        return found[0].t_ns
    if found:
        raise UsageError(
            f"{text!r} is in {len(found)} bookmarks: {_listed(found, scale)}"
        )
    began, ended = scale.wall_text(scale.start_ns), scale.wall_text(scale.end_ns)
    wrong = f"not in the session, which is {began} to {ended}"
    if not moments:
        wrong = f"not a time: {UNDERSTOOD}"
    known = _listed(scale.bookmarks, scale) or "none is known"
    raise UsageError(f"{text!r} is {wrong}, or the text of a bookmark: {known}")


def _bookmarked(wanted: str, bookmarks: Sequence[Mark]) -> Sequence[Mark]:
    """Return the bookmarks with a text, else those that begin with it or have it."""
    texts = [(each, each.text.casefold()) for each in bookmarks if wanted]
    return (
        [each for each, text in texts if text == wanted]
        or [each for each, text in texts if text.startswith(wanted)]
        or [each for each, text in texts if wanted in text]
    )


def _listed(bookmarks: Sequence[Mark], scale: Scale) -> str:
    names = [
        f"{visible(each.text)!r} at {scale.wall_text(each.t_ns).strip()}"
        for each in bookmarks[:MOST_NAMED]
    ]
    more = len(bookmarks) - MOST_NAMED
    return ", ".join([*names, *([f"{more:,} more"] if more > 0 else [])])


def _meanings(wanted: str, scale: Scale) -> Iterator[int]:
    """Yield the session times that a typed text may mean, the most likely first."""
    if wanted in {"start", "end"}:
        yield scale.start_ns if wanted == "start" else scale.end_ns
    elif share := _SHARE.fullmatch(wanted):
        span_ns = scale.end_ns - scale.start_ns
        yield scale.start_ns + round(span_ns * float(share[1]) / 100)
    elif clock := _CLOCK.fullmatch(wanted):
        hours, minutes, seconds = map(int, clock.groups())
        yield from _on_the_clock(hours * 3600 + minutes * 60 + seconds, scale)
        yield _after(scale, hours * 3600 + minutes * 60 + seconds)
    elif two := _MINUTES.fullmatch(wanted):
        yield _after(scale, int(two[1]) * 60 + float(two[2]))
        if "." not in two[2]:
            yield from _on_the_clock(int(two[1]) * 3600 + int(two[2]) * 60, scale)
    elif span := _SPAN.fullmatch(wanted):
        yield _spanned(span[1], span[2], scale)


def _after(scale: Scale, seconds: float) -> int:
    return scale.start_ns + round(seconds * NS_PER_S)


def _spanned(sign: str, parts: str, scale: Scale) -> int:
    """Return the time at an offset: from the start, or from here if it has a sign."""
    pairs = re.findall(_PART, parts)
    seconds = sum(in_seconds(float(number), unit) for number, unit in pairs)
    if not sign:
        return _after(scale, seconds)
    return scale.here_ns + round(seconds * NS_PER_S) * (-1 if sign == "-" else 1)


def _on_the_clock(wanted_s: int, scale: Scale) -> Iterator[int]:
    """Yield each occurrence of a clock time in the session, the nearest first."""
    first_s = (wanted_s - _second_of_day(scale, scale.start_ns)) % DAY_S
    days = range((scale.end_ns - scale.start_ns) // (DAY_S * NS_PER_S) + 1)
    times = [_after(scale, first_s + day * DAY_S) for day in days]
    for t_ns in sorted(times, key=lambda t_ns: abs(t_ns - scale.here_ns)):
        off_s = wanted_s - _second_of_day(scale, t_ns)  # where clocks were changed
        yield t_ns + ((off_s + DAY_S // 2) % DAY_S - DAY_S // 2) * NS_PER_S


def _second_of_day(scale: Scale, t_ns: int) -> int:
    hours, minutes, seconds = map(int, scale.wall_text(t_ns).split(":"))
    return hours * 3600 + minutes * 60 + seconds
