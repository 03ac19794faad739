"""Asks a server fixed prompts at temperature 0, to compare answers of two settings.

Greedy answers are equal as long as the arithmetic is. It need not be: another dtype,
another quantization, even another batch may change one token, and all tokens after it
follow. So the reference is the baseline, compared with itself: with prompts sent again,
and with prompts sent concurrently instead of one by one.

What tells more than answers is the *drift*: the baseline's answers are sent as prompts,
and the server gives the log-probability of each of their tokens.

Only hashes of the answers are kept, one per prefix of each answer, and log-probs: they
show where two answers diverge, but nothing of their text. The ids of the baseline's
tokens stay in memory, or in the file that the user asked for.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus
from secrets import token_hex
from typing import Any

import httpx
import msgspec

from collectors.contract.clock import monotonic_ns
from collectors.contract.readings import AnswerHashes, Phase
from collectors.http.bounded_get import NoAnswerError, post
from collectors.http.http_client import http_client
from inferwatch.errors import SourceError
from inferwatch.loadgen.plan.lengths import Range, fixed
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.loadgen.prompts.prompts import Prompts
from inferwatch.loadgen.prompts.tokenizer import Vocabulary
from inferwatch.loadgen.target_server import TargetServer

PROMPTS = 32
ANSWER_TOKENS = 32
PROMPT_TOKENS = Range(16, 256)
ORDINARY = Range(300, 999)
"""Ids of ordinary tokens in most vocabularies; the default of a load plan."""
SEED = 20_26
TIMEOUT_S = 120.0
HASH_BYTES = 6
"""Bytes kept of each hash; two prefixes collide with probability 2**-48."""
UNTOLD_S = (NoAnswerError, msgspec.MsgspecError, UnicodeDecodeError)
NOT_FOR_IDS = {401, 403, 429}
"""Error statuses for which sending text instead of token ids would not help."""


class _Chosen(msgspec.Struct):
    token_logprobs: list[float | None] | None = None


class _TokenChance(msgspec.Struct):
    logprob: float


class _Choice(msgspec.Struct):
    text: str = ""
    token_ids: list[int] | None = None
    logprobs: _Chosen | None = None
    prompt_logprobs: list[dict[str, _TokenChance] | None] | None = None

    @property
    def chosen(self) -> list[float]:
        """The log-probs of its tokens; empty if one of them is unknown."""
        told = self.logprobs.token_logprobs if self.logprobs is not None else None
        known = [each for each in told or () if each is not None]
        return known if len(known) == len(self.token_ids or ()) else []


class _Completion(msgspec.Struct):
    choices: list[_Choice]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineAnswers:
    """What the baseline was asked and answered, as token ids; never recorded."""

    prompts: list[list[int]]
    tokens: list[list[int]]

    @property
    def number(self) -> int:
        """A hash: only scores of the same tokens are comparable."""
        return _number(sha256(repr((self.prompts, self.tokens)).encode()))


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRound:
    """One round of questions: what is recorded, and what later rounds score."""

    hashes: AnswerHashes
    baseline: BaselineAnswers | None
    """The baseline's answers; this round's own if there was none before, and None
    where the server tells no token ids."""


def answer_prompts(count: int, token_ids: Range = ORDINARY) -> list[list[int]]:
    """``count`` prompts of fixed lengths, as token ids; always the same ones."""
    plan = LoadPlan(
        run_id="answers",
        model="any",
        rate_per_s=1.0,
        seed=SEED,
        prompt_tokens=PROMPT_TOKENS,
        output_tokens=fixed(ANSWER_TOKENS),
        token_ids=token_ids,
    )
    prompts = Prompts(plan)
    return [prompts.make(Phase.STEADY, number).token_ids for number in range(count)]


async def ask_answers(
    target: TargetServer,
    model: str,
    prompts: Sequence[Any],
    *,
    source: str = "",
    baseline: BaselineAnswers | None = None,
) -> AskedRound:
    """Send each prompt alone, then all concurrently, and hash the answers.

    Then the answers of the baseline (if there is none: its own) are scored the same
    two ways. If the server does not accept token ids, it gets the same number of words
    instead, and nothing is scored; nor where it tells no log-probs of prompts.

    Raises:
        SourceError: the server does not answer.
    """
    async with http_client(
        target.url,
        uds=target.uds,
        headers=target.headers,
        timeout_s=TIMEOUT_S,
        verify=target.verify_tls,
    ) as client:
        asker = _Asker(client, model)
        try:
            prompts = await asker.accepted(prompts)
            one_by_one = [await asker.ask(each) for each in prompts]
            together = await asyncio.gather(*(asker.ask(each) for each in prompts))
        except UNTOLD_S as error:
            why = str(error) or type(error).__name__
            raise SourceError(f"the answers cannot be compared: {why}") from error
        by_tokens = all(each.token_ids is not None for each in (*one_by_one, *together))
        if baseline is None and by_tokens and not isinstance(prompts[0], str):
            baseline = BaselineAnswers(
                prompts=[list(each) for each in prompts],
                tokens=[each.token_ids or [] for each in one_by_one],
            )
        scored = await asker.scored(baseline) if baseline is not None else None
    hashes = AnswerHashes(
        source=source,
        t_ns=monotonic_ns(),
        model=model,
        asked=_number(sha256(repr((ANSWER_TOKENS, by_tokens, prompts)).encode())),
        by_tokens=by_tokens,
        alone=[_prefix_hashes(each, by_tokens=by_tokens) for each in one_by_one],
        together=[_prefix_hashes(each, by_tokens=by_tokens) for each in together],
        chosen=[each.chosen for each in one_by_one],
        scored_of=baseline.number if baseline is not None and scored else None,
        scored_alone=scored[0] if scored else [],
        scored_together=scored[1] if scored else [],
    )
    return AskedRound(hashes=hashes, baseline=baseline)


class _Asker:
    """Sends prompts in the way that the server takes."""

    def __init__(self, client: httpx.AsyncClient, model: str) -> None:
        self._client, self._model = client, model
        self._more: Mapping[str, object] = {"logprobs": 0}

    async def accepted(self, prompts: Sequence[Any]) -> list[Any]:
        """The prompts as token ids if the server accepts them, else as words.

        A server that refuses may not know log-probs, so it is asked without, too.
        """
        if await self._takes(prompts[0]):
            return list(prompts)
        self._more = {}
        if await self._takes(prompts[0]):
            return list(prompts)
        return [Vocabulary().say(each) for each in prompts]

    async def _takes(self, prompt: object) -> bool:
        try:
            await self.ask(prompt)
        except NoAnswerError as error:
            refused = (
                error.status is not None and error.status >= HTTPStatus.BAD_REQUEST
            )
            if not refused or error.status in NOT_FOR_IDS:
                raise
            return False
        return True

    async def ask(self, prompt: object) -> _Choice:
        """The answer to a prompt."""
        return await self._send(
            prompt,
            max_tokens=ANSWER_TOKENS,
            ignore_eos=True,
            return_token_ids=True,
            **self._more,
        )

    async def scored(
        self, baseline: BaselineAnswers
    ) -> tuple[list[list[float]], list[list[float]]] | None:
        """Log-probs of the baseline's tokens, one by one and all at once.

        None if the server does not tell them.
        """
        pairs = list(zip(baseline.prompts, baseline.tokens, strict=True))
        with suppress(*UNTOLD_S, _UntoldError):
            alone = [await self._score(*each) for each in pairs]
            together = await asyncio.gather(*(self._score(*each) for each in pairs))
            return alone, list(together)
        return None

    async def _score(self, prompt: list[int], tokens: list[int]) -> list[float]:
        if not tokens:
            return []
        choice = await self._send([*prompt, *tokens], max_tokens=1, prompt_logprobs=0)
        told = (choice.prompt_logprobs or [])[len(prompt) :]
        if len(told) != len(tokens):
            raise _UntoldError
        found = []
        for token, chances in zip(tokens, told, strict=True):
            chance = (chances or {}).get(str(token))
            if chance is None:
                raise _UntoldError
            found.append(chance.logprob)
        return found

    async def _send(self, prompt: object, **more: object) -> _Choice:
        body = {
            "model": self._model,
            "prompt": prompt,
            "temperature": 0,
            "cache_salt": token_hex(8),  # keeps it out of the prefix cache
            **more,
        }
        answer = await post(self._client, "/v1/completions", body, timeout_s=TIMEOUT_S)
        completion = msgspec.json.decode(answer.body, type=_Completion)
        return completion.choices[0] if completion.choices else _Choice()


class _UntoldError(Exception):
    """The server told no log-probs of a prompt."""


def _prefix_hashes(answer: _Choice, *, by_tokens: bool) -> list[int]:
    """One hash for each prefix of an answer."""
    pieces: Iterable[Any] = (
        (answer.token_ids or ()) if by_tokens else re.findall(r"\S+\s*", answer.text)
    )
    state, hashes = sha256(), []
    for piece in pieces:
        state.update(f"{piece}\0".encode())
        hashes.append(_number(state))
    return hashes


def _number(state: Any) -> int:  # noqa: ANN401 - hashlib gives its hashes no name
    return int.from_bytes(state.digest()[:HASH_BYTES], "big")
