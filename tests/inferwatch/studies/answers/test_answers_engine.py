"""Answers compared on real vLLM: the same settings answer alike, another dtype not."""

import asyncio
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
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


@pytest.fixture(scope="module")
def wide_engine(
    loud_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    """The same model in float32."""
    with living_in(tmp_path_factory.mktemp("wide")):
        config = shared_config(loud_model, "--dtype=float32")
        engine = asyncio.run(Engine.start(config, lambda _: None))
        try:
            yield engine
        finally:
            asyncio.run(engine.stop())


def test_another_dtype_drifts_beyond_its_own_noise(
    wide_engine: Engine, first: AskedRound, again: AskedRound
) -> None:
    wide = asked(wide_engine, baseline=first.baseline)

    other = compare_answers([first.hashes, again.hashes], wide.hashes)
    assert other is not None
    print(other.sentence, other.conclusion)  # noqa: T201 - shown when it fails
    assert other.against.differ > 0
    assert other.against.first is not None
    assert other.verdict is AnswerVerdict.DIFFER
    assert other.drift is not None
    assert other.own_drift is not None
    assert other.drift.mean > 2 * other.own_drift.mean


@pytest.mark.timeout(600)
def test_loads_ask_into_one_file_and_compare_says_speed_and_quality(
    shared_engine: Engine, wide_engine: Engine, tmp_path: Path
) -> None:
    database, answers = tmp_path / "it.db", tmp_path / "answers.jsonl"

    def run(*arguments: object) -> str:
        command = [sys.executable, "-m", "inferwatch", *map(str, arguments)]
        done = subprocess.run(
            [*command, "--db", str(database)],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return " ".join(done.stdout.split())

    for name, engine in (
        ("narrow", shared_engine),
        ("same", shared_engine),
        ("wide", wide_engine),
    ):
        load = ("--rate", 6, "--duration", 4, "--warmup", 0, "--seed", 1)
        asking = ("--answers", PROMPTS, "--answers-to", answers, "--allow-load")
        run("load", engine.url, *load, *asking, "--name", name)
    alike = run("compare", "narrow", "same", "--answers", answers, "--text")
    apart = run("compare", "narrow", "wide", "--answers", answers, "--text")

    print(alike[:600], apart[:600])  # noqa: T201 - shown when it fails
    assert "answers as equal as the baseline's own: all prompts alike" in alike
    assert "answers differ more than the baseline's own noise" in apart
    assert stat.S_IMODE(answers.stat().st_mode) == 0o600
    with closing(sqlite3.connect(database)) as connection:
        recorded = connection.execute(
            "SELECT count(*) FROM other_readings WHERE kind = 'AnswerHashes'"
        ).fetchone()
    assert recorded == (4,)
