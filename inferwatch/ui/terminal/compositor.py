"""Renders only the widgets of which a cell is to be drawn anew."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import cast

from textual._compositor import ChopsUpdate, Compositor
from textual.geometry import Region
from textual.strip import Strip


class SparseCompositor(Compositor):
    """Textual's own renders all widgets between the highest and the lowest change.

    With a clock at the top and a status line at the bottom that is the whole screen,
    with its containers, at every update.
    """

    _due: Mapping[int, Sequence[tuple[int, int]]] | None = None
    """First and last column of what is to be drawn, by row; None for everything."""

    def render_partial_update(self) -> ChopsUpdate | None:
        due: dict[int, list[tuple[int, int]]] = {}
        for y, begin, end in self._regions_to_spans(self._dirty_regions):
            due.setdefault(y, []).append((begin, end))
        self._due = due
        try:
            return super().render_partial_update()
        finally:
            self._due = None

    def _render_chops(
        self, crop: Region, is_rendered_line: Callable[[int], bool]
    ) -> Sequence[Mapping[int, Strip]]:
        """Fill the pieces of the rows from front to back, until none is missing."""
        if self._due is None:
            return super()._render_chops(crop, is_rendered_line)
        chops: list[dict[int, Strip | None]] = [
            dict.fromkeys(cuts[:-1]) for cuts in self.cuts
        ]
        missing = {
            y: _starts(self.cuts[y], spans)
            for y, spans in self._due.items()
            if y < len(chops)
        }
        for widget, (region, clip) in self.visible_widgets.items():
            x, y, width, height = region.intersection(clip)
            rows = [
                row
                for row in range(y, y + height)
                if any(x <= start < x + width for start in missing.get(row, ()))
            ]
            if not rows:
                continue
            top, bottom = rows[0], rows[-1] + 1
            part = Region(x - region.x, top - region.y, width, bottom - top)
            strips = widget.render_lines(part)
            for row in rows:
                starts = [cut for cut in self.cuts[row] if x <= cut < x + width]
                ends = [start - x for start in starts[1:]] + [width]
                pieces = strips[row - top].divide(ends)
                for start, piece in zip(starts, pieces, strict=False):
                    if start in missing[row]:
                        missing[row].remove(start)
                        chops[row][start] = piece
        return cast("Sequence[Mapping[int, Strip]]", chops)  # as Textual does


def _starts(cuts: Sequence[int], spans: Sequence[tuple[int, int]]) -> set[int]:
    """Return where the pieces of a row begin that a span touches."""
    return {
        start
        for start, end in pairwise(cuts)
        if any(start < last and end > first for first, last in spans)
    }
