"""The cells of the terminal, to write only those that changed.

Textual rewrites whole stretches of a line with all their colours, even for one changed
cell, which is slow over a slow line.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from rich.cells import cell_len
from rich.color import Color, ColorSystem
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.geometry import Size
from textual.strip import Strip

BRIDGE = 4
"""Up to so many unchanged cells of the same ink are rewritten instead of skipped."""
ATTRIBUTES = {
    "bold": "1",
    "dim": "2",
    "italic": "3",
    "underline": "4",
    "blink": "5",
    "blink2": "6",
    "reverse": "7",
    "conceal": "8",
    "strike": "9",
    "underline2": "21",
    "frame": "51",
    "encircle": "52",
    "overline": "53",
}
UNSEEN_ON_BLANK = frozenset("12358") | {"6", ""}
"""Attributes that are invisible on a blank cell."""


class Ink(NamedTuple):
    """How a cell is drawn, as escape codes; None does not matter."""

    attributes: tuple[str, ...] | None
    foreground: str | None
    background: str


NO_INK = Ink((), "39", "49")
Piece = tuple[int, int, Strip]
"""Row, column and the strip from there."""


@lru_cache(maxsize=4096)
def inks(style: Style | None, system: ColorSystem) -> tuple[Ink, Ink]:
    """Return the ink of a style for letters, and for blanks."""
    if style is None:
        return _same(NO_INK), _same(NO_INK._replace(attributes=None, foreground=None))
    attributes = tuple(
        code for name, code in ATTRIBUTES.items() if getattr(style, name)
    )
    ink = Ink(
        attributes,
        _code(style.color, system, foreground=True),
        _code(style.bgcolor, system, foreground=False),
    )
    if UNSEEN_ON_BLANK.issuperset(attributes):
        return _same(ink), _same(Ink(None, None, ink.background))
    return _same(ink), _same(ink)


@lru_cache(maxsize=4096)
def _same(ink: Ink) -> Ink:
    """Return the same object for equal inks, so that they compare fast."""
    return ink


def _code(color: Color | None, system: ColorSystem, *, foreground: bool) -> str:
    if color is None:
        return "39" if foreground else "49"
    return ";".join(color.downgrade(system).get_ansi_codes(foreground))


class CellRow:
    """The cells of a row; the second half of a wide character is empty."""

    def __init__(self, width: int, letter: str = " ") -> None:
        self.letters = [letter] * width
        self.inks = [NO_INK] * width

    def put(self, x: int, other: "CellRow") -> bool:
        letters, inked = other.letters, other.inks
        room = len(self.letters) - x
        if len(letters) > room:
            letters, inked = letters[:room], inked[:room]
        there = slice(x, x + len(letters))
        if self.letters[there] == letters and self.inks[there] == inked:
            return False
        self.letters[there], self.inks[there] = letters, inked
        return True

    def add(self, segments: Iterable[Segment], system: ColorSystem) -> None:
        for text, style, control in segments:
            if control:
                continue
            ink, blank = inks(style, system)
            if not text.isascii() and cell_len(text) != len(text):
                self._add_wide(text, ink, blank)
                continue
            self.letters.extend(text)
            if " " not in text or ink is blank:
                self.inks.extend([ink] * len(text))
            elif text.isspace():
                self.inks.extend([blank] * len(text))
            else:
                self.inks.extend([blank if each == " " else ink for each in text])

    def _add_wide(self, text: str, ink: Ink, blank: Ink) -> None:
        for each in text:
            width = cell_len(each)
            if width == 0 and self.letters:
                at = -1 if self.letters[-1] else -2
                self.letters[at] += each
            elif width:
                self.letters.extend((each, *[""] * (width - 1)))
                self.inks.extend([blank if each == " " else ink] * width)


class Picture:
    """The picture wanted, and what the terminal was last sent."""

    def __init__(self) -> None:
        self._size = Size(0, 0)
        self._wanted: list[CellRow] = []
        self._sent: list[CellRow] = []
        self._changed: set[int] = set()
        self._ink: Ink | None = None
        """The terminal's current ink; None is unknown."""

    def forget(self) -> None:
        """Forget what the terminal shows, so that everything is written again."""
        width, height = self._size
        self._sent = [CellRow(width, letter="\0") for _ in range(height)]
        self._changed = set(range(height))
        self._ink = None

    @property
    def differs(self) -> bool:
        """Whether there are changes to write."""
        return bool(self._changed)

    def take(self, update: CompositorUpdate, size: Size, system: ColorSystem) -> bool:
        """Apply an update of Textual; return False if its type is unknown."""
        if not isinstance(update, LayoutUpdate | ChopsUpdate):
            return False
        if size != self._size:
            self._size = size
            self._wanted = [CellRow(size.width) for _ in range(size.height)]
            self.forget()
        for y, x, strip in pieces(update):
            if y < size.height and x < size.width:
                cells = CellRow(0)
                cells.add(strip, system)
                if self._wanted[y].put(x, cells):
                    self._changed.add(y)
        return True

    def changes(self) -> str:
        """Return the escape sequence of all changes, and mark them as written."""
        text: list[str] = []
        for y in sorted(self._changed):
            wanted, sent = self._wanted[y], self._sent[y]
            for place, x, end in _runs(wanted, sent, y):
                text.append(place)
                text.extend(self._written(wanted, x, end))
            sent.letters[:], sent.inks[:] = wanted.letters, wanted.inks
        self._changed.clear()
        return "".join(text)

    def _written(self, row: CellRow, x: int, end: int) -> Iterator[str]:
        for ink, cells in groupby(range(x, end), row.inks.__getitem__):
            if ink is not self._ink:
                yield self._dip(ink)
            yield "".join(map(row.letters.__getitem__, cells))

    def _dip(self, ink: Ink) -> str:
        """Return the codes that switch to an ink, as far as a change can be seen."""
        before = self._ink
        attributes = ink.attributes
        if before is not None and (
            attributes == before.attributes
            or (
                attributes is None
                and UNSEEN_ON_BLANK.issuperset(before.attributes or ())
            )
        ):
            codes, attributes = [], before.attributes
        elif before is not None and not before.attributes:
            codes = [*(attributes or ())]
        else:
            codes, before = ["0", *(attributes or ())], NO_INK
        foreground = before.foreground if ink.foreground is None else ink.foreground
        if foreground != before.foreground:
            codes.append(foreground or "39")
        if ink.background != before.background:
            codes.append(ink.background)
        self._ink = _same(Ink(attributes or (), foreground, ink.background))
        return f"\x1b[{';'.join(codes)}m" if codes else ""


def pieces(update: LayoutUpdate | ChopsUpdate) -> Iterator[Piece]:
    """Yield row, column and strip of each part of an update by Textual."""
    if isinstance(update, LayoutUpdate):
        for y, strips in enumerate(update.strips, update.region.y):
            x = update.region.x
            for strip in strips:
                yield y, x, strip
                x += strip.cell_length
        return
    chops: Sequence[Mapping[int, Strip | None]] = update.chops
    for y, begin, end in update.spans:
        for x_end, (x, chop) in zip(
            update.chop_ends[y], chops[y].items(), strict=False
        ):
            if chop is not None and x < end and x_end > begin:
                yield y, x, chop


def _runs(wanted: CellRow, sent: CellRow, y: int) -> Iterator[tuple[str, int, int]]:
    """Yield the stretches of a row to write, with the cursor movement before each."""
    reached: int | None = None
    for begin, end, plain in _stretches(wanted, sent):
        if reached is None:
            yield f"\x1b[{y + 1};{begin + 1}H", begin, end
        elif _bridged(wanted, reached, begin):
            yield "", reached, end
        else:
            yield _right(begin - reached), begin, end
        reached = end if plain else None


def _stretches(wanted: CellRow, sent: CellRow) -> list[tuple[int, int, bool]]:
    """Return begin and end of the stretches in which two rows of cells differ.

    The flag is False if terminals disagree on the width of the last character.
    """
    letters = wanted.letters
    cells = zip(letters, sent.letters, wanted.inks, sent.inks, strict=True)
    differing = [x for x, (a, b, c, d) in enumerate(cells) if a != b or c is not d]
    stretches: list[tuple[int, int, bool]] = []
    begin, end, plain = 0, 0, False
    for x in differing:
        if x < end:
            continue
        if plain and x == end:
            stretches.pop()
        else:
            begin = _character_at(letters, x)
        end, plain = _character_end(letters, x), _plain(letters[x])
        stretches.append((begin, end, plain))
    return stretches


def _character_at(letters: Sequence[str], x: int) -> int:
    while x and not letters[x]:
        x -= 1
    return x


def _character_end(letters: Sequence[str], x: int) -> int:
    x += 1
    while x < len(letters) and not letters[x]:
        x += 1
    return x


def _right(cells: int) -> str:
    return f"\x1b[{cells}C" if cells > 1 else "\x1b[C" if cells else ""


def _bridged(row: CellRow, begin: int, end: int) -> bool:
    """Return True if rewriting cells in between is shorter than moving the cursor."""
    ink = row.inks[begin - 1]
    return end - begin < BRIDGE and all(
        each is ink or (each.attributes is None and each.background == ink.background)
        for each in row.inks[begin : end + 1]
    )


def _plain(letter: str) -> bool:
    """Return True if every terminal agrees on the width of a letter."""
    return len(letter) == 1 and (letter < "\u0250" or "\u2000" <= letter < "\u2c00")
