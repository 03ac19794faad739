"""A table of GPUs and MIG slices."""

from collections.abc import Callable, Iterable, Sequence

from inferwatch.formatting import UNKNOWN, format_gigabytes, format_share
from inferwatch.metrics.hardware.view import GpuState
from inferwatch.ui.hardware.gpu_panel import PRACTICAL, called, numbers_of
from inferwatch.ui.kit.renderables.bars import gauge
from inferwatch.ui.kit.renderables.text import Line, TextRun, cells, fit
from inferwatch.ui.kit.table import CursorTable, Sized, TableColumn

MARKS = {True: ("●", "good"), False: ("○", "faint"), None: ("·", "faint")}
"""Whether the engine runs on it; None is unknown."""
Number = Callable[[GpuState], str]


def gpu_columns(
    name: Callable[[GpuState, int], Line],
) -> Iterable[TableColumn[GpuState]]:
    return (
        TableColumn("gpu", "    GPU", 14, name, least=12, gap=1, grows=2, most=32),
        _column("rate", "HBM GB/s", 9, _rate, from_width=72),
        _column("hbm", "HBM", 5, lambda gpu: format_share(gpu.hbm_share)),
        TableColumn("bar", "", 13, _bar, from_width=112, least=8),
        _column("sm", "SM", 5, lambda gpu: format_share(gpu.sm_active)),
        _column(
            "occupancy",
            "occup",
            6,
            lambda gpu: format_share(gpu.sm_occupancy),
            from_width=104,
        ),
        _column(
            "tensor",
            "tensor",
            7,
            lambda gpu: format_share(gpu.tensor_active),
            from_width=66,
        ),
        _column("power", "W", 9, _power, from_width=50),
        TableColumn("clock", "MHz", 8, _clock, right=True, from_width=60),
        _column("memory", "GB", 10, _memory, from_width=80),
        _column("temperature", "°C", 4, _temperature, from_width=56),
    )


def _column(
    key: str, title: str, width: int, text: Number, *, from_width: int = 0
) -> TableColumn[GpuState]:
    def write(gpu: GpuState, _: int) -> TextRun:
        value = text(gpu).strip()
        return TextRun(value, _ink(gpu, known=value != UNKNOWN))

    return TableColumn(key, title, width, write, right=True, from_width=from_width)


def _ink(gpu: GpuState, *, known: bool = True) -> str:
    """Return a GPU's ink: dim if the engine does not use it, faint if it is lost."""
    if gpu.info.lost_because or not known:
        return "faint"
    return "muted" if gpu.watched is False else ""


def _rate(gpu: GpuState) -> str:
    return format_gigabytes(gpu.hbm_bytes_per_s)


def _bar(gpu: GpuState, width: int) -> Line:
    ink = "mean" if gpu.watched is not False else "faint"
    return (
        TextRun("  "),
        *gauge(gpu.hbm_share, width - 3, ink, PRACTICAL),
        TextRun(" "),
    )


def _power(gpu: GpuState) -> str:
    if gpu.power_w is None:
        return UNKNOWN
    limit = f"/{gpu.power_limit_w:.0f}" if gpu.power_limit_w else ""
    return f"{gpu.power_w:.0f}{limit}"


def _clock(gpu: GpuState, width: int) -> Line:
    clock = UNKNOWN if gpu.sm_clock_mhz is None else f"{gpu.sm_clock_mhz:,}"
    mark = "▲" if gpu.throttle_reasons else " "
    is_known = gpu.sm_clock_mhz is not None
    return (
        cells(clock, width - 1, _ink(gpu, known=is_known), right=True),
        TextRun(mark, "warn"),
    )


def _memory(gpu: GpuState) -> str:
    used, total = gpu.memory_used_bytes, gpu.info.memory_bytes
    if used is None:
        return UNKNOWN
    return f"{used / 1e9:.1f}" + (f"/{total / 1e9:.0f}" if total else "")


def _temperature(gpu: GpuState) -> str:
    return UNKNOWN if gpu.temperature_c is None else f"{gpu.temperature_c}"


class GpuTable(CursorTable[GpuState], can_focus=False):
    """GPUs in the driver's order; the screen moves the cursor."""

    def __init__(self) -> None:
        self._declared = tuple(gpu_columns(self._named))
        self._numbers: dict[str, str] = {}
        super().__init__(self._declared)

    def show(self, gpus: Sequence[GpuState]) -> None:
        """Show the GPUs; columns that none of them reports are hidden."""
        has_values = {
            "rate": any(each.hbm_bytes_per_s is not None for each in gpus),
            "power": any(each.power_w is not None for each in gpus),
            "temperature": any(each.temperature_c is not None for each in gpus),
        }
        self.columns = tuple(
            each for each in self._declared if has_values.get(each.key, True)
        )
        if self._key is None:
            own = (each.source for each in gpus if each.watched)
            self._key = next(own, None)
        self._numbers = numbers_of(gpus)
        self.show_rows(sorted(gpus, key=self._place))

    def key_of(self, row: GpuState) -> str:
        return row.source

    def heading_of(self, row: GpuState) -> str:
        """Return the name of the row's host, if there are several hosts."""
        hosts = {each.info.host for each in self._all_rows}
        return (row.info.host or "this host") if len(hosts) > 1 else ""

    def title_of(self, column: TableColumn[GpuState], width: int) -> TextRun:
        """Return a column's title; that of the GPUs says so if they are simulated."""
        if column.key == "gpu" and any(gpu.is_simulated for gpu in self._all_rows):
            return cells("    simulated GPU", width, "warn")
        return super().title_of(column, width)

    def _row(self, index: int, sized: Sequence[Sized[GpuState]]) -> Line:
        """Draw a row; a lost GPU shows the reason instead of numbers."""
        gpu = self.rows[index]
        lost, (_, width) = gpu.info.lost_because, sized[0]
        if lost is None:
            return super()._row(index, sized)
        room = sum(size for _, size in sized) - width
        why = (TextRun("lost: ", "bad"), TextRun(lost, "faint"))
        return (*self._named(gpu, width), *fit(why, room))

    def _place(self, gpu: GpuState) -> tuple[str, float]:
        """Return a sort key: host, then driver index; slices follow their GPU."""
        number = self._numbers[gpu.source]
        whole, _, part = number.partition(".")
        place = float(whole) if whole.isdecimal() else 1e6
        return gpu.info.host or "", place + (int(part or -1) + 1) / 1_000

    def _named(self, gpu: GpuState, width: int) -> Line:
        """Draw a GPU's name; the engine's own GPUs are marked."""
        glyph, ink = ("✖", "bad") if gpu.info.lost_because else MARKS[gpu.watched]
        profile = gpu.info.profile
        named = f"MIG {profile}" if profile else called(gpu)
        digits = max(2, *map(len, self._numbers.values()))
        text = f"{self._numbers[gpu.source]:>{digits}} {named}"
        cell = cells(text, max(width - 3, 0), _ink(gpu))
        return TextRun(f" {glyph} ", ink), cell
