"""What servers stream: the parts of a completion's or a chat's chunk that tell us."""

from typing import Annotated

import msgspec

MOST_TOKENS = 1 << 31
"""A count or an id beyond is nonsense; sums of these still fit where we keep them."""
Tokens = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]


class Delta(msgspec.Struct, gc=False):
    """What a chat adds; reasoning counts as the tokens it is."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[object] | None = None

    @property
    def thought(self) -> bool:
        """It reasons."""
        return bool(self.reasoning or self.reasoning_content)

    @property
    def said(self) -> bool:
        """It brings tokens."""
        return bool(self.content or self.tool_calls) or self.thought


class Choice(msgspec.Struct, gc=False):
    """Of the answers that were asked for, one."""

    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None
    token_ids: list[Tokens] | None = None
    """Where they were asked for (``return_token_ids``) and the server knows how."""

    @property
    def opens(self) -> bool:
        """A chat's first chunk, which names the role and brings no token."""
        delta = self.delta
        return delta is not None and delta.role is not None and not delta.said

    @property
    def said(self) -> bool:
        """It brings tokens."""
        return bool(self.text) or (self.delta is not None and self.delta.said)

    @property
    def words(self) -> str:
        """Of the answer itself."""
        return self.text or (self.delta.content if self.delta else None) or ""


class Usage(msgspec.Struct, gc=False):
    """Tokens so far."""

    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None


class ServerTimes(msgspec.Struct, gc=False):
    """vLLM's per-request metrics, as the engine's own clock measured them."""

    queue_time_ms: float | None = None
    """Queued in the engine to scheduled."""
    time_to_first_token_ms: float | None = None
    """Scheduled to first token: what we call prefill."""
    generation_time_ms: float | None = None
    """First token to last: what we call decode."""


NO_ERROR = msgspec.Raw(b"null")


class Chunk(msgspec.Struct, gc=False):
    """One event of a stream."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: msgspec.Raw = NO_ERROR
    metrics: ServerTimes | None = None

    @property
    def failed(self) -> bool:
        """It tells an error; some servers have an empty one in every chunk."""
        return bytes(self.error) not in {b"null", b"false", b'""', b"{}"}


chunks = msgspec.json.Decoder(Chunk)
