"""Readings of profiles, as a probe reports them."""

from typing import Any

from collectors.contract.readings import Profile, ProfileState

S = 1_000_000_000
WALL_NS = 1_700_000_000 * S
"""The wall clock at session time 0."""


def profile(
    t_ns: int,
    state: ProfileState = ProfileState.STARTED,
    *,
    rank: int = 0,
    number: int = 1,
    **fields: Any,
) -> Profile:
    ended = state is ProfileState.ENDED
    return Profile(
        **{
            "source": "engine-1",
            "t_ns": t_ns,
            "rank": rank,
            "number": number,
            "state": state,
            "steps_asked": 20,
            "steps": 20 if ended else None,
            "prefix": f"inferwatch-one-{rank}-{number}",
            "directory": "/var/traces",
            "by": "ann (pid 7)",
            "switch_ns": 300_000_000 if ended else 1_000_000,
            "realtime_ns": WALL_NS + t_ns,
            **fields,
        }
    )


def ended(t_ns: int, **fields: Any) -> Profile:
    return profile(t_ns, ProfileState.ENDED, **fields)
