"""The protocol for changing limits of a running engine.

An EngineCore started with control listens on a second socket beside its probe's
(:mod:`collectors.contract.runtime_dir`): a Unix socket only its owner may use (0600),
which checks the peer's uid. Requests and responses are lines of JSON, a
:class:`LimitRequest` each, answered in order by a :class:`LimitAnswer`. When the
connection that made the last change closes, the start-up values return after
``WATCHER_GONE_S``, unless the change asked to stay.
"""

from enum import StrEnum
from pathlib import Path

import msgspec

from collectors.contract.readings import LiveLimits
from collectors.contract.runtime_dir import LIMITS_END, socket_dir

WATCHER_GONE_S = 10.0
"""Seconds a disconnected client's limits stay in force."""
BETWEEN_CHANGES_S = 2.0
"""Shortest time between two changes; a reset is exempt."""
LONGEST_LINE = 4_096
"""Most bytes of a request or response; longer lines close the connection."""


class LimitAction(StrEnum):
    """Whether a request reads, changes or restores the limits."""

    GET = "get"
    SET = "set"
    RESET = "reset"


class LimitRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request to the engine, one line."""

    action: LimitAction
    version: int | None = None
    """Version of the limits to be changed; if it is outdated, the request is refused. A
    reset needs none."""
    max_num_seqs: int | None = None
    """None: unchanged."""
    max_num_batched_tokens: int | None = None
    keep: bool = False
    """The limits stay after the client disconnects."""
    by: str = ""
    """Name of the client, to be shown to users."""


class LimitAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The engine's response to a request, one line."""

    limits: LiveLimits
    """The current limits; a change takes effect with the next step."""
    refused: str | None = None
    """Why nothing was changed, as text for users; None if the request was carried
    out."""


def control_path(engine_id: str, pid: int) -> Path:
    """Path of an EngineCore's control socket, which exists if control is enabled."""
    return socket_dir() / f"{engine_id}.{pid}{LIMITS_END}"
