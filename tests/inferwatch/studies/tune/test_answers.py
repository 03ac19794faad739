"""Answers of two settings compared: by hashes alone, with the present as yardstick."""

import json
from collections.abc import Callable

import httpx
import pytest

from collectors.contract.readings import AnswerHashes
from inferwatch.errors import SourceError
from inferwatch.loadgen.target_server import TargetServer
from inferwatch.studies.tune import answers
from inferwatch.studies.tune.answers import (
    answer_prompts,
    answers_by_point,
    ask_answers,
    compare_answers,
    difference,
    may_change_answers,
)
from inferwatch.studies.tune.space import Point, Space, Variable
from inferwatch.studies.tune.trial import Trial, TrialNumbers, TrialOutcome, TrialRecord

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

    monkeypatch.setattr(answers, "http_client", client)
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

    first = await ask_answers(TARGET, "m", prompts)
    again = await ask_answers(TARGET, "m", prompts)

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
    assert len(set(salts)) == len(bodies) == 9  # one to see whether ids are taken


async def test_no_word_and_no_token_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, ids_of)

    told = await ask_answers(TARGET, "m", answer_prompts(2))

    assert "secret" not in repr(told)
    assert {each for chain in told.alone for each in chain}.isdisjoint(range(1000))


async def test_the_first_difference_is_told_by_its_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompts = answer_prompts(4)
    scripted(monkeypatch, ids_of)
    before = await ask_answers(TARGET, "m", prompts)

    def turned(body: dict[str, object]) -> dict[str, object]:
        found = ids_of(body)
        if body["prompt"] == prompts[2]:
            found["choices"][0]["token_ids"][16] += 1  # type: ignore[index]
        return found

    scripted(monkeypatch, turned)
    after = await ask_answers(TARGET, "m", prompts)
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
    present = [await ask_answers(TARGET, "m", prompts) for _ in range(2)]
    other = await ask_answers(TARGET, "m", prompts)

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

    told = await ask_answers(TARGET, "m", answer_prompts(2))

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


@pytest.mark.parametrize(
    ("flag", "may"),
    [
        ("max-num-seqs", False),
        ("max-num-batched-tokens", False),
        ("enable-prefix-caching", False),
        ("dtype", True),
        ("kv-cache-dtype", True),
        ("quantization", True),
        ("speculative-config", True),
        ("a-flag-of-next-year", True),
    ],
)
def test_which_flags_may_change_answers(flag: str, may: bool) -> None:
    assert may_change_answers(flag) is may


def test_each_setting_is_held_against_the_present() -> None:
    variable = Variable(flag="dtype", values=("bfloat16", "float32"))
    here, there = (Point(flags=(("dtype", each),)) for each in variable.values)
    space = Space(variables=(variable,), present=here)
    trials = [
        trial(1, here, hashes(alone=[[1, 2]])),
        trial(2, there, hashes(alone=[[1, 9]])),
        trial(3, here, hashes(alone=[[1, 2]])),
        trial(4, there, None),
    ]

    found = answers_by_point(space, trials)

    assert set(found) == {there}
    assert (found[there].against.equal, found[there].differs) == (1, True)
    assert found[there].again is not None


def hashes(asked: int = 1, alone: list[list[int]] | None = None) -> AnswerHashes:
    chains = [[1]] if alone is None else alone
    return AnswerHashes(
        t_ns=0, model="m", asked=asked, by_tokens=True, alone=chains, together=chains
    )


def trial(number: int, point: Point, told: AnswerHashes | None) -> Trial:
    record = TrialRecord(
        number=number, point=point, repeat=0, outcome=TrialOutcome.MEASURED
    )
    return Trial(record=record, numbers=TrialNumbers(requests=1, answers=told))
