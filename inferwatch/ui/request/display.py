"""Display options of a request, and the lines drawn for them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from inferwatch.ui.kit.renderables.text import Line
from inferwatch.ui.request.axis import Zoom
from inferwatch.ui.request.moments import GapColumns

ALL_FROM = 30
"""Height below which one part is shown at a time."""


class ScreenPart(StrEnum):
    """The parts of the screen that can be shown alone."""

    ALL = "all"
    TIME = "time"
    TOKENS = "tokens"
    STEPS = "steps"
    FACTS = "facts"


@dataclass(frozen=True, kw_only=True)
class DisplayOptions:
    """Display options: none of them is about the request itself."""

    part: ScreenPart = ScreenPart.ALL
    zoom: Zoom = Zoom.LIFE
    cursor_ns: int | None = None
    companion: int | None = None
    """Index of the selected companion."""
    budget: int | None = None
    """Token budget of a step (max_num_batched_tokens)."""
    arrived: str = ""
    """Wall time of arrival."""
    back: str = ""
    """Screen that escape returns to."""


@dataclass
class Drawing:
    """Lines of the request screen, and the moments that clicks on them select."""

    lines: list[Line] = field(default_factory=list)
    clickable: dict[int, Callable[[int], int | None]] = field(default_factory=dict)
    """By row: the moment of a column."""
    columns: GapColumns | None = None
    """Columns that the cursor moves by."""

    def add(self, *lines: Line) -> None:
        self.lines += lines

    def add_clickable(
        self, lines: Sequence[Line], moment: Callable[[int], int | None]
    ) -> None:
        for place in range(len(lines)):
            self.clickable[len(self.lines) + place] = moment
        self.lines += lines


def parts_within(height: int) -> Sequence[ScreenPart]:
    every = list(ScreenPart)
    return every if height >= ALL_FROM else every[1:]


def part_within(part: ScreenPart, height: int) -> ScreenPart:
    """Return the part of the screen to show; if rows are few, TIME in place of ALL."""
    return part if part in parts_within(height) else ScreenPart.TIME
