"""The use of GPU memory, how many requests fit, and what would free memory."""

from collections.abc import Iterable, Iterator, Sequence

from inferwatch.formatting import (
    UNKNOWN,
    about,
    counted,
    format_bytes,
    format_count,
    format_durations,
    format_share,
)
from inferwatch.metrics.floor.view import (
    Bound,
    DeviceMemory,
    Limits,
    MemoryPart,
    Saving,
)
from inferwatch.metrics.hardware.view import GpuState
from inferwatch.metrics.number import label_of
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.startup import Startup
from inferwatch.printing.summary.startup import LEAST_SHARE, stage_text
from inferwatch.ui.hardware.gpu_panel import called, numbers_of
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.bars import EMPTY
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    cells,
    fit,
    labelled,
    pad,
    ruled,
    width_of,
)
from inferwatch.ui.limits.texts import NOT_YET, missing_lines
from inferwatch.visible import visible

LOOKS = {
    "weights": ("█", "decode"),
    "KV cache": ("▓", "kv"),
    "activations": ("▒", "prefill"),
    "graphs": ("⣿", "shared"),
    "workspace": ("▚", "waiting"),
    "other": ("▞", "other"),
    "free": ("·", "faint"),
}
"""Glyph and ink; glyphs differ without colour."""
STRANGE = ("▤", "muted")
NAME = 16
PART_FROM = 56
"""Cells of a part with its source."""
FLOORS_FROM = 100
"""Least width for step floors."""
RULES = 8
"""Cells of a heading besides its text."""
NEAR = 0.02
"""Relative difference up to which two numbers agree."""
IN_USE = {
    "attention_backend": "attention",
    "cudagraph_mode": "CUDA graphs",
    "compilation_mode": "compilation",
    "kv_cache_dtype": "KV dtype",
    "quantization": "quantization",
    "kv_connector": "connector",
}
"""What is in use, by vLLM's flags."""
HELPS: dict[bool | None, tuple[str, str, str]] = {
    True: ("●", "good", "eases what binds"),
    False: ("○", "faint", "not what binds"),
    None: ("·", "faint", "what binds is not known"),
}


class MemoryPanel(Panel):
    """A bar per device; parts of one device, room for requests, possible savings."""

    DEFAULT_CSS = """
    MemoryPanel { height: 10; }
    """

    _snapshot: Snapshot | None = None
    _at = 0
    """Index of the selected device."""

    def show(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._at = min(self._at, max(len(self.devices) - 1, 0))
        self.redraw()

    @property
    def devices(self) -> Sequence[DeviceMemory]:
        """The memory of each device, one per worker."""
        limits = self._snapshot.limits if self._snapshot else None
        return limits.memory if limits else ()

    def choose(self, by: int) -> None:
        self._at = min(max(self._at + by, 0), max(len(self.devices) - 1, 0))
        self.redraw()

    def rows(self, width: int) -> int:
        """Return the height in which the panel shows everything."""
        devices = self.devices
        if not devices or self._snapshot is None:
            return 4 + len(_below(self._snapshot, width) if self._snapshot else ())
        parts = len(_parts(devices[self._at], width, listed=True))
        return 1 + len(devices) + parts + len(_below(self._snapshot, width))

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Draw the memory of the devices, the most important lines if not all fit."""
        snapshot, devices = self._snapshot, self.devices
        if snapshot is None:
            return ()
        below = _below(snapshot, width)
        if not devices:
            head = ruled((TextRun("memory", "strong"),), (), width)
            reason = missing_lines([_unknown(snapshot)], width, height - 1)
            return [head, *reason, *below][:height]
        device = devices[self._at]
        below = below[: max(height - 3, 0)]
        room = height - 1 - len(below)
        parts = _parts(device, width, listed=True)
        if len(parts) + 1 > room:
            parts = _parts(device, width, listed=False)
        bars = max(room - len(parts), 1)
        visible = self._seen(bars)
        title = _title(device, len(devices), self._gpu(device))
        fold, loaded = self._fold(len(visible)), _loaded(device)
        if width_of((*title, *loaded, *fold)) + RULES <= width:
            title = (*title, *loaded)
        head = ruled(title, fold, width)
        lines = [head, *(self._bar(each, width) for each in visible), *parts, *below]
        return lines[:height]

    def _seen(self, room: int) -> Sequence[int]:
        """Return which devices are in view, the selected one among them."""
        count = len(self.devices)
        first = min(max(self._at - room + 1, 0), max(count - room, 0))
        if room < count:
            first = min(self._at // room * room, count - room)
        return range(first, min(first + room, count))

    def _fold(self, visible: int) -> Line:
        count = len(self.devices)
        if count < 2:
            return ()
        position = f"{self._at + 1} of {count}"
        more = f", {count - visible} folded" if visible < count else ""
        return (TextRun("↑ ↓ ", "accent"), TextRun(f"{position}{more}", "muted"))

    def _gpu(self, device: DeviceMemory) -> GpuState | None:
        gpus = self._snapshot.gpus if self._snapshot else ()
        return next((each for each in gpus if each.source == device.gpu), None)

    def _called(self, device: DeviceMemory) -> str:
        """Return a device's rank, worker and GPU number, as text."""
        name, gpu = f"rank {device.rank}.{device.worker}", self._gpu(device)
        if gpu is None or self._snapshot is None:
            return name
        return f"{name} GPU {numbers_of(self._snapshot.gpus)[gpu.source]}"

    def _bar(self, place: int, width: int) -> Line:
        device, several = self.devices[place], len(self.devices) > 1
        chosen = several and place == self._at
        name = cells(self._called(device), NAME, "strong" if chosen else "muted")
        before = (
            TextRun("▶ " if chosen else "  ", "marker"),
            *([name] if several else []),
        )
        used = sum(each.n_bytes for each in device.parts if each.name != "free")
        total = total_of(device)
        usage = f"  {format_bytes(used)} in all"
        if device.total_bytes:
            whole, share = format_bytes(total), format_share(used / total)
            usage = f"  {format_bytes(used)} of {whole} {share}"
        room = width - width_of(before) - len(usage) - 2
        bar = _filled(device.parts, total, max(room, 4))
        return fit((*before, *bar, TextRun(usage)), width)


def _filled(parts: Sequence[MemoryPart], total: int, width: int) -> Line:
    """Draw a bar of the parts of a memory; even small ones are visible."""
    line: list[TextRun] = []
    before = at = 0
    for part in parts:
        glyph, ink = LOOKS.get(part.name, STRANGE)
        before += part.n_bytes
        until = round(before / total * width) if total else at
        until = min(max(until, at + bool(part.n_bytes)), width)
        line.append(TextRun(glyph * (until - at), ink))
        at = until
    return (*line, TextRun(EMPTY * (width - at), "rule"))


def total_of(device: DeviceMemory) -> int:
    """Return a device's total memory; if unknown, the sum of its known parts."""
    return device.total_bytes or sum(each.n_bytes for each in device.parts)


def _title(device: DeviceMemory, count: int, gpu: GpuState | None) -> Line:
    title: Line = (TextRun("memory", "strong"),)
    if count > 1:
        title = (*title, TextRun(f" of {counted(count, 'device')}", "muted"))
    elif gpu is not None:
        title = (*title, TextRun(f" {called(gpu)}", "muted"))
    if device.allowed_bytes is None:
        return title
    allowed = format_bytes(device.allowed_bytes).strip()
    share = ""
    if device.total_bytes:
        share = f" ({format_share(device.allowed_bytes / device.total_bytes).strip()})"
    return (*title, TextRun(f" · the engine may use {allowed}{share}", "muted"))


def _loaded(device: DeviceMemory) -> Line:
    """Return how long loading the weights took, and the least possible time."""
    if device.load_s is None:
        return ()
    if device.load_floor_s is None:
        duration = format_durations([device.load_s])[0]
        return (TextRun(f" · weights loaded in {duration.strip()}", "muted"),)
    took, least = format_durations([device.load_s, device.load_floor_s])
    text = f" · weights loaded in {took.strip()}, over PCIe at best {least.strip()}"
    return (TextRun(text, "muted"),)


def _parts(device: DeviceMemory, width: int, *, listed: bool) -> list[Line]:
    """Return the parts of a device's memory: listed with their source, or in short."""
    total, count = device.total_bytes, len(device.parts)
    if not listed:
        return _folded([_part(each, total) for each in device.parts], width)
    columns = min(max((width - 2) // PART_FROM, 1), count) or 1
    size, height = (width - 2) // columns, -(-count // columns)
    entries = [_cell(each, total, size) for each in device.parts]
    return [
        (TextRun("  "), *(run for cell in entries[row::height] for run in cell))
        for row in range(height)
    ]


def _folded(parts: Iterable[Line], width: int) -> list[Line]:
    """Put parts into as few rows as hold them uncut."""
    rows: list[Line] = []
    for part in parts:
        longer = (*rows[-1], TextRun("  "), *part) if rows else ()
        if longer and width_of(longer) <= width:
            rows[-1] = longer
        else:
            rows.append((TextRun("  "), *part))
    return rows


def _part(part: MemoryPart, total: int | None) -> Line:
    glyph, ink = LOOKS.get(part.name, STRANGE)
    return (
        TextRun(f"{glyph} ", ink),
        TextRun(f"{part.name} ", "muted"),
        TextRun(_bytes(part)),
        TextRun(f" {format_share(part.n_bytes / total if total else None)}", "muted"),
    )


def _cell(part: MemoryPart, total: int | None, size: int) -> Line:
    glyph, ink = LOOKS.get(part.name, STRANGE)
    share = format_share(part.n_bytes / total if total else None)
    line = (
        TextRun(f"{glyph} ", ink),
        TextRun(f"{part.name:<12}", "muted"),
        TextRun(f"{_bytes(part):>9} {share}  "),
        TextRun(part.read_from, "faint"),
    )
    return pad(fit(line, size - 2), size)


def _bytes(part: MemoryPart) -> str:
    text = format_bytes(part.n_bytes)
    return about(f" {text}") if part.is_estimate else f" {text}"


def _below(snapshot: Snapshot, width: int) -> list[Line]:
    limits = snapshot.limits
    if limits is None:
        return []
    lines = [(TextRun("  "), *b_max(snapshot, limits, width - 2))]
    if limits.savings:
        lines += [_saving(each, limits, width) for each in limits.savings]
    if snapshot.startup is not None:
        lines.append(fit((TextRun("  "), *_started(snapshot.startup)), width))
    return [*lines, *_folded(_in_use(snapshot), width)]


def _in_use(snapshot: Snapshot) -> Iterator[Line]:
    """Yield how the engine runs, as far as its probe tells it."""
    for setting, name in IN_USE.items():
        if (value := snapshot.settings.get(setting)) is not None:
            yield labelled(name, visible(f"{value}"))


def _started(startup: Startup) -> Line:
    """Return what the start took, its longest stages first."""
    whole_s = startup.duration_s
    longest = sorted(startup.stages, key=lambda each: -each.duration_s)
    told = ", ".join(
        stage_text(each) for each in longest if each.duration_s >= LEAST_SHARE * whole_s
    )
    return (
        TextRun(f"{label_of(Startup.duration_s)} ", "accent"),
        TextRun(format_durations([whole_s])[0].strip(), "strong"),
        TextRun(f"  {told}", "muted"),
    )


def b_max(snapshot: Snapshot, limits: Limits, width: int) -> Line:
    """Return how many requests fit, with the arithmetic, and what limits them first."""
    label = TextRun(f"{label_of(Limits.max_requests)} ", "accent")
    fits, each = limits.max_requests, limits.tokens_per_request
    if fits is None:
        return fit(
            (label, TextRun(f"{UNKNOWN:>6} how many fit is not known yet", "faint")),
            width,
        )
    number = TextRun(f"{int(fits):6,} requests", "strong")
    mix = TextRun(" of the present mix fit together", "muted")
    how = f" = {_arithmetic(snapshot, limits, fits, each)}" if each else ""
    at_most = {info.max_num_seqs for info in snapshot.engines}
    most = at_most.pop() if len(at_most) == 1 else None
    ranks = len(snapshot.engines)
    stops = most is not None and most * ranks < fits
    each_rank = f" × {ranks} ranks" if ranks > 1 else ""
    seqs = "" if most is None else f" · max_num_seqs {most:,}{each_rank}"
    whole = f"{seqs} {'stops it first' if stops else 'allows them'}" if seqs else ""
    ink = "warn" if stops else "muted"
    begin, arithmetic = (label, number), TextRun(how, "muted")
    choices: list[Line] = [
        (*begin, mix, arithmetic, TextRun(whole, ink)),
        (*begin, arithmetic, TextRun(whole, ink)),
        (*begin, arithmetic, TextRun(f"{seqs} first" if stops else "", ink)),
        (*begin, arithmetic),
        begin,
    ]
    return next(
        (line for line in choices if width_of(line) <= width), fit(begin, width)
    )


def _arithmetic(snapshot: Snapshot, limits: Limits, fits: float, each: float) -> str:
    """Return how the number of requests that fit is computed, from bytes or tokens.

    The last block of a request is half full on average.
    """
    kv, per_token = snapshot.kv, limits.kv_bytes_per_token
    half = ((kv.block_tokens or 1) - 1) / 2
    tokens = format_count(each).strip()
    cache = sum(
        part.n_bytes
        for device in limits.memory
        for part in device.parts
        if part.name == "KV cache"
    )
    cache_tokens = (kv.total_blocks or 0) * (kv.block_tokens or 0)
    for more in (0.0, half):
        size = f"{tokens} tokens" if not more else f"({tokens} + {more:g} tokens)"
        if cache and per_token and _near(cache / ((each + more) * per_token), fits):
            a_token = format_bytes(per_token).strip()
            return f"{format_bytes(cache).strip()} ÷ ({size} × {a_token})"
        if cache_tokens and _near(cache_tokens / (each + more), fits):
            return f"{format_count(cache_tokens).strip()} tokens of cache ÷ {size}"
    return f"KV cache ÷ {tokens} tokens a request"


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= NEAR * other


def _saving(saving: Saving, limits: Limits, width: int) -> Line:
    """Draw how much memory another format would free, and whether that helps."""
    glyph, ink, text = HELPS[saving.helps]
    if saving.helps and limits.decode and limits.decode.bound is Bound.OVERHEAD:
        text = "eases KV blocks"  # which is all that it can ease
    more = UNKNOWN
    if saving.more_requests is not None:
        more = f"+{format_count(int(saving.more_requests)).strip()}"
    line: list[TextRun] = [
        TextRun(f"  {saving.name:<15}", "muted"),
        TextRun(f"{label_of(Saving.freed_bytes)} {format_bytes(saving.freed_bytes)}"),
        TextRun(f"{more:>8} requests"),
    ]
    decode = limits.decode
    if width >= FLOORS_FROM and (decode is None or decode.floor_s is not None):
        now_s = decode.floor_s if decode else None
        before, after = format_durations((now_s, saving.floor_s))
        line += [
            TextRun("   decode floor ", "muted"),
            TextRun(f"{before.strip():>8} → {after.strip():<8}"),
        ]
    return fit((*line, TextRun(f"  {glyph} ", ink), TextRun(text, ink)), width)


def _unknown(snapshot: Snapshot) -> str:
    if snapshot.limits is not None:
        return "no worker has told how it uses its memory"
    if snapshot.without_steps:
        return "what fills the card is not known; 4 shows how much of the cache is used"
    return NOT_YET[0]
