"""The width of a table, shared among its columns."""

import pytest

from inferwatch.ui.kit.renderables.text import TextRun
from inferwatch.ui.kit.table import TableColumn, share_width
from inferwatch.ui.requests.columns import RequestView, request_columns
from inferwatch.ui.sessions.table import session_columns

FIXED: TableColumn[str] = TableColumn("fixed", "fixed", 10, lambda row, _: TextRun(row))
NAME: TableColumn[str] = TableColumn(
    "name", "name", 12, lambda row, _: TextRun(row), least=6
)
TAGS: TableColumn[str] = TableColumn(
    "tags", "tags", 8, lambda row, _: TextRun(row), least=8, grows=2, most=12
)


@pytest.mark.parametrize(
    ("width", "sizes"),
    [
        pytest.param(12, {"fixed": 10, "name": 6}, id="too narrow"),
        pytest.param(29, {"fixed": 10, "name": 19}, id="the last is left out"),
        pytest.param(30, {"fixed": 10, "name": 12, "tags": 8}, id="all have room"),
        pytest.param(34, {"fixed": 10, "name": 14, "tags": 10}, id="both grow"),
        pytest.param(60, {"fixed": 10, "name": 38, "tags": 12}, id="one no more"),
    ],
)
def test_elastic_columns_share_what_the_others_leave(
    width: int, sizes: dict[str, int]
) -> None:
    sized = share_width((FIXED, NAME, TAGS), width)

    assert {column.key: size for column, size in sized} == sizes


@pytest.mark.parametrize("width", range(80, 260))
def test_tables_are_as_wide_as_the_screen(width: int) -> None:
    sessions = share_width(session_columns(()), width)
    requests = share_width(request_columns(RequestView()), width, margin=1)

    assert sum(size for _, size in sessions) == width
    assert sum(size for _, size in requests) == width - 1
    assert len({column.key for column, _ in sessions}) == len(sessions)
