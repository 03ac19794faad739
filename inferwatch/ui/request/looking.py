"""How people look at a request, and what is drawn for them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from inferwatch.ui.kit.renderables.text import Line
from inferwatch.ui.request.axis import Zoom
from inferwatch.ui.request.moments import GapColumns

ALL_FROM = 30
"""Rows; with fewer one part is shown at a time."""


class ScreenPart(StrEnum):
    """What can be looked at alone."""

    ALL = "all"
    TIME = "time"
    TOKENS = "tokens"
    STEPS = "steps"
    FACTS = "facts"


@dataclass(frozen=True, kw_only=True)
class Looking:
    """How people look at a request: nothing of it is about the request itself."""

    part: ScreenPart = ScreenPart.ALL
    zoom: Zoom = Zoom.LIFE
    cursor_ns: int | None = None
    companion: int | None = None
    """Number of the one that is chosen."""
    budget: int | None = None
    """Tokens that a step may have (max_num_batched_tokens)."""
    arrived: str = ""
    """When, as a clock tells it."""
    back: str = ""
    """Where esc leads."""


@dataclass
class Drawing:
    """Lines, and what a click on them points at."""

    lines: list[Line] = field(default_factory=list)
    clickable: dict[int, Callable[[int], int | None]] = field(default_factory=dict)
    """By row: the moment of a column."""
    columns: GapColumns | None = None
    """Those that the cursor goes by."""

    def add(self, *lines: Line) -> None:
        """Below what is there."""
        self.lines += lines

    def add_clickable(
        self, lines: Sequence[Line], moment: Callable[[int], int | None]
    ) -> None:
        """Lines on a time axis."""
        for place in range(len(lines)):
            self.clickable[len(self.lines) + place] = moment
        self.lines += lines


def parts_within(height: int) -> Sequence[ScreenPart]:
    """The parts that can be gone through."""
    every = list(ScreenPart)
    return every if height >= ALL_FROM else every[1:]


def part_within(part: ScreenPart, height: int) -> ScreenPart:
    """The one that is shown: with little room everything at once is the time."""
    return part if part in parts_within(height) else ScreenPart.TIME
