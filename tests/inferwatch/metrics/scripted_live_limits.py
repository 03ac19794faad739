"""Limits of an engine that are changed while it runs."""

from typing import Any

from collectors.contract.readings import LimitChange, LiveLimits

S = 1_000_000_000
START = {"max_num_seqs": 12, "max_num_batched_tokens": 512}


def live(
    t_ns: int,
    change: LimitChange = LimitChange.SET,
    *,
    version: int = 1,
    source: str = "engine-1",
    **now: Any,
) -> LiveLimits:
    """As of a moment, of an engine that was started with 12 and 512."""
    started = {f"start_{name}": value for name, value in START.items()}
    by = None if change is LimitChange.START else now.pop("by", "ada (pid 4)")
    return LiveLimits(
        source=source,
        t_ns=t_ns,
        version=version,
        change=change,
        by=by,
        **(started | START | now),
    )


def story(from_s: int = 0, source: str = "engine-1") -> list[LiveLimits]:
    """Born so, turned down twice, back: the watcher is gone."""
    begin = from_s * S
    return [
        live(begin + 3, LimitChange.START, version=0, source=source),
        live(begin + 2 * S, version=1, max_num_seqs=4, source=source),
        live(
            begin + 3 * S,
            version=2,
            max_num_seqs=4,
            max_num_batched_tokens=64,
            source=source,
        ),
        live(begin + 5 * S, LimitChange.WATCHER_GONE, version=3, source=source),
    ]
