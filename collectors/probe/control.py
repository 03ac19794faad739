"""How limits of a running engine are turned: what is asked of its probe and answered.

Beside the socket at which it tells (:mod:`collectors.contract.runtime_dir`) an
EngineCore that was started with control has one at which it is told: a Unix socket of
its owner alone (0600), which checks its peer's uid. On it go lines of JSON, a
:class:`LimitRequest` each, answered in order by a :class:`LimitAnswer`. Whoever holds
the connection that changed something last is the watcher: when it closes, the start-up
values return after ``WATCHER_GONE_S``, unless they were set to stay.
"""

from enum import StrEnum
from pathlib import Path

import msgspec

from collectors.contract.readings import LiveLimits
from collectors.contract.runtime_dir import socket_dir

WATCHER_GONE_S = 10.0
"""So long an engine goes by the limits of a watcher that is gone."""
BETWEEN_CHANGES_S = 2.0
"""At most one change in that time; a reset may come at once."""
LONGEST_LINE = 4_096
"""Bytes of a request or an answer; who sends more is hung up on."""


class LimitAction(StrEnum):
    """What a request wants of the limits: to read, to change or to restore them."""

    GET = "get"
    SET = "set"
    RESET = "reset"


class LimitRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line to the engine."""

    action: LimitAction
    version: int | None = None
    """Of the limits that this changes: when they are others by now, it is refused.
    A reset needs none."""
    max_num_seqs: int | None = None
    """None: as it is."""
    max_num_batched_tokens: int | None = None
    keep: bool = False
    """They are to stay when we go."""
    by: str = ""
    """Who asks, fit to show."""


class LimitAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the engine says to each request, done or refused; one line."""

    limits: LiveLimits
    """As they are now: what was asked for is in force from the next step on."""
    refused: str | None = None
    """Why nothing was changed, fit to show; None: it was done."""


def control_path(engine_id: str, pid: int) -> Path:
    """Where that EngineCore can be told; there is no such file without control."""
    return socket_dir() / f"{engine_id}.{pid}.ctl"
