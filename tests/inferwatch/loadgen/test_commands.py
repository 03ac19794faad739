"""What a run can be told, and how it hears it."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from inferwatch.loadgen.plan.commands import Change, read_command
from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan, TraceRow
from inferwatch.loadgen.plan.rates import ramp
from inferwatch.loadgen.sending.pipes import MOST_BYTES, CommandReader

OPEN = LoadPlan(run_id="r", model="m", rate_per_s=5.0)
CLOSED = LoadPlan(run_id="r", model="m", arrivals=Arrivals.CLOSED, concurrency=4)
TRACE = LoadPlan(
    run_id="r",
    model="m",
    arrivals=Arrivals.TRACE,
    trace=(TraceRow(offset_s=0.0, prompt_tokens=1, output_tokens=1),),
)


@pytest.mark.parametrize(
    ("plan", "change", "said"),
    [
        (OPEN, Change(rate_per_s=9.0), None),
        (CLOSED, Change(concurrency=9), None),
        (OPEN, Change(concurrency=9), "an open loop has no users"),
        (CLOSED, Change(rate_per_s=9.0), "a closed loop has no rate"),
        (TRACE, Change(rate_per_s=9.0), "a trace keeps its own times"),
        (OPEN, Change(), "say a rate, a number"),
        (OPEN, Change(burst=40), None),
        (CLOSED, Change(burst=40), "a closed loop sends no bursts"),
        (OPEN, Change(burst=0), "the requests of a burst must be from 1 to 10,000"),
        (OPEN, Change(rate_per_s=0.0), "the rate must be above 0"),
        (OPEN, Change(rate_per_s=float("nan")), "the rate must be above 0"),
        (CLOSED, Change(concurrency=0), "users must be from 1 to 65,535"),
        (CLOSED, Change(concurrency=1 << 30), "users must be from 1 to 65,535"),
    ],
)
def test_a_change_is_refused_where_it_makes_no_sense(
    plan: LoadPlan, change: Change, said: str | None
) -> None:
    refusal = change.refusal(plan)

    assert refusal is None if said is None else str(refusal).startswith(said)


def test_a_changed_plan_says_what_is_followed_now() -> None:
    by_time = msgspec.structs.replace(OPEN, rate_per_s=None, rates=ramp(1, 9, 10))

    now = Change(rate_per_s=7.0).applied(by_time)

    assert (now.rate_per_s, now.rates) == (7.0, None)
    assert Change(concurrency=9).applied(CLOSED).concurrency == 9


@pytest.mark.parametrize(
    "line", [b"", b"faster!", b"[]", b'{"type":"Halt"}', b'{"type":"Change","x":1}']
)
def test_what_is_no_command_is_refused(line: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        read_command(line)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    os.close(read)


async def heard(commands: CommandReader, write: int, *parts: bytes) -> list[bytes]:
    """What comes of parts that arrive one by one, and of the end after them."""
    lines: list[bytes] = []
    commands.listen(lines.append)
    for part in parts:
        os.write(write, part)
        await asyncio.sleep(0.01)
    os.close(write)
    await asyncio.sleep(0.01)
    return lines


async def test_lines_are_heard_whole_however_they_come(pipe: tuple[int, int]) -> None:
    read, write = pipe
    os.write(write, b"the plan\nfirst\nnex")
    commands = CommandReader(read)

    assert commands.line() == b"the plan"
    assert await heard(commands, write, b"t\n\nth", b"ird\n", b"lost") == [
        b"first",
        b"next",
        b"third",
    ]


async def test_a_line_without_end_is_not_kept(pipe: tuple[int, int]) -> None:
    read, write = pipe
    flood = [b"x" * (MOST_BYTES // 2)] * 3

    lines = await heard(CommandReader(read), write, *flood, b"\n", b"next\n")

    assert lines[-1] == b"next"
    assert sum(map(len, lines)) < MOST_BYTES


async def test_an_input_that_cannot_be_waited_for_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(b"the plan\nmore\n")
    with path.open("rb") as file:
        commands = CommandReader(file.fileno())

        assert commands.line() == b"the plan"
        commands.listen(lambda _: None)
