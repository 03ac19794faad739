"""KV cache usage as one bar, and when it will be full."""

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
from inferwatch.ui.widgets.counter_facts import at_last_reading

AROUND_TITLE = 8
"""Cells of a heading besides its text."""
OLD_S = 1.0
"""Age from which a map says how old it is."""
SOON_S = 60.0
"""A cache full within this time is a warning."""
FAR_S = 3_600.0
"""Longest extrapolation of the growth rate."""


class BarPart(NamedTuple):
    """A part of the cache in bar and legend."""

    name: str
    glyph: str
    ink: str
    blocks: int


class KvBar(Panel):
    """What blocks are used for, as one bar with a mark at the peak."""

    DEFAULT_CSS = """
    KvBar { height: 5; }
    """

    _kv = KvState()
    _usage: float | None = None
    _memory: Memory | None = None
    _parts: Sequence[BarPart] = ()
    _pools: Sequence[tuple[str, float]] = ()
    """Usage of each pool of a hybrid model's cache."""

    def show(self, snapshot: Snapshot) -> None:
        """Show the state of the cache; only its usage if blocks are unknown."""
        self._kv, self._memory = snapshot.kv, snapshot.memory
        self._usage = at_last_reading(snapshot).kv_usage
        self._parts = parts_of(snapshot)
        self._pools = snapshot.server_counts.pools
        self.redraw()

    @property
    def _total(self) -> int:
        return max(self._kv.total_blocks or 0, sum(each.blocks for each in self._parts))

    @property
    def _used(self) -> float | None:
        """The share of KV blocks that is used, 0 to 1; None if unknown."""
        if not self._parts or not self._total:
            return self._usage
        *parts, _, _ = self._parts
        return sum(each.blocks for each in parts) / self._total

    def draw(self, width: int, height: int) -> Sequence[Line]:
        head, room = self._head(width), width - 4
        if self._pools and not self._parts:
            return [head, *self._pool_lines(width, height - 1)]
        if not self._parts and self._usage is None:
            text = "  it is not known how many blocks are in use"
            return [head, (TextRun(text, "faint"),)]
        bar = (TextRun("  "), *self._bar(room))
        legend = self._legend(room)
        rows = max(height - 2 - bool(legend), 1)
        below = [fit((TextRun("  "), *legend), width)] if legend else []
        return [head, *[bar] * rows, self._peak(room), *below][:height]

    def _pool_lines(self, width: int, height: int) -> Sequence[Line]:
        """Return a bar for each pool, or one line of all if there is no room."""
        if len(self._pools) > height:
            texts = (
                (
                    TextRun(f"{name} ", "muted"),
                    TextRun(format_share(usage).strip()),
                )
                for name, usage in self._pools
            )
            return [fit((TextRun("  "), *join(texts, "   ")), width)]
        size = max(len(name) for name, _ in self._pools)
        room = max(width - size - 10, 1)
        return [
            (
                TextRun(f"  {name:{size}} ", "muted"),
                TextRun("█" * round(usage * room), "kv"),
                TextRun("·" * (room - round(usage * room)), "rule"),
                TextRun(f" {format_share(usage)}"),
            )
            for name, usage in self._pools
        ]

    def _head(self, width: int) -> Line:
        name = (TextRun("KV cache", "strong"),)
        full = full_in(self._memory)
        room = width - width_of(full) - AROUND_TITLE
        sizes = ((*name, TextRun(f"  {size}", "muted")) for size in self._sizes())
        title = next((each for each in sizes if width_of(each) <= room), name)
        return ruled(title, full, width)

    def _sizes(self) -> Sequence[str]:
        """Return texts of the cache's usage and size, the longest first."""
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
                until += 1  # at least one cell each
            line.append(TextRun(part.glyph * (until - at), part.ink))
            at = until
        return (*line, TextRun("·" * (room - at), "rule"))

    def _legend(self, room: int) -> Line:
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


def parts_of(snapshot: Snapshot) -> Sequence[BarPart]:
    """Return the bar's parts: by the block map if it is current, else the last step."""
    kv, memory = snapshot.kv, snapshot.memory
    private = memory.private_blocks if memory else None
    shared = memory.shared_blocks if memory else None
    if private is None or shared is None or _is_past(kv, memory):
        if kv.used_blocks is None or snapshot.without_steps or not kv.total_blocks:
            return ()
        parts = [BarPart(label_of(KvState.used_blocks), "█", "kv", kv.used_blocks)]
    else:
        parts = [
            BarPart(label_of(Memory.private_blocks), "█", "kv", private),
            BarPart(label_of(Memory.shared_blocks), "▓", "shared", shared),
        ]
    cached, free = kv.cached_blocks, kv.free_blocks
    if snapshot.block_maps and not _is_past(kv, memory):
        counts = [each.counts for each in snapshot.block_maps]
        free, cached = (sum(each[place] for each in counts) for place in (0, 1))
    return (
        *parts,
        BarPart(label_of(KvState.cached_blocks), "⣿", "cached", cached or 0),
        BarPart(label_of(KvState.free_blocks), "·", "rule", free or 0),
    )


def _is_past(kv: KvState, memory: Memory | None) -> bool:
    """Return True if the block map is old and the KV usage has changed since."""
    if memory is None or (memory.map_age_s or 0) <= OLD_S or kv.used_blocks is None:
        return False
    return kv.used_blocks != (memory.private_blocks or 0) + (memory.shared_blocks or 0)


def full_in(memory: Memory | None) -> Line:
    """Return when the cache is full at the present rate, while it grows."""
    if memory is None or not memory.growth_blocks_per_s or memory.full_in_s is None:
        return ()
    rate = format_rate(memory.growth_blocks_per_s).strip()
    if memory.growth_blocks_per_s <= 0 or memory.full_in_s > FAR_S:
        return ()
    ink = "warn" if memory.full_in_s < SOON_S else "muted"
    when = "now" if memory.full_in_s < 1 else f"in {age_text(memory.full_in_s)}"
    return (TextRun(f"full {when} at +{rate} blocks/s", ink),)


def peak_of(kv: KvState) -> float | None:
    if kv.peak_used_blocks is None or not kv.total_blocks:
        return kv.peak_usage
    return kv.peak_used_blocks / kv.total_blocks
