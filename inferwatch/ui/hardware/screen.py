"""The hardware screen: GPUs and hosts."""

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
from inferwatch.ui.frame.watch_keys import MOMENT_BINDINGS
from inferwatch.ui.frame.watch_screen import WatchScreen
from inferwatch.ui.hardware.charts import GPU_CHARTS, HOST_CHARTS
from inferwatch.ui.hardware.gpu_panel import GpuPanel, about_gpu
from inferwatch.ui.hardware.gpu_table import GpuTable
from inferwatch.ui.hardware.host_panel import SUMMARY, HostPanel
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, join_whole
from inferwatch.ui.messages import LookAgain
from inferwatch.ui.widgets.help_drawer import COST_NUMBERS, SPENDING_NUMBERS
from inferwatch.ui.widgets.time_chart import CHART_BINDINGS, CHART_KEYS, ChartStack
from inferwatch.visible import visible

NOT_YET = "not looked for yet"
MOST_ROWS = 2


class NoGpuLines(Panel):
    """Why there is no GPU, then the derived memory traffic."""

    _hardware = Hardware()

    def show(self, snapshot: Snapshot) -> None:
        self._hardware = snapshot.hardware
        self.redraw()

    def rows(self, width: int) -> int:
        return len(self._why(width)) + 1

    def draw(self, width: int, height: int) -> Sequence[Line]:
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
            split = f": weights {format_share(weights).strip()}, KV {kv}"
            yield (TextRun(split, "muted"),)


ONE_CHART, ALL_CHARTS, GOOD_CHARTS = 5, 16, 18
"""Rows for a chart and its axis, for all charts, and for those plus the host."""

ESCAPES = [
    each
    for each in MOMENT_BINDINGS
    if isinstance(each, Binding) and each.key == "escape"
]
"""Escape bindings of every screen, which a new one would replace."""


class HardwareScreen(WatchScreen):
    """A table of GPUs and one GPU in full; the host below, or in their place."""

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
    """One GPU is shown without the table."""
    _host: str | None = None
    """Source of the host shown in place of the GPUs."""
    _snapshot: Snapshot | None = None
    _closely = False
    """GPUs are sampled faster while this screen is visible."""

    def compose_panels(self) -> Iterable[Widget]:
        yield GpuTable()
        yield GpuPanel()
        yield NoGpuLines()
        yield HostPanel()
        yield ChartStack(GPU_CHARTS, id="gpu-charts")
        yield ChartStack(HOST_CHARTS, id="host-charts")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        snapshot = self._snapshot
        gpus = len(snapshot.gpus) if snapshot else 0
        hosts = len(snapshot.hosts) if snapshot else 0
        can = {
            "gpu": gpus > 1 and self._host is None,
            "open": gpus > 1 and self._host is None,
            "back": self.view.cursor_ns is None
            and (self._alone or self._host is not None),
            "host": hosts > 1 if not gpus else hosts > 0,
        }.get(action)
        return super().check_action(action, parameters) if can is None else can

    def on_screen_suspend(self) -> None:
        self._look_closely(on=False)

    def on_unmount(self) -> None:
        self._look_closely(on=False)

    def _look_closely(self, *, on: bool) -> None:
        if on != self._closely:
            self._closely = on
            self.feed.look_closely(on)

    def explanations(self) -> Mapping[str, Sequence[str]]:
        """Add to the help what is known of the GPU and why values are unavailable."""
        gpu, texts = self.gpu, super().explanations()
        return texts if gpu is None else {"this GPU": about_gpu(gpu), **texts}

    @property
    def gpu(self) -> GpuState | None:
        """The GPU under the table's cursor, which is shown in full."""
        return self.query_one(GpuTable).pointed

    def _host_of(self, snapshot: Snapshot) -> HostState | None:
        """Return the chosen host, else that of the GPU, else our own."""
        by_source = {each.source: each for each in snapshot.hosts}
        gpu = self.gpu
        source = self._host
        if source is None:
            source = (gpu.info.host or "") if gpu else ""
        host = by_source.get(source)
        if host is None and self._host is None and gpu is not None and source:
            return None
        return host or next(iter(snapshot.hosts), None)

    def charted(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot with only the GPU and the host that are shown."""
        gpu, host = self._in(snapshot), self._host_of(snapshot)
        gpus = (gpu,) if gpu is not None else ()
        return replace(snapshot, gpus=gpus, hosts=(host,) if host is not None else ())

    def _in(self, snapshot: Snapshot) -> GpuState | None:
        """Return the GPU shown as it is in a snapshot; None if it is not in it."""
        gpu = self.gpu
        same = (each for each in snapshot.gpus if gpu and each.source == gpu.source)
        return next(same, None)

    def show_panels(self, snapshot: Snapshot) -> None:
        before, self._snapshot = self._snapshot, snapshot
        playback = self.feed.playback
        live = playback is None or playback.at_live
        self._look_closely(on=live and self.is_current)
        self.query_one(GpuTable).show(snapshot.gpus)
        self.query_one(NoGpuLines).show(snapshot)
        self._show_chosen()
        if before is None or _extent(before) != _extent(snapshot):
            self.refresh_bindings()
            self.fit_height()
            self.call_after_refresh(self.post_message, LookAgain())

    def _show_chosen(self) -> None:
        snapshot = self._snapshot
        if snapshot is not None:
            self.query_one(GpuPanel).show(self.gpu, snapshot)
            self.query_one(HostPanel).show(self._host_of(snapshot), snapshot)

    def fit_height(self) -> None:
        """Lay out the GPU, then its charts, then the host, as far as there is room."""
        super().fit_height()
        snapshot = self._snapshot
        if snapshot is None:
            return
        room = self.body_rows
        several = len(snapshot.gpus) > 1
        hosts_only = not snapshot.gpus or self._host is not None
        self.set_class(not snapshot.gpus, "-no-gpu")
        self.set_class(hosts_only, "-host-charts")
        if hosts_only:
            for name in ("-several", "-gpu", "-gpu-charts"):
                self.remove_class(name)
            self._fit_host(snapshot, room)
            return
        table = 0
        if several and not self._alone:
            table = self._rows_of_table(snapshot)
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
        host = self._rows_of_host(snapshot, rest)
        self.set_class(bool(host), "-hosted")
        self.query_one(HostPanel).styles.height = host
        self._fit_charts("#gpu-charts", "-gpu-charts", rest - host)

    def _fit_host(self, snapshot: Snapshot, room: int) -> None:
        """Lay out the panel and charts of a host in place of those of GPUs."""
        lines = self.query_one(NoGpuLines)
        above = 0 if snapshot.gpus else lines.rows(self.size.width)
        lines.styles.height = above
        rows = HostPanel.rows(self._host_of(snapshot))
        least = min(rows, max(room - above - 2 * ONE_CHART + 2, SUMMARY))
        self.add_class("-hosted")
        self.query_one(HostPanel).styles.height = least
        self._fit_charts("#host-charts", "-host-charts", room - above - least)

    def _fit_charts(self, stack: str, name: str, room: int) -> None:
        self.set_class(room >= ONE_CHART - 1, name)
        self.query_one(stack, ChartStack).fit(only_one=room < ALL_CHARTS)

    def _rows_of_table(self, snapshot: Snapshot) -> int:
        hosts = {each.info.host for each in snapshot.gpus}
        return 1 + len(snapshot.gpus) + (len(hosts) if len(hosts) > 1 else 0)

    def _rows_of_host(self, snapshot: Snapshot, rest: int) -> int:
        """Return the host's rows: all beside all charts, few beside one, or 0."""
        host = self._host_of(snapshot)
        rows = HostPanel.rows(host)
        if host is None:
            return 0
        if rest - rows >= GOOD_CHARTS:
            return rows
        return SUMMARY if rest - SUMMARY >= 2 * ONE_CHART - 2 else 0

    def action_gpu(self, by: int) -> None:
        self.query_one(GpuTable).action_step(by)

    def action_open(self) -> None:
        """Show one GPU alone, or all."""
        self._alone = not self._alone
        self._look()

    def action_host(self) -> None:
        """Cycle through the GPU's host, other hosts and back to the GPUs."""
        snapshot = self._snapshot
        if snapshot is None:
            return
        of_gpu = self.gpu.info.host or "" if self.gpu else None
        hosts = [each.source for each in snapshot.hosts]
        first = hosts.index(of_gpu) if of_gpu in hosts else 0
        stops: list[str | None] = [*hosts[first:], *hosts[:first]]
        here = self._host
        if snapshot.gpus:
            stops.append(None)
        elif here is None:
            here = stops[0]
        at = stops.index(here) + 1 if here in stops else 0
        self._host = stops[at % len(stops)]
        self._look()

    def action_back(self) -> None:
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


def _extent(snapshot: Snapshot) -> tuple[object, ...]:
    """Return the values of a snapshot that the layout depends on."""
    return (
        tuple(each.source for each in snapshot.gpus),
        tuple((each.source, len(each.processes)) for each in snapshot.hosts),
        snapshot.hardware.no_gpu,
    )
