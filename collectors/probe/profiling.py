"""The protocol for profiling some steps of a running engine.

An EngineCore whose vLLM was started with its torch profiler listens on a socket of its
own beside its probe's, guarded like the one for limits
(:mod:`collectors.probe.control`). Requests and responses are lines of JSON, a
:class:`ProfileRequest` each, answered in order by a :class:`ProfileAnswer`.

A profile ends by itself: when it has its steps, when its time is up, or soon after the
connection that asked for it closes. So nobody has to come back to switch it off.
"""

from enum import StrEnum
from pathlib import Path

import msgspec

from collectors.contract.readings import Profile
from collectors.contract.runtime_dir import PROFILING_END, socket_dir

STEPS = 20
"""Steps of a profile unless others are asked for."""
MOST_STEPS = 2_000
LONGEST_S = 60.0
"""Longest time a profile may be on; what has come by then is kept."""
DEFAULT_S = 20.0
SWITCH_S = 120.0
"""How long an engine may take to begin, or to write its traces."""
MOST_BYTES = 1 << 30
"""Largest traces, of all workers together; by estimate fewer steps are
profiled to stay below."""
FLAG = "--profiler-config.profiler=torch"
DIRECTORY_FLAG = "--profiler-config.torch_profiler_dir="


class ProfileAction(StrEnum):
    """Whether a request reads the state, starts a profile or ends it."""

    GET = "get"
    START = "start"
    STOP = "stop"


class ProfileRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request to the engine, one line."""

    action: ProfileAction
    steps: int = STEPS
    most_s: float = DEFAULT_S
    most_bytes: int = MOST_BYTES
    by: str = ""
    """Name of the client, to be shown to users."""


class ProfileAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The engine's response to a request, one line."""

    rank: int = 0
    latest: Profile | None = None
    """The latest profile, its times raw; None before the first has begun."""
    is_on: bool = False
    """Whether a profile is on, or is about to be switched on."""
    steps: int | None = None
    """Steps that have ended in it."""
    bytes_per_step: float | None = None
    """Size of the traces of the profile before, by which steps are bounded."""
    refused: str | None = None
    """Why nothing was started or ended, as text for users."""


def profiling_path(engine_id: str, pid: int) -> Path:
    """Path of an EngineCore's socket, which exists if it can be profiled."""
    return socket_dir() / f"{engine_id}.{pid}{PROFILING_END}"
