"""What a load plan's form asks, as its fields declare, and the plan that it says."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from inferwatch.errors import UsageError
from inferwatch.loadgen.plan.fields import SPACED
from inferwatch.loadgen.plan.file import make_plan
from inferwatch.loadgen.plan.plan import (
    FIELDS,
    FOREIGN,
    Api,
    Arrivals,
    LoadPlan,
    PlanField,
)
from inferwatch.loadgen.plan.text import read_number, written

Fields = dict[str, Any]
ARRIVALS = (*SPACED, "closed")
COARSE = {"arrivals", "scenario"}
"""They set what other rows ask too, and those win."""
DEFAULTS = {each.name: each.default for each in FIELDS}


@dataclass(frozen=True, kw_only=True)
class FormField:
    """A row of the form: what it asks, and how its text and the plan go together."""

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
class FormReading:
    """The plan that the form says now, or why it says none."""

    plan: LoadPlan | None
    """None while something is wrong."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """By field; under the empty name what no single field is to blame for."""


def read_form(base: LoadPlan, arrivals: str, texts: Mapping[str, str]) -> FormReading:
    """The plan that a form says; what it does not ask is as in ``base``."""
    before: Fields = msgspec.to_builtins(base)
    found: dict[str, Fields] = {"arrivals": _arrivals(base, arrivals)}
    faults: dict[str, str] = {}
    for each in FORM:
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
        return FormReading(plan=None, faults=faults)
    ordered = sorted(found, key=lambda key: key not in COARSE)
    whole = {name: value for key in ordered for name, value in found[key].items()}
    plan = _plan({**before, **whole})
    if isinstance(plan, LoadPlan):
        return FormReading(plan=plan)
    return FormReading(plan=None, faults=_blame(before, found, plan))


def beside(plan: LoadPlan) -> str:
    """What a plan says beyond the form's fields, which the form keeps."""
    said = []
    if plan.burst_every_s is not None:
        said.append(f"a burst every {plan.burst_every_s:g} s")
    if plan.shared_prefixes.groups:
        shared = plan.shared_prefixes
        said.append(f"{shared.groups} shared prefixes of {shared.tokens} tokens")
    if plan.classes:
        said.append(f"classes {', '.join(each.name for each in plan.classes)}")
    if plan.hang_up:
        said.append(f"{plan.hang_up:.0%} hang up")
    if plan.ask_again_after:
        said.append("each prompt asked twice")
    if plan.dataset:
        said.append(f"prompts of {plan.dataset}")
    if plan.endpoint is Api.CHAT:
        said.append("chat")
    return ", ".join(said)


def _blame(before: Fields, found: Mapping[str, Fields], why: str) -> dict[str, str]:
    """Faults by field, of those wrong by themselves; else one of the whole plan."""
    arrivals = found["arrivals"]
    alone = {
        key: fault
        for key, part in found.items()
        if isinstance(fault := _plan({**before, **arrivals, **part}), str)
    }
    named = [key for key in found if key != "arrivals" and key in alone]
    return {key: alone[key] for key in named} or {_named(why): why}


def _named(why: str) -> str:
    """The form's field that a plan's error message names."""
    names = {"rate_per_s": "rate", "rates": "rate", "concurrency": "users"}
    return next((key for word, key in names.items() if word in why), "")


def _plan(fields: Fields) -> LoadPlan | str:
    try:
        return make_plan(fields)
    except UsageError as error:
        return str(error).removeprefix("the load plan: ").partition(" - at ")[0]


def _arrivals(base: LoadPlan, chosen: str) -> Fields:
    """The arrivals chosen; fields that mean nothing with them get their defaults."""
    lost = FOREIGN[Arrivals(chosen)] & set(base.__struct_fields__)
    if base.converses:
        lost -= {"think_s"}
    return {"arrivals": chosen, **{name: DEFAULTS[name] for name in lost}}


def _form_fields() -> Iterator[FormField]:
    rows = [(each.option.row, each) for each in FIELDS if each.option.row is not None]
    for row, declared in sorted(rows, key=lambda each: each[0].place):
        of = declared.option.of
        yield FormField(
            key=row.key,
            label=row.label,
            hint=row.hint,
            parse=row.read or partial(_parsed, declared),
            text=row.write or partial(_text, declared.name),
            only=tuple(each for each in ARRIVALS if Arrivals(each) in of),
        )


def _parsed(declared: PlanField, text: str) -> Fields:
    bounds, read = declared.option.bounds, declared.option.read
    if declared.number is None or bounds is None:
        return {declared.name: read(text) if read else text}
    whole = declared.number is int
    number = read_number(text, bounds, whole=whole, optional=declared.optional)
    return {declared.name: number}


def _text(name: str, plan: LoadPlan) -> str:
    return written(getattr(plan, name))


FORM = tuple(_form_fields())
"""The rows of the form, from top to bottom."""
