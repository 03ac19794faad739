"""Everything over time, at the few resolutions that screens draw."""

from itertools import groupby

import msgspec

from collectors.readings import Step
from inferwatch.metrics.saving import Parts, WrittenParts
from inferwatch.metrics.series.bins import Bin, KvBlocks
from inferwatch.metrics.snapshot import Window

MS = 1_000_000
FINEST_NS = 100 * MS
SESSION_FINEST_NS = 500 * MS
MOST_COLUMNS = 240
CHUNK = 32
"""Bins saved together."""
BIN_NS = {
    Window.TEN_SECONDS: FINEST_NS,
    Window.MINUTE: 500 * MS,
    Window.FIVE_MINUTES: 2_500 * MS,
}


class Rolling:
    """The bins of a rolling window."""

    def __init__(self, window_ns: int, bin_ns: int) -> None:
        self.bin_ns = bin_ns
        self.columns = window_ns // bin_ns
        self.bins: dict[int, Bin] = {}

    def merge(self, t_ns: int, part: Bin) -> None:
        """Add a part that lies within one bin."""
        index = t_ns // self.bin_ns
        if index not in self.bins:
            self._make_room(index)
        self.bins.setdefault(index, Bin()).merge(part)

    def _make_room(self, index: int) -> None:
        if len(self.bins) >= 2 * self.columns:
            oldest = max(index, *self.bins) - self.columns
            self.bins = {i: held for i, held in self.bins.items() if i > oldest}


class Whole:
    """The bins of the session: 0.5 s wide, doubled whenever there are too many."""

    def __init__(self) -> None:
        self.bin_ns = SESSION_FINEST_NS
        self.bins: dict[int, Bin] = {}

    def merge(self, t_ns: int, part: Bin) -> None:
        """Add a part that lies within one bin."""
        self.bins.setdefault(t_ns // self.bin_ns, Bin()).merge(part)
        while max(self.bins) - min(self.bins) >= MOST_COLUMNS:
            self.bin_ns *= 2
            self.bins = doubled(self.bins)


class SavedHistory(msgspec.Struct, array_like=True):
    """A History: the numbers of the parts that hold its bins by their index."""

    rolling: list[list[int]]
    whole: list[int]
    whole_bin_ns: int


class History:
    """Bins at every resolution.

    A reading goes into the open bin of a tenth of a second; when readings leave that
    tenth, in either direction, it is merged into every resolution.
    """

    def __init__(self) -> None:
        self._rolling = {
            window: Rolling(window.value or 0, bin_ns)
            for window, bin_ns in BIN_NS.items()
        }
        self._whole = Whole()
        self._open = Bin()
        self._open_index: int | None = None

    def add_step(self, step: Step, output_tokens: int, kv: KvBlocks) -> None:
        """A step, where it ended; ``kv`` is that of all engines then."""
        self._bin_at(step.end_ns).add_step(step, output_tokens, kv)

    def add_latency(self, metric: str, t_ns: int, value_ns: int, weight: int) -> None:
        """Equal samples of a latency at a moment."""
        self._bin_at(t_ns).add_latency(metric, value_ns, weight)

    def columns(
        self, now_ns: int, window: Window, since_ns: int | None = None
    ) -> tuple[int, int, list[Bin | None]]:
        """Start, bin width and the bins of the window that ends now, gaps None.

        The session reaches back to ``since_ns`` where that is before the first bin.
        """
        self._close()
        if window.value is None:
            bins, bin_ns, first = self._session(now_ns, since_ns)
        else:
            level = self._rolling[window]
            bins, bin_ns = level.bins, level.bin_ns
            first = now_ns // bin_ns - level.columns + 1
        held = [bins.get(index) for index in range(first, now_ns // bin_ns + 1)]
        return first * bin_ns, bin_ns, held

    def saved(self, parts: Parts) -> SavedHistory:
        """Bins that are full stand in parts that stay as they are."""
        self._close()
        return SavedHistory(
            rolling=[_saved(level.bins, parts) for level in self._rolling.values()],
            whole=_saved(self._whole.bins, parts),
            whole_bin_ns=self._whole.bin_ns,
        )

    def restore(self, saved: SavedHistory, parts: WrittenParts) -> None:
        """Be as it was."""
        for level, numbers in zip(self._rolling.values(), saved.rolling, strict=True):
            level.bins = _restored(numbers, parts)
        self._whole.bins = _restored(saved.whole, parts)
        self._whole.bin_ns = saved.whole_bin_ns

    def _session(
        self, now_ns: int, since_ns: int | None
    ) -> tuple[dict[int, Bin], int, int]:
        """The session's bins, made wide enough to reach from its start to now."""
        bins, bin_ns = self._whole.bins, self._whole.bin_ns
        first_ns = min(bins) * bin_ns if bins else now_ns
        if since_ns is not None:
            first_ns = min(first_ns, since_ns)
        while now_ns // bin_ns - first_ns // bin_ns >= MOST_COLUMNS:
            bins, bin_ns = doubled(bins), bin_ns * 2
        return bins, bin_ns, first_ns // bin_ns

    def _bin_at(self, t_ns: int) -> Bin:
        index = t_ns // FINEST_NS
        if index != self._open_index:
            self._close()
            self._open_index = index
        return self._open

    def _close(self) -> None:
        if self._open_index is None:
            return
        self._open.forget_members()
        t_ns = self._open_index * FINEST_NS
        for level in self._rolling.values():
            level.merge(t_ns, self._open)
        self._whole.merge(t_ns, self._open)
        self._open, self._open_index = Bin(), None


def _saved(bins: dict[int, Bin], parts: Parts) -> list[int]:
    """Numbers of the parts; the order of the bins is kept."""
    open_chunk = max(bins, default=0) // CHUNK
    chunks = groupby(bins.items(), key=lambda each: each[0] // CHUNK)
    return [
        parts.add(dict(chunk), lasts=number != open_chunk) for number, chunk in chunks
    ]


def _restored(numbers: list[int], parts: WrittenParts) -> dict[int, Bin]:
    bins: dict[int, Bin] = {}
    for number in numbers:
        bins |= parts.get(number, dict[int, Bin])
    return bins


def doubled(bins: dict[int, Bin]) -> dict[int, Bin]:
    """The same bins, two in one."""
    wide: dict[int, Bin] = {}
    for index, held in bins.items():
        wide.setdefault(index // 2, Bin()).merge(held)
    return wide
