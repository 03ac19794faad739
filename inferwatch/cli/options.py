"""Options that commands share: amounts, options of a watch and of the record."""

import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import click

from collectors.contract.readings import Prices
from collectors.hardware.gpu_source import CLOSELY_HZ, Gpm, GpuOptions
from embedded_engine.probe_settings import ProbeSettings, refusal
from inferwatch.cli.slo_options import (
    FiniteRange,
    price_options,
    slo_options,
    with_options,
)
from inferwatch.errors import UsageError
from inferwatch.live.alarms.options import AlarmOptions
from inferwatch.quantities import count_of, duration_s, rate_per_s, size_bytes

MOST_SPAN_S = 86_400.0


def _span(
    context: click.Context, param: click.Parameter, value: str | None
) -> float | None:
    """Parse a span such as ``10min``, ``90s`` or ``90``, into seconds."""
    if value is None:
        return None
    seconds = duration_s(value) or 0.0
    if not 0 < seconds <= MOST_SPAN_S:
        raise click.BadParameter(
            f"{value!r} is not a span up to a day: write it as 90s, 10min or 1h",
            context,
            param,
        )
    return seconds


def _size(
    context: click.Context, param: click.Parameter, value: str | None
) -> int | None:
    if value is None:
        return None
    size = size_bytes(value)
    if not size:
        raise click.BadParameter(
            f"{value!r} is not a size: write it as 500MB or 2GB", context, param
        )
    return size


def _rules(
    context: click.Context, param: click.Parameter, value: str | None
) -> str | None:
    """Check that the rules for alarms can be parsed."""
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
    """Split the command to run on an alert, and check that its program exists."""
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
            raise click.UsageError(
                f"{flag_of(name)} is for rules: give {needed} with it"
            )
    return _options(values), left


def _options(values: dict[str, Any]) -> AlarmOptions:
    """Return alarm options: the given values, and defaults for those that are None."""
    called = {"keep": "keep_s", "record_after": "record_after_s"}
    called["alert_every"] = "alert_every_s"
    given = {name: value for name, value in values.items() if value is not None}
    return AlarmOptions(
        **{called.get(name, name): each for name, each in given.items()}
    )


MOST_S = 1e8
"""Three years: more is a mistake, and would overflow nanoseconds."""


class DurationRange(FiniteRange):
    """A duration within bounds, such as ``30``, ``90s`` or ``10min``, in seconds."""

    name = "duration"

    def convert(
        self,
        value: Any,  # noqa: ANN401 - click's
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Refuse what is not a duration."""
        seconds = duration_s(value) if isinstance(value, str) else None
        number = super().convert(value if seconds is None else seconds, param, ctx)
        if number > MOST_S:
            self.fail(f"{value!r} is more than three years", param, ctx)
        return number


class CountRange(click.IntRange):
    """A whole number within bounds, such as ``512``, ``32k`` or ``32K`` (32,768)."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - click's
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> int:
        """Refuse what is not a whole number."""
        count = count_of(value) if isinstance(value, str) else None
        try:
            number = int(value) if count is None else count
        except ValueError:
            self.fail(f"{value!r} is not a whole number such as 512 or 32k", param, ctx)
        return super().convert(number, param, ctx)


class RateRange(FiniteRange):
    """A rate within bounds, such as ``20``, ``20/s`` or ``30/min``, per second."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - click's
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Refuse what is not a rate."""
        rate = rate_per_s(value) if isinstance(value, str) else None
        return super().convert(value if rate is None else rate, param, ctx)


def flag_of(name: str) -> str:
    """Return the flag of an option that click gives by its name."""
    return f"--{name.replace('_', '-')}"


def listed(kind: click.ParamType[Any]) -> Callable[..., tuple[Any, ...]]:
    """Return a callback for a repeated option whose values may stand between commas."""

    def converted(
        context: click.Context, param: click.Parameter, values: tuple[str, ...]
    ) -> tuple[Any, ...]:
        words = (word.strip() for value in values for word in value.split(","))
        return tuple(kind.convert(word, param, context) for word in words if word)

    return converted


SECONDS = DurationRange(0)
SOME_SECONDS = DurationRange(0, min_open=True)


def name(context: click.Context, param: click.Parameter, value: str | None) -> object:
    """Check a session's name; None without one, or if nothing in it is printable."""
    from inferwatch.record.sessions.housekeeping import checked_name

    if value is None:
        return None
    try:
        return checked_name(value)
    except UsageError as error:
        raise click.BadParameter(str(error), context, param) from error


def age(context: click.Context, param: click.Parameter, value: str | None) -> object:
    """Parse an age such as ``36h``, ``30d`` or ``4w`` into seconds."""
    from inferwatch.record.sessions.retention import AGE_FORMS, age_s

    if value is None:
        return None
    seconds = age_s(value)
    if seconds is None:
        raise click.BadParameter(
            f"{value!r} is not an age: write it as {AGE_FORMS}", context, param
        )
    return seconds


def size(context: click.Context, param: click.Parameter, value: str | None) -> object:
    """Parse a size such as ``500MB`` or ``5GB`` (decimal) into bytes."""
    from inferwatch.record.sessions.retention import SIZE_FORMS

    if value is None:
        return None
    amount = size_bytes(value)
    if amount is None:
        raise click.BadParameter(
            f"{value!r} is not a size: write it as {SIZE_FORMS}", context, param
        )
    return amount


def database_option(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add ``--db``, with what is done with the file."""
    return click.option(
        "--db",
        "database",
        type=click.Path(path_type=Path, dir_okay=False),
        help=f"{what}  [env: INFERWATCH_DB]",
    )


def dcgm(
    context: click.Context, param: click.Parameter, urls: tuple[str, ...]
) -> tuple[str, ...]:
    """Check that each value can be the URL of a dcgm-exporter."""
    from collectors.hardware.dcgm import dcgm_server
    from collectors.http.server import ServerError

    for url in urls:
        try:
            dcgm_server(url)
        except ServerError as error:
            raise click.BadParameter(str(error), context, param) from error
    return urls


def group_header(
    context: click.Context, param: click.Parameter, value: str | None
) -> str | None:
    """Check that the header to group requests by holds no secret."""
    if value is not None and (why := refusal(value)) is not None:
        raise click.BadParameter(why, context, param)
    return value


# Options of commands that watch.


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """The options that every watching command shares."""

    headless: bool = False
    duration_s: float | None = None
    """Counted from when the engine is up."""
    as_json: bool = False
    name: str | None = None
    database: Path | None = None
    """None for the default file."""
    record: bool = True
    once: bool = False
    """Whether to end after one reading."""
    tell_every_s: float = 5.0
    """How often progress is printed where no line can change."""
    gpus: GpuOptions = field(default_factory=GpuOptions)
    """Which GPUs of this host are read, and how."""
    alarms: AlarmOptions = field(default_factory=AlarmOptions)
    """The rules, and what happens when one holds."""
    slo: str | None = None
    """The objectives of requests, with the target; None if not given."""
    prices: Prices | None = None
    """What time or energy costs; None if not given."""
    stacks: bool = True
    """Whether the stacks of a stalled engine are read."""


_OPTIONS: list[Callable[..., Any]] = [
    click.option(
        "--headless", is_flag=True, help="No screen: record, then print a summary."
    ),
    click.option(
        "--duration",
        type=SOME_SECONDS,
        help="Stop after this long, counted from when the engine is up.",
    ),
    click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print the summary as one JSON object (implies --headless).",
    ),
    click.option(
        "--name",
        metavar="TEXT",
        callback=name,
        help="Name the recorded session.",
    ),
    database_option("Record into this SQLite file."),
    click.option("--no-record", is_flag=True, help="Record nothing."),
    click.option(
        "--no-stacks",
        is_flag=True,
        help="Do not read the stacks of a stalled engine.  [env: INFERWATCH_STACKS=0]",
    ),
]
_OPTIONS += ALARM_OPTIONS
_GPU_OPTIONS = [
    click.option(
        "--gpus",
        metavar="GPU,...",
        help="Read these GPUs of this host: UUIDs, their beginnings or the driver's "
        "numbers; all or none.  [default: those that CUDA_VISIBLE_DEVICES names]",
    ),
    click.option(
        "--peak-gbps",
        type=FiniteRange(0, min_open=True),
        metavar="GB/S",
        help="What a GPU's memory can move, where you know better than its clock and "
        "bus width.",
    ),
    click.option(
        "--peak-tflops",
        type=FiniteRange(0, min_open=True),
        metavar="TFLOP/S",
        help="What a GPU can compute at the model's dtype, dense, where you know "
        "better than its data sheet.",
    ),
    click.option(
        "--gpm",
        type=click.Choice([each.value for each in Gpm]),
        default=Gpm.AUTO.value,
        show_default=True,
        help="Read performance counters (memory bandwidth, SM activity) of GPUs that "
        "have them; force: even where drivers are known to fail with it.",
    ),
    click.option(
        "--gpu-rate",
        type=FiniteRange(0.1, CLOSELY_HZ),
        default=1.0,
        show_default=True,
        metavar="HZ",
        help=f"How often GPUs are read; {CLOSELY_HZ:.0f} times a second while their "
        "screen is shown.",
    ),
    click.option(
        "--dcgm",
        multiple=True,
        metavar="URL",
        callback=dcgm,
        help="Read GPUs from this dcgm-exporter too, here or on another host; may be "
        "repeated.  [default: one on port 9400 or 9401 here, if the driver lacks "
        "counters]",
    ),
]


_PROBE_OPTIONS = [
    click.option(
        "--no-block-map",
        is_flag=True,
        help="Do not follow which request holds which KV block.  "
        "[env: INFERWATCH_BLOCK_MAP=0]",
    ),
    click.option(
        "--group-header",
        metavar="NAME",
        callback=group_header,
        help="Tell this header of each request, such as x-tenant, to group by.  "
        "[env: INFERWATCH_GROUP_HEADER]",
    ),
    click.option(
        "--control",
        is_flag=True,
        help="Let you, and nobody else, turn the limits of the engine down, and back, "
        "while it runs.  [env: INFERWATCH_CONTROL=1]",
    ),
    click.option(
        "--profiler",
        is_flag=True,
        help="Start vLLM with its torch profiler, off until somebody profiles steps "
        "(P on the screen, or `inferwatch profile`). Whoever reaches the server can "
        "start it, too: /start_profile.  [the demo has it always]",
    ),
]


def probe_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gather the options of an engine's probe into one ``probe: ProbeSettings``."""

    @wraps(command)
    def gathered(
        *,
        no_block_map: bool,
        group_header: str | None,
        control: bool,
        profiler: bool,
        **others: object,
    ) -> object:
        probe = ProbeSettings(
            block_map=not no_block_map,
            group_header=group_header,
            control=control,
            profiler=profiler,
        )
        return command(probe=probe, **others)

    return with_options(_PROBE_OPTIONS, gathered)


def gpu_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gather the options of GPUs into one ``gpus: GpuOptions`` argument."""

    @wraps(command)
    def gathered(
        *,
        gpus: str | None,
        peak_gbps: float | None,
        peak_tflops: float | None,
        gpm: str,
        gpu_rate: float,
        dcgm: tuple[str, ...],
        **others: object,
    ) -> object:
        options = GpuOptions(
            gpus=tuple((gpus or "").replace(",", " ").split()),
            peak_gbps=peak_gbps,
            peak_tflops=peak_tflops,
            gpm=Gpm(gpm),
            rate_hz=gpu_rate,
            dcgm=dcgm,
        )
        return command(gpus=options, **others)

    return with_options(_GPU_OPTIONS, gathered)


def watch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gather the shared options into one ``options: WatchOptions`` argument."""

    @gpu_options
    @slo_options
    @price_options
    @wraps(command)
    def gathered(
        *,
        headless: bool,
        duration: float | None,
        as_json: bool,
        name: str | None,
        database: Path | None,
        no_record: bool,
        no_stacks: bool,
        gpus: GpuOptions,
        slo: str | None,
        prices: Prices | None,
        **others: Any,  # noqa: ANN401 - the command's own
    ) -> object:
        alarms, others = alarm_options_of(others, record=not no_record)
        if name is not None and no_record:
            raise click.UsageError(
                "--name names the recording, and --no-record makes none: leave one out"
            )
        options = WatchOptions(
            headless=headless or as_json,
            duration_s=duration,
            as_json=as_json,
            name=name,
            database=database,
            record=not no_record,
            gpus=gpus,
            alarms=alarms,
            slo=slo,
            prices=prices,
            stacks=not no_stacks,
        )
        return command(options=options, **others)

    return with_options(_OPTIONS, gathered)


class SectionedCommand(click.Command):
    """A command with many options, which ``--help`` shows under headings."""

    def __init__(
        self,
        *arguments: Any,  # noqa: ANN401 - click's
        sections: Mapping[str, Sequence[click.Option]],
        **others: Any,  # noqa: ANN401 - click's
    ) -> None:
        super().__init__(*arguments, **others)
        self.sections = sections
        for options in sections.values():
            self.params.extend(options)

    def format_options(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the options by section, ``--help`` itself last."""
        sections = {**self.sections, "Help": [self.get_help_option(ctx)]}
        for heading, options in sections.items():
            records = [each.get_help_record(ctx) for each in options if each]
            with formatter.section(heading):
                formatter.write_dl([each for each in records if each])


class HeadedCommand(SectionedCommand):
    """A command whose options are declared one by one, and shown under headings.

    Those under none are the command's own and come first.
    """

    def __init__(
        self,
        *arguments: Any,  # noqa: ANN401 - click's
        headings: Mapping[str, Sequence[str]],
        **others: Any,  # noqa: ANN401 - click's
    ) -> None:
        super().__init__(*arguments, sections={}, **others)
        options = {o.name: o for o in self.params if isinstance(o, click.Option)}
        placed = {
            heading: [options.pop(name) for name in names if name in options]
            for heading, names in headings.items()
        }
        sections = {"Options": list(options.values()), **placed}
        self.sections = {heading: each for heading, each in sections.items() if each}


WATCH_HEADINGS = {
    "Watch": (
        *("headless", "duration", "as_json", "name", "database", "no_record"),
        "no_stacks",
    ),
    "Objectives and cost": ("slo", "slo_target", "gpu_hour", "kwh", "currency"),
    "Recording on events, alerts": ("record_on", "alert", *NEEDS),
    "GPUs": ("gpus", "peak_gbps", "peak_tflops", "gpm", "gpu_rate", "dcgm"),
    "Probe": ("no_block_map", "group_header", "control", "profiler"),
}
"""Where options of commands that watch stand in their help."""
