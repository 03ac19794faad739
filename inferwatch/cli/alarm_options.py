"""The options of alarm rules: recording and alerts when one holds."""

import re
import shlex
import shutil
from typing import Any

import click

from inferwatch.live.alarms.rules import AlarmOptions

SPANS_S = {"s": 1.0, "min": 60.0, "h": 3_600.0}
MOST_SPAN_S = 86_400.0
_SPAN = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s?(s|min|h)?")
_SIZE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s?(MB|GB)", re.IGNORECASE)


def _span(
    context: click.Context, param: click.Parameter, value: str | None
) -> float | None:
    """Parse a span such as ``10min``, ``90s`` or ``90``, into seconds."""
    if value is None:
        return None
    match = _SPAN.fullmatch(value.strip())
    seconds = float(match[1]) * SPANS_S[match[2] or "s"] if match else 0.0
    if not 0 < seconds <= MOST_SPAN_S:
        raise click.BadParameter(
            f"{value!r} is no span up to a day: write it as 90s, 10min or 1h",
            context,
            param,
        )
    return seconds


def _size(
    context: click.Context, param: click.Parameter, value: str | None
) -> int | None:
    if value is None:
        return None
    match = _SIZE.fullmatch(value.strip())
    size = float(match[1]) * {"MB": 1e6, "GB": 1e9}[match[2].upper()] if match else 0
    if not size:
        raise click.BadParameter(
            f"{value!r} is no size: write it as 500MB or 2GB", context, param
        )
    return round(size)


def _rules(
    context: click.Context, param: click.Parameter, value: str | None
) -> str | None:
    """Check that the rules can be parsed."""
    from inferwatch.errors import UsageError
    from inferwatch.live.alarms.rules import rules_of

    if value is not None:
        try:
            rules_of(value)
        except UsageError as error:
            raise click.BadParameter(str(error), context, param) from error
    return value


def _command(
    context: click.Context, param: click.Parameter, value: str | None
) -> tuple[str, ...] | None:
    """Split the command into words, and check that its program exists."""
    if value is None:
        return None
    try:
        words = tuple(shlex.split(value))
    except ValueError as error:
        raise click.BadParameter(f"{value!r}: {error}", context, param) from error
    if not words:
        raise click.BadParameter("it names no program", context, param)
    if shutil.which(words[0]) is None:
        raise click.BadParameter(
            f"there is no program {words[0]!r}; it is run without a shell: one is had "
            "with sh -c '…'",
            context,
            param,
        )
    return words


RULES = "slo, preemption, stall, lost, finding, p99(ttft_s)>2, waiting>20, joined by |"
ALARM_OPTIONS = [
    click.option(
        "--record-on",
        metavar="RULES",
        callback=_rules,
        help="Record nothing but what led to one of these, and what follows it: the "
        f"minutes before are kept in memory. {RULES}.",
    ),
    click.option(
        "--keep",
        metavar="SPAN",
        callback=_span,
        help="How long, such as 10min.  [default: 5min]",
    ),
    click.option(
        "--keep-bytes",
        metavar="SIZE",
        callback=_size,
        help="In how much memory at most, such as 1GB.  [default: 256MB]",
    ),
    click.option(
        "--record-after",
        metavar="SPAN",
        callback=_span,
        help="Go on recording until no rule has held for so long.  [default: 60s]",
    ),
    click.option(
        "--alert",
        metavar="RULES",
        callback=_rules,
        help="Tell when one of these holds, and record as usual.",
    ),
    click.option(
        "--on-alert",
        metavar="COMMAND",
        callback=_command,
        help="Run this when a rule begins to hold, without a shell: what happened is "
        "in INFERWATCH_ALERT_RULE, _SENTENCE, _SESSION, _TIME, and as JSON on stdin.",
    ),
    click.option(
        "--alert-every",
        metavar="SPAN",
        callback=_span,
        help="Tell of one rule at most once in so long.  [default: 60s]",
    ),
]
NEEDS = {
    "keep": "--record-on",
    "keep_bytes": "--record-on",
    "record_after": "--record-on",
    "on_alert": "--record-on or --alert",
    "alert_every": "--record-on or --alert",
}


def alarm_options_of(
    others: dict[str, Any], *, record: bool
) -> tuple[AlarmOptions, dict[str, Any]]:
    """Return the alarm options, and the options that remain.

    Raises:
        UsageError: an option that needs a rule was given without one.
    """
    names = ("record_on", "alert", *NEEDS)
    values = {name: others[name] for name in names}
    left = {name: value for name, value in others.items() if name not in names}
    if values["record_on"] is not None and not record:
        raise click.UsageError("--record-on records, and --no-record does not: choose")
    for name, needed in NEEDS.items():
        rules = ("record_on",) if needed == "--record-on" else ("record_on", "alert")
        if values[name] is not None and all(values[each] is None for each in rules):
            flag = name.replace("_", "-")
            raise click.UsageError(f"--{flag} is for rules: give {needed} with it")
    return _options(values), left


def _options(values: dict[str, Any]) -> AlarmOptions:
    """Keep the defaults of options that were not given."""
    called = {"keep": "keep_s", "record_after": "record_after_s"}
    called["alert_every"] = "alert_every_s"
    given = {name: value for name, value in values.items() if value is not None}
    return AlarmOptions(
        **{called.get(name, name): each for name, each in given.items()}
    )
