"""Objectives in summaries: how many requests held them all, and what they missed."""

from dataclasses import asdict

from inferwatch.formatting import format_figure, format_nines
from inferwatch.metrics.number import Number, numbers
from inferwatch.metrics.objectives.spending_view import Spending
from inferwatch.metrics.requests.latencies import LATENCIES
from inferwatch.metrics.requests.slo import FAILED
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.printing.summary.latencies import Summary
from inferwatch.visible import visible


def slo_rows(snapshot: Snapshot) -> Summary:
    """As JSON; None where nothing was to be held."""
    state = snapshot.slo
    if state is None:
        return {"slo": None}
    found = asdict(state) | {"share": state.share, "met": state.met}
    return {"slo": found}


def spending_rows(snapshot: Snapshot) -> Summary:
    """As JSON; None where neither a price nor energy is known."""
    told = snapshot.spending
    return {"spending": None if told is None else asdict(told)}


def spending_lines(summary: Summary) -> list[str]:
    """For people: what tokens cost, and what energy they took."""
    told = summary["spending"]
    if told is None:
        return []
    prices = [
        f"{told['currency']}{_said(told, each)}"
        for each in numbers(
            Spending.per_mtok, Spending.per_mtok_good, Spending.per_hour
        )
        if told[each.name] is not None
    ]
    energy = [
        _said(told, each)
        for each in numbers(
            Spending.joules_per_prefill_token, Spending.joules_per_decode_token
        )
        if told[each.name] is not None
    ]
    by = f"by {told['read_from']}" if told["read_from"] else ""
    cost = [*prices, by if prices else f"not known {by}"] if by else []
    return [
        f"{name:<10}   {visible(', '.join(parts))}"
        for name, parts in (("cost", cost), ("energy", energy))
        if parts
    ]


def _said(told: Summary, number: Number) -> str:
    return f"{format_figure(told[number.name]).strip()} {number.label}"


def slo_lines(summary: Summary) -> list[str]:
    """For people, a line of all and one of each class."""
    found = summary["slo"]
    if found is None:
        return []
    classes = [
        f"{'':<10}   {visible(each['name'])}: {_good(each)}  {visible(each['slo'])}"
        for each in found["classes"]
    ]
    return [
        f"{'SLO':<10}   {_verdict(found)}",
        f"{'':<10}   {visible(found['slo'])}{_misses(found)}",
        *classes,
    ]


def _verdict(found: Summary) -> str:
    target = f"target {format_nines(found['target'])}"
    if found["met"] is None and not found["judged"]:
        text = "not judged"
    else:
        text = "met" if found["met"] else "MISSED"
    if found["judged"]:
        text += f": {_good(found)}"
    open_ = f", {found['undetermined']:,} open" if found["undetermined"] else ""
    return f"{text}{open_}, {target}"


def _good(found: Summary) -> str:
    n, good = found["judged"], found["good"]
    share = f" ({format_nines(good / n)})" if n else ""
    return f"{good:,} of {n:,} good{share}"


def _misses(found: Summary) -> str:
    """Most frequent first."""
    missed = sorted((found["missed"] or {}).items(), key=lambda each: -each[1])
    words = [f"{n:,} {_name(metric)}" for metric, n in missed]
    return f", missed by {', '.join(words)}" if words else ""


def _name(metric: str) -> str:
    return "failed" if metric == FAILED else LATENCIES[metric].label
