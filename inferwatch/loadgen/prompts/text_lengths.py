"""How many tokens texts have: counted by the server, else by characters per token."""

from collections.abc import Iterable
from time import monotonic

from inferwatch.loadgen.prompts.words import UNTOLD, Tokenizer

CHARS_PER_TOKEN = 4.0
"""Of English in most vocabularies; said to be an estimate."""
MOST_S = 5.0
"""Nobody waits longer for the first request; the rest is estimated."""


class TextLengths:
    """Tokens by text."""

    def __init__(self) -> None:
        self._counted: dict[str, int] = {}
        self._chars = 0

    @property
    def told(self) -> bool:
        """The server counts."""
        return bool(self._counted)

    def exact(self, text: str) -> int | None:
        """Where the server has counted it."""
        return self._counted.get(text)

    def about(self, text: str) -> int:
        """At least one."""
        known = self._counted.get(text)
        if known is not None:
            return max(known, 1)
        tokens = sum(self._counted.values())
        ratio = self._chars / tokens if tokens else CHARS_PER_TOKEN
        return max(round(len(text) / ratio), 1)

    async def ask(self, tokenizer: Tokenizer, texts: Iterable[str]) -> None:
        """Have the server count them, as long as that does not take long."""
        deadline_s = monotonic() + MOST_S
        try:
            for text in texts:
                if text not in self._counted:
                    self._counted[text] = await tokenizer.count(text)
                    self._chars += len(text)
                if monotonic() > deadline_s:
                    return
        except UNTOLD:
            return
