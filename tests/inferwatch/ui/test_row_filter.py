"""Filters as people type them: what they keep, what is wrong, what may come."""

from dataclasses import dataclass

import pytest

from inferwatch.ui.kit.row_filter import FieldKind, FilterField, FilterGrammar


@dataclass(frozen=True)
class Row:
    name: str
    state: str = "queued"
    ttft_s: float | None = None
    prompt: int | None = None
    size: int | None = None


GRAMMAR = FilterGrammar[Row](
    [
        FilterField("state", lambda row: row.state, choices=["queued", "finished"]),
        FilterField("name", lambda row: row.name),
        FilterField("prompt", lambda row: row.prompt, FieldKind.COUNT),
        FilterField("ttft", lambda row: row.ttft_s, FieldKind.DURATION),
        FilterField("size", lambda row: row.size, FieldKind.BYTES),
    ],
    lambda row: (row.name, row.state),
)
ROWS = (
    Row("f3a9", ttft_s=0.05, prompt=999, size=2_000_000),
    Row("B17c", state="finished", ttft_s=1.5, prompt=1_000),
    Row("none"),
)


def kept(text: str) -> str:
    """The first letters of the names of the rows that are left."""
    reading = GRAMMAR.read(text)
    assert not reading.fault
    return "".join(row.name[0] for row in ROWS if reading.filter.admits(row))


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("", "fBn"),
        ("ttft>1s", "B"),
        ("ttft>=50ms", "fB"),
        ("ttft>50ms", "B"),
        ("ttft<250us", ""),
        ("ttft<.5min", "fB"),
        ("ttft>0", "fB"),
        ("prompt>=1k", "B"),
        ("prompt<1,000", "f"),
        ("prompt=999", "f"),
        ("prompt:999", "f"),
        ("size>1.5MB", "f"),
        ("state:queued", "fn"),
        ("state:fin", "B"),
        ("name:17", "B"),
        ("b17", "B"),
        ("queued f3", "f"),
        ("ttft>10ms state:queued", "f"),
        ("TTFT>1S", "B"),
    ],
)
def test_all_that_is_typed_must_hold(text: str, left: str) -> None:
    assert kept(text) == left


def test_what_is_unknown_matches_no_comparison() -> None:
    assert kept("prompt>0") == kept("prompt<1M") == "fB"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("tft>1s", "unknown field tft: ttft, state, name, prompt, size"),
        (
            "ttft>fast",
            "fast is not a number: ttft> needs a time such as 50ms, 1s or 250us",
        ),
        ("ttft>50", "50 has no unit: ttft> needs a time such as 50ms, 1s or 250us"),
        ("ttft>", "ttft> needs a time such as 50ms, 1s or 250us"),
        ("ttft=1s", "ttft takes > or <: ttft>1s"),
        (
            "prompt>1kg",
            "kg is not a unit: prompt> needs a number such as 100 or 1k",
        ),
        ("state:lost", "no state is called lost: queued, finished"),
        ("state>queued", "state is not a number: state:queued"),
        ("name:", "name: needs a text"),
    ],
)
def test_what_makes_no_sense_is_told_with_what_would(text: str, fault: str) -> None:
    assert GRAMMAR.read(text).fault == fault


def test_the_rest_of_a_filter_holds_where_a_word_makes_no_sense() -> None:
    reading = GRAMMAR.read("state:queued tft>1s f3")

    assert reading.fault.startswith("unknown field tft")
    assert reading.filter.text == "state:queued f3"
    assert [row.name for row in ROWS if reading.filter.admits(row)] == ["f3a9"]


@pytest.mark.parametrize("text", ["tt", "ttft", "ttft>", "ttft>5", "ttft>5m", "state:"])
def test_a_word_that_is_being_typed_counts_for_nothing_yet(text: str) -> None:
    reading = GRAMMAR.read(f"f3 {text}", typing=True)

    assert not reading.fault
    assert [row.name for row in ROWS if reading.filter.admits(row)] == ["f3a9"]


@pytest.mark.parametrize("text", ["tft>", "ttft>5x", "state:lost", "ttft> "])
def test_what_cannot_become_anything_is_told_while_it_is_typed(text: str) -> None:
    assert GRAMMAR.read(text, typing=True).fault


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("t", "ttft>"),
        ("f3 p", "f3 prompt>"),
        ("s", "state:"),
        ("state:q", "state:queued"),
        ("ttft>50", "ttft>50ms"),
        ("ttft>=1.5u", "ttft>=1.5us"),
        ("TT", "TTft>"),
        ("prompt>5", None),
        ("f3", None),
        ("ttft>", None),
        ("ttft>1s ", None),
        ("", None),
    ],
)
def test_names_choices_and_units_are_completed(text: str, whole: str | None) -> None:
    assert GRAMMAR.complete(text) == whole
