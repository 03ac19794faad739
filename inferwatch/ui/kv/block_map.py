"""The map of KV blocks and their holders."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import counted
from inferwatch.metrics.cache.memory import BlockPicture, BlockState, Holder
from inferwatch.ui.kit.panel import Inked
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    age_text,
    cells,
    fit,
    join_whole,
    ruled,
    width_of,
)
from inferwatch.ui.kv.bar import OLD_S
from inferwatch.ui.kv.block_cells import (
    ArrangedBlocks,
    BlockHolders,
    Ints,
    Look,
    Looks,
    MapOrder,
    MapScale,
    arrange,
    fold,
    pointed_cells,
    scale_for,
    states_of,
)

STATE_WORDS = {
    BlockState.FREE: ("free: nothing is in it", "muted"),
    BlockState.CACHED: ("idle-cached: nobody holds it, its content is kept", "cached"),
    BlockState.PRIVATE: ("private", "kv"),
    BlockState.SHARED: ("shared", "shared"),
    BlockState.NULL: ("the engine's null block: nobody can hold it", "muted"),
}
STATE_NAMES = {
    BlockState.SHARED: "shared",
    BlockState.PRIVATE: "private",
    BlockState.CACHED: "idle-cached",
    BlockState.FREE: "free",
    BlockState.NULL: "null",
}
MOST_REFERENCES = 255
"""Highest reference count of a map."""
MOST_TOLD = 8
NAME_WIDTH = 40
MOST_AHEAD = 2
"""Blocks a request may have in advance."""


def block_lines(
    holders: BlockHolders,
    blocks: Ints,
    names: Mapping[int, Holder],
    block_tokens: int | None,
) -> Sequence[Line]:
    """Return lines on the blocks under the cursor, and who holds them."""
    if len(blocks) == 1:
        block = int(blocks[0])
        return (
            _of_one(holders.picture, block),
            _holders(holders, block, names, block_tokens),
        )
    return (_of_several(holders.picture, blocks), _holders_of(holders, blocks, names))


def first_holder(holders: BlockHolders, blocks: Ints) -> int | None:
    """Return the ordinal of the request with most of these blocks; None without any."""
    counts = holders.counts_in(blocks)
    return holders.picture.holders[counts[0][0]] if counts else None


def name_of(ordinal: int, names: Mapping[int, Holder]) -> str:
    """Return the name of a request, or its number if it is unknown."""
    holder = names.get(ordinal)
    if holder is None:
        return f"request #{ordinal}"
    return cells(holder.name, NAME_WIDTH).text.rstrip()


def _of_one(picture: BlockPicture, block: int) -> Line:
    state, references = BlockState(picture.states[block]), picture.references[block]
    words, ink = STATE_WORDS[state]
    line = (
        TextRun("▸ block ", "muted"),
        TextRun(f"{block:,}", "strong"),
        TextRun("  "),
        TextRun(words, ink),
    )
    if not references:
        return line
    least = "≥ " if references == MOST_REFERENCES else ""
    return (
        *line,
        TextRun("  reference count ", "muted"),
        TextRun(f"{least}{references}"),
    )


def _holders(
    holders: BlockHolders,
    block: int,
    names: Mapping[int, Holder],
    block_tokens: int | None,
) -> Line:
    picture = holders.picture
    places = [int(each) for each in holders.owners[holders.blocks == block]]
    line: list[TextRun] = []
    for place in dict.fromkeys(places[:MOST_TOLD]):
        at, of = picture.held[place].index(block), len(picture.held[place])
        ordinal = picture.holders[place]
        whole = _is_whole(names.get(ordinal), of, block_tokens)
        where = _position(at, of, block_tokens if whole else None)
        inked = _inked(name_of(ordinal, names), line)
        line += [*_between(line), inked, TextRun(f" {where}", "muted")]
    return _with_rest(line, len(places) - MOST_TOLD)


def _is_whole(holder: Holder | None, blocks: int, block_tokens: int | None) -> bool:
    """Return True if a holder has one block for each ``block_tokens`` of its tokens.

    With a sliding window some blocks are freed, and several KV cache groups have blocks
    for the same tokens.
    """
    if holder is None or holder.tokens is None or not block_tokens:
        return False
    return abs(blocks - holder.tokens / block_tokens) < MOST_AHEAD


def _position(at: int, of: int, block_tokens: int | None) -> str:
    if not block_tokens:
        return f"its block {at + 1:,} of {of:,}"
    first = at * block_tokens
    return f"tokens {first:,}–{first + block_tokens - 1:,}, block {at + 1:,} of {of:,}"


def _of_several(picture: BlockPicture, blocks: Ints) -> Line:
    states = states_of(picture)[blocks]
    parts = [
        (int((states == state).sum()), name) for state, name in STATE_NAMES.items()
    ]
    states_text = ", ".join(f"{count:,} {name}" for count, name in parts if count)
    first, last = int(blocks.min()), int(blocks.max())
    if last - first + 1 == len(blocks):
        where = f"{first:,}–{last:,}"
    else:
        where = f"{len(blocks):,}, between {first:,} and {last:,}"
    return (
        TextRun("▸ blocks ", "muted"),
        TextRun(where, "strong"),
        TextRun("  "),
        TextRun(states_text),
    )


def _holders_of(
    holders: BlockHolders, blocks: Ints, names: Mapping[int, Holder]
) -> Line:
    counts = holders.counts_in(blocks)
    line: list[TextRun] = []
    for place, count in counts[:MOST_TOLD]:
        inked = _inked(name_of(holders.picture.holders[place], names), line)
        blocks_held = TextRun(f" {counted(count, 'block')}", "muted")
        line += [*_between(line), inked, blocks_held]
    return _with_rest(line, len(counts) - MOST_TOLD)


def _inked(name: str, line: Sequence[TextRun]) -> TextRun:
    """Return a holder's name; the first is highlighted like its blocks on the map."""
    return TextRun(name, "" if line else "pointed")


def _between(line: Sequence[TextRun]) -> Sequence[TextRun]:
    return [TextRun(" · ", "faint")] if line else []


def _with_rest(line: Sequence[TextRun], rest: int) -> Line:
    more = (TextRun(f" · {rest:,} more", "muted"),) if rest > 0 else ()
    return (TextRun("  "), *line, *more) if line else ()


GLYPHS = {
    Look.FREE: ("·", "rule"),
    Look.CACHED: ("⣿", "cached"),
    Look.PRIVATE: ("█", "kv"),
    Look.SHARED: ("▓", "shared"),
    Look.NULL: ("×", "faint"),
    Look.PRIVATE_NEXT: ("▇", "kv-next"),
    Look.SHARED_NEXT: ("▒", "shared-next"),
    Look.BLANK: (" ", ""),
}
"""Glyphs differ, so that looks can be told apart without colour."""
CURSOR = "◆"
LIT = len(Look)
"""Added to the look of a highlighted cell."""
CELLS = [GLYPHS[look] for look in Look]
RUNS = re.compile(rb"(.)\1*", re.DOTALL)
MARGIN = 9
"""Characters before a row of cells."""
AROUND_ROWS = 3
"""Rows of the heading and of what is under the cursor."""
WITHIN = "›"
"""Before the name of a section that begins within a row of cells."""
HINT = "tab or a click, then the arrows: which block it is, and who holds it"


class DrawnRow(NamedTuple):
    """A row of cells, compared to redraw only changes."""

    looks: bytes
    label: str
    cursor: int | None


class BlockMapPanel(Inked, can_focus=True):
    """Blocks of one rank as cells, and what is known of the one under the cursor."""

    DEFAULT_CSS = """
    BlockMapPanel { height: 1fr; min-height: 5; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open", tooltip="The request that holds this block"),
        Binding(
            "up",
            "move(-1, 0)",
            "block",
            key_display="←↑↓→",
            tooltip="Another block; with shift ten cells at once",
        ),
        Binding("down", "move(1, 0)", "next row", show=False),
        Binding("left", "move(0, -1)", "previous block", show=False),
        Binding("right", "move(0, 1)", "next block", show=False),
        Binding("shift+left", "move(0, -10)", "ten cells back", show=False),
        Binding("shift+right", "move(0, 10)", "ten cells on", show=False),
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("pagedown", "page(1)", "page down", show=False),
    ]

    @dataclass
    class HolderOpened(Message):
        """The holder of the block under the cursor should be opened."""

        ordinal: int

    def __init__(self) -> None:
        super().__init__()
        self.order = MapOrder.ID
        self.single = False
        """One block per cell, even if not all are visible."""
        self.scale = MapScale(1, 1, 1)
        self.at: int | None = None
        """Id of the block under the cursor."""
        self._block_holders: BlockHolders | None = None
        self._names: Mapping[int, Holder] = {}
        self._block_tokens: int | None = None
        self._rank = ""
        self._age_s = 0.0
        self._blocks: ArrangedBlocks | None = None
        self._cells: Looks = np.zeros(0, dtype=np.uint8)
        self._top = 0
        self._lit: int | None = None
        """Ordinal of the request highlighted while the map is not focused."""
        self._rows: Sequence[DrawnRow] = ()
        self._around: Sequence[Line] = ((), (), ())
        """Heading and what is under the cursor."""

    def show(
        self,
        picture: BlockPicture,
        names: Mapping[int, Holder],
        block_tokens: int | None,
        age_ns: int,
        rank: str,
    ) -> None:
        """Show a block map and its holders; only what changed is redrawn."""
        self._names, self._block_tokens, self._rank = names, block_tokens, rank
        self._age_s = max(age_ns, 0) / NS_PER_S
        before = self._block_holders.picture if self._block_holders else None
        if before is None or _moment(before) != _moment(picture):
            self._block_holders = BlockHolders(picture, self._block_holders)
            self._arrange()
        else:
            self._tell()

    def show_by(self, order: MapOrder) -> None:
        self.order = order
        self._arrange()

    def show_single(self, *, single: bool) -> None:
        """Show one block per cell, or all blocks."""
        self.single = single
        self._fold()

    def light(self, ordinal: int | None) -> None:
        if ordinal != self._lit:
            self._lit = ordinal
            self._fold()

    @property
    def _room(self) -> tuple[int, int]:
        """How many characters a row of cells has, and how many rows there are."""
        width, height = self.size
        return max(width - MARGIN - 1, 1), max(height - AROUND_ROWS, 0)

    def _arrange(self) -> None:
        if self._block_holders is None:
            return
        self._blocks = arrange(self._block_holders, self.order)
        if self.at is not None and self.at >= len(self._blocks.order):
            self.at = None
        self._fold()

    def _fold(self) -> None:
        blocks, (width, rows) = self._blocks, self._room
        if (
            blocks is None
            or self._block_holders is None
            or not self.is_attached
            or not rows
        ):
            return
        self.scale = scale_for(len(blocks.order), width, rows, single=self.single)
        self._cells = fold(blocks, self.scale)
        self._draw()

    def _draw(self) -> None:
        blocks, rows = self._blocks, self._room[1]
        if blocks is None or self._block_holders is None or not rows:
            return
        cursor = self._cell if self.has_focus else None
        columns = self.scale.columns
        self._follow(cursor, rows)
        first = self._top * columns
        looks = self._cells[first : first + rows * columns]
        flags = self._lit_flags(blocks)
        if flags is not None:
            looks = looks + LIT * flags[first : first + len(looks)].astype(np.uint8)
        every = looks.tobytes()
        drawn = [
            DrawnRow(
                every[at : at + columns],
                self._label((first + at) * self.scale.blocks),
                cursor - first - at
                if cursor is not None and 0 <= cursor - first - at < columns
                else None,
            )
            for at in range(0, len(every), columns)
        ]
        before, self._rows = self._rows, drawn
        for row in range(max(len(before), len(drawn))):
            if before[row : row + 1] != drawn[row : row + 1]:
                self.refresh(Region(0, row + 1, self.size.width, 1))
        self._tell()

    def _lit_flags(self, blocks: ArrangedBlocks) -> "np.ndarray | None":
        holders, lit = self._block_holders, self._lit
        if holders is None:
            return None
        if self.has_focus:
            pointed = self.pointed
            lit = None if pointed is None else first_holder(holders, pointed)
        if lit is None or lit not in holders.picture.holders:
            return None
        flags = holders.of(holders.picture.holders.index(lit))
        return pointed_cells(blocks, self.scale, flags)

    def _label(self, place: int) -> str:
        """Return the text left of a row of cells: a new section, or a block number.

        A section that begins further to the right has a mark before its name.
        """
        blocks = self._blocks
        if blocks is None:
            return ""
        if not blocks.sections:
            return f"{place:,}"
        until = place + self.scale.columns * self.scale.blocks
        cell = self.scale.blocks
        started = (
            name if at < place + cell else f"{WITHIN}{name}"
            for at, name in blocks.sections
            if place <= at < until
        )
        return next(started, "")

    @property
    def _cell(self) -> int | None:
        if self._blocks is None or self.at is None:
            return None
        place = int(np.flatnonzero(self._blocks.order == self.at)[0])
        return place // self.scale.blocks

    @property
    def pointed(self) -> Ints | None:
        """The blocks of the cell under the cursor."""
        cell = self._cell
        if cell is None or self._blocks is None:
            return None
        first = cell * self.scale.blocks
        return self._blocks.order[first : first + self.scale.blocks]

    def _point(self, cell: int) -> None:
        if self._blocks is None or not len(self._cells):
            return
        cell = min(max(cell, 0), len(self._cells) - 1)
        self.at = int(self._blocks.order[cell * self.scale.blocks])
        self._draw()

    def _follow(self, cursor: int | None, rows: int) -> None:
        last = max(-(-len(self._cells) // self.scale.columns) - rows, 0)
        if cursor is not None:
            row = cursor // self.scale.columns
            self._top = min(max(self._top, row - rows + 1), row)
        self._top = min(self._top, last)

    def action_move(self, rows: int, columns: int) -> None:
        cell = self._cell
        if cell is not None:
            self._point(cell + rows * self.scale.columns + columns)

    def action_page(self, by: int) -> None:
        self.action_move(by * max(self._room[1] - 1, 1), 0)

    def action_open(self) -> None:
        """Open the request with most of the blocks under the cursor."""
        pointed = self.pointed
        if self._block_holders is None or pointed is None:
            return
        ordinal = first_holder(self._block_holders, pointed)
        if ordinal is not None:
            self.post_message(self.HolderOpened(ordinal))

    def watch_has_focus(self, has_focus: bool) -> None:  # noqa: FBT001 - Textual calls it so
        """Show or hide the cursor; it starts on a held block."""
        super().watch_has_focus(has_focus)
        if has_focus and self.at is None and self._blocks is not None:
            used = np.isin(self._blocks.states, (BlockState.PRIVATE, BlockState.SHARED))
            self.at = int(self._blocks.order[np.argmax(used)])
        self._draw()

    def on_click(self, event: events.Click) -> None:
        """Move the cursor; a double click opens the holder."""
        column, row = (event.x - MARGIN) // self.scale.wide, event.y - 1
        if not 0 <= column < self.scale.columns or not 0 <= row < len(self._rows):
            return
        cell = (self._top + row) * self.scale.columns + column
        if cell < len(self._cells):
            self._point(cell)
            if event.chain > 1:
                self.action_open()

    def on_mouse_scroll_down(self) -> None:
        self.action_move(1, 0)

    def on_mouse_scroll_up(self) -> None:
        self.action_move(-1, 0)

    def on_resize(self) -> None:
        self._rows = ()
        self.refresh()
        self._fold()

    def _tell(self) -> None:
        width = self.size.width
        around = (self._heading(width), *(fit(line, width) for line in self._under()))
        before, self._around = self._around, around
        height = self.size.height
        for row, line in zip((0, height - 2, height - 1), around, strict=True):
            if line not in before:
                self.refresh(Region(0, row, width, 1))

    def _heading(self, width: int) -> Line:
        texts = [f"by {self.order.value}", self.scale.text]
        if self.scale.blocks > 1:
            texts.append("shows what most of it is")
        count, cells = len(self._blocks.order) if self._blocks else 0, len(self._cells)
        capacity = self.scale.columns * self._room[1]
        if cells > capacity:
            first = self._top * self.scale.columns
            last = min(first + capacity, count)
            texts.append(f"{first + 1:,}–{last:,} of {count:,} in sight")
        if self._rank:
            texts.insert(0, self._rank)
        age: Line = ()
        if self._age_s > OLD_S:
            age = (TextRun(f"as of {age_text(self._age_s)} ago", "warn"),)
        name = (TextRun("block map", "accent" if self.has_focus else "strong"),)
        parts = [name, *((TextRun(each, "muted"),) for each in texts)]
        return ruled(join_whole(parts, width - width_of(age) - 8, " · "), age, width)

    def _under(self) -> Sequence[Line]:
        pointed = self.pointed if self.has_focus else None
        if self._block_holders is None or pointed is None:
            return (TextRun(f"  {HINT}", "faint"),), ()
        return block_lines(
            self._block_holders, pointed, self._names, self._block_tokens
        )

    def render_line(self, y: int) -> Strip:
        width, height = self.size
        if y == 0:
            return self.strip_of(self._around[0], width)
        if y >= height - 2:
            return self.strip_of(self._around[y - height + 3], width)
        if y > len(self._rows):
            return Strip.blank(width, self.ink(""))
        return self._cells_strip(self._rows[y - 1], width)

    def _cells_strip(self, row: DrawnRow, width: int) -> Strip:
        segments = [Segment(row.label.rjust(MARGIN - 1) + " ", self.ink("muted"))]
        looks, cursor = row.looks, row.cursor
        for match in RUNS.finditer(looks):
            start, end = match.span()
            glyph, ink = CELLS[looks[start] % LIT]
            style = self.ink("pointed" if looks[start] >= LIT else ink)
            text = self._cell_text(glyph)
            if cursor is None or not start <= cursor < end:
                segments.append(Segment(text * (end - start), style))
                continue
            segments += [
                Segment(text * (cursor - start), style),
                Segment(self._cell_text(CURSOR), self.ink("chip")),
                Segment(text * (end - cursor - 1), style),
            ]
        return Strip(segments).adjust_cell_length(width, self.ink(""))

    def _cell_text(self, glyph: str) -> str:
        """Return the text of one cell; a wide cell ends with a gap."""
        wide = self.scale.wide
        return glyph * wide if wide == 1 else glyph * (wide - 1) + " "


def _moment(picture: BlockPicture) -> tuple[str, int, int]:
    """Return what identifies a block map: its source, rank and time."""
    return picture.source, picture.rank, picture.t_ns
