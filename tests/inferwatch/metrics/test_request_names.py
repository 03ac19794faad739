"""Sequences of one request have a number, and one request is counted."""

import doctest
from collections.abc import Callable
from typing import Any

from collectors.contract.readings import EventKind
from inferwatch.metrics.requests import request_row as request_names
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.printing.summary.session import summarise, summary_text

See = Callable[..., Snapshot]
Make = Callable[..., Any]


def test_examples_in_docstrings_are_true() -> None:
    result = doctest.testmod(request_names)

    assert result.attempted > 0
    assert result.failed == 0


def fanned_out(make_event: Make, count: int) -> list[Any]:
    """A request with ``n=4``, as vLLM tells of it, and one of a single answer."""
    names = {f"{n}_cmpl-a-0-9b1c": "cmpl-a-0" for n in range(count)}
    names["cmpl-b-0-77aa"] = "cmpl-b-0"
    readings: list[Any] = []
    for ordinal, (own, sent_as) in enumerate(names.items()):
        known: dict[str, Any] = {"ordinal": ordinal}
        readings += [
            make_event(1, EventKind.ARRIVED, own, external_id=sent_as),
            make_event(2, EventKind.ADDED, own, **known),
            make_event(9, EventKind.FINISHED, own, reason="stop", **known),
        ]
    return readings


def test_each_sequence_of_a_request_has_its_number(see: See, make_event: Make) -> None:
    rows = see(fanned_out(make_event, 4)).requests

    names = {f"cmpl-a-0[{n}]" for n in range(4)} | {"cmpl-b-0"}
    assert {row.name for row in rows} == names
    assert {row.sequence for row in rows} == {None, 0, 1, 2, 3}
    assert len({row.sent_key for row in rows}) == 2


def test_requests_are_counted_as_they_were_sent_beside_their_sequences(
    see: See, make_event: Make
) -> None:
    shown = see(fanned_out(make_event, 4))

    assert (shown.flow.finished, shown.flow.finished_as_sent) == (5, 2)
    text = " ".join(summary_text(summarise(shown, "s1")).split())
    assert "requests 5 finished sequences of 2 requests" in text


def test_where_each_request_is_one_sequence_only_these_are_counted(
    see: See, make_event: Make
) -> None:
    shown = see(fanned_out(make_event, 0))

    assert (shown.flow.finished, shown.flow.finished_as_sent) == (1, 1)
    assert "sequence" not in summary_text(summarise(shown, "s1"))
