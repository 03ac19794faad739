"""Answers of two settings compared: by hashes alone, with the present as yardstick."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

from collectors.contract.readings import AnswerHashes
from inferwatch.errors import SourceError
from inferwatch.loadgen.target_server import TargetServer
from inferwatch.studies.answers import asking
from inferwatch.studies.answers.asking import (
    AskedRound,
    BaselineAnswers,
    answer_prompts,
    ask_answers,
)
from inferwatch.studies.answers.comparing import (
    LEAST_PROMPTS,
    AnswerVerdict,
    chance_of_more,
    compare_answers,
    difference,
)

Answering = Callable[[dict[str, object]], dict[str, object]]
TARGET = TargetServer(url="http://localhost:1")


def scripted(monkeypatch: pytest.MonkeyPatch, answering: Answering) -> list[object]:
    """A server that answers by a function of what it is asked; all it was asked."""
    asked: list[object] = []

    def reply(request: httpx.Request) -> httpx.Response:
        question = json.loads(request.content)
        asked.append(question)
        found = answering(question)
        status, body = int(str(found.pop("status", 200))), json.dumps(found).encode()
        return httpx.Response(status, stream=httpx.ByteStream(body))

    def client(url: str, **_: object) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=url, transport=httpx.MockTransport(reply))

    monkeypatch.setattr(asking, "http_client", client)
    return asked


def ids_of(body: dict[str, object]) -> dict[str, object]:
    """An answer that follows from the prompt."""
    prompt = body["prompt"]
    assert isinstance(prompt, list)
    said = [(prompt[0] * 7 + n) % 1000 for n in range(32)]
    return {"choices": [{"text": "secret words", "token_ids": said}]}


async def test_the_same_answers_have_the_same_hashes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scripted(monkeypatch, ids_of)
    prompts = answer_prompts(8)

    first = (await ask_answers(TARGET, "m", prompts)).hashes
    again = (await ask_answers(TARGET, "m", prompts)).hashes

    found = compare_answers([first, again], again)
    assert found is not None
    assert (found.against.differ, found.against.tokens) == (0, 256)
    assert not found.differs
    assert found.sentence == (
        "100% of 256 tokens equal; the present differs from itself in 0% asked again, "
        "0% asked all at once"
    )


async def test_prompts_are_asked_alone_then_together_and_from_no_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = scripted(monkeypatch, ids_of)

    await ask_answers(TARGET, "m", answer_prompts(4))

    bodies = [each for each in asked if isinstance(each, dict)]
    assert [each["prompt"] for each in bodies[1:5]] == answer_prompts(4)
    assert {each["temperature"] for each in bodies} == {0}
    salts = [each["cache_salt"] for each in bodies]
    # One to see whether ids are taken, and one that asks for log-probs in vain.
    assert len(set(salts)) == len(bodies) == 10


async def test_no_word_and_no_token_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, ids_of)

    told = (await ask_answers(TARGET, "m", answer_prompts(2))).hashes

    assert "secret" not in repr(told)
    assert {each for chain in told.alone for each in chain}.isdisjoint(range(1000))


async def test_the_first_difference_is_told_by_its_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompts = answer_prompts(4)
    scripted(monkeypatch, ids_of)
    before = (await ask_answers(TARGET, "m", prompts)).hashes

    def turned(body: dict[str, object]) -> dict[str, object]:
        found = ids_of(body)
        if body["prompt"] == prompts[2]:
            found["choices"][0]["token_ids"][16] += 1  # type: ignore[index]
        return found

    scripted(monkeypatch, turned)
    after = (await ask_answers(TARGET, "m", prompts)).hashes
    found = compare_answers([before], after)

    assert found is not None
    assert (found.against.differ, found.against.first) == (1, 17)
    assert found.against.equal == 3 * 32 + 16
    assert found.differs
    assert found.sentence.startswith(
        "87.5% of 128 tokens equal; 1 of 4 prompts differs, first at token 17; "
    )


async def test_a_present_that_differs_from_itself_as_much_blames_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = iter(range(1000))

    def fickle(body: dict[str, object]) -> dict[str, object]:
        found = ids_of(body)
        found["choices"][0]["token_ids"][9] += next(calls)  # type: ignore[index]
        return found

    scripted(monkeypatch, fickle)
    prompts = answer_prompts(4)
    present = [(await ask_answers(TARGET, "m", prompts)).hashes for _ in range(2)]
    other = (await ask_answers(TARGET, "m", prompts)).hashes

    found = compare_answers(present, other)

    assert found is not None
    assert found.against.differ == 4
    assert found.again is not None
    assert found.again.differ == 4
    assert not found.differs


@pytest.mark.parametrize("status", [400, 415, 500, 501])
async def test_a_server_that_takes_no_ids_gets_words(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    def words(body: dict[str, object]) -> dict[str, object]:
        if isinstance(body["prompt"], list):
            return {"status": status, "error": "text only"}
        return {"choices": [{"text": "one two  three"}]}

    asked = scripted(monkeypatch, words)

    told = (await ask_answers(TARGET, "m", answer_prompts(2))).hashes

    assert not told.by_tokens
    assert [len(each) for each in told.alone] == [3, 3]
    assert isinstance(asked[-1], dict)
    assert isinstance(asked[-1]["prompt"], str)


async def test_a_server_that_answers_nobody_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scripted(monkeypatch, lambda _: {"status": 500})

    with pytest.raises(SourceError, match="cannot be compared"):
        await ask_answers(TARGET, "m", answer_prompts(2))


def test_answers_of_other_prompts_do_not_compare() -> None:
    assert compare_answers([hashes(asked=1)], hashes(asked=2)) is None
    assert compare_answers([], hashes(asked=2)) is None


def test_a_longer_answer_differs_where_the_shorter_ends() -> None:
    found = difference([[1, 2]], [[1, 2, 3]])

    assert (found.differ, found.first, found.equal, found.tokens) == (1, 3, 2, 3)


def test_nearly_all_is_not_all() -> None:
    one = [list(range(10_000))]
    found = compare_answers([hashes(alone=one)], hashes(alone=[[*range(9_999), 0]]))

    assert found is not None
    assert found.sentence.startswith("99.9% of 10,000 tokens equal; 1 of 1 prompt ")


def hashes(asked: int = 1, alone: list[list[int]] | None = None) -> AnswerHashes:
    chains = [[1]] if alone is None else alone
    return AnswerHashes(
        t_ns=0, model="m", asked=asked, by_tokens=True, alone=chains, together=chains
    )


# Log-probs of the baseline's tokens.


def scoring(drift: float = 0.0, other_from: int = 99) -> Answering:
    """A server that scores by a function of the token, plus a drift."""

    def answer(body: dict[str, object]) -> dict[str, object]:
        prompt = body["prompt"]
        assert isinstance(prompt, list)
        if "prompt_logprobs" in body:
            told = [{str(each): {"logprob": -each / 500 - drift}} for each in prompt]
            return {"choices": [{"text": "x", "prompt_logprobs": [None, *told[1:]]}]}
        said = [(prompt[0] * 7 + n + (n >= other_from)) % 1000 for n in range(32)]
        chosen = {"token_logprobs": [-each / 500 - drift for each in said]}
        return {"choices": [{"text": "y", "token_ids": said, "logprobs": chosen}]}

    return answer


async def asked_of(
    monkeypatch: pytest.MonkeyPatch,
    answering: Answering,
    baseline: BaselineAnswers | None = None,
    count: int = 8,
) -> AskedRound:
    scripted(monkeypatch, answering)
    return await ask_answers(TARGET, "m", answer_prompts(count), baseline=baseline)


async def test_the_same_setting_asked_twice_is_as_equal_as_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = await asked_of(monkeypatch, scoring())
    again = await asked_of(monkeypatch, scoring(), first.baseline)
    other = await asked_of(monkeypatch, scoring(), first.baseline)

    found = compare_answers([first.hashes, again.hashes], other.hashes)

    assert found is not None
    assert found.verdict is AnswerVerdict.EQUAL
    assert not found.differs
    assert found.drift is not None
    assert (found.drift.mean, found.drift.tokens) == (0.0, 8 * 32)
    assert found.conclusion == (
        "answers as equal as the baseline's own: all prompts alike, drift 0, own 0 of "
        "log-probs"
    )


async def test_a_drift_beyond_its_own_noise_is_told_though_no_answer_differs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = await asked_of(monkeypatch, scoring())
    again = await asked_of(monkeypatch, scoring(0.001), first.baseline)
    other = await asked_of(monkeypatch, scoring(0.02), first.baseline)

    found = compare_answers([first.hashes, again.hashes], other.hashes)

    assert found is not None
    assert found.against.differ == 0
    assert found.verdict is AnswerVerdict.DRIFT
    assert found.conclusion.startswith("answers equal, but log-probs differ more")
    assert found.differs
    assert found.drift is not None
    assert found.own_drift is not None
    assert found.drift.mean == pytest.approx(0.02)
    assert found.own_drift.mean == pytest.approx(0.001)
    assert found.p_value is not None
    assert found.p_value == pytest.approx(2 / 2**8)


async def test_a_drift_too_small_to_matter_is_no_difference_even_from_no_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = await asked_of(monkeypatch, scoring())
    again = await asked_of(monkeypatch, scoring(), first.baseline)
    other = await asked_of(monkeypatch, scoring(1e-6), first.baseline)

    found = compare_answers([first.hashes, again.hashes], other.hashes)

    assert found is not None
    assert found.verdict is AnswerVerdict.EQUAL
    assert not found.differs
    assert found.drift is not None
    assert found.drift.mean == pytest.approx(1e-6)


async def test_a_verdict_is_not_contradicted_by_how_many_answers_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One answer of eight parts late: more than the baseline's none, but by chance."""
    first = await asked_of(monkeypatch, scoring())
    again = await asked_of(monkeypatch, scoring(), first.baseline)
    alone = [[*each] for each in again.hashes.alone]
    alone[0][-1] += 1
    other = msgspec.structs.replace(again.hashes, alone=alone)

    found = compare_answers([first.hashes, again.hashes], other)

    assert found is not None
    assert found.against.differ == 1
    assert found.verdict is AnswerVerdict.UNTOLD
    assert not found.differs


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_round_without_scores_has_all_measured_by_what_was_chosen(
    monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    first = await asked_of(monkeypatch, scoring())
    again = await asked_of(monkeypatch, scoring(0.001), first.baseline)
    other = await asked_of(monkeypatch, scoring(0.02, 5), first.baseline)
    rounds = [first.hashes, again.hashes, other.hashes]
    none: dict[str, Any] = {"scored_of": None, "scored_alone": []}
    rounds[place] = msgspec.structs.replace(rounds[place], **none, scored_together=[])

    found = compare_answers(rounds[:2], rounds[2])

    assert found is not None
    assert found.drift is not None
    assert found.drift.tokens == 8 * 5  # those that both gave
    assert found.own_drift is not None
    assert found.own_drift.tokens == 8 * 32
    assert found.own_drift_at_once is None


async def test_agreement_is_told_by_position(monkeypatch: pytest.MonkeyPatch) -> None:
    first = await asked_of(monkeypatch, scoring())
    again = await asked_of(monkeypatch, scoring(), first.baseline)
    other = await asked_of(monkeypatch, scoring(other_from=5), first.baseline)

    found = compare_answers([first.hashes, again.hashes], other.hashes)

    assert found is not None
    assert found.against.agreeing == {1: 1.0, 2: 1.0, 4: 1.0, 8: 0.0, 16: 0.0, 32: 0.0}
    assert found.verdict is AnswerVerdict.DIFFER


async def test_few_prompts_or_a_baseline_asked_once_claim_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = await asked_of(monkeypatch, scoring(), count=LEAST_PROMPTS - 1)
    other = await asked_of(monkeypatch, scoring(1), first.baseline, LEAST_PROMPTS - 1)

    few = compare_answers([first.hashes, first.hashes], other.hashes)
    once = compare_answers([first.hashes], other.hashes)

    assert few is not None
    assert once is not None
    assert few.verdict is once.verdict is AnswerVerdict.UNKNOWN
    assert "too few prompts (5; it takes 6)" in few.conclusion
    assert "asked only once" in once.conclusion


async def test_scores_of_other_tokens_are_not_taken_for_a_drift(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = await asked_of(monkeypatch, scoring())
    other = await asked_of(monkeypatch, scoring(other_from=5))  # scores its own

    found = compare_answers([first.hashes], other.hashes)

    assert first.hashes.scored_of != other.hashes.scored_of
    assert found is not None
    assert found.drift is not None
    assert found.drift.tokens == 8 * 5  # those that both gave


def test_signs_are_tried_exactly_and_by_draws_alike() -> None:
    rng = np.random.default_rng(3)
    excess = rng.normal(0.4, 1.0, 12)

    exact = chance_of_more(excess)
    drawn = chance_of_more(np.append(excess, [1e-6]))

    assert drawn == pytest.approx(exact, abs=0.02)
    assert chance_of_more(-np.abs(excess)) == 1.0
    assert chance_of_more(np.zeros(9)) == 1.0


def test_a_setting_like_its_baseline_is_seldom_said_to_differ() -> None:
    rng = np.random.default_rng(7)
    alarms = [
        chance_of_more(rng.exponential(1.0, 32) - rng.exponential(1.0, 32)) <= 0.025
        for _ in range(400)
    ]

    assert np.mean(alarms) <= 0.05
