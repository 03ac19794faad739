"""The user's options for the probe, passed as environment variables.

A probe in a server we did not start takes the same variables.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

BLOCK_MAP = "INFERWATCH_BLOCK_MAP"
"""At 0, no block maps and prompt hashes are sent."""
CONTROL = "INFERWATCH_CONTROL"
"""At 1, the engine's limits can be changed while it runs."""
GROUP_HEADER = "INFERWATCH_GROUP_HEADER"
"""The only request header whose values are reported; unset: none."""
STACKS = "INFERWATCH_STACKS"
"""At 0, no stacks are read when an engine stalls, nor is a signal registered."""
LONGEST_VALUE = 64
"""Characters kept of a value."""
SECRETS = frozenset(
    {
        *("authorization", "proxy-authorization", "cookie", "set-cookie"),
        *("x-api-key", "api-key", "x-auth-token"),
    }
)
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """Options for the probe; unset ones are left to the environment."""

    block_map: bool = True
    group_header: str | None = None
    control: bool = False
    profiler: bool = False
    """vLLM is started with its torch profiler, which is off until asked for."""

    @property
    def environment(self) -> Mapping[str, str]:
        chosen = {} if self.block_map else {BLOCK_MAP: "0"}
        if self.group_header is not None:
            chosen[GROUP_HEADER] = self.group_header
        if self.control:
            chosen[CONTROL] = "1"
        return chosen


def refusal(header: str) -> str | None:
    """Why a header cannot be used for grouping; None if it can."""
    if header.lower() in SECRETS:
        return f"{header} is a secret of whoever asks, and is told to nobody"
    if _NAME.fullmatch(header) is None:
        return f"{header!r} is not a name of a request header, such as x-tenant"
    return None
