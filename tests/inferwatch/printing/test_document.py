"""A document is built once, and says the same as text, as Markdown and as a page."""

from collections.abc import Sequence

import pytest

from inferwatch.printing.document import (
    Block,
    Item,
    Items,
    PrintedColumn,
    PrintedRow,
    RowGroup,
    Sentence,
    Table,
)
from inferwatch.printing.markdown import document_markdown
from inferwatch.printing.page import page
from inferwatch.printing.text import columns_of, cut, document_text, grid, shortened
from tests.inferwatch.printing.export.parsed_page import Page

EVIL = "<b>a|b</b> *c* `d` \x1b[31m"
SAID = "<b>a|b</b> *c* `d` ␛[31m"


def document() -> Sequence[Block]:
    return [
        Sentence(text=f"{EVIL} is faster."),
        Items(items=[Item(text="it is warm", of=EVIL, sign="▲ doubt", is_doubt=True)]),
        Table(
            columns=[
                PrintedColumn(is_left=True, width=8),
                PrintedColumn(head="p50", width=9),
            ],
            groups=[RowGroup(rows=[PrintedRow(cells=["TTFT", "12.3 ms"])])],
        ),
    ]


def test_it_is_text() -> None:
    assert document_text([document()]) == (
        f"{SAID} is faster.\n! {SAID}: it is warm\n              p50\nTTFT      12.3 ms"
    )


def test_it_is_markdown() -> None:
    evil = r"&lt;b&gt;a&#124;b&lt;/b&gt; \*c\* \`d\` ␛\[31m"

    assert document_markdown(document()) == (
        f"{evil} is faster.\n\n"
        f"- **!** {evil}: it is warm\n\n"
        "|  | p50 |\n| :--- | ---: |\n| TTFT | 12.3 ms |"
    )


def test_it_is_a_page() -> None:
    read = Page("\n".join(page(EVIL, document())))

    assert read.open == []
    assert read.tags["b"] == 1  # of the item
    assert f"{SAID} is faster." in read.words
    assert "▲ doubt" in read.words
    assert {"p50", "TTFT", "12.3 ms"} <= set(read.words)


@pytest.mark.parametrize("name", ["short", "a long name of a session", "長" * 9])
def test_a_name_takes_the_columns_it_is_given(name: str) -> None:
    assert columns_of(cut(name, 12)) == 12
    assert columns_of(shortened(name, 7)) <= 7


def test_columns_of_wide_characters_stand_below_each_other() -> None:
    first, second = grid([["長長", "7"], ["long", "10"]])

    assert columns_of(first) == columns_of(second)


def test_a_long_cell_widens_its_column_for_all_rows() -> None:
    rows = [["t1", "done", "7"], ["t2", "goes on, or was killed", "0"]]

    first, second = grid(rows, left=(0, 1))

    assert first.index("7") == second.index("0")
