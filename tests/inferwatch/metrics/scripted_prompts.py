"""Prompts of tokens, as a prefix cache of our own finds them and a probe tells them."""

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

from inferwatch.metrics.cache.miss_finder import EndedPrompt

S = 1_000_000_000
BLOCK = 16
PLAIN = 32
"""First blocks that are told by themselves, too."""
Tokens = Sequence[int]


def number_of(*content: object) -> int:
    digest = blake2b(repr(content).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def blocks_of(tokens: Tokens) -> list[tuple[int, ...]]:
    full = range(0, len(tokens) - BLOCK + 1, BLOCK)
    return [tuple(tokens[first : first + BLOCK]) for first in full]


def chained(tokens: Tokens, salt: str | None, lora: str | None) -> list[int]:
    numbers: list[int] = []
    before: int | str | None = salt
    for block in blocks_of(tokens):
        before = number_of(before, lora, block)
        numbers.append(before)
    return numbers


class ScriptedCache:
    """Gives up the block that was least recently used, last blocks of a prompt first.

    Prompts are asked one after another, a second apart, unless told otherwise.
    """

    def __init__(self, size: int = 1 << 20, one_in: int = 1) -> None:
        self.now_s = 0.0
        self.prompts: list[EndedPrompt] = []
        self._size, self._one_in = size, one_in
        self._cached: OrderedDict[int, None] = OrderedDict()

    def ask(  # noqa: PLR0913 - each is about one prompt
        self,
        tokens: Tokens,
        *,
        salt: str | None = None,
        lora: str | None = None,
        took_s: float = 0.5,
        finds: int | None = None,
        media: bool = False,
        output: Tokens = (),
    ) -> EndedPrompt:
        """Ask a prompt; ``finds``: tokens, if not what the cache holds."""
        numbers = chained([*tokens, *output], salt, lora)
        asked = len(tokens) // BLOCK
        hits = 0
        for number in numbers[: max(len(tokens) - 1, 0) // BLOCK]:
            if number not in self._cached:
                break
            hits += 1
        for number in reversed(numbers):
            self._cached.pop(number, None)
            self._cached[number] = None
        while len(self._cached) > self._size:
            self._cached.popitem(last=False)
        told = [
            (place, number)
            for place, number in enumerate(numbers)
            if number % self._one_in == 0
        ]
        at_ns = round(self.now_s * S)
        end_ns = at_ns + round(took_s * S)
        self.prompts.append(
            EndedPrompt(
                key=f"engine-1/{len(self.prompts)}",
                source="engine-1",
                scheduled_ns=at_ns,
                ready_ns=end_ns,
                end_ns=end_ns,
                prompt_tokens=len(tokens),
                cached_tokens=hits * BLOCK if finds is None else finds,
                block_tokens=BLOCK,
                prompt_blocks=asked,
                hashes=[number for _, number in told],
                places=[place for place, _ in told] if self._one_in > 1 else [],
                one_in=self._one_in,
                plain=[number_of("plain", b) for b in blocks_of(tokens)[:PLAIN]],
                salt=None if salt is None else number_of("salt", salt),
                lora=lora,
                media=media,
            )
        )
        self.now_s += 1
        return self.prompts[-1]
