"""Makes a load plan of the options of ``inferwatch load``."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferwatch.cli.running.chosen_session import session_location
from inferwatch.errors import UsageError
from inferwatch.loadgen.plan.file import make_plan, read_plan, with_trace
from inferwatch.loadgen.plan.plan import (
    BOUNDS,
    FIELDS,
    FOREIGN,
    Arrivals,
    LoadPlan,
    objectives,
)
from inferwatch.loadgen.prompts.dataset import DatasetError, read_dataset
from inferwatch.loadgen.scenarios.scenario import with_scenario
from inferwatch.loadgen.target_server import endpoint_in
from inferwatch.metrics.requests.slo import DEFAULT_SHARE
from inferwatch.record.lookup.recorded_trace import trace_like

FLAG_OF = {
    flag.key or field.name: flag.name for field in FIELDS for flag in field.option.flags
}
"""By the key that the flag sets."""
KEY_VARIABLES = ("INFERWATCH_API_KEY", "OPENAI_API_KEY")
DEFAULT_S = 30.0
FIRST_RATE = 1.0
SEARCH_DRAIN_S = 10.0
"""Too high a rate leaves a queue; requests unanswered after this are aborted."""
SWEEPS: dict[str, Callable[[str], float]] = {"rate": float, "concurrency": int}
SWEEP_FIELDS = {"rate": "rate_per_s", "concurrency": "concurrency"}
ARRIVAL_FIELDS = ("rate_per_s", "rates", "concurrency", "trace_file", "like")
"""Fields that say when to send."""
SCHEDULE_FIELDS = ("rates", "trace_file", "like")
AMOUNT_FIELDS = {"duration_s", "requests", "trace", "trace_file", "like"}
"""Fields that say how long to send, each in its way."""
HOW_MUCH = """say how much to send:
  --rate 5            five requests a second, whatever the server does
  --concurrency 8     eight users, each sending its next when answered
  --rates ramp:1,20,60    from 1/s to 20/s in a minute
  --trace FILE, --like SESSION    replay recorded traffic
  --find-rate --slo 'ttft_s<0.5 tpot_s<0.05'    the highest rate that meets it
  --plan FILE.toml    all of it in a file"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """The options of ``inferwatch load``; None where one is not given."""

    url: str | None
    fields: Mapping[str, Any]
    """Fields of the plan, as given by flags."""
    plan: Path | None
    uds: Path | None
    header: tuple[str, ...]
    share: float
    find_rate: bool
    sweep: str | None
    resume: str | None
    strict_client: bool
    allow_load: bool
    save_requests: Path | None
    answers: int | None
    answers_to: Path | None
    output_format: str
    as_json: bool
    name: str | None
    database: Path | None
    no_record: bool

    @property
    def searches(self) -> bool:
        """Whether the options ask for several runs: a rate search, or a sweep."""
        return self.find_rate or self.sweep is not None

    @property
    def prints_json(self) -> bool:
        """Whether JSON is printed, not text."""
        return self.as_json or self.output_format != "inferwatch"


def plan_fields(options: LoadOptions) -> dict[str, Any]:
    """Return the plan's fields from the file and the flags; flags win.

    Raises:
        UsageError: a field is missing or wrong.
    """
    fields = read_plan(options.plan) if options.plan else {}
    given = {k: v for k, v in options.fields.items() if v not in {None, ()}}
    given |= _endpoint(options.url, given.get("endpoint"))
    read = {name: _read(name, value) for name, value in given.items()}
    defaults = _search_defaults(options)
    flags = _arrivals({k: v for k, v in read.items() if v is not None})
    if flags.keys() & set(ARRIVAL_FIELDS):
        fields = _without_arrivals(fields, flags)
    fields = {"warmup_s": 0.0, **with_scenario({**defaults, **fields, **flags})}
    if "concurrency" in fields and not fields.keys() & {"rate_per_s", "rates"}:
        fields.setdefault("arrivals", "closed")
    if flags.keys() & {*ARRIVAL_FIELDS, "arrivals"}:
        fields = _without_foreign(fields, flags)
    if not fields.keys() & AMOUNT_FIELDS:
        fields["duration_s"] = DEFAULT_S
    _refuse_dataset(fields)
    return _with_session(with_trace(fields), options)


def _endpoint(url: str | None, flag: str | None) -> dict[str, str]:
    """Return the endpoint that the URL names."""
    named = endpoint_in(url) if url else None
    if named and flag and named != flag:
        raise UsageError(
            f"--endpoint {flag} contradicts {url}, which is the {named} endpoint"
        )
    return {"endpoint": named} if named else {}


def _refuse_dataset(fields: Mapping[str, Any]) -> None:
    """Refuse a data set that the generator could not read, before it is started."""
    if "dataset" not in fields:
        return
    try:
        talks = read_dataset(Path(fields["dataset"]), turns="turns" in fields)
    except DatasetError as error:
        raise UsageError(f"--dataset: {error}") from error
    if any(talk.said for talk in talks) and fields.get("endpoint") != "chat":
        raise UsageError(
            f"--dataset: {fields['dataset']} holds chats: add --endpoint chat"
        )


def _without_arrivals(
    fields: dict[str, Any], flags: Mapping[str, Any]
) -> dict[str, Any]:
    """Drop a file's choice of when to send, if the flags make another."""
    others = {name for name in ARRIVAL_FIELDS if name in fields}
    if fields.get("arrivals") in {"closed", "trace"} or "concurrency" in flags:
        others.add("arrivals")
    return {k: v for k, v in fields.items() if k not in others}


def _without_foreign(
    fields: dict[str, Any], flags: Mapping[str, Any]
) -> dict[str, Any]:
    """Drop a file's fields of another kind of load than the flags choose."""
    arrivals = fields.get("arrivals", "poisson")
    if fields.keys() & {"trace_file", "like", "trace"}:
        arrivals = "trace"
    if arrivals not in set(Arrivals):
        return fields  # the plan's own check reports it
    foreign = FOREIGN[Arrivals(arrivals)] - {"trace_file"}
    if "turns" in fields:
        foreign -= {"think_s"}
    return {k: v for k, v in fields.items() if k in flags or k not in foreign}


def _with_session(fields: dict[str, Any], options: LoadOptions) -> dict[str, Any]:
    """Add the trace of a recorded session, if ``--like`` names one."""
    session = fields.pop("like", None)
    if session is None:
        return fields
    name, rows = trace_like(*session_location(str(session), options.database))
    return {**fields, "arrivals": "trace", "trace": rows, "trace_of": name}


def complete_plan(fields: Mapping[str, Any]) -> LoadPlan:
    """Return the plan that the fields make.

    Raises:
        UsageError: a field is missing or wrong.
    """
    if not fields.keys() & {"rate_per_s", "concurrency", "rates", "trace", "scenario"}:
        raise UsageError(HOW_MUCH)
    plan = make_plan(fields)
    objectives(plan)
    return plan


def refuse_odd_searches(options: LoadOptions, fields: Mapping[str, Any]) -> None:
    """Refuse options of a search that do not go together.

    Raises:
        UsageError: these do not.
    """
    classes = [each for each in fields.get("classes", ()) if isinstance(each, dict)]
    objective = any(each.get("slo") for each in (fields, *classes))
    timed = [FLAG_OF[name] for name in SCHEDULE_FIELDS if options.fields.get(name)]
    faults = [
        (
            options.find_rate and not objective,
            "--find-rate needs --slo: the limits that must hold at that rate",
        ),
        (
            options.searches and bool(timed),
            f"a search sets how much to send: leave out {''.join(timed[:1])}",
        ),
        (
            options.find_rate and options.sweep is not None,
            "choose one: --find-rate searches for a rate, --sweep lists them",
        ),
        (
            options.find_rate and bool(options.fields.get("concurrency")),
            "--find-rate searches for a request rate: leave out --concurrency",
        ),
        (
            options.resume is not None and not options.find_rate,
            "--resume continues a --find-rate: add it",
        ),
        (
            options.searches and options.output_format != "inferwatch",
            "--format works for a single run, not for a search or sweep",
        ),
        (
            options.searches and options.save_requests is not None,
            "--save-requests works for a single run, not for a search or sweep",
        ),
        (
            options.share != DEFAULT_SHARE and not objective,
            "--share is the share of requests that must meet --slo: add --slo",
        ),
        (
            options.name is not None and options.no_record,
            "--name names the recording, and --no-record makes none: leave one out",
        ),
    ]
    if why := next((why for broken, why in faults if broken), None):
        raise UsageError(why)


def sweep_points(text: str) -> tuple[str, list[float]]:
    """Return the field of the plan that a sweep changes, and its values.

    Raises:
        UsageError: the text is not a sweep.
    """
    what, _, listed = text.partition("=")
    try:
        values = [SWEEPS[what](value) for value in listed.split(",")]
    except (KeyError, ValueError) as error:
        raise UsageError(
            f"--sweep {text!r}: write rate=1,2,4,8 or concurrency=1,8,64"
        ) from error
    field = SWEEP_FIELDS[what]
    if not all(map(BOUNDS[field].hold, values)):
        raise UsageError(f"--sweep {text!r}: every value must be {BOUNDS[field]}")
    return field, values


def headers_of(lines: Sequence[str]) -> dict[str, str]:
    """Return the given headers, and the environment's API key; none is recorded.

    Raises:
        UsageError: a line is not a header.
    """
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip() or "\n" in line or "\r" in line:
            raise UsageError(f"--header {line!r} is not 'Name: value'")
        headers[name.strip()] = value.strip()
    named = {name.lower() for name in headers}
    key = next(filter(None, map(os.environ.get, KEY_VARIABLES)), None)
    if key and "authorization" not in named:
        headers["Authorization"] = f"Bearer {key}"
    return headers


def _search_defaults(options: LoadOptions) -> dict[str, Any]:
    """Return fields that make a search's plan complete before its rates are known."""
    if options.sweep:
        what, values = sweep_points(options.sweep)
        closed = {"arrivals": "closed"} if what == "concurrency" else {}
        return {what: values[0], "drain_s": SEARCH_DRAIN_S, **closed}
    first = {"rate_per_s": FIRST_RATE, "drain_s": SEARCH_DRAIN_S}
    return first if options.find_rate else {}


def _arrivals(given: dict[str, Any]) -> dict[str, Any]:
    """Return the flags; refuse two that say differently when to send requests."""
    ways = [name for name in ARRIVAL_FIELDS if name in given]
    if len(ways) > 1:
        first, second = (FLAG_OF[name] for name in ways[:2])
        raise UsageError(
            f"{first} and {second} both say when to send: choose one. For a rate with "
            "a cap, use --rate with --max-in-flight"
        )
    timed = "arrivals" in given and not {"rate_per_s", "rates"} & given.keys()
    if ways and timed:
        raise UsageError(
            f"--arrival spaces the requests of a rate; {FLAG_OF[ways[0]]} has no rate"
        )
    return given


READERS = {each.name: each.option.read for each in FIELDS if each.option.read}


def _read(name: str, value: Any) -> Any:  # noqa: ANN401 - a flag's
    """Return the value of a plan's field, parsed from the text of its flag."""
    read = READERS.get(name)
    if read is None:
        return value
    lines = value if isinstance(value, tuple) else (value,)
    try:
        values = [read(line) for line in lines]
    except ValueError as error:
        raise UsageError(f"{FLAG_OF[name]}: {error}") from error
    return values if isinstance(value, tuple) else values[0]
