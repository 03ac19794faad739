"""Answers compared on real vLLM: the same settings answer alike, another dtype not."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from embedded_engine.engine.launch import Engine
from inferwatch.loadgen.target_server import TargetServer
from inferwatch.studies.answers.asking import (
    ANSWER_TOKENS,
    AskedRound,
    BaselineAnswers,
    answer_prompts,
    ask_answers,
)
from inferwatch.studies.answers.comparing import AnswerVerdict, compare_answers
from tests.conftest import living_in, shared_config

pytestmark = [
    pytest.mark.engine,
    pytest.mark.soak,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("shared engine"),
]
PROMPTS = 8


def asked(
    engine: Engine,
    *,
    otherwise: bool = False,
    baseline: BaselineAnswers | None = None,
) -> AskedRound:
    target = TargetServer(url=str(engine.url))
    prompts = answer_prompts(PROMPTS)
    if otherwise:
        prompts = [[*prompt[:-1], prompt[-1] + 1] for prompt in prompts]
    model = engine.endpoint.model
    return asyncio.run(ask_answers(target, model, prompts, baseline=baseline))


@pytest.fixture(scope="module")
def first(shared_engine: Engine) -> AskedRound:
    return asked(shared_engine)


@pytest.fixture(scope="module")
def again(shared_engine: Engine, first: AskedRound) -> AskedRound:
    return asked(shared_engine, baseline=first.baseline)


def test_the_same_settings_answer_alike(
    shared_engine: Engine, first: AskedRound, again: AskedRound
) -> None:
    other = asked(shared_engine, baseline=first.baseline)

    told = first.hashes
    assert told.by_tokens
    assert [len(each) for each in told.alone] == [ANSWER_TOKENS] * PROMPTS
    assert [len(each) for each in told.chosen] == [ANSWER_TOKENS] * PROMPTS
    assert [len(each) for each in told.scored_alone] == [ANSWER_TOKENS] * PROMPTS
    assert len({each[-1] for each in told.alone}) == PROMPTS  # no two alike
    same = compare_answers([told, again.hashes], other.hashes)
    assert same is not None
    print(same.sentence, same.conclusion)  # noqa: T201 - shown when it fails
    assert same.against.differ == 0
    assert same.verdict in {AnswerVerdict.EQUAL, AnswerVerdict.UNTOLD}
    assert same.sentence.startswith(f"100% of {PROMPTS * ANSWER_TOKENS} tokens equal; ")


def test_scores_of_its_own_answers_are_about_those_it_chose_them_by(
    first: AskedRound,
) -> None:
    for chosen, scored in zip(
        first.hashes.chosen, first.hashes.scored_alone, strict=True
    ):
        assert scored == pytest.approx(chosen, abs=0.2)


def test_answers_that_depend_on_another_token_differ(
    shared_engine: Engine, first: AskedRound
) -> None:
    other = asked(shared_engine, otherwise=True)
    assert compare_answers([first.hashes], other.hashes) is None  # asked otherwise

    told = compare_answers(
        [first.hashes], replace(other.hashes, asked=first.hashes.asked)
    )

    assert told is not None
    assert told.against.differ > 0
    assert told.against.first is not None


def test_another_dtype_drifts_beyond_its_own_noise(
    loud_model: Path, first: AskedRound, again: AskedRound, tmp_path: Path
) -> None:
    with living_in(tmp_path):
        config = shared_config(loud_model, "--dtype=float32")
        engine = asyncio.run(Engine.start(config, lambda _: None))
        try:
            wide = asked(engine, baseline=first.baseline)
        finally:
            asyncio.run(engine.stop())

    other = compare_answers([first.hashes, again.hashes], wide.hashes)
    assert other is not None
    print(other.sentence, other.conclusion)  # noqa: T201 - shown when it fails
    assert other.against.differ > 0
    assert other.against.first is not None
    assert other.verdict is AnswerVerdict.DIFFER
    assert other.drift is not None
    assert other.own_drift is not None
    assert other.drift.mean > 2 * other.own_drift.mean
