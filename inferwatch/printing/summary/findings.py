"""Findings in a summary: those that hold at its end, and those that held before."""

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import UNKNOWN, format_duration
from inferwatch.metrics.findings.finding import Finding, PastFinding
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.printing.summary.latencies import Summary
from inferwatch.visible import visible

MOST_PAST = 5
"""Of those that are over, in the table for people."""


def finding_rows(snapshot: Snapshot) -> Summary:
    """What holds first, what costs most before the others; then what is over."""
    return {
        "findings": [
            *(_row(each) for each in snapshot.findings),
            *(_past_row(each) for each in reversed(snapshot.past_findings)),
        ]
    }


def _row(finding: Finding) -> Summary:
    return {
        "name": finding.name,
        "title": finding.title,
        "sentence": finding.sentence,
        "since_s": finding.since_ns / NS_PER_S,
        "until_s": None,
        "cost": finding.cost,
        "cost_text": finding.cost_text,
        "sources": list(finding.sources),
        "evidence": [
            {
                "text": each.text,
                "page": each.page,
                "t_s": None if each.t_ns is None else each.t_ns / NS_PER_S,
                "request": each.key,
            }
            for each in finding.evidence
        ],
        "knobs": [
            {
                "text": each.text,
                "flag": each.flag,
                "present": each.present,
                "expected": each.expected,
                "effort": [str(effort) for effort in each.effort],
            }
            for each in finding.knobs
        ],
    }


def _past_row(past: PastFinding) -> Summary:
    return {
        "name": past.name,
        "title": past.title,
        "sentence": past.sentence,
        "since_s": past.since_ns / NS_PER_S,
        "until_s": past.until_ns / NS_PER_S,
        "cost": past.cost,
        "sources": list(past.sources),
    }


def finding_lines(summary: Summary) -> list[str]:
    """What is wrong and what to do first; then what was wrong before."""
    found = summary["findings"]
    lines = []
    for each in [one for one in found if one["until_s"] is None]:
        lines.append(f"▲ {each['title']}: {each['sentence']} ({each['cost_text']})")
        lines += [f"  ↻ {_knob(knob)}" for knob in each["knobs"][:2]]
    over = [one for one in found if one["until_s"] is not None]
    for each in over[:MOST_PAST]:
        lasted = format_duration(each["until_s"] - each["since_s"]).strip()
        lines.append(f"· for {lasted}, {each['title']}: {each['sentence']}")
    if len(over) > MOST_PAST:
        lines.append(f"· and {len(over) - MOST_PAST} more that are over")
    return [visible(line) for line in lines]


def _knob(knob: Summary) -> str:
    price = ", ".join(knob["effort"])
    if knob["flag"] is None:
        return f"{knob['text']} ({price})"
    return f"{knob['flag']}, now {knob['present'] or UNKNOWN}: {knob['text']} ({price})"
