"""Prompts of files: what is read, in which order, and how long answers may be."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from collectors.contract.readings import AnyReading, LoadEvent, LoadKind, Phase
from collectors.http.bounded_get import NoAnswerError
from inferwatch.loadgen.plan.lengths import Range, fixed
from inferwatch.loadgen.plan.plan import Api, Arrivals, LoadPlan
from inferwatch.loadgen.prompts.dataset import DatasetError, DatasetRow, read_dataset
from inferwatch.loadgen.prompts.prompts import DatasetPrompts
from inferwatch.loadgen.prompts.tokenizer import TextLengths

RunPlan = Callable[[LoadPlan], Awaitable[list[AnyReading]]]
TruthLog = Callable[[str], dict[str, Any]]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


SYSTEM = {"role": "system", "content": "Be brief."}
CHAT = [SYSTEM, user("One?"), assistant("1"), user("Two?"), assistant("It is 2.")]
LINES = [
    {"prompt": "Say hello", "output_tokens": 7},
    {"messages": CHAT},
    {"messages": [assistant("Nobody asked")]},
    {"prompt": ""},
]
SHAREGPT = [
    {
        "id": "a",
        "conversations": [
            {"from": "human", "value": "Why?"},
            {"from": "gpt", "value": "Because of it."},
            {"from": "human", "value": "Really?"},
            {"from": "gpt", "value": "Yes."},
        ],
    },
    {"id": "b", "conversations": []},
]


@pytest.fixture
def file_of(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "prompts"
        path.write_text(text, "utf-8")
        return path

    return write


def lines(rows: list[Any]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def test_rows_ask_what_they_hold_and_empty_ones_nothing(
    file_of: Callable[[str], Path],
) -> None:
    first, second = read_dataset(file_of(lines(LINES)))

    assert first == DatasetRow(("Say hello",), output_tokens=7)
    assert second == DatasetRow(("Two?",), ("It is 2.",), tuple(CHAT[:3]))


def test_with_turns_each_question_is_one(file_of: Callable[[str], Path]) -> None:
    _, second = read_dataset(file_of(lines(LINES)), turns=True)

    assert second == DatasetRow(("One?", "Two?"), ("1", "It is 2."), (SYSTEM,))


def test_sharegpt_is_a_list_or_lines(file_of: Callable[[str], Path]) -> None:
    whole = read_dataset(file_of("\ufeff" + json.dumps(SHAREGPT)))

    assert whole == read_dataset(file_of(lines(SHAREGPT)))
    assert whole[0].questions == ("Why?", "Really?")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no row of it has a prompt"),
        ('{"prompt": ""}\n', "no row of it has a prompt"),
        ('{"prompt": "a"}\n{oops\n', "line 2: "),
        ('{"prompt": 3}\n', r"line 1: .*\$.prompt"),
        ('{"text": "a"}\n', "line 1: no prompt, messages or conversations"),
        ('[{"prompt": "a"}, {"prompt": 3}]', r"not a list of rows: .*\$\[1\].prompt"),
        ("\udcff", "line 1: "),
        ('{"prompt": "na\udcefve"}', "line 1: not in UTF-8"),
        ('[{"prompt": "na\udcefve"}]', "not a list of rows: not in UTF-8"),
        ('{"prompt": "a", "x": ' + "[" * 100_000, "line 1: nested too deeply"),
        ("[" * 100_000, "not a list of rows"),
    ],
)
def test_what_cannot_be_asked_says_why(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "prompts"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))

    with pytest.raises(DatasetError, match=why):
        read_dataset(path)


def plan_for(**changes: Any) -> LoadPlan:
    plan = LoadPlan(run_id="r", model="m", rate_per_s=1.0, dataset="prompts")
    return msgspec.structs.replace(plan, **changes)


ROWS = [DatasetRow((f"Question {n}?",), (f"{n} " * 20,)) for n in range(10)]


def test_each_row_is_asked_once_before_any_is_asked_again() -> None:
    prompts = DatasetPrompts(plan_for(), ROWS, TextLengths())

    first = [prompts.make(Phase.STEADY, n).text for n in range(10)]
    again = [prompts.make(Phase.STEADY, n).text for n in range(10, 20)]

    assert sorted(map(str, first)) == sorted(row.questions[0] for row in ROWS)
    assert sorted(map(str, again)) == sorted(map(str, first))
    assert again != first


def test_a_warm_up_does_not_warm_what_comes_next() -> None:
    prompts = DatasetPrompts(plan_for(), ROWS, TextLengths())

    warm = {prompts.make(Phase.WARMUP, n).text for n in range(5)}

    assert not warm & {prompts.make(Phase.STEADY, n).text for n in range(5)}


def test_an_answer_may_be_as_long_as_it_was() -> None:
    told = DatasetRow(("Why?",), ("Because of that.",), output_tokens=9)
    known = DatasetRow(("Why?",), ("Because of that.",))
    unknown = DatasetRow(("Why?",))

    most = [
        DatasetPrompts(plan_for(), [row], TextLengths()).make(Phase.STEADY, 0)
        for row in (told, known, unknown)
    ]

    assert [each.max_tokens for each in most[:2]] == [9, 4]
    assert 32 <= most[2].max_tokens <= 128


def test_a_plan_that_says_how_long_decides() -> None:
    plan = plan_for(output_tokens=fixed(5))
    told = DatasetRow(("Why?",), output_tokens=9)

    prompt = DatasetPrompts(plan, [told], TextLengths()).make(Phase.STEADY, 0)

    assert prompt.max_tokens == 5


async def test_counted_texts_are_exact_and_teach_the_rest() -> None:
    class Tens:
        async def count(self, text: str) -> int:
            return len(text) // 10

    lengths = TextLengths()
    await lengths.ask(Tens(), ["a" * 100, "b" * 300])  # type: ignore[arg-type]

    assert lengths.exact("a" * 100) == 10
    assert lengths.exact("c") is None
    assert lengths.about("c" * 50) == 5


async def test_a_server_that_does_not_count_leaves_estimates() -> None:
    class Silent:
        async def count(self, _text: str) -> int:
            raise NoAnswerError("no")

    lengths = TextLengths()
    await lengths.ask(Silent(), ["a" * 100])  # type: ignore[arg-type]

    assert not lengths.told
    assert lengths.about("a" * 100) == 25


async def test_a_file_is_asked_and_its_words_stay_out_of_the_readings(
    truth_url: str,
    truth_log: TruthLog,
    run_plan: RunPlan,
    file_of: Callable[[str], Path],
) -> None:
    path = file_of(lines([{"prompt": f"Secret {n}"} for n in range(3)]))
    plan = LoadPlan(
        run_id="file",
        model="ttft=0.01,itl=0.001",
        url=truth_url,
        arrivals=Arrivals.CLOSED,
        requests=3,
        warmup_s=0.0,
        output_tokens=Range(2, 3),
        dataset=str(path),
    )

    readings = await run_plan(plan)

    asked = sorted(each.prompt for each in truth_log("file").values())
    assert asked == ["Secret 0", "Secret 1", "Secret 2"]
    started = next(
        each.text
        for each in readings
        if isinstance(each, LoadEvent) and each.kind is LoadKind.STARTED
    )
    assert "3 prompts of prompts, lengths estimated" in started
    assert b"Secret" not in msgspec.msgpack.encode(readings)


async def test_conversations_of_a_file_are_held_with_new_answers(
    truth_url: str,
    truth_log: TruthLog,
    run_plan: RunPlan,
    file_of: Callable[[str], Path],
) -> None:
    plan = LoadPlan(
        run_id="filechat",
        model="ttft=0.01,itl=0.001",
        url=truth_url,
        endpoint=Api.CHAT,
        arrivals=Arrivals.CLOSED,
        requests=1,
        warmup_s=0.0,
        output_tokens=fixed(2),
        turns=fixed(5),
        dataset=str(file_of(lines([{"messages": CHAT}]))),
    )

    await run_plan(plan)

    first, second = (each.prompt for each in truth_log("filechat").values())
    assert first == [SYSTEM, user("One?")]
    assert second[:2] == first
    assert second[2]["role"] == "assistant"
    assert second[2]["content"] != "1"
    assert second[3] == user("Two?")
