"""What ``inferwatch load`` was told, and how that makes a plan."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferwatch.errors import UsageError
from inferwatch.loadgen.plan import LoadPlan
from inferwatch.loadgen.plan_file import lengths, make_plan, read_plan

KEY_VARIABLES = ("INFERWATCH_API_KEY", "OPENAI_API_KEY")
DEFAULT_S = 30.0
FIRST_RATE = 1.0
SEARCH_DRAIN_S = 10.0
"""A rate that is too high leaves a queue: what is not answered by then is aborted."""
SWEEPS: dict[str, Callable[[str], float]] = {"rate": float, "concurrency": int}
SWEEP_FIELDS = {"rate": "rate_per_s", "concurrency": "concurrency"}
HOW_MUCH = """say how much to send:
  --rate 5            five requests a second, whatever the server does
  --concurrency 8     eight users, each asking again when answered
  --find-rate --slo 'ttft_s<0.5 tpot_s<0.05'    the highest rate that holds
  --plan FILE.toml    all of it in a file"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """The options of the command; None is not given."""

    url: str | None
    fields: Mapping[str, Any]
    """Of the plan, as flags."""
    plan: Path | None
    uds: Path | None
    header: tuple[str, ...]
    slo: str | None
    share: float
    find_rate: bool
    sweep: str | None
    resume: str | None
    strict_client: bool
    allow_load: bool
    save_requests: Path | None
    output_format: str
    as_json: bool
    name: str | None
    database: Path | None
    no_record: bool

    @property
    def searches(self) -> bool:
        """Several runs, not one."""
        return self.find_rate or self.sweep is not None

    @property
    def prints_json(self) -> bool:
        """No table for people."""
        return self.as_json or self.output_format != "inferwatch"


def plan_fields(options: LoadOptions) -> dict[str, Any]:
    """What file and flags say together; flags win.

    Raises:
        UsageError: something is missing or wrong.
    """
    fields = read_plan(options.plan) if options.plan else {}
    given = {k: v for k, v in options.fields.items() if v is not None}
    for name in ("prompt_tokens", "output_tokens"):
        if name in given:
            given[name] = _lengths(name, given[name])
    defaults = _search_defaults(options)
    fields = {"warmup_s": 0.0, **defaults, **fields, **_loop(given)}
    if not fields.keys() & {"duration_s", "requests", "trace"}:
        fields["duration_s"] = DEFAULT_S
    return fields


def complete(fields: Mapping[str, Any]) -> LoadPlan:
    """The plan.

    Raises:
        UsageError: something is missing or wrong.
    """
    if not fields.keys() & {"rate_per_s", "concurrency", "rates", "trace"}:
        raise UsageError(HOW_MUCH)
    return make_plan(fields)


def refuse_odd_searches(options: LoadOptions) -> None:
    """Options that do not go together.

    Raises:
        UsageError: these do not.
    """
    if options.find_rate and not options.slo:
        raise UsageError("--find-rate needs --slo: what must hold at that rate")
    if options.find_rate and options.sweep:
        raise UsageError("--find-rate chooses the rates, --sweep names them: not both")
    if options.find_rate and options.fields.get("concurrency"):
        raise UsageError("--find-rate is for open loops: leave out --concurrency")
    if options.resume and not options.find_rate:
        raise UsageError("--resume goes on with a --find-rate")
    if options.searches and options.output_format != "inferwatch":
        raise UsageError("--format is for one run")


def sweep_points(text: str) -> tuple[str, list[float]]:
    """The field of the plan that changes, and its values.

    Raises:
        UsageError: it is no sweep.
    """
    what, _, listed = text.partition("=")
    try:
        values = [SWEEPS[what](value) for value in listed.split(",")]
    except (KeyError, ValueError) as error:
        raise UsageError(
            f"--sweep {text!r}: write rate=1,2,4,8 or concurrency=1,8,64"
        ) from error
    if min(values) <= 0:
        raise UsageError(f"--sweep {text!r}: every value must be above 0")
    return SWEEP_FIELDS[what], values


def headers_of(options: LoadOptions) -> dict[str, str]:
    """As asked, and the key of the environment; none of it is recorded.

    Raises:
        UsageError: one is no header.
    """
    found: dict[str, str] = {}
    for line in options.header:
        name, colon, value = line.partition(":")
        if not colon or not name.strip() or "\n" in line or "\r" in line:
            raise UsageError(f"--header {line!r} is not 'Name: value'")
        found[name.strip()] = value.strip()
    named = {name.lower() for name in found}
    key = next(filter(None, map(os.environ.get, KEY_VARIABLES)), None)
    if key and "authorization" not in named:
        found["Authorization"] = f"Bearer {key}"
    return found


def _search_defaults(options: LoadOptions) -> dict[str, Any]:
    """So that a plan is complete before its rates are known."""
    if options.sweep:
        what, values = sweep_points(options.sweep)
        closed = {"arrivals": "closed"} if what == "concurrency" else {}
        return {what: values[0], "drain_s": SEARCH_DRAIN_S, **closed}
    first = {"rate_per_s": FIRST_RATE, "drain_s": SEARCH_DRAIN_S}
    return first if options.find_rate else {}


def _loop(given: dict[str, Any]) -> dict[str, Any]:
    """Open or closed, not both."""
    if "concurrency" not in given:
        return given
    for name, flag in (("rate_per_s", "--rate"), ("arrivals", "--arrival")):
        if name in given:
            raise UsageError(
                f"--concurrency asks when answered, {flag} by the clock: not both. "
                "A rate with a cap is --rate with --max-in-flight"
            )
    return {**given, "arrivals": "closed"}


def _lengths(name: str, text: str) -> dict[str, Any]:
    try:
        return lengths(text)
    except ValueError as error:
        raise UsageError(f"--{name.replace('_', '-')}: {error}") from error
