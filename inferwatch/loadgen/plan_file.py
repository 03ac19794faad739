"""Makes a plan from what people give: a TOML file, flags, or both; flags win.

The file's keys are the plan's fields. A length may be written ``32``, ``[32, 128]``,
or as a table with its ``type``.
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from inferwatch.errors import UsageError
from inferwatch.loadgen.plan import Arrivals, LoadPlan

OURS = ("run_id", "url", "uds", "model")
"""Set by the command, not by a file, except for the model."""
_RANGE = re.compile(r"(\d+)-(\d+)")
_LOGNORMAL = re.compile(r"lognormal:([\d.]+),([\d.]+)")


def read_plan(path: Path) -> dict[str, Any]:
    """The fields that a file sets.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"--plan: {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--plan: {path}: {error}") from error


def make_plan(fields: Mapping[str, Any]) -> LoadPlan:
    """The plan that has these fields and defaults for the rest.

    Raises:
        UsageError: a field is unknown or wrong, or they do not go together.
    """
    unknown = sorted(set(fields) - set(LoadPlan.__struct_fields__))
    if unknown:
        known = ", ".join(f for f in LoadPlan.__struct_fields__ if f not in OURS)
        raise UsageError(f"a plan has no {unknown[0]!r}; it may have: {known}")
    plain = {name: _plain(name, value) for name, value in fields.items()}
    try:
        return msgspec.convert(plain, LoadPlan)
    except (msgspec.ValidationError, ValueError) as error:
        raise UsageError(f"the load plan: {error}") from error


def lengths(text: str) -> dict[str, Any]:
    """Of prompts or answers as a flag says them.

    Raises:
        ValueError: it says none.
    """
    if text.isdecimal():
        return _uniform(int(text), int(text))
    if match := _RANGE.fullmatch(text):
        return _uniform(*map(int, match.groups()))
    if match := _LOGNORMAL.fullmatch(text):
        median, sigma = map(float, match.groups())
        return {"type": "lognormal", "median": median, "sigma": sigma}
    raise ValueError(f"{text!r} is not N, LOW-HIGH or lognormal:MEDIAN,SIGMA")


def shape(plan: LoadPlan) -> str:
    """How it sends, in a few words."""
    if plan.arrivals is Arrivals.CLOSED:
        return f"closed loop of {plan.concurrency}"
    if plan.arrivals is Arrivals.TRACE:
        return f"trace of {len(plan.trace)} requests"
    if plan.rate_per_s is None:
        return f"{plan.arrivals}, rate by time"
    return f"{plan.arrivals} {plan.rate_per_s:g}/s"


def _plain(name: str, value: Any) -> Any:  # noqa: ANN401 - TOML
    if name == "classes" and isinstance(value, list):
        return [{key: _plain(key, of) for key, of in each.items()} for each in value]
    if name not in {"prompt_tokens", "output_tokens", "token_ids"}:
        return value
    if isinstance(value, int):
        return _uniform(value, value)
    if isinstance(value, list) and len(value) == 2:
        return _uniform(*value)
    return value


def _uniform(low: int, high: int) -> dict[str, Any]:
    return {"type": "uniform", "low": low, "high": high}
