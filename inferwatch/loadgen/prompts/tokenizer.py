"""What the server's tokenizer tells: which words are one token, how long texts are.

Prompts in words are for where ids are not taken: as many tokens as asked, if one can.

A word that the server's tokenizer makes one token, wherever it stands, lets us count by
counting words. ``/tokenize`` (vLLM, SGLang) tells which words are so.
"""

from collections.abc import Iterable, Sequence
from importlib.resources import files
from time import monotonic
from typing import Self

import msgspec

from collectors.http.bounded_get import NoAnswerError, post
from collectors.http.http_client import http_client
from inferwatch.loadgen.plan.plan import Api, LoadPlan

CANDIDATES = (
    files("inferwatch.loadgen.prompts").joinpath("words.txt").read_text("ascii").split()
)
"""Common words: most tokenizers have a token for each."""
FEWEST = 64
"""Fewer different words would be too easy to guess for a prefix cache."""
REPEATS = 4
CHECKED = 48
TIMEOUT_S = 5.0
UNTOLD = (NoAnswerError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What asking a server that does not count, or counts oddly, raises."""


class _TokenizeReply(msgspec.Struct):
    """What ``/tokenize`` answers, as far as we read it."""

    count: int


class Vocabulary:
    """Words that stand for token ids, so that a prompt can be sent as text."""

    def __init__(
        self,
        words: Sequence[str] = CANDIDATES,
        *,
        tokens_per_word: float = 1.0,
        around: int = 0,
        exact: bool = False,
    ) -> None:
        self._words = words
        self._tokens_per_word = tokens_per_word
        self._around = around
        self.exact = exact
        """A prompt has as many tokens as ids; else that is an estimate."""

    def say(self, token_ids: Sequence[int]) -> str:
        """A text of so many tokens; equal ids are equal words, so prefixes stay."""
        words, room = self._words, len(token_ids) - self._around
        length = max(round(room / self._tokens_per_word), 1)
        return " ".join(words[each % len(words)] for each in token_ids[:length])

    @classmethod
    async def learn(cls, plan: LoadPlan) -> "Vocabulary":
        """Ask the server how it counts; where it does not tell, estimate."""
        try:
            async with Tokenizer(plan) as tokenizer:
                return await _learn(tokenizer)
        except UNTOLD:
            return cls()


class Tokenizer:
    """Asks the server's ``/tokenize`` how many tokens a text has."""

    def __init__(self, plan: LoadPlan, *, as_text: bool = False) -> None:
        self._as_chat = plan.endpoint is Api.CHAT and not as_text
        self._plan = plan
        self._client = http_client(
            plan.url,
            uds=plan.uds,
            headers=plan.headers,
            timeout_s=TIMEOUT_S,
            verify=plan.verify_tls,
        )

    async def __aenter__(self) -> Self:
        """Ready to ask."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close its connections."""
        await self._client.aclose()

    async def count(self, text: str) -> int:
        """Tokens of a prompt of that text, the template's and special ones included."""
        asked: dict[str, object] = {"prompt": text}
        if self._as_chat:
            asked = {"messages": [{"role": "user", "content": text}]}
        asked["model"] = self._plan.model
        answer = await post(self._client, "/tokenize", asked, timeout_s=TIMEOUT_S)
        return msgspec.json.decode(answer.body, type=_TokenizeReply).count


async def _learn(tokenizer: Tokenizer) -> Vocabulary:
    first = CANDIDATES[0]
    alone = await tokenizer.count(first)
    good = []
    for word in CANDIDATES:
        told = await tokenizer.count(" ".join([first, *[word] * REPEATS]))
        if told - alone == REPEATS:
            good.append(word)
    if len(good) < FEWEST:
        return await _estimate(tokenizer, alone)
    around = await tokenizer.count(good[0]) - 1
    words = Vocabulary(good, around=around, exact=True)
    asked = list(range(around + CHECKED))
    exact = await tokenizer.count(words.say(asked)) == len(asked)
    return Vocabulary(good, around=around, exact=exact)


async def _estimate(tokenizer: Tokenizer, alone: int) -> Vocabulary:
    told = await tokenizer.count(" ".join(CANDIDATES))
    return Vocabulary(tokens_per_word=(told - alone) / (len(CANDIDATES) - 1))


CHARS_PER_TOKEN = 4.0
"""Of English in most vocabularies; said to be an estimate."""
MOST_S = 5.0
"""Nobody waits longer for the first request; the rest is estimated."""


class TextLengths:
    """How many tokens texts have: counted by the server, else by their characters."""

    def __init__(self) -> None:
        self._counted: dict[str, int] = {}
        self._chars = 0

    @property
    def told(self) -> bool:
        """Whether the server counts tokens."""
        return bool(self._counted)

    def exact(self, text: str) -> int | None:
        """Tokens of a text, where the server has counted them."""
        return self._counted.get(text)

    def about(self, text: str) -> int:
        """Tokens of a text, counted or estimated; at least one."""
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
