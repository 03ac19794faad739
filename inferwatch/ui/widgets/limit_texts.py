"""Live limits below their value at start, as text for the header."""

import os
from collections.abc import Sequence

from collectors.contract.readings import LiveLimits
from inferwatch.formatting import BRIEF_FLAGS, counted
from inferwatch.metrics.servers.server_state import ServerState
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.live_limits import (
    LIMITS,
    in_force,
    in_place,
    limits_at,
    lowered,
)

US = f"(pid {os.getpid()})"
"""Ends the name under which this process turns limits."""


def limit_words(snapshot: Snapshot, *, replay: bool = False) -> tuple[str, ...]:
    """Return texts on lowered limits, the longest first; empty if none is lowered."""
    limits = in_force(snapshot.live_limits)
    if not limits:
        return ()
    whole, short = _whole(limits), _short(limits)
    by, engines = _by(limits, replay=replay), len(snapshot.engines)
    of = f" on {len(limits)} of {counted(engines, 'engine')}"
    if len(limits) >= engines:
        of = ""
    lines = f"{whole}{of}{by}", f"{whole}{of}", f"{short}{of}{by}", f"{short}{of}"
    return (*lines, short)


def of_server(state: ServerState) -> str:
    """Return a text on the lowered limits of one server; empty if none is lowered."""
    limits = in_force(state.live_limits)
    return f"{_whole(limits)}{_by(limits)}" if limits else ""


def highest(
    snapshot: Snapshot, name: str, span_ns: tuple[int, int], source: str = ""
) -> int | None:
    """Return the highest value of a limit in a span, None if engines differ.

    Batches are compared with the highest value: a batch scheduled before a limit was
    lowered is measured by the old one.
    """
    engines = [each for each in snapshot.engines if source in {"", each.source}]
    highs: set[int | None] = set()
    for engine in engines:
        of = engine.source, engine.rank
        changes = [e for e in snapshot.limit_changes if (e.source, e.rank) == of]
        limits = [e for e in changes if span_ns[0] < e.t_ns <= span_ns[1]]
        before = limits_at(changes, span_ns[0])
        limits += [before] if before is not None else []
        turned = any(name in in_place(each) for each in changes)
        values = [getattr(each, name) for each in limits] if turned else []
        highs.add(max(values, default=getattr(engine, name)))
    return highs.pop() if len(highs) == 1 else None


def _whole(limits: Sequence[LiveLimits]) -> str:
    """Format limits by their flags, ``max_num_seqs 16 of 32``; the lowest engine's."""
    lowest = [_lowest(limits, name, name, " of ") for name in LIMITS]
    return " · ".join(filter(None, lowest))


def _short(limits: Sequence[LiveLimits]) -> str:
    lowest = [_lowest(limits, name, BRIEF_FLAGS[name], "/") for name in LIMITS]
    return " ".join(filter(None, lowest))


def _lowest(engines: Sequence[LiveLimits], name: str, label: str, of: str) -> str:
    each = [low for limits in engines for low in lowered(limits) if low.name == name]
    low = min(each, key=lambda low: low.now, default=None)
    return "" if low is None else f"{label} {low.now:,}{of}{low.start:,}"


def _by(limits: Sequence[LiveLimits], *, replay: bool = False) -> str:
    who = {_who(each, replay=replay) for each in limits} - {""}
    return f", by {who.pop()}" if len(who) == 1 else ""


def _who(limits: LiveLimits, *, replay: bool) -> str:
    """Return who lowered the limits, "us" for this process while live."""
    if limits.by is None:
        return ""
    return "us" if limits.by.endswith(US) and not replay else limits.by
