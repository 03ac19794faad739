"""How the columns of the session table share its width, and a row in them."""

from collections.abc import Sequence
from dataclasses import dataclass

from inferwatch.ui.sessions.cells import CELLS, WIDE_BEGAN, Cell, state_of
from inferwatch.ui.sessions.order import ListedSession, SessionOrder
from inferwatch.ui.shared.renderables.text import Line, TextRun, cells

MARK_WIDTH, ID_WIDTH = 4, 6
NAME_WIDTH, MODEL_WIDTH, TAGS_WIDTH = 16, 15, 14
"""At least; the model and the tags are left out where there is less."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Which columns there is room for, and how wide those are that stretch."""

    shown: Sequence[Cell]
    name: int
    model: int
    tags: int

    @classmethod
    def of(cls, width: int) -> "Plan":
        """For a table so wide."""
        wide = width >= WIDE_BEGAN.from_width
        shown = [
            WIDE_BEGAN if wide and cell.key == WIDE_BEGAN.key else cell
            for cell in CELLS
            if width >= cell.from_width
        ]
        fixed = MARK_WIDTH + ID_WIDTH + sum(cell.width for cell in shown)
        return cls(shown, *_stretch(width - fixed))

    def head(self, order: SessionOrder) -> Line:
        """The titles; a click sorts."""
        return (
            TextRun(" " * MARK_WIDTH),
            cells("id", ID_WIDTH, "muted"),
            _title(order, "name", "name", self.name),
            *((_title(order, "model", "model", self.model),) if self.model else ()),
            *(_title(order, cell.key, cell.title, cell.width) for cell in self.shown),
            *((_title(order, "tags", "  tags", self.tags),) if self.tags else ()),
        )

    def row(self, each: ListedSession, marked: bool) -> Line:  # noqa: FBT001 - a mark is yes or no
        """A session."""
        glyph, _, ink = state_of(each)
        return (
            TextRun(" ◆" if marked else "  ", "accent"),
            TextRun(f"{glyph} ", ink),
            cells(each.row.id, ID_WIDTH, "strong" if marked else ""),
            *_short(each.title, self.name, "" if each.row.name else "muted"),
            *(_short(each.model or "–", self.model, "muted") if self.model else ()),
            *(cell.write(each) for cell in self.shown),
            *(_short(f"  {each.row.tags}", self.tags, "muted") if self.tags else ()),
        )


def _title(order: SessionOrder, key: str, text: str, width: int) -> TextRun:
    """Titles of text stand on the left, those of numbers on the right."""
    chosen = key == order.column
    left = text.startswith(" ") or key in {"name", "model"}
    arrow = ("↓" if order.descending else "↑") if chosen else ""
    text = f"{text.rstrip()}{arrow}" if left else f"{arrow}{text}"
    run = cells(text, width, "accent" if chosen else "muted", right=not left)
    return run._replace(action=f"sort('{key}')")


def _short(text: str, width: int, ink: str) -> Line:
    """One cell short of the column, so that columns never touch."""
    return (cells(text, max(width - 1, 1), ink), TextRun(" "))


def _stretch(spare: int) -> tuple[int, int, int]:
    """What is left: for the name, from there on the model, and the tags."""
    if spare < NAME_WIDTH + MODEL_WIDTH:
        return max(spare, 6), 0, 0
    if spare < NAME_WIDTH + MODEL_WIDTH + TAGS_WIDTH:
        return spare - MODEL_WIDTH, MODEL_WIDTH, 0
    more = (spare - NAME_WIDTH - MODEL_WIDTH - TAGS_WIDTH) // 3
    tags, model = TAGS_WIDTH + more, MODEL_WIDTH + more
    return spare - tags - model, model, tags
