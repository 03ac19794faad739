"""Numbers as text, in one place.

Every function returns text of one width whatever the number, so that nothing moves
when it changes; unknown is a dash in the same width. Three digits say enough.
"""

from collectors.clock import NS_PER_S

WIDTH = 7
SHARE_WIDTH = 4
CLOCK_WIDTH = 9
UNKNOWN = "–"

DURATIONS = (
    (1e-3, 1e-6, "µs", 0),
    (0.25, 1e-3, "ms", 1),
    (1_000.0, 1.0, "s", 2),
    (59_970.0, 60.0, "min", 0),
    (float("inf"), 3_600.0, "h", 0),
)
"""Up to this many seconds: in units of that many, called so, with places at most."""
COUNTS = ((1e6, "M"), (1e9, "G"), (1e12, "T"))
BYTES = ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"))


def format_duration(duration_s: float | None) -> str:
    """Seven columns; below a quarter of a second in ms or µs.

    >>> format_duration(0.0089)
    ' 8.9 ms'
    >>> format_duration(0.212)
    ' 212 ms'
    >>> format_duration(0.41)
    ' 0.41 s'
    >>> format_duration(14.06)
    ' 14.1 s'
    >>> format_duration(0.000412)
    ' 412 µs'
    >>> format_duration(5_400)
    ' 90 min'
    >>> format_duration(None)
    '      –'
    """
    if duration_s is None:
        return UNKNOWN.rjust(WIDTH)
    _, unit_s, name, places = next(row for row in DURATIONS if duration_s < row[0])
    return f"{_digits(duration_s / unit_s, places)} {name}".rjust(WIDTH)


def format_count(count: float | None) -> str:
    """Seven columns, thousands apart; millions and more in three digits.

    >>> format_count(5460)
    '  5 460'
    >>> format_count(999_999)
    '999 999'
    >>> format_count(1_400_000)
    ' 1.40 M'
    >>> format_count(None)
    '      –'
    """
    if count is None:
        return UNKNOWN.rjust(WIDTH)
    if round(count) < 1_000_000:
        return f"{count:,.0f}".replace(",", " ").rjust(WIDTH)
    return _scaled(count, COUNTS)


def format_rate(per_s: float | None) -> str:
    """Seven columns without a unit: three digits when small, whole when large.

    >>> format_rate(18.24)
    '   18.2'
    >>> format_rate(4811.6)
    '  4 812'
    >>> format_rate(0.0)
    '   0.00'
    >>> format_rate(None)
    '      –'
    """
    if per_s is None or round(per_s) >= 1_000:
        return format_count(per_s)
    return _digits(per_s, 2).rjust(WIDTH)


def format_bytes(size_bytes: float | None) -> str:
    """Seven columns, decimal units.

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


def format_share(share: float | None) -> str:
    """Four columns, of a share between 0 and 1; tenths below ten percent.

    >>> format_share(0.714)
    ' 71%'
    >>> format_share(0.013)
    '1.3%'
    >>> format_share(1.0)
    '100%'
    >>> format_share(None)
    '   –'
    """
    if share is None:
        return UNKNOWN.rjust(SHARE_WIDTH)
    percent = share * 100
    tenths = round(percent, 1) < 10
    return f"{percent:.{1 if tenths else 0}f}%".rjust(SHARE_WIDTH)


def format_clock(t_ns: int | None) -> str:
    """Nine columns: hours, minutes and seconds of session time, cut, not rounded.

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
    """Three digits, with at most so many places after the point."""
    for places in (2, 1):
        if places <= most_places and round(value, places) < 10 ** (3 - places):
            return f"{value:.{places}f}"
    return f"{value:.0f}"


def _scaled(value: float, units: tuple[tuple[float, str], ...]) -> str:
    """In the largest unit that leaves something before the point."""
    for scale, name in units:
        digits = _digits(value / scale, 2)
        if float(digits) < 1_000:
            return f"{digits} {name}".rjust(WIDTH)
    scale, name = units[-1]
    return f"{value / scale:.0f} {name}".rjust(WIDTH)
