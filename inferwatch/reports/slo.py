"""Objectives in summaries: how many requests held them all, and what they missed."""

from dataclasses import asdict
from typing import Any

from inferwatch.formatting import format_nines
from inferwatch.metrics.catalog import label_of
from inferwatch.metrics.load.slo import FAILED
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.visible import visible

Summary = dict[str, Any]


def slo_rows(snapshot: Snapshot) -> Summary:
    """As JSON; None where nothing was to be held."""
    state = snapshot.slo
    if state is None:
        return {"slo": None}
    found = asdict(state) | {"share": state.share, "met": state.met}
    return {"slo": found}


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
    elif found["share_between"] is not None:
        least, most = (format_nines(each) for each in found["share_between"])
        text += f": {least} to {most} good, as far as buckets tell"
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
    return "failed" if metric == FAILED else label_of(metric)
