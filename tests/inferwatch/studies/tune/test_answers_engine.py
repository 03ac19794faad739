"""Answers compared on real vLLM: the same settings answer alike, another dtype not."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from collectors.contract.readings import AnswerHashes
from embedded_engine.engine.launch import Engine
from inferwatch.loadgen.target_server import TargetServer
from inferwatch.studies.tune.answers import (
    ANSWER_TOKENS,
    answer_prompts,
    ask_answers,
    compare_answers,
)
from tests.conftest import living_in, shared_config

pytestmark = [
    pytest.mark.engine,
    pytest.mark.soak,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("shared engine"),
]
PROMPTS = 8


def asked(engine: Engine, *, otherwise: bool = False) -> AnswerHashes:
    target = TargetServer(url=str(engine.url))
    prompts = answer_prompts(PROMPTS)
    if otherwise:
        prompts = [[*prompt[:-1], prompt[-1] + 1] for prompt in prompts]
    return asyncio.run(ask_answers(target, engine.endpoint.model, prompts))


@pytest.fixture(scope="module")
def first(shared_engine: Engine) -> AnswerHashes:
    return asked(shared_engine)


def test_the_same_settings_answer_alike(
    shared_engine: Engine, first: AnswerHashes
) -> None:
    again = asked(shared_engine)

    assert first.by_tokens
    assert [len(each) for each in first.alone] == [ANSWER_TOKENS] * PROMPTS
    assert len({each[-1] for each in first.alone}) == PROMPTS  # no two alike
    same = compare_answers([first], again)
    assert same is not None
    assert same.against.differ == 0
    assert same.sentence.startswith(f"100% of {PROMPTS * ANSWER_TOKENS} tokens equal; ")


def test_answers_that_depend_on_another_token_differ(
    shared_engine: Engine, first: AnswerHashes
) -> None:
    other = asked(shared_engine, otherwise=True)
    assert compare_answers([first], other) is None  # they were asked otherwise

    told = compare_answers([first], replace(other, asked=first.asked))

    assert told is not None
    assert told.against.differ > 0
    assert told.against.first is not None


def test_another_dtype_does_not_answer_alike(
    loud_model: Path, first: AnswerHashes, tmp_path: Path
) -> None:
    with living_in(tmp_path):
        config = shared_config(loud_model, "--dtype=float32")
        engine = asyncio.run(Engine.start(config, lambda _: None))
        try:
            wide = asked(engine)
        finally:
            asyncio.run(engine.stop())

    other = compare_answers([first], wide)
    assert other is not None
    print(other.sentence)  # noqa: T201 - shown when it fails
    assert other.against.differ > 0
    assert other.against.first is not None
