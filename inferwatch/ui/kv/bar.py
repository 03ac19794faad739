"""Private, shared, idle-cached and free blocks as one bar, and when it will be full."""

from collections.abc import Sequence
from typing import NamedTuple

from inferwatch.formatting import counted, format_rate, format_share
from inferwatch.metrics.cache.memory import Memory
from inferwatch.metrics.number import label_of
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.flow import KvState
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    age_text,
    fit,
    join,
    ruled,
    width_of,
)
from inferwatch.ui.widgets.counted import at_last_reading

AROUND_TITLE = 8
"""Cells of a heading that are rule and gaps."""
OLD_S = 1.0
"""From this age on a map says how old it is."""
SOON_S = 60.0
"""A cache that is full before that is worth a warning."""
FAR_S = 3_600.0
"""Nobody can say today's rate that far ahead."""


class BarPart(NamedTuple):
    """One part of the cache, as the bar and its legend draw it."""

    name: str
    glyph: str
    ink: str
    blocks: int


class KvBar(Panel):
    """What blocks are used for, as one bar; the mark below is the peak."""

    DEFAULT_CSS = """
    KvBar { height: 5; }
    """

    _kv = KvState()
    _usage: float | None = None
    _memory: Memory | None = None
    _parts: Sequence[BarPart] = ()

    def show(self, shown: Snapshot) -> None:
        """Take the state of the cache; the share in use, where blocks are unknown."""
        self._kv, self._memory = shown.kv, shown.memory
        self._usage = at_last_reading(shown).kv_usage
        self._parts = parts_of(shown)
        self.redraw()

    @property
    def _total(self) -> int:
        """Blocks that the bar is made of."""
        return max(self._kv.total_blocks or 0, sum(each.blocks for each in self._parts))

    @property
    def _used(self) -> float | None:
        """Share in use, 0-1."""
        if not self._parts or not self._total:
            return self._usage
        *held, _, _ = self._parts
        return sum(each.blocks for each in held) / self._total

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The heading, rows of bar, one for the peak, one that says what is what."""
        head, room = self._head(width), width - 4
        if not self._parts and self._usage is None:
            said = "  it is not known how many blocks are in use"
            return [head, (TextRun(said, "faint"),)]
        bar = (TextRun("  "), *self._bar(room))
        legend = self._legend(room)
        rows = max(height - 2 - bool(legend), 1)
        below = [fit((TextRun("  "), *legend), width)] if legend else []
        return [head, *[bar] * rows, self._peak(room), *below][:height]

    def _head(self, width: int) -> Line:
        name = (TextRun("KV cache", "strong"),)
        full = full_in(self._memory)
        room = width - width_of(full) - AROUND_TITLE
        sizes = ((*name, TextRun(f"  {size}", "muted")) for size in self._sizes())
        title = next((each for each in sizes if width_of(each) <= room), name)
        return ruled(title, full, width)

    def _sizes(self) -> Sequence[str]:
        """How large the cache is and how much of it is in use; the longest first."""
        if not self._total:
            return ()
        kv, size = self._kv, counted(self._total, "block")
        share = format_share(self._used).strip()
        used = f"{share} {label_of(KvState.used_blocks)}"
        each = [f"{used} of {size}", used] if self._used is not None else [size]
        tokens = f" × {kv.block_tokens} tokens"
        return [f"{each[0]}{tokens}", *each] if kv.block_tokens else each

    def _bar(self, room: int) -> Line:
        total, parts = self._total, list(self._parts)
        if not parts:
            used = round((self._usage or 0) * room)
            return (TextRun("█" * used, "kv"), TextRun("·" * (room - used), "rule"))
        line: list[TextRun] = []
        before = at = 0
        for part in parts:
            before += part.blocks
            until = min(round(before / total * room), room)
            if part.blocks and until == at and until < room:
                until += 1  # however few, they are seen
            line.append(TextRun(part.glyph * (until - at), part.ink))
            at = until
        return (*line, TextRun("·" * (room - at), "rule"))

    def _legend(self, room: int) -> Line:
        """Counts and shares of the parts; counts alone where there is less room."""
        full = self._named(with_share=True)
        return full if width_of(full) <= room else self._named(with_share=False)

    def _named(self, *, with_share: bool) -> Line:
        def share(part: BarPart) -> str:
            if not with_share or not self._total:
                return ""
            return f" {format_share(part.blocks / self._total).strip()}"

        return join(
            (
                (
                    TextRun(f"{part.glyph} ", part.ink),
                    TextRun(f"{part.name} ", "muted"),
                    TextRun(f"{part.blocks:,}"),
                    TextRun(share(part), "muted"),
                )
                for part in self._parts
            ),
            "   " if with_share else "  ",
        )

    def _peak(self, room: int) -> Line:
        peak = peak_of(self._kv)
        if peak is None:
            return ()
        label = f"peak {format_share(peak).strip()}"
        at = min(max(round(peak * room) - 1, 0), room - 1)
        text = (
            f"{label} ▲".rjust(at + 1)
            if at >= len(label) + 2
            else f"{' ' * at}▲ {label}"
        )
        return (TextRun("  "), TextRun(text, "muted"))


def parts_of(shown: Snapshot) -> Sequence[BarPart]:
    """Of the map, where there is one: all of one moment; else of the last step."""
    kv, memory = shown.kv, shown.memory
    private = memory.private_blocks if memory else None
    shared = memory.shared_blocks if memory else None
    if private is None or shared is None or _is_past(kv, memory):
        if kv.used_blocks is None or shown.without_steps or not kv.total_blocks:
            return ()
        held = [BarPart(label_of(KvState.used_blocks), "█", "kv", kv.used_blocks)]
    else:
        held = [
            BarPart(label_of(Memory.private_blocks), "█", "kv", private),
            BarPart(label_of(Memory.shared_blocks), "▓", "shared", shared),
        ]
    cached, free = kv.cached_blocks, kv.free_blocks
    if shown.block_maps and not _is_past(kv, memory):
        counts = [each.counts for each in shown.block_maps]
        free, cached = (sum(each[place] for each in counts) for place in (0, 1))
    return (
        *held,
        BarPart(label_of(KvState.cached_blocks), "⣿", "cached", cached or 0),
        BarPart(label_of(KvState.free_blocks), "·", "rule", free or 0),
    )


def _is_past(kv: KvState, memory: Memory | None) -> bool:
    """The map is of a while ago, and steps have told of another use since."""
    if memory is None or (memory.map_age_s or 0) <= OLD_S or kv.used_blocks is None:
        return False
    return kv.used_blocks != (memory.private_blocks or 0) + (memory.shared_blocks or 0)


def full_in(memory: Memory | None) -> Line:
    """When no block is left at the present rate; only while it grows."""
    if memory is None or not memory.growth_blocks_per_s or memory.full_in_s is None:
        return ()
    rate = format_rate(memory.growth_blocks_per_s).strip()
    if memory.growth_blocks_per_s <= 0 or memory.full_in_s > FAR_S:
        return ()
    ink = "warn" if memory.full_in_s < SOON_S else "muted"
    when = "now" if memory.full_in_s < 1 else f"in {age_text(memory.full_in_s)}"
    return (TextRun(f"full {when} at +{rate} blocks/s", ink),)


def peak_of(kv: KvState) -> float | None:
    """The fullest it was, 0-1."""
    if kv.peak_used_blocks is None or not kv.total_blocks:
        return kv.peak_usage
    return kv.peak_used_blocks / kv.total_blocks
