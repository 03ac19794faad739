"""Turns numbers into text, in one place for the whole program.

Every function returns text of one width whatever the number, so that nothing moves
when it changes; unknown is a dash in the same width. Three digits say enough.

Commas set thousands apart. Durations that are read side by side share one unit
(`shared_unit`). A number that rests on too few samples has a ``~`` before it (`about`).
"""

from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from math import floor, isfinite, log10
from typing import NamedTuple

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import BoundBy

WIDTH = 7
DIGITS_WIDTH = 6
SHARED_WIDTH = 9
SHARE_WIDTH = 4
CLOCK_WIDTH = 9
UNKNOWN = "–"

ABOUT = "~"

DURATIONS = (
    (999.5e-6, 1e-6, "µs", 0),
    (999.5e-3, 1e-3, "ms", 1),
    (999.5, 1.0, "s", 2),
    (59_970.0, 60.0, "min", 0),
    (float("inf"), 3_600.0, "h", 0),
)
"""Rows of: seconds below which it is used, seconds in the unit, its name, most
decimals."""


class TimeUnit(NamedTuple):
    """A unit that durations can share."""

    name: str
    seconds: float
    places: int
    """The most digits after the decimal point."""


MICROSECONDS = TimeUnit("µs", 1e-6, 0)
MILLISECONDS = TimeUnit("ms", 1e-3, 3)
SECONDS = TimeUnit("s", 1.0, 3)
COUNTS = ((1e6, "M"), (1e9, "G"), (1e12, "T"))
FLOPS = ((1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"), (1e15, "P"))
FLOPS_WIDTH = 13
BYTES = ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"))


def format_duration(duration_s: float | None) -> str:
    """Format a duration in seven columns with its own unit: ms or µs below a second.

    >>> format_duration(0.0089)
    ' 8.9 ms'
    >>> format_duration(0.212)
    ' 212 ms'
    >>> format_duration(1.59)
    ' 1.59 s'
    >>> format_duration(14.06)
    ' 14.1 s'
    >>> format_duration(0.000412)
    ' 412 µs'
    >>> format_duration(5_400)
    ' 90 min'
    >>> format_duration(None)
    '      –'
    """
    if duration_s is None or not isfinite(duration_s):
        return UNKNOWN.rjust(WIDTH)
    _, unit_s, name, places = next(row for row in DURATIONS if duration_s < row[0])
    return f"{_digits(duration_s / unit_s, places)} {name}".rjust(WIDTH)


def duration_text(duration_s: float | None) -> str:
    """The same in a sentence.

    >>> duration_text(14.06)
    '14.1 s'
    """
    return format_duration(duration_s).strip()


def format_about(duration_s: float) -> str:
    """Format an estimate in whole seconds, whole minutes, or hours; of any width.

    >>> format_about(26.7), format_about(0.2), format_about(700), format_about(9_000)
    ('27 s', '1 s', '12 min', '2.5 h')
    """
    if duration_s < 119.5:
        return f"{max(round(duration_s), 1)} s"
    if duration_s < 119.5 * 60:
        return f"{duration_s / 60:.0f} min"
    return f"{duration_s / 3_600:,.1f} h".replace(".0 h", " h")


def shared_unit(
    durations_s: Iterable[float | None], *, round_figures: bool = False
) -> TimeUnit:
    """Return the unit for durations that are read side by side: a row, a pair.

    µs while the longest is below a millisecond; s from ten seconds on, and where even
    the shortest is a second or more; else ms. Short ones beside a longest below 100 s
    keep ms, so that they keep their digits. Round figures have few to keep: for them
    it is s from one second on, beside the shortest of 0.1 s, and from ten beside any.

    >>> shared_unit([0.000012, 0.123]).name, shared_unit([0.0208, 1.59]).name
    ('ms', 'ms')
    >>> shared_unit([1.2, 4.1]).name, shared_unit([0.208, 27.4]).name
    ('s', 's')
    >>> shared_unit([0.0208, 27.4]).name, shared_unit([0.0208, 127.4]).name
    ('ms', 's')
    >>> shared_unit([0.000004, 0.00041]).name, shared_unit([None]).name
    ('µs', 'ms')
    >>> shared_unit([0.25, 2.5]).name, shared_unit([0.25, 2.5], round_figures=True).name
    ('ms', 's')
    """
    durations = [each for each in durations_s if each is not None]
    if not durations:
        return MILLISECONDS
    shortest, longest = min(durations), max(durations)
    enough = 9.9995 if shortest >= 0.09995 else 99.9995
    enough /= 10 if round_figures else 1
    if shortest >= 0.9995 or longest >= enough:
        return SECONDS
    return MILLISECONDS if longest >= 999.5e-6 else MICROSECONDS


def format_in(unit: TimeUnit, duration_s: float | None) -> str:
    """Format a duration in six columns without its unit, which is shown once for all.

    >>> format_in(MILLISECONDS, 0.0208), format_in(MILLISECONDS, 1.59)
    ('  20.8', ' 1,590')
    >>> format_in(MILLISECONDS, 0.000012), format_in(SECONDS, 0.0208)
    (' 0.012', ' 0.021')
    >>> format_in(SECONDS, 0.0001), format_in(SECONDS, 0), format_in(SECONDS, None)
    ('<0.001', '     0', '     –')
    """
    if duration_s is None:
        return UNKNOWN.rjust(DIGITS_WIDTH)
    digits = _digits(duration_s / unit.seconds, unit.places) if duration_s else "0"
    return ("<0.001" if digits == "0.000" else digits).rjust(DIGITS_WIDTH)


def format_durations(durations_s: Iterable[float | None]) -> tuple[str, ...]:
    """Format durations in nine columns each, all in one unit.

    >>> format_durations([0.198, 0.36])
    ('   198 ms', '   360 ms')
    >>> format_durations([0.0208, 1.59, None])
    ('  20.8 ms', ' 1,590 ms', '        –')
    >>> [each.strip() for each in format_durations([0.000012, 0.123])]
    ['0.012 ms', '123 ms']
    """
    durations = tuple(durations_s)
    unit = shared_unit(durations)
    return tuple(
        (UNKNOWN if each is None else f"{format_in(unit, each)} {unit.name}").rjust(
            SHARED_WIDTH
        )
        for each in durations
    )


def format_bracket(
    low_s: float, high_s: float | None, unit: TimeUnit | None = None
) -> str:
    """Format the bounds of a duration, in any width; the unit, if given, is left out.

    >>> format_bracket(0, 0.01), format_bracket(1, 2.5), format_bracket(10, None)
    ('0–10 ms', '1–2.5 s', '> 10 s')
    >>> format_bracket(0.25, 0.5), format_bracket(0.75, 1), format_bracket(0.0003, 0.01)
    ('250–500 ms', '0.75–1 s', '0.3–10 ms')
    >>> format_bracket(0.5, 1, MILLISECONDS), format_bracket(1920, None, SECONDS)
    ('500–1,000', '> 1,920')
    """
    bounds = [each for each in (low_s, high_s) if each]
    named = unit or shared_unit(bounds, round_figures=True)
    ends = [_round_figure(each, named) for each in (low_s, high_s) if each is not None]
    text = f"> {ends[0]}" if high_s is None else "–".join(ends)
    return text if unit else f"{text} {named.name}"


def format_objective(below_s: float) -> str:
    """Format the limit that a latency must stay below.

    >>> format_objective(0.5), format_objective(1)
    ('< 500 ms', '< 1 s')
    """
    return f"< {format_round_duration(below_s)}"


def format_round_duration(duration_s: float) -> str:
    """Format a duration that is a round number, as on an axis.

    >>> format_round_duration(0.02), format_round_duration(0.0005)
    ('20 ms', '500 µs')
    """
    unit = shared_unit([duration_s], round_figures=True)
    return f"{_round_figure(duration_s, unit)} {unit.name}"


def format_counts_bracket(low: float, high: float | None) -> str:
    """Format two bounds of a count, such as of tokens.

    >>> format_counts_bracket(100, 200), format_counts_bracket(5_000, None)
    ('101–200', '> 5,000')
    >>> format_counts_bracket(0, 5), format_counts_bracket(1, 2)
    ('0–5', '2')
    """
    if high is None:
        return f"> {low:,.0f}"
    least = low + 1 if low else 0
    return f"{high:,.0f}" if least == high else f"{least:,.0f}–{high:,.0f}"


def format_value(value: float) -> str:
    """Format a number of unknown unit: counts in full, others to four digits.

    >>> format_value(1682.0), format_value(0.25), format_value(0.0633162968)
    ('1,682', '0.25', '0.06332')
    >>> format_value(1795195009.7), format_value(2.5e18), format_value(-3.0)
    ('1,795,195,010', '2.5e+18', '-3')
    """
    if abs(value) >= 1e15:
        return f"{value:.4g}"
    if value.is_integer() or abs(value) >= 1e4:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def format_value_bracket(low: float, high: float | None) -> str:
    """Format two bounds of a number of unknown unit.

    >>> format_value_bracket(0.05, 0.1), format_value_bracket(960.0, None)
    ('0.05–0.1', '> 960')
    """
    if high is None:
        return f"> {format_value(low)}"
    return f"{format_value(low)}–{format_value(high)}"


def format_met(least: float, most: float) -> str:
    """Format a share that lies between two bounds: one number if both look alike.

    >>> format_met(0.91, 0.95), format_met(1, 1), format_met(0.9991, 1)
    ('91–95%', '100%', '99–100%')
    >>> format_met(0.052, 0.0521), format_met(0, 0.034)
    ('5.2%', '0–3.4%')
    """
    low, high = format_share(least).strip(), format_share(most).strip()
    return high if low == high else f"{low.removesuffix('%')}–{high}"


def _round_figure(duration_s: float, unit: TimeUnit) -> str:
    """Format a round duration as a number of units, without trailing zeros."""
    figure = f"{duration_s / unit.seconds:,.3f}"
    return figure.rstrip("0").rstrip(".")


def about(text: str) -> str:
    """Mark a number as resting on too few samples, using its first blank column.

    >>> about("  20.8"), about("1.43 s")
    (' ~20.8', '~1.43 s')
    """
    digits = text.lstrip()
    return f"{ABOUT}{digits}".rjust(len(text))


@lru_cache(256)
def model_name(model: str) -> str:
    """Return a model's name; of a folder its last part, of a repository all of it.

    >>> model_name("/models/tiny/"), model_name("meta-llama/Llama-3.1-8B")
    ('tiny', 'meta-llama/Llama-3.1-8B')
    """
    return short_name(model) if model.startswith("/") else model


def short_name(model: str) -> str:
    """Return the last part of a path or repository name.

    >>> short_name("meta-llama/Llama-3.1-8B"), short_name("/models/tiny/")
    ('Llama-3.1-8B', 'tiny')
    """
    return model.rstrip("/").rsplit("/", 1)[-1]


def counted(count: int | None, noun: str, nouns: str = "") -> str:
    """Format a count with its noun; ``nouns`` is the plural if it is irregular.

    >>> counted(1, "request"), counted(1983, "request"), counted(None, "step")
    ('1 request', '1,983 requests', '– steps')
    >>> counted(0, "reply", "replies")
    '0 replies'
    """
    many = UNKNOWN if count is None else f"{count:,}"
    return f"{many} {noun if count == 1 else nouns or noun + 's'}"


def format_count(count: float | None) -> str:
    """Format a count in seven columns, with commas; millions and more in three digits.

    >>> format_count(5460)
    '  5,460'
    >>> format_count(999_999)
    '999,999'
    >>> format_count(1_400_000)
    ' 1.40 M'
    >>> format_count(None)
    '      –'
    """
    if count is None:
        return UNKNOWN.rjust(WIDTH)
    if round(count) < 1_000_000:
        return f"{count:,.0f}".rjust(WIDTH)
    return _scaled(count, COUNTS)


def format_rate(per_s: float | None) -> str:
    """Format a rate in seven columns without unit: three digits, or whole if large.

    >>> format_rate(18.24)
    '   18.2'
    >>> format_rate(4811.6)
    '  4,812'
    >>> format_rate(0.0)
    '   0.00'
    >>> format_rate(None)
    '      –'
    """
    if per_s is None or round(per_s) >= 1_000:
        return format_count(per_s)
    return _digits(per_s, 2).rjust(WIDTH)


def format_figure(value: float | None) -> str:
    """Format a number in seven columns without a unit: three digits, however small.

    >>> format_figure(0.01234), format_figure(0.000071), format_figure(3610.4)
    (' 0.0123', '0.00007', '  3,610')
    >>> format_figure(0.0), format_figure(18.24), format_figure(None)
    ('   0.00', '   18.2', '      –')
    """
    if not value or abs(value) >= 0.1:
        return format_rate(value)
    places = min(2 - floor(log10(abs(value))), 5)
    return f"{value:.{places}f}".rjust(WIDTH)


def price_places(prices: Iterable[float | None]) -> int:
    """Return how many decimals to give all prices that are read side by side.

    >>> price_places([0.11, 0.085]), price_places([12.5, 1.18, None]), price_places([])
    (4, 2, 2)
    """
    amounts = [each for each in prices if each]
    return min(max(2, 2 - floor(log10(min(amounts)))), 6) if amounts else 2


def format_price(price: float | None, currency: str, places: int) -> str:
    """Format a price with its currency, in any width.

    >>> format_price(0.11, "$", 4), format_price(13_902, "€", 2)
    ('$0.1100', '€13,902.00')
    """
    return UNKNOWN if price is None else f"{currency}{price:,.{places}f}"


def format_change(ratio: float | None) -> str:
    """Format a ratio as a change, in six columns at most: ``+38%``, ``×12.5``.

    >>> format_change(1.38)
    '+38%'
    >>> format_change(0.982)
    '-1.8%'
    >>> format_change(12.5)
    '×12'
    """
    if ratio is None:
        return UNKNOWN
    if ratio >= 10:
        return f"×{ratio:,.0f}" if ratio < 10_000 else "×10⁴+"
    percent = (ratio - 1) * 100
    return f"{percent:+.1f}%" if abs(percent) < 9.95 else f"{percent:+.0f}%"


def format_bytes(size_bytes: float | None) -> str:
    """Format a number of bytes in seven columns, in decimal units.

    >>> format_bytes(2_100_000)
    '2.10 MB'
    >>> format_bytes(64)
    '   64 B'
    >>> format_bytes(None)
    '      –'
    """
    if size_bytes is None:
        return UNKNOWN.rjust(WIDTH)
    if size_bytes < 999.5:
        return f"{size_bytes:.0f} B".rjust(WIDTH)
    return _scaled(size_bytes, BYTES)


def format_flops(flops_per_s: float | None) -> str:
    """Format floating-point operations per second in thirteen columns.

    >>> format_flops(989e12), format_flops(1.98e15)
    ('  989 TFLOP/s', ' 1.98 PFLOP/s')
    >>> format_flops(42.3e9), format_flops(12.0), format_flops(None)
    (' 42.3 GFLOP/s', '  12.0 FLOP/s', '            –')
    """
    if flops_per_s is None:
        return UNKNOWN.rjust(FLOPS_WIDTH)
    scaled = _scaled(flops_per_s, FLOPS).strip()
    space = " " if scaled[-1:].isdigit() else ""
    return f"{scaled}{space}FLOP/s".rjust(FLOPS_WIDTH)


def format_gigabytes(size_bytes: float | None) -> str:
    """Format bytes, or bytes per second, in seven columns: decimal GB without unit.

    >>> format_gigabytes(3_352.3e9), format_gigabytes(80 << 30)
    ('  3,352', '   85.9')
    >>> format_gigabytes(12_000_000), format_gigabytes(None)
    ('   0.01', '      –')
    """
    return format_rate(None if size_bytes is None else size_bytes / 1e9)


def gigabytes_text(size_bytes: float) -> str:
    """The same in a sentence.

    >>> gigabytes_text(80 << 30)
    '85.9 GB'
    """
    return f"{format_gigabytes(size_bytes).strip()} GB"


def format_share(share: float | None) -> str:
    """Format a share between 0 and 1 in four columns; tenths below ten percent.

    A share just below 1 is not shown as 100%: the rest would seem to be missing.

    >>> format_share(0.714)
    ' 71%'
    >>> format_share(0.013)
    '1.3%'
    >>> format_share(1.0), format_share(0.996), format_share(0.0)
    ('100%', ' 99%', '  0%')
    >>> format_share(None)
    '   –'
    """
    if share is None:
        return UNKNOWN.rjust(SHARE_WIDTH)
    percent = min(share * 100, 99.0) if 0.99 < share < 1 else share * 100
    tenths = percent > 0 and round(percent, 1) < 10
    return f"{percent:.{1 if tenths else 0}f}%".rjust(SHARE_WIDTH)


def format_nines(share: float | None) -> str:
    """Format a share near 1 in the digits that matter; it is never rounded up.

    >>> format_nines(0.999), format_nines(0.99999), format_nines(0.95), format_nines(1)
    ('99.9%', '99.99%', '95%', '100%')
    """
    if share is None or not 0.99 < share < 1:
        return format_share(share).strip()
    return f"{floor(share * 10_000 + 1e-6) / 100:g}%"


BOUND_TEXTS = {
    BoundBy.NOTHING: "nothing waits",
    BoundBy.SEQS: "max_num_seqs",
    BoundBy.TOKENS: "max_num_batched_tokens",
    BoundBy.KV: "KV blocks",
    BoundBy.DEFERRED: "deferred",
    BoundBy.OTHER: "the scheduler's own rules",
}
"""What binds, by the flag that turns it where there is one."""


BRIEF_BOUNDS = {BoundBy.NOTHING: "nothing waits", BoundBy.KV: "KV"}
"""What binds where there is no room for a flag; others are called as in files."""


def bound_text(
    bound: BoundBy, deferral: str | None = None, *, briefly: bool = False
) -> str:
    """Return what kept the head of the queue waiting, in the words of the screens.

    >>> bound_text(BoundBy.NOTHING), bound_text(BoundBy.KV)
    ('nothing waits', 'KV blocks')
    >>> bound_text(BoundBy.DEFERRED, "grammar")
    'deferred (grammar)'
    """
    if deferral is not None and bound is BoundBy.DEFERRED:
        return f"{BOUND_TEXTS[bound]} ({deferral})"
    return BRIEF_BOUNDS.get(bound, bound.value) if briefly else BOUND_TEXTS[bound]


BRIEF_FLAGS = {
    bound_text(each): bound_text(each, briefly=True)
    for each in (BoundBy.SEQS, BoundBy.TOKENS)
}
"""What limits are called where there is no room for their flag."""


def wall_clock(wall_ns: int, *, ms: bool = False) -> str:
    """Return the local time of day, truncated to seconds or milliseconds."""
    seconds, rest_ns = divmod(wall_ns, NS_PER_S)
    text = datetime.fromtimestamp(seconds).astimezone().strftime("%H:%M:%S")
    return f"{text}.{rest_ns // 1_000_000:03}" if ms else text


def format_clock(t_ns: int | None) -> str:
    """Format session time in nine columns: hours, minutes, seconds; truncated.

    >>> format_clock(11_561_900_000_000)
    ' 03:12:41'
    >>> format_clock(-1_000_000_000)
    '-00:00:01'
    >>> format_clock(None)
    '        –'
    """
    if t_ns is None:
        return UNKNOWN.rjust(CLOCK_WIDTH)
    minutes, seconds = divmod(abs(t_ns) // NS_PER_S, 60)
    hours, minutes = divmod(minutes, 60)
    sign = "-" if t_ns < 0 else ""
    return f"{sign}{hours:02}:{minutes:02}:{seconds:02}".rjust(CLOCK_WIDTH)


def _digits(value: float, most_places: int) -> str:
    """Format a value in three digits, at most ``most_places`` of them decimals."""
    for places in (3, 2, 1):
        if places <= most_places and round(value, places) < 10 ** (3 - places):
            return f"{value:.{places}f}"
    return f"{value:,.0f}"


def _scaled(value: float, units: tuple[tuple[float, str], ...]) -> str:
    """Format a value in the largest unit in which it is at least one."""
    for scale, name in units:
        digits = _digits(value / scale, 2)
        if "," not in digits:
            return f"{digits} {name}".rjust(WIDTH)
    scale, name = units[-1]
    return f"{value / scale:,.0f} {name}".rjust(WIDTH)
