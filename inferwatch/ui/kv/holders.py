"""The table of requests that hold KV blocks."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar

from textual.binding import Binding, BindingType

from inferwatch.formatting import format_count, format_duration
from inferwatch.metrics.cache.memory import Holder
from inferwatch.metrics.number import label_of, number_of
from inferwatch.ui.kit.renderables.text import Line, TextRun, end_of
from inferwatch.ui.kit.table import CursorTable, TableColumn
from inferwatch.ui.widgets.request_names import without_prefix


@dataclass
class HolderView:
    """What columns know besides a row: the scale of the bars."""

    most_blocks: int = 0


class HolderTable(CursorTable[Holder]):
    """Requests that hold blocks, most first."""

    DEFAULT_CSS = """
    HolderTable { min-height: 3; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open", tooltip="This request on a screen of its own"),
        Binding(
            "s",
            "sort_by_next",
            "sort",
            tooltip="Sort by the next column; clicking a title works too",
        ),
        Binding("S", "reverse", "reverse", show=False, tooltip="Reverse the order"),
    ]
    MARGIN = 1
    STAYS_FIRST = True

    def __init__(self) -> None:
        self._view = HolderView()
        super().__init__(_columns(self._view), sorted_by="blocks")

    def show(self, holders: Sequence[Holder]) -> None:
        self._view.most_blocks = max((each.blocks for each in holders), default=0)
        self.show_rows(holders)

    def action_sort_by_next(self) -> None:
        self.sort_by_next()

    def action_reverse(self) -> None:
        self.reverse()

    def key_of(self, row: Holder) -> str:
        return row.key

    def words_of(self, row: Holder) -> Iterable[str | None]:
        return (row.name,)

    def recency(self, row: Holder) -> float:
        return row.ordinal

    def empty_text(self) -> TextRun:
        return TextRun("no request holds a block", "muted")


def _columns(view: HolderView) -> Iterable[TableColumn[Holder]]:
    def bar(row: Holder, width: int) -> Line:
        room = max(width - 2, 1)
        share = row.blocks / view.most_blocks if view.most_blocks else 0
        cells = max(round(share * room), 1)
        shared = round(row.shared_blocks / row.blocks * cells) if row.blocks else 0
        return (
            TextRun("  "),
            TextRun("▓" * shared, "shared"),
            TextRun("█" * (cells - shared), "kv"),
            TextRun(" " * (room - cells)),
        )

    return (
        TableColumn(
            "name",
            " held by",
            20,
            _name,
            value=lambda row: row.name,
            ascending=True,
            gap=1,
            least=10,
            grows=2,
            most=44,
        ),
        _count("blocks", Holder.blocks),
        _count("private", Holder.private_blocks),
        _count("shared", Holder.shared_blocks),
        _count("tokens", Holder.tokens),
        _count("waste", Holder.waste_tokens),
        TableColumn(
            "age",
            label_of(Holder.age_s),
            9,
            lambda row, _: TextRun(format_duration(row.age_s)),
            value=attrgetter("age_s"),
            right=True,
            from_width=60,
        ),
        TableColumn("bar", "  parts", 16, bar, least=8),
    )


def _count(key: str, field: object) -> TableColumn[Holder]:
    number = number_of(field)
    value: Callable[[Holder], int | None] = attrgetter(number.name)

    def write(row: Holder, _: int) -> TextRun:
        count = value(row)
        return TextRun(format_count(count).strip(), "" if count else "faint")

    return TableColumn(key, number.label, 8, write, value=value, right=True)


def _name(row: Holder, width: int) -> TextRun:
    return TextRun(f" {end_of(without_prefix(row.name), width - 2)}")
