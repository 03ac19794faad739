"""The options of ``inferwatch load``, and how they make a plan."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from inferwatch.cli.options import CountRange, DurationRange, RateRange, name
from inferwatch.cli.slo_options import FiniteRange
from inferwatch.loadgen.plan.option import Flag, Heading, ShownBounds
from inferwatch.loadgen.plan.plan import FIELDS, PlanField
from inferwatch.metrics.requests.slo import DEFAULT_SHARE

FILE = click.Path(path_type=Path, dir_okay=False)


def plan_options(heading: Heading) -> list[click.Option]:
    """Return the flags under a heading of ``--help`` that set fields of a load plan."""
    flags = [
        (flag, field)
        for field in FIELDS
        for flag in field.option.flags
        if flag.heading is heading
    ]
    flags.sort(key=lambda each: each[0].place)
    return [_option(flag, field) for flag, field in flags]


def _option(flag: Flag, field: PlanField) -> click.Option:
    names = [flag.name, flag.key or field.name]
    more: dict[str, Any] = {"help": flag.help, "metavar": flag.metavar}
    if flag.sets is None and "/" not in flag.name:
        return click.Option(
            names, type=_type(flag, field), multiple=flag.repeats, **more
        )
    if flag.sets is not None:
        more["flag_value"] = flag.sets
    return click.Option(names, is_flag=True, default=None, **more)


def _type(flag: Flag, field: PlanField) -> click.ParamType[Any] | type | None:
    if flag.words:
        return click.Choice([str(word) for word in flag.words])
    if flag.is_file:
        return click.Path(dir_okay=False)
    bounds = field.option.bounds
    if field.number is None or bounds is None or flag.shown is ShownBounds.NEITHER:
        return field.number
    high = bounds.high if flag.shown is ShownBounds.BOTH else None
    if field.number is int:
        return CountRange(int(bounds.low), None if high is None else int(high))
    return _range_of(field.name)(bounds.low, high, min_open=bounds.above)


def _range_of(name: str) -> type[FiniteRange]:
    if name.endswith("per_s"):
        return RateRange
    return DurationRange if name.endswith("_s") else FiniteRange


PLAN = click.Option(
    ["--plan"], type=FILE, help="Read the plan from a TOML file; flags override it."
)
UDS = click.Option(["--uds"], type=FILE, help="The server's Unix socket.")
HEADER = click.Option(
    ["--header"],
    multiple=True,
    metavar="'NAME: VALUE'",
    help="Send this header with each request.",
)
ALLOW_LOAD = click.Option(
    ["--allow-load"],
    is_flag=True,
    help="Send even if the server is serving other traffic.",
)
VERDICT = [
    click.Option(
        ["--share"],
        type=FiniteRange(0, 1, min_open=True),
        default=DEFAULT_SHARE,
        show_default=True,
        help="Share of the requests that must be good.",
    ),
    click.Option(
        ["--strict-client"],
        is_flag=True,
        help="Exit with status 1 when the client was the bottleneck.",
    ),
    click.Option(
        ["--find-rate"],
        is_flag=True,
        help="Search for the highest rate at which --share of the requests meet --slo, "
        "starting from --rate; each try is a run of --duration seconds.",
    ),
    click.Option(
        ["--sweep"],
        metavar="WHAT=VALUES",
        help="One run per value, such as rate=1,2,4,8 or concurrency=1,8,64.",
    ),
    click.Option(
        ["--resume"], metavar="SESSION", help="Continue an earlier --find-rate."
    ),
]
RESULT = [
    click.Option(
        ["--json", "as_json"],
        is_flag=True,
        help="Print the summary as one JSON object.",
    ),
    click.Option(
        ["--format", "output_format"],
        type=click.Choice(["inferwatch", "vllm-bench"]),
        default="inferwatch",
        help="vllm-bench prints the JSON that `vllm bench serve` saves.",
    ),
    click.Option(
        ["--save-requests"], type=FILE, help="Write each request as a line of JSON."
    ),
    click.Option(
        ["--answers"],
        type=CountRange(1, 1000),
        metavar="N",
        help="Number of fixed prompts for --answers-to.  [default: 32]",
    ),
    click.Option(
        ["--answers-to"],
        type=FILE,
        metavar="FILE",
        help="After the load, send fixed prompts at temperature 0 and add what was "
        "answered to FILE: of the first server its token ids, of later ones how far "
        "they differ, for `inferwatch compare A B --answers FILE`. Only you may read "
        "FILE, as ids tell what was said.",
    ),
    click.Option(
        ["--name"], metavar="TEXT", callback=name, help="Name the recorded session."
    ),
    click.Option(
        ["--db", "database"],
        type=FILE,
        help="Record into this SQLite file.  [env: INFERWATCH_DB]",
    ),
    click.Option(["--no-record"], is_flag=True, help="Record nothing."),
]
SECTIONS: Mapping[str, Sequence[click.Option]] = {
    Heading.WHEN: [PLAN, *plan_options(Heading.WHEN)],
    Heading.WHAT: plan_options(Heading.WHAT),
    Heading.HOW: [UDS, HEADER, *plan_options(Heading.HOW), ALLOW_LOAD],
    Heading.HOLDS: [*plan_options(Heading.HOLDS), *VERDICT],
    "Result and record": RESULT,
}
