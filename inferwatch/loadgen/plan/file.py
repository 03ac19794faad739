"""Builds a plan from a TOML file, flags, or both; flags win.

The file's keys are the plan's fields. A length may be written ``32``, ``[32, 128]``, or
as a table with its ``type``; ``rates`` as a line of text, see ``text``. Instead of
``trace`` there are ``trace_file`` and, if its format cannot be detected,
``trace_format``.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from inferwatch.errors import UsageError
from inferwatch.loadgen.plan.plan import FIELDS, Arrivals, LoadPlan
from inferwatch.loadgen.plan.rates import RateSeries
from inferwatch.loadgen.plan.text import read_lengths, read_rates, uniform
from inferwatch.loadgen.plan.traces import FORMATS, TraceError, needed, read_trace

OURS = ("run_id", "url", "uds", "model")
"""Set by the command, not by a file, except for the model."""
LENGTHS = {
    "token_ids",
    *(each.name for each in FIELDS if each.option.read is read_lengths),
}
_FILES = {"trace_file", "dataset"}


def read_plan(path: Path) -> dict[str, Any]:
    """The fields set by a file.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        fields = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"--plan: {path}: {error.strerror}") from error
    except RecursionError as error:
        raise UsageError(f"--plan: {path}: nested too deeply") from error
    # invalid TOML or UTF-8, or a number with too many digits
    except ValueError as error:
        raise UsageError(f"--plan: {path}: {error}") from error
    if not isinstance(fields.get("headers", {}), dict):
        raise UsageError(f"--plan: {path}: headers must be a table")
    beside = {
        name: str(path.parent / str(fields[name])) for name in _FILES & fields.keys()
    }
    return {**fields, **beside}


def with_trace(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with the trace's rows in place of its file.

    Raises:
        UsageError: the file is not a trace.
    """
    rest = {k: v for k, v in fields.items() if k not in {"trace_file", "trace_format"}}
    name, form = fields.get("trace_file"), fields.get("trace_format")
    if form is not None and (name is None or form not in FORMATS):
        raise UsageError(f"trace_format is of a trace_file: {', '.join(FORMATS)}")
    if name is None:
        return rest
    path = Path(name)
    try:
        rows = read_trace(path, form)
    except TraceError as error:
        raise UsageError(f"the trace: {error}") from error
    return {**rest, "arrivals": "trace", "trace": rows, "trace_of": path.name}


def make_plan(fields: Mapping[str, Any]) -> LoadPlan:
    """The plan with these fields, and defaults for the rest.

    Raises:
        UsageError: a field is unknown or invalid, or fields conflict.
    """
    fields = with_trace(fields)
    unknown = sorted(set(fields) - set(LoadPlan.__struct_fields__))
    if unknown:
        field_names = ", ".join(f for f in LoadPlan.__struct_fields__ if f not in OURS)
        raise UsageError(f"a plan has no {unknown[0]!r}; it can have: {field_names}")
    try:
        plain = {name: _plain(name, value) for name, value in fields.items()}
        plan = msgspec.convert(plain, LoadPlan)
    except (msgspec.ValidationError, ValueError) as error:
        raise UsageError(f"the load plan: {error}") from error
    _refuse_odd_text(plan)
    return msgspec.structs.replace(plan, trace=needed(plan)) if plan.trace else plan


def _refuse_odd_text(plan: LoadPlan) -> None:
    """Reject text that can be neither sent nor recorded."""
    for name in plan.__struct_fields__:
        try:
            msgspec.json.encode(() if name == "trace" else getattr(plan, name))
        except UnicodeEncodeError as error:
            raise UsageError(f"the load plan: {name} is not text: {error}") from error


def shape(plan: LoadPlan) -> str:
    """A short description of how a plan sends."""
    if plan.arrivals is Arrivals.CLOSED:
        summary = f"closed loop of {plan.concurrency}"
    elif plan.arrivals is Arrivals.TRACE:
        source = f" {plan.trace_of}," if plan.trace_of else ""
        summary = f"trace{source} {len(plan.trace):,} requests"
    elif plan.rates is not None:
        summary = f"{plan.arrivals}, {_span(plan.rates)}/s over time"
    elif plan.rate_per_s is None:
        summary = f"{plan.arrivals}, {plan.rate_fraction:.0%} of the measured rate"
    else:
        summary = f"{plan.arrivals} {plan.rate_per_s:g}/s"
    speed = f" at {plan.speed:g}× speed" if plan.speed != 1 else ""
    turns = ", conversations" if plan.turns.mean > 1 else ""
    return f"{summary}{speed}{turns}"


def _span(rates: RateSeries) -> str:
    values = [rate for _, rate in rates.points]
    return f"{min(values):g} to {max(values):g}"


def _plain(name: str, value: Any) -> Any:  # noqa: ANN401 - TOML
    if name == "classes" and isinstance(value, list):
        return [_class(each) for each in value]
    if name == "rates" and isinstance(value, str):
        return read_rates(value)
    if name not in LENGTHS:
        return value
    if isinstance(value, int):
        return uniform(value, value)
    if isinstance(value, list) and len(value) == 2:
        return uniform(*value)
    return value


def _class(given: Any) -> Any:  # noqa: ANN401 - TOML
    if not isinstance(given, dict):
        return given  # the plan reports what is expected
    return {key: _plain(key, of) for key, of in given.items()}
