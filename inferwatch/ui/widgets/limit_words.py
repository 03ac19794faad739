"""What the header says of limits that are lower than an engine was started with."""

import os
from collections.abc import Sequence

from collectors.contract.readings import LiveLimits
from inferwatch.formatting import counted
from inferwatch.metrics.servers.server_state import ServerState
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.live_limits import (
    LABELS,
    in_force,
    in_place,
    limits_at,
    lowered,
)

SHORT = {"max_num_seqs": "seqs", "max_num_batched_tokens": "tokens"}
US = f"(pid {os.getpid()})"
"""Ends what we call ourselves when we turn limits."""


def limit_words(shown: Snapshot, *, replay: bool = False) -> tuple[str, ...]:
    """The same with ever fewer words; nothing while nothing is lower than at start."""
    held = in_force(shown.live_limits)
    if not held:
        return ()
    whole, short = _whole(held), _short(held)
    by, engines = _by(held, replay=replay), len(shown.engines)
    of = f" on {len(held)} of {counted(engines, 'engine')}"
    if len(held) >= engines:
        of = ""
    return (f"{whole}{of}{by}", f"{whole}{of}", f"{short}{of}", short)


def of_server(state: ServerState) -> str:
    """The same of one server among others; empty while nothing is lower."""
    held = in_force(state.live_limits)
    return f"{_whole(held)}{_by(held)}" if held else ""


def highest(
    shown: Snapshot, name: str, span_ns: tuple[int, int], source: str = ""
) -> int | None:
    """What a limit was at most in a span, where all engines of the source say the same.

    What went on in it is held against that: a step of before is no fuller for what
    was changed after it.
    """
    engines = [each for each in shown.engines if source in {"", each.source}]
    found: set[int | None] = set()
    for engine in engines:
        of = engine.source, engine.rank
        told = [e for e in shown.limit_changes if (e.source, e.rank) == of]
        held = [e for e in told if span_ns[0] < e.t_ns <= span_ns[1]]
        before = limits_at(told, span_ns[0])
        held += [before] if before is not None else []
        turned = any(name in in_place(each) for each in told)
        values = [getattr(each, name) for each in held] if turned else []
        found.add(max(values, default=getattr(engine, name)))
    return found.pop() if len(found) == 1 else None


def _whole(held: Sequence[LiveLimits]) -> str:
    """Such as ``max seqs 16 of 32``; of several engines the lowest."""
    lowest = [_lowest(held, name, LABELS[name], " of ") for name in LABELS]
    return " · ".join(filter(None, lowest))


def _short(held: Sequence[LiveLimits]) -> str:
    lowest = [_lowest(held, name, SHORT[name], "/") for name in LABELS]
    return " ".join(filter(None, lowest))


def _lowest(held: Sequence[LiveLimits], name: str, label: str, of: str) -> str:
    each = [low for limits in held for low in lowered(limits) if low.name == name]
    low = min(each, key=lambda low: low.now, default=None)
    return "" if low is None else f"{label} {low.now:,}{of}{low.start:,}"


def _by(held: Sequence[LiveLimits], *, replay: bool = False) -> str:
    who = {_who(each, replay=replay) for each in held} - {""}
    return f", by {who.pop()}" if len(who) == 1 else ""


def _who(limits: LiveLimits, *, replay: bool) -> str:
    """Us, where it is this process and this moment."""
    if limits.by is None:
        return ""
    return "us" if limits.by.endswith(US) and not replay else limits.by
