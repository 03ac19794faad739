"""What a load plan's form asks, and how that makes a plan: as the flags do."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from inferwatch.errors import UsageError
from inferwatch.loadgen.plan.faults import DEFAULTS
from inferwatch.loadgen.plan.fields import FOREIGN
from inferwatch.loadgen.plan.file import lengths, make_plan
from inferwatch.loadgen.plan.lengths import LogNormal, Range
from inferwatch.loadgen.plan.plan import Api, Arrivals, LoadPlan
from inferwatch.loadgen.plan.rate_text import read_rates
from inferwatch.metrics.load.slo import parse_slo

Fields = dict[str, Any]
ARRIVALS = ("poisson", "constant", "gamma", "closed")


@dataclass(frozen=True, kw_only=True)
class Field:
    """One row of the form."""

    key: str
    label: str
    hint: str
    """What it is in, or what leaving it empty means."""
    parse: Callable[[str], Fields]
    """The plan's fields that a text gives. Raises ValueError, fit to show."""
    text: Callable[[LoadPlan], str]
    only: tuple[str, ...] = ARRIVALS
    """The arrivals for which it is asked."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What the form says now."""

    plan: LoadPlan | None
    """None while something is wrong."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """By field; under the empty name what no single field is to blame for."""


def read_form(base: LoadPlan, arrivals: str, texts: Mapping[str, str]) -> Reading:
    """The plan that a form says; what it does not ask is as in ``base``."""
    before: Fields = msgspec.to_builtins(base)
    found: dict[str, Fields] = {"arrivals": _arrivals(base, arrivals)}
    faults: dict[str, str] = {}
    for each in FIELDS:
        if arrivals not in each.only or each.key not in texts:
            continue
        text = texts[each.key].strip()
        if text == each.text(base):
            continue
        try:
            found[each.key] = each.parse(text)
        except ValueError as error:
            faults[each.key] = str(error)
        except UsageError as error:
            faults[each.key] = str(error).removeprefix("--slo: ")
    if faults:
        return Reading(plan=None, faults=faults)
    whole = {name: value for part in found.values() for name, value in part.items()}
    plan = _plan({**before, **whole})
    if isinstance(plan, LoadPlan):
        return Reading(plan=plan)
    return Reading(plan=None, faults=_blame(before, found, plan))


def beside(plan: LoadPlan) -> str:
    """What else a plan says, that the form does not ask and keeps."""
    said = []
    if plan.burst_every_s is not None:
        said.append(f"a burst every {plan.burst_every_s:g} s")
    if plan.shared_prefixes.groups:
        shared = plan.shared_prefixes
        said.append(f"{shared.groups} shared prefixes of {shared.tokens} tokens")
    if plan.classes:
        said.append(f"classes {', '.join(each.name for each in plan.classes)}")
    if plan.dataset:
        said.append(f"prompts of {plan.dataset}")
    if plan.endpoint is Api.CHAT:
        said.append("chat")
    return ", ".join(said)


def _blame(before: Fields, found: Mapping[str, Fields], why: str) -> dict[str, str]:
    """The fields that are wrong by themselves; else nobody's fault alone."""
    arrivals = found["arrivals"]
    alone = {
        key: fault
        for key, part in found.items()
        if isinstance(fault := _plan({**before, **arrivals, **part}), str)
    }
    named = [key for key in found if key != "arrivals" and key in alone]
    return {key: alone[key] for key in named} or {_named(why): why}


def _named(why: str) -> str:
    """The field that a plan's own words name."""
    names = {"rate_per_s": "rate", "rates": "rate", "concurrency": "users"}
    return next((key for word, key in names.items() if word in why), "")


def _plan(fields: Fields) -> LoadPlan | str:
    try:
        return make_plan(fields)
    except UsageError as error:
        return str(error).removeprefix("the load plan: ").partition(" - at ")[0]


def _arrivals(base: LoadPlan, chosen: str) -> Fields:
    """What means nothing in another way to arrive is given up with the old one."""
    lost = FOREIGN[Arrivals(chosen)] & set(base.__struct_fields__)
    if base.converses:
        lost -= {"think_s"}
    return {"arrivals": chosen, **{name: DEFAULTS[name] for name in lost}}


# How each is read and written.


def _number(
    name: str, *, whole: bool = False, zero: bool = False, empty: bool = False
) -> Callable[[str], Fields]:
    def parse(text: str) -> Fields:
        if not text and empty:
            return {name: None}
        if not text:
            raise ValueError("needs a number")
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            why = "must be whole" if whole else "not a number"
            raise ValueError(why) from None
        if not math.isfinite(value):
            raise ValueError("not a number")
        if value < 0 or (value == 0 and not zero):
            raise ValueError("no less than 0" if zero else "must be above 0")
        return {name: value}

    return parse


def _rate(text: str) -> Fields:
    """One rate, or rates by time."""
    if ":" in text:
        try:
            rates = msgspec.to_builtins(read_rates(text))
        except (UsageError, ValueError):  # says it in more words than fit here
            raise ValueError("write 0:5 30:20 or ramp:1,9,60") from None
        return {"rates": rates, "rate_per_s": None}
    return {"rates": None, **_number("rate_per_s", empty=True)(text)}


def _rate_text(plan: LoadPlan) -> str:
    if plan.rates is None:
        return _plain("rate_per_s")(plan)
    return " ".join(f"{at_s:g}:{rate:g}" for at_s, rate in plan.rates.points)


def _lengths(name: str) -> Callable[[str], Fields]:
    def parse(text: str) -> Fields:
        return {name: lengths(text)}

    return parse


def _lengths_text(name: str) -> Callable[[LoadPlan], str]:
    def text(plan: LoadPlan) -> str:
        value = getattr(plan, name)
        if isinstance(value, Range):
            low, high = value.low, value.high
            return f"{low}" if low == high else f"{low}-{high}"
        if isinstance(value, LogNormal):
            return f"lognormal:{value.median:g},{value.sigma:g}"
        return "as seen"

    return text


def _slo(text: str) -> Fields:
    return {"slo": str(parse_slo(text)) if text else None}


def _plain(name: str) -> Callable[[LoadPlan], str]:
    def text(plan: LoadPlan) -> str:
        value = getattr(plan, name)
        if value is None:
            return ""
        return f"{value:g}" if isinstance(value, float) else f"{value}"

    return text


OPEN = ("poisson", "constant", "gamma")
FIELDS = (
    Field(
        key="rate",
        label="rate",
        hint="/s or ramp:1,9,60",
        parse=_rate,
        text=_rate_text,
        only=OPEN,
    ),
    Field(
        key="burstiness",
        label="burstiness",
        hint="0.25 is in clumps",
        parse=_number("burstiness"),
        text=_plain("burstiness"),
        only=("gamma",),
    ),
    Field(
        key="users",
        label="users",
        hint="ask when answered",
        parse=_number("concurrency", whole=True),
        text=_plain("concurrency"),
        only=("closed",),
    ),
    Field(
        key="think",
        label="think",
        hint="s between two",
        parse=_number("think_s", zero=True),
        text=_plain("think_s"),
        only=("closed",),
    ),
    Field(
        key="duration",
        label="duration",
        hint="s; empty: no end",
        parse=_number("duration_s", empty=True),
        text=_plain("duration_s"),
    ),
    Field(
        key="requests",
        label="requests",
        hint="at most",
        parse=_number("requests", whole=True, empty=True),
        text=_plain("requests"),
    ),
    Field(
        key="prompt",
        label="prompt tokens",
        hint="N or LOW-HIGH",
        parse=_lengths("prompt_tokens"),
        text=_lengths_text("prompt_tokens"),
    ),
    Field(
        key="output",
        label="output tokens",
        hint="N or LOW-HIGH",
        parse=_lengths("output_tokens"),
        text=_lengths_text("output_tokens"),
    ),
    Field(
        key="seed",
        label="seed",
        hint="draws the load",
        parse=_number("seed", whole=True, zero=True),
        text=_plain("seed"),
    ),
    Field(
        key="in_flight",
        label="max in flight",
        hint="beyond it, wait",
        parse=_number("max_in_flight", whole=True),
        text=_plain("max_in_flight"),
        only=OPEN,
    ),
    Field(
        key="warmup",
        label="warm-up",
        hint="s, not counted",
        parse=_number("warmup_s", zero=True),
        text=_plain("warmup_s"),
    ),
    Field(
        key="slo",
        label="SLO",
        hint="all hold, or bad",
        parse=_slo,
        text=lambda plan: plan.slo or "",
    ),
)
