"""What does the hardware do?"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget

from inferwatch.formatting import format_bytes, format_share
from inferwatch.metrics.hardware.hosts import HostState, ProcessState
from inferwatch.metrics.hardware.view import GpuState, Hardware
from inferwatch.metrics.number import numbers
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.frame.watch_screen import MOMENT_BINDINGS, WatchScreen
from inferwatch.ui.hardware.charts import GPU_CHARTS, HOST_CHARTS
from inferwatch.ui.hardware.gpu_panel import GpuPanel, about_gpu
from inferwatch.ui.hardware.gpu_table import GpuTable
from inferwatch.ui.hardware.host_panel import SUMMARY, HostPanel
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, join_whole
from inferwatch.ui.messages import LookAgain
from inferwatch.ui.widgets.chart_stack import CHART_BINDINGS, CHART_KEYS, ChartStack
from inferwatch.ui.widgets.drawers import COST_NUMBERS, SPENDING_NUMBERS
from inferwatch.visible import visible

NOT_YET = "not looked for yet"
MOST_ROWS = 2


class NoGpuLines(Panel):
    """The reason in a row or two, then the traffic to memory, derived."""

    _hardware = Hardware()

    def show(self, shown: Snapshot) -> None:
        """Take the moment."""
        self._hardware = shown.hardware
        self.redraw()

    def rows(self, width: int) -> int:
        """How many it needs."""
        return len(self._why(width)) + 1

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The reason, the traffic."""
        del height
        first, *rest = self._why(width)
        return [
            (TextRun(" ○ no GPU  ", "muted"), TextRun(first)),
            *((TextRun(f"{' ' * 11}{each}"),) for each in rest),
            join_whole(self._traffic(), width, ""),
        ]

    def _why(self, width: int) -> Sequence[str]:
        why = visible(self._hardware.no_gpu or NOT_YET)
        rows = wrap(why, max(width - 12, 20), break_on_hyphens=False) or [""]
        if len(rows) > MOST_ROWS:
            return [*rows[: MOST_ROWS - 1], f"{rows[MOST_ROWS - 1][: width - 13]}…"]
        return rows

    def _traffic(self) -> Iterator[Line]:
        hardware = self._hardware
        rate = hardware.derived_bytes_per_s
        yield (TextRun("   memory  ", "muted"),)
        if rate is None:
            yield (TextRun("traffic is derived from steps: none yet", "faint"),)
            return
        yield (TextRun(f"≈ {format_bytes(rate).strip()}/s", "mean"),)
        yield (TextRun(" derived, not measured", "muted"),)
        weights = hardware.derived_weights_share
        if weights is not None:
            kv = format_share(1 - weights).strip()
            told = f": weights {format_share(weights).strip()}, KV {kv}"
            yield (TextRun(told, "muted"),)


AROUND_BODY = 6
"""Rows of every screen that are not its own."""
ONE_CHART, ALL_CHARTS, GOOD_CHARTS = 5, 16, 18
"""Rows for a chart and its axis, for all of them, for all of them and a host above."""

ESCAPES = [
    each
    for each in MOMENT_BINDINGS
    if isinstance(each, Binding) and each.key == "escape"
]
"""What the key does on every screen; one of ours would take their place."""


class HardwareScreen(WatchScreen):
    """GPUs as rows, one of them in full; the host below it, or in its place."""

    NAME = "hardware"
    KEY = "5"
    LABEL = "GPU+host"
    QUESTION = "What does the hardware do?"
    ADVISES = False
    NEEDS_HARDWARE = True
    EXPLAINS = (
        *numbers(
            GpuState.hbm_bytes_per_s,
            GpuState.hbm_share,
            GpuState.sm_active,
            GpuState.sm_occupancy,
            GpuState.tensor_active,
            GpuState.memory_busy,
            GpuState.power_w,
            GpuState.power_limit_w,
            GpuState.energy_j,
        ),
        *numbers(Hardware.joules_per_token, Hardware.tokens_per_s_per_w),
        *SPENDING_NUMBERS,
        *numbers(
            GpuState.sm_clock_mhz,
            GpuState.memory_clock_mhz,
            GpuState.throttled,
            GpuState.temperature_c,
            GpuState.memory_temperature_c,
            GpuState.ecc_corrected,
            GpuState.ecc_uncorrected,
            GpuState.memory_used_bytes,
            GpuState.memory_reserved_bytes,
        ),
        *numbers(
            Hardware.weight_bytes, Hardware.kv_bytes, Hardware.derived_bytes_per_s
        ),
        *numbers(
            GpuState.pcie_tx_bytes_per_s,
            GpuState.pcie_rx_bytes_per_s,
            GpuState.nvlink_tx_bytes_per_s,
            GpuState.nvlink_rx_bytes_per_s,
        ),
        *numbers(
            HostState.cores,
            HostState.run_queue,
            HostState.memory_used_bytes,
            HostState.api_loop_lag_s,
            HostState.own_loop_lag_s,
        ),
        *numbers(
            ProcessState.cpu_share,
            ProcessState.threads,
            ProcessState.rss_bytes,
            ProcessState.throttled,
        ),
        *COST_NUMBERS,
    )
    KEYS = (*CHART_KEYS, ("click", "on a GPU: look at it; twice: at it alone"))
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "up", "gpu(-1)", "GPU", key_display="↑ ↓", tooltip="Another GPU, or slice"
        ),
        Binding("down", "gpu(1)", "next GPU", show=False),
        Binding("enter", "open", "open", tooltip="This GPU alone, or all again"),
        Binding(
            "h", "host", "host", tooltip="The host, or the next one; then the GPUs"
        ),
        Binding("escape", "back", "back", show=False, tooltip="Back to all GPUs"),
        *ESCAPES,
        *CHART_BINDINGS,
    ]
    DEFAULT_CSS = """
    HardwareScreen {
        GpuTable, GpuPanel, NoGpuLines, HostPanel, ChartStack { display: none; }
        &.-several GpuTable, &.-gpu GpuPanel, &.-hosted HostPanel { display: block; }
        &.-gpu-charts #gpu-charts, &.-host-charts #host-charts { display: block; }
        &.-no-gpu NoGpuLines { display: block; }
        TimeChart { height: 2fr; }
        #chart-0 { height: 3fr; }
    }
    """

    _alone = False
    """One GPU is looked at, and no list of them."""
    _host: str | None = None
    """The host that is looked at in place of the GPUs, by its source."""
    _shown: Snapshot | None = None
    _closely = False
    """GPUs are read faster, for us."""

    def compose_panels(self) -> Iterable[Widget]:
        """GPUs, the one looked at, the host, and the charts of one or the other."""
        yield GpuTable()
        yield GpuPanel()
        yield NoGpuLines()
        yield HostPanel()
        yield ChartStack(GPU_CHARTS, id="gpu-charts")
        yield ChartStack(HOST_CHARTS, id="host-charts")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """No rows, no keys for them."""
        shown = self._shown
        gpus = len(shown.gpus) if shown else 0
        hosts = len(shown.hosts) if shown else 0
        can = {
            "gpu": gpus > 1 and self._host is None,
            "open": gpus > 1 and self._host is None,
            "back": self.view.cursor_ns is None
            and (self._alone or self._host is not None),
            "host": hosts > 1 if not gpus else hosts > 0,
        }.get(action)
        return super().check_action(action, parameters) if can is None else can

    def on_screen_suspend(self) -> None:
        """Nobody sees it."""
        self._look_closely(on=False)

    def on_unmount(self) -> None:
        """Nobody will."""
        self._look_closely(on=False)

    def _look_closely(self, *, on: bool) -> None:
        if on != self._closely:
            self._closely = on
            self.feed.look_closely(on)

    def explanations(self) -> Mapping[str, Sequence[str]]:
        """What the GPU is, and why what cannot be read of it."""
        gpu, told = self.gpu, super().explanations()
        return told if gpu is None else {"this GPU": about_gpu(gpu), **told}

    # What is looked at.

    @property
    def gpu(self) -> GpuState | None:
        """The GPU that is drawn in full."""
        return self.query_one(GpuTable).pointed

    def _host_of(self, shown: Snapshot) -> HostState | None:
        """The one that people chose, else that of the GPU, else ours."""
        by_source = {each.source: each for each in shown.hosts}
        gpu = self.gpu
        wanted = self._host
        if wanted is None:
            wanted = (gpu.info.host or "") if gpu else ""
        found = by_source.get(wanted)
        if found is None and self._host is None and gpu is not None and wanted:
            return None
        return found or next(iter(shown.hosts), None)

    def charted(self, shown: Snapshot) -> Snapshot:
        """The GPU and the host that are looked at are the only ones to the charts."""
        gpu, host = self._in(shown), self._host_of(shown)
        gpus = (gpu,) if gpu is not None else ()
        return replace(shown, gpus=gpus, hosts=(host,) if host is not None else ())

    def _in(self, shown: Snapshot) -> GpuState | None:
        """The GPU that is looked at, as that snapshot has it."""
        gpu = self.gpu
        same = (each for each in shown.gpus if gpu and each.source == gpu.source)
        return next(same, None)

    # Drawing.

    def show_panels(self, shown: Snapshot) -> None:
        """The GPUs, the one looked at, its host."""
        before, self._shown = self._shown, shown
        playback = self.feed.playback
        live = playback is None or playback.at_live
        self._look_closely(on=live and self.is_current)
        self.query_one(GpuTable).show(shown.gpus)
        self.query_one(NoGpuLines).show(shown)
        self._show_chosen()
        if before is None or _extent(before) != _extent(shown):
            self.refresh_bindings()
            self.fit_height()
            self.call_after_refresh(self.post_message, LookAgain())

    def _show_chosen(self) -> None:
        shown = self._shown
        if shown is not None:
            self.query_one(GpuPanel).show(self.gpu, shown)
            self.query_one(HostPanel).show(self._host_of(shown), shown)

    def fit_height(self) -> None:
        """The GPU first, then its charts, then the host; what has no room goes."""
        super().fit_height()
        shown = self._shown
        if shown is None:
            return
        room = self._room()
        several = len(shown.gpus) > 1
        hosts_only = not shown.gpus or self._host is not None
        self.set_class(not shown.gpus, "-no-gpu")
        self.set_class(hosts_only, "-host-charts")
        if hosts_only:
            for name in ("-several", "-gpu", "-gpu-charts"):
                self.remove_class(name)
            self._fit_host(shown, room)
            return
        table = 0
        if several and not self._alone:
            table = self._rows_of_table(shown)
        panel = GpuPanel.rows(self.size.width)
        both = room - table - panel >= ONE_CHART or not table
        if not both:
            panel = 0
            table = min(table, room)
        rest = room - table - panel
        self.set_class(bool(table), "-several")
        self.set_class(bool(panel), "-gpu")
        self.query_one(GpuTable).styles.height = table
        self.query_one(GpuPanel).styles.height = panel
        host = self._rows_of_host(shown, rest)
        self.set_class(bool(host), "-hosted")
        self.query_one(HostPanel).styles.height = host
        self._fit_charts("#gpu-charts", "-gpu-charts", rest - host)

    def _fit_host(self, shown: Snapshot, room: int) -> None:
        """Of a host in place of GPUs."""
        lines = self.query_one(NoGpuLines)
        above = 0 if shown.gpus else lines.rows(self.size.width)
        lines.styles.height = above
        wanted = HostPanel.rows(self._host_of(shown))
        least = min(wanted, max(room - above - 2 * ONE_CHART + 2, SUMMARY))
        self.add_class("-hosted")
        self.query_one(HostPanel).styles.height = least
        self._fit_charts("#host-charts", "-host-charts", room - above - least)

    def _fit_charts(self, stack: str, name: str, room: int) -> None:
        self.set_class(room >= ONE_CHART - 1, name)
        self.query_one(stack, ChartStack).fit(only_one=room < ALL_CHARTS)

    def _rows_of_table(self, shown: Snapshot) -> int:
        hosts = {each.info.host for each in shown.gpus}
        return 1 + len(shown.gpus) + (len(hosts) if len(hosts) > 1 else 0)

    def _rows_of_host(self, shown: Snapshot, rest: int) -> int:
        """In full beside all charts, in short beside one, else not at all."""
        host = self._host_of(shown)
        wanted = HostPanel.rows(host)
        if host is None:
            return 0
        if rest - wanted >= GOOD_CHARTS:
            return wanted
        return SUMMARY if rest - SUMMARY >= 2 * ONE_CHART - 2 else 0

    def _room(self) -> int:
        """Rows of the body."""
        body = self.query_one("#body")
        return body.size.height or self.size.height - AROUND_BODY

    # Keys and clicks.

    def action_gpu(self, by: int) -> None:
        """Another GPU."""
        self.query_one(GpuTable).action_step(by)

    def action_open(self) -> None:
        """One alone, or all."""
        self._alone = not self._alone
        self._look()

    def action_host(self) -> None:
        """The GPU's host in its place, then the other ones, then the GPUs again."""
        shown = self._shown
        if shown is None:
            return
        of_gpu = self.gpu.info.host or "" if self.gpu else None
        hosts = [each.source for each in shown.hosts]
        first = hosts.index(of_gpu) if of_gpu in hosts else 0
        stops: list[str | None] = [*hosts[first:], *hosts[:first]]
        here = self._host
        if shown.gpus:
            stops.append(None)
        elif here is None:
            here = stops[0]
        at = stops.index(here) + 1 if here in stops else 0
        self._host = stops[at % len(stops)]
        self._look()

    def action_back(self) -> None:
        """All GPUs again."""
        self._alone, self._host = False, None
        self._look()

    def _look(self) -> None:
        self.refresh_bindings()
        self._show_chosen()
        self.fit_height()
        self.call_after_refresh(self.post_message, LookAgain())

    @on(GpuTable.RowHighlighted)
    def _follow(self) -> None:
        self._show_chosen()
        self.post_message(LookAgain())

    @on(GpuTable.RowSelected)
    def _look_at_one(self) -> None:
        self.action_open()


def _extent(shown: Snapshot) -> tuple[object, ...]:
    """What the layout follows from."""
    return (
        tuple(each.source for each in shown.gpus),
        tuple((each.source, len(each.processes)) for each in shown.hosts),
        shown.hardware.no_gpu,
    )
