import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import tzset

import msgspec
import pytest

from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan, TraceRow
from inferwatch.loadgen.plan.traces import TraceError, needed, read_trace, recorded

MOONCAKE = """\
{"timestamp": 2000, "input_length": 700, "output_length": 12, "hash_ids": [4, 5]}
{"timestamp": 500, "input_length": 600, "output_length": 52, "hash_ids": [4, 6]}

"""
AZURE_2023 = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
AZURE_2024 = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:00.017335+00:00,2399,6
"""
BURSTGPT = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,API log
"""
BURSTGPT_2 = """\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens
10.5,a,1.0,ChatGPT,32,8,40
"""


def row(offset_s: float, prompt: int, output: int, *blocks: int) -> TraceRow:
    return TraceRow(
        offset_s=offset_s, prompt_tokens=prompt, output_tokens=output, blocks=blocks
    )


def rounded(rows: Iterable[TraceRow]) -> list[TraceRow]:
    """To ten microseconds: times since 1970 have no more."""
    return [
        msgspec.structs.replace(each, offset_s=round(each.offset_s, 5)) for each in rows
    ]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (MOONCAKE, [row(0, 600, 52, 4, 6), row(1.5, 700, 12, 4, 5)]),
        (AZURE_2023, [row(0, 374, 44), row(4.31458, 396, 109)]),
        (AZURE_2024, [row(0, 2162, 5), row(0.00741, 2399, 6)]),
        (BURSTGPT, [row(0, 472, 18), row(113, 417, 276)]),
        (BURSTGPT_2, [row(0, 32, 8)]),
        ("\ufeff" + BURSTGPT_2, [row(0, 32, 8)]),
    ],
    ids=["mooncake", "azure 2023", "azure 2024", "burstgpt", "burstgpt 2", "with BOM"],
)
def test_each_format_is_known_by_its_first_line(
    tmp_path: Path, text: str, rows: list[TraceRow]
) -> None:
    path = tmp_path / "trace"
    path.write_text(text, "utf-8")

    assert rounded(read_trace(path)) == rows


@pytest.fixture
def summer_begins() -> Iterator[None]:
    """Clocks are changed on the last Sunday of March, as in Paris."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        tzset()
        yield
    tzset()


@pytest.mark.usefixtures("summer_begins")
def test_times_without_a_zone_know_no_summer(tmp_path: Path) -> None:
    head = AZURE_2023.partition("\n")[0]
    path = tmp_path / "azure.csv"
    path.write_text(f"{head}\n2024-03-31 01:59:00,37,4\n2024-03-31 03:01:00,9,9\n")

    assert [each.offset_s for each in read_trace(path)] == [0, 62 * 60]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "begins with nothing"),
        ("a,b\n1,2\n", "columns a, b"),
        ('{"timestamp": 1}\n', "line 1: no input_length"),
        (MOONCAKE.rstrip() + "\n{oops\n", "line 3: "),
        (MOONCAKE.replace("500", '"nan"'), "line 2: not a time"),
        (AZURE_2023.replace("109", "many"), "line 3: .*many"),
        (AZURE_2023 + "2023-11-16 18:15:51\n", "line 4: no ContextTokens"),
        ("Timestamp,Request tokens,Response tokens\n1,7,0\n", "no request"),
        (AZURE_2023.replace("109", "1" * 140_000), "line 3: field larger"),
        ("x" * 140_000, "line 1: field larger"),
        (MOONCAKE.replace("[4, 6]", "[" * 100_000), "line 2: nested too deeply"),
        ("[" * 100_000, "nested too deeply"),
        ("[1, 2", "a list that is not JSON"),
        ("[1, 2]", "line 1: not an object"),
        (MOONCAKE.replace("[4, 6]", "[-4]"), "line 2: hash_ids must be from 0"),
        (MOONCAKE.replace("[4, 6]", f"[{1 << 64}]"), "line 2: hash_ids must be"),
        (MOONCAKE.replace("[4, 6]", '"46"'), "line 2: hash_ids is not a list"),
        (MOONCAKE.replace("600", "-600"), "line 2: lengths must be from 0"),
        (MOONCAKE.replace("600", str(10**11)), "line 2: lengths must be from 0"),
        (AZURE_2023.replace("109", str(10**30)), "line 3: lengths must be from 0"),
    ],
)
def test_what_is_no_trace_says_why(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text, "utf-8")

    with pytest.raises(TraceError, match=why):
        read_trace(path)


def test_what_is_said_of_a_file_is_no_longer_than_a_few_lines(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(",".join(f"column {n}" for n in range(10_000)))

    with pytest.raises(TraceError) as refused:
        read_trace(path)

    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("indent", [None, 2])
def test_mooncakes_rows_may_be_one_list(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "trace.json"
    rows = [json.loads(line) for line in MOONCAKE.splitlines() if line]
    path.write_text(json.dumps(rows, indent=indent))

    assert read_trace(path) == (row(0, 600, 52, 4, 6), row(1.5, 700, 12, 4, 5))


def test_a_format_can_be_forced(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(BURSTGPT)

    with pytest.raises(TraceError, match="line 2: no TIMESTAMP"):
        read_trace(path, "azure")


def test_what_is_no_text_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(b"\x89PNG\xff\xfe")

    with pytest.raises(TraceError, match="it is not text"):
        read_trace(path)


def test_a_plan_keeps_of_its_trace_what_it_will_ask() -> None:
    plan = LoadPlan(
        run_id="r",
        model="m",
        arrivals=Arrivals.TRACE,
        trace=tuple(row(n, 10, 10) for n in range(20)),
        warmup_s=1.0,
        speed=2.0,
    )

    by_time = msgspec.structs.replace(plan, duration_s=3.0)
    by_number = msgspec.structs.replace(plan, requests=4)

    assert [each.offset_s for each in needed(by_time)] == list(range(8))
    assert [each.offset_s for each in needed(by_number)] == list(range(6))


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "none")


def test_only_the_asked_number_of_rows_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(BURSTGPT, "utf-8")

    assert len(read_trace(path, most=1)) == 1


def test_a_recorded_session_is_a_trace() -> None:
    requests = [(9_000_000_000, 20, 5), (8_500_000_000, 30, 6), (9_100_000_000, 3, 0)]

    assert rounded(recorded(requests)) == [row(0, 30, 6), row(0.5, 20, 5)]
