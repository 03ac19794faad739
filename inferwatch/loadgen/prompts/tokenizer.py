"""Token counts from the server's tokenizer: words of one token, lengths of texts.

Where a server does not accept token ids, prompts are made of words. Words that its
tokenizer turns into one token each, wherever they are, give a text an exact number of
tokens. ``/tokenize`` (vLLM, SGLang) shows which words those are.
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
"""With fewer different words, prompts would share prefixes by chance."""
REPEATS = 4
CHECKED = 48
TIMEOUT_S = 5.0
UNTOLD = (NoAnswerError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors from a server that does not count tokens, or not properly."""


class _TokenizeReply(msgspec.Struct):
    """The response of ``/tokenize``."""

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
        """A text has exactly as many tokens as ids; otherwise that is an estimate."""

    def say(self, token_ids: Sequence[int]) -> str:
        """A text of that many tokens; equal ids give equal words, so prefixes stay."""
        words, room = self._words, len(token_ids) - self._around
        length = max(round(room / self._tokens_per_word), 1)
        return " ".join(words[each % len(words)] for each in token_ids[:length])

    @classmethod
    async def learn(cls, plan: LoadPlan) -> "Vocabulary":
        """Learn how the server counts tokens; falls back to an estimate."""
        try:
            async with Tokenizer(plan) as tokenizer:
                return await _learn(tokenizer)
        except UNTOLD:
            return cls()


class Tokenizer:
    """Counts tokens by the server's ``/tokenize``."""

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
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def count(self, text: str) -> int:
        """Tokens of a prompt with this text, with template and special tokens."""
        payload: dict[str, object] = {"prompt": text}
        if self._as_chat:
            payload = {"messages": [{"role": "user", "content": text}]}
        payload["model"] = self._plan.model
        answer = await post(self._client, "/tokenize", payload, timeout_s=TIMEOUT_S)
        return msgspec.json.decode(answer.body, type=_TokenizeReply).count


async def _learn(tokenizer: Tokenizer) -> Vocabulary:
    first = CANDIDATES[0]
    alone = await tokenizer.count(first)
    good = []
    for word in CANDIDATES:
        tokens = await tokenizer.count(" ".join([first, *[word] * REPEATS]))
        if tokens - alone == REPEATS:
            good.append(word)
    if len(good) < FEWEST:
        return await _estimate(tokenizer, alone)
    around = await tokenizer.count(good[0]) - 1
    words = Vocabulary(good, around=around, exact=True)
    ids = list(range(around + CHECKED))
    exact = await tokenizer.count(words.say(ids)) == len(ids)
    return Vocabulary(good, around=around, exact=exact)


async def _estimate(tokenizer: Tokenizer, alone: int) -> Vocabulary:
    tokens = await tokenizer.count(" ".join(CANDIDATES))
    return Vocabulary(tokens_per_word=(tokens - alone) / (len(CANDIDATES) - 1))


CHARS_PER_TOKEN = 4.0
"""Typical for English; reported as an estimate."""
MOST_S = 5.0
"""Time limit before the first request; remaining lengths are estimated."""


class TextLengths:
    """Token counts of texts: by the server, else estimated from their characters."""

    def __init__(self) -> None:
        self._counted: dict[str, int] = {}
        self._chars = 0

    @property
    def told(self) -> bool:
        """Whether the server counted tokens."""
        return bool(self._counted)

    def exact(self, text: str) -> int | None:
        """Tokens of a text as counted by the server; None if it was not."""
        return self._counted.get(text)

    def about(self, text: str) -> int:
        """Tokens of a text, counted or estimated; at least one."""
        count = self._counted.get(text)
        if count is not None:
            return max(count, 1)
        tokens = sum(self._counted.values())
        ratio = self._chars / tokens if tokens else CHARS_PER_TOKEN
        return max(round(len(text) / ratio), 1)

    async def ask(self, tokenizer: Tokenizer, texts: Iterable[str]) -> None:
        """Let the server count tokens, within the time limit."""
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
