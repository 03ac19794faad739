"""Checks whether a setting changes answers, with fixed prompts at temperature 0.

Greedy answers are equal as long as the arithmetic is. It need not be: another dtype,
another quantization, even another batch may change one token, and all tokens after it
follow. So the reference is the present setting, compared with itself: with prompts sent
again, and with prompts sent concurrently instead of one by one.

Only hashes of the answers are kept, one per prefix of each answer: they show where two
answers diverge, but nothing of their text.
"""

import asyncio
import re
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus
from secrets import token_hex
from statistics import median
from typing import Any

import httpx
import msgspec

from collectors.contract.clock import monotonic_ns
from collectors.contract.readings import AnswerHashes, Phase
from collectors.http.bounded_get import NoAnswerError, post
from collectors.http.http_client import http_client
from inferwatch.errors import SourceError
from inferwatch.formatting import counted
from inferwatch.loadgen.plan.lengths import Range, fixed
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.loadgen.prompts.prompts import Prompts
from inferwatch.loadgen.prompts.tokenizer import Vocabulary
from inferwatch.loadgen.target_server import TargetServer
from inferwatch.studies.tune.space import Point, Space
from inferwatch.studies.tune.trial import Trial

PROMPTS = 32
ANSWER_TOKENS = 32
PROMPT_TOKENS = Range(16, 256)
ORDINARY = Range(300, 999)
"""Ids of ordinary tokens in most vocabularies; the default of a load plan."""
SEED = 20_26
TIMEOUT_S = 120.0
HASH_BYTES = 6
"""Bytes kept of each hash; two prefixes collide with probability 2**-48."""
FIND = (
    "SELECT reading FROM other_readings "
    "WHERE session = ? AND kind = 'AnswerHashes' ORDER BY ordinal"
)
ASKED_TIMES = 2
"""How often prompts are sent to the present setting; to others once."""
UNTOLD_S = (NoAnswerError, msgspec.MsgspecError, UnicodeDecodeError)
NOT_FOR_IDS = {401, 403, 429}
"""Error statuses for which sending text instead of token ids would not help."""

SAME_ANSWERS = frozenset(
    {
        "api-server-count",
        "async-scheduling",
        "block-size",
        "cpu-offload-gb",
        "enable-prefix-caching",
        "gpu-memory-utilization",
        "kv-cache-memory-bytes",
        "long-prefill-token-threshold",
        "max-long-partial-prefills",
        "max-model-len",
        "max-num-batched-tokens",
        "max-num-partial-prefills",
        "max-num-seqs",
        "num-gpu-blocks-override",
        "prefix-caching-hash-algo",
        "scheduling-policy",
        "stream-interval",
        "swap-space",
    }
)
"""Flags that affect when something is computed or where it is stored, but not what.
They move requests between batches, which changes answers no more than other traffic
does.
"""


def may_change_answers(flag: str) -> bool:
    """Whether a flag may change what a model answers; unknown flags may."""
    return flag.removeprefix("no-") not in SAME_ANSWERS


# Asking.


class _Choice(msgspec.Struct):
    text: str = ""
    token_ids: list[int] | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]


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
    target: TargetServer, model: str, prompts: Sequence[Any], *, source: str = ""
) -> AnswerHashes:
    """Send each prompt alone, then all concurrently, and hash the answers.

    If the server does not accept token ids, it gets the same number of words instead.

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
        try:
            prompts = await _accepted(client, model, prompts)
            one_by_one = [await _ask(client, model, each) for each in prompts]
            together = await asyncio.gather(
                *(_ask(client, model, each) for each in prompts)
            )
        except UNTOLD_S as error:
            why = str(error) or type(error).__name__
            raise SourceError(f"the answers cannot be compared: {why}") from error
    by_tokens = all(each.token_ids is not None for each in (*one_by_one, *together))
    return AnswerHashes(
        source=source,
        t_ns=monotonic_ns(),
        model=model,
        asked=_number(sha256(repr((ANSWER_TOKENS, by_tokens, prompts)).encode())),
        by_tokens=by_tokens,
        alone=[_prefix_hashes(each, by_tokens=by_tokens) for each in one_by_one],
        together=[_prefix_hashes(each, by_tokens=by_tokens) for each in together],
    )


async def _accepted(
    client: httpx.AsyncClient, model: str, prompts: Sequence[Any]
) -> list[Any]:
    """The prompts as token ids if the server accepts them, else as words."""
    try:
        await _ask(client, model, prompts[0])
    except NoAnswerError as error:
        refused = error.status is not None and error.status >= HTTPStatus.BAD_REQUEST
        if not refused or error.status in NOT_FOR_IDS:
            raise
    else:
        return list(prompts)
    return [Vocabulary().say(each) for each in prompts]


async def _ask(client: httpx.AsyncClient, model: str, prompt: object) -> _Choice:
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "cache_salt": token_hex(8),  # keeps it out of the prefix cache
    }
    answer = await post(client, "/v1/completions", body, timeout_s=TIMEOUT_S)
    completion = msgspec.json.decode(answer.body, type=_Completion)
    return completion.choices[0] if completion.choices else _Choice()


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


def kept_answers(connection: sqlite3.Connection, session: int) -> AnswerHashes | None:
    """The answers kept in a session; None if no prompts were sent."""
    for (blob,) in connection.execute(FIND, (session,)):
        with suppress(msgspec.MsgspecError):  # the file is damaged
            return msgspec.msgpack.decode(blob, type=AnswerHashes)
    return None


# Comparing.


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerDifference:
    """How far the answers to the same prompts agree between two rounds."""

    prompts: int
    differ: int
    """The number of prompts with different answers."""
    tokens: int
    equal: int
    """The number of tokens before the first difference of their answer."""
    first: int | None = None
    """The earliest token at which answers differ, counted from 1."""
    first_median: float | None = None
    """The median over differing answers of the first token that differs."""

    @property
    def share(self) -> float | None:
        """The share of tokens that come before any difference."""
        return self.equal / self.tokens if self.tokens else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerComparison:
    """A setting's answers compared with the present's, and these with each other."""

    by_tokens: bool
    against: AnswerDifference
    """Each prompt sent alone."""
    again: AnswerDifference | None = None
    """The present setting asked a second time; None if it was asked only once."""
    at_once: AnswerDifference | None = None
    """The present setting: prompts sent alone compared with prompts sent concurrently.
    """

    @property
    def differs(self) -> bool:
        """Whether more answers differ than between rounds of the present setting."""
        known = [each.differ for each in (self.again, self.at_once) if each is not None]
        return self.against.differ > max(known, default=0)

    @property
    def sentence(self) -> str:
        noun = "token" if self.by_tokens else "word"
        difference = self.against
        if not difference.tokens:
            return "nothing was answered, so no answers can be compared"
        text = f"{_share(difference)} of {counted(difference.tokens, noun)} equal"
        if difference.differ:
            verb = "differs" if difference.differ == 1 else "differ"
            text += (
                f"; {difference.differ} of {counted(difference.prompts, 'prompt')} "
                f"{verb}, first at {noun} {difference.first}"
            )
        return f"{text}; {self._own_differences()}"

    def _own_differences(self) -> str:
        """How far answers of the present setting differ from each other, in words."""
        ways = (("asked again", self.again), ("asked all at once", self.at_once))
        texts = [
            f"{_rest(each)} {how}"
            for how, each in ways
            if each is not None and each.tokens
        ]
        if not texts:
            return "how far the present differs from itself was not asked"
        return f"the present differs from itself in {', '.join(texts)}"


def compare_answers(
    present: Sequence[AnswerHashes], other: AnswerHashes
) -> AnswerComparison | None:
    """Compare a setting's answers with the present's; None if prompts differ.

    ``present`` holds all rounds of the present setting, oldest first.
    """
    comparable = [each for each in present if each.asked == other.asked]
    if not comparable:
        return None
    first, *again = comparable
    return AnswerComparison(
        by_tokens=other.by_tokens,
        against=difference(first.alone, other.alone),
        again=difference(first.alone, again[0].alone) if again else None,
        at_once=difference(first.alone, first.together),
    )


def answers_by_point(
    space: Space, trials: Sequence[Trial]
) -> dict[Point, AnswerComparison]:
    hashes: dict[Point, list[AnswerHashes]] = {}
    for trial in trials:
        if trial.numbers is not None and trial.numbers.answers is not None:
            hashes.setdefault(trial.point, []).append(trial.numbers.answers)
    present = hashes.pop(space.present, [])
    comparisons = {
        point: compare_answers(present, answers[0]) for point, answers in hashes.items()
    }
    return {point: each for point, each in comparisons.items() if each is not None}


def difference(
    one: Sequence[Sequence[int]], other: Sequence[Sequence[int]]
) -> AnswerDifference:
    pairs = list(zip(one, other, strict=True))
    equal = [_equal(a, b) for a, b in pairs]
    longest = [max(len(a), len(b)) for a, b in pairs]
    parts = [same + 1 for same, most in zip(equal, longest, strict=True) if same < most]
    return AnswerDifference(
        prompts=len(pairs),
        differ=len(parts),
        tokens=sum(longest),
        equal=sum(equal),
        first=min(parts, default=None),
        first_median=median(parts) if parts else None,
    )


def _equal(one: Sequence[int], other: Sequence[int]) -> int:
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))


def _share(difference: AnswerDifference) -> str:
    """The share in percent; 0% and 100% only if they are exact."""
    if difference.equal == difference.tokens:
        return "100%"
    return f"{min(max(difference.equal / difference.tokens, 0.001), 0.999):.1%}"


def _rest(difference: AnswerDifference) -> str:
    if difference.equal == difference.tokens:
        return "0%"
    return f"{max(1 - difference.equal / difference.tokens, 0.001):.1%}"
