"""What people choose of the probe in an engine of ours: variables of its environment.

A probe in somebody else's server is told the same by the same variables.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

BLOCK_MAP = "INFERWATCH_BLOCK_MAP"
"""At 0 nobody is told who holds which KV block, nor what requests have in common."""
CONTROL = "INFERWATCH_CONTROL"
"""At 1 the limits of the engine may be turned while it runs; else nothing can."""
GROUP_HEADER = "INFERWATCH_GROUP_HEADER"
"""The one request header whose values are told; without it none is."""
LONGEST_VALUE = 64
"""Characters of it."""
SECRETS = frozenset(
    {
        *("authorization", "proxy-authorization", "cookie", "set-cookie"),
        *("x-api-key", "api-key", "x-auth-token"),
    }
)
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """What was chosen; what was not is as the environment has it."""

    block_map: bool = True
    group_header: str | None = None
    control: bool = False

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables that say so."""
        chosen = {} if self.block_map else {BLOCK_MAP: "0"}
        if self.group_header is not None:
            chosen[GROUP_HEADER] = self.group_header
        if self.control:
            chosen[CONTROL] = "1"
        return chosen


def refusal(header: str) -> str | None:
    """Why requests are not grouped by that header; None where nothing is against it."""
    if header.lower() in SECRETS:
        return f"{header} is a secret of whoever asks, and is told to nobody"
    if _NAME.fullmatch(header) is None:
        return f"{header!r} is no name of a request header, such as x-tenant"
    return None
