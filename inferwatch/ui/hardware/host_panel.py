"""One host: cores, memory and the processes that matter."""

from collections.abc import Iterator, Sequence

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import (
    UNKNOWN,
    counted,
    format_bytes,
    format_duration,
    format_rate,
    format_share,
)
from inferwatch.metrics.hardware.hosts import HostState, ProcessState
from inferwatch.metrics.number import label_of, numbers
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.hardware.charts import ROLES
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.bars import gauge
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    cells,
    fit,
    join,
    join_whole,
    labelled,
    ruled,
)

LABEL = 8
ORDER = tuple(ROLES)
TITLES = 4
"""Rows above the processes."""
SUMMARY = 2
"""Height of the short form."""


class HostPanel(Panel):
    """Cores and memory as bars, then a row per process; or all in one short line."""

    _host: HostState | None = None
    _snapshot: Snapshot | None = None

    def show(self, host: HostState | None, snapshot: Snapshot) -> None:
        self._host, self._snapshot = host, snapshot
        self.redraw()

    @staticmethod
    def rows(host: HostState | None) -> int:
        """Return the height in which the panel shows everything."""
        return TITLES + max(len(host.processes), 1) if host else SUMMARY

    def draw(self, width: int, height: int) -> Sequence[Line]:
        host, snapshot = self._host, self._snapshot
        if snapshot is None:
            return ()
        if host is None:
            head = ruled((TextRun("host", "strong"),), (), width)
            return [head, (TextRun("  no sample yet", "faint"),)]
        head = ruled(_title(host), _age(host, snapshot), width)
        if height <= TITLES:
            return [head, _indented(_in_short(host), width)]
        bars = max(width // 2, 42) if width >= 76 else width - 3
        facts = [list(_scheduler(host)), list(_lags(host, snapshot))]
        rows = [_cores(host, bars), _memory(host, bars)]
        if width >= 76:
            rows = [
                (*row, TextRun("   "), *join_whole(fact, width - bars - 6, "   "))
                for row, fact in zip(rows, facts, strict=True)
            ]
        room = height - len(rows) - 2
        return [
            head,
            *(_indented(row, width) for row in rows),
            *_processes(host, width, room),
        ]


def _indented(line: Line, width: int) -> Line:
    return fit((TextRun("  "), *line), width)


def _title(host: HostState) -> Line:
    info = host.info
    name = host.source or (info.name if info else "")
    parts: list[Line] = [
        (TextRun("host", "strong"), TextRun(f" {name}" if name else ""))
    ]
    if info and info.cpu:
        parts.append((TextRun(info.cpu, "muted"),))
    return join(parts)


def _age(host: HostState, snapshot: Snapshot) -> Line:
    if host.last_ns is None:
        return (TextRun("no sample yet", "muted"),)
    age_s = max(snapshot.now_ns - host.last_ns, 0) / NS_PER_S
    ink = "warn" if age_s > 15 else "muted"
    return (TextRun(f"{age_s:.1f} s ago", ink),)


def _in_short(host: HostState) -> Line:
    facts: list[Line] = []
    if host.busy is not None:
        of = f" of {host.cores}" if host.cores else ""
        facts.append(labelled(label_of(HostState.cores), f"{host.busy:.1f}{of}"))
    facts += _scheduler(host)
    used = host.memory_used_bytes
    if used is not None:
        facts.append(
            labelled(label_of(HostState.memory_used_bytes), format_bytes(used).strip())
        )
    if host.api_loop_lag_s is not None:
        lag = format_duration(host.api_loop_lag_s).strip()
        facts.append(labelled(label_of(HostState.api_loop_lag_s), lag))
    return join(facts, "   ")


def _cores(host: HostState, width: int) -> Line:
    cores, busy = host.cores, host.busy
    now = UNKNOWN if busy is None else f"{busy:.2f}"
    text = f"{now} of {cores} " if cores else f"{now} "
    share = min(busy / cores, 1.0) if busy is not None and cores else None
    return _bar(label_of(HostState.cores), text, share, "cached", width)


def _memory(host: HostState, width: int) -> Line:
    used = host.memory_used_bytes
    total = host.info.memory_bytes if host.info else None
    now = UNKNOWN if used is None else format_rate(used / 1e9).strip()
    of = f" of {format_rate(total / 1e9).strip()}" if total else ""
    share = used / total if used is not None and total else None
    return _bar(
        label_of(HostState.memory_used_bytes), f"{now}{of} GB ", share, "decode", width
    )


SAID = 18
"""Cells of a number and its total."""


def _bar(label: str, text: str, share: float | None, ink: str, width: int) -> Line:
    text = text.ljust(SAID)
    room = max(width - LABEL - len(text) - 5, 0)
    return (
        TextRun(label.ljust(LABEL), "muted"),
        TextRun(text),
        *gauge(share, room, ink),
        TextRun(f" {format_share(share)}", "" if share is not None else "faint"),
    )


def _scheduler(host: HostState) -> Iterator[Line]:
    if host.run_queue is not None:
        over = host.cores is not None and host.run_queue > host.cores
        queue = counted(host.run_queue, "thread")
        yield labelled(
            label_of(HostState.run_queue),
            f"{queue}{' ▲' if over else ''}",
            "warn" if over else "",
        )
    throttled = sum(1 for each in host.processes if each.throttled)
    if throttled:
        yield (
            TextRun(
                f"▲ {counted(throttled, 'process', 'processes')} throttled", "warn"
            ),
        )


def _lags(host: HostState, snapshot: Snapshot) -> Iterator[Line]:
    lags = (
        (HostState.api_loop_lag_s, host.api_loop_lag_s),
        (HostState.own_loop_lag_s, host.own_loop_lag_s),
    )
    values = [(field, lag) for field, lag in lags if lag is not None]
    for field, lag in values:
        yield labelled(label_of(field), format_duration(lag).strip())
    if values:
        yield (TextRun(f"worst of {snapshot.window.label}", "muted"),)


def _processes(host: HostState, width: int, room: int) -> Iterator[Line]:
    """Yield a row a process, in the order in which a request passes them.

    The last row adds up those that have no room.
    """
    wide = width >= 70
    size = _bar_width(width)
    titles = f"{'process':<14}{'pid':>8}  {label_of(ProcessState.cpu_share):<{size}}"
    if wide:
        threads, memory, throttled = (
            each.label
            for each in numbers(
                ProcessState.threads, ProcessState.rss_bytes, ProcessState.throttled
            )
        )
        titles += f"{threads:>13}{memory:>10}{throttled:>11}"
    yield fit((TextRun(f"  {titles}", "muted"),), width)
    if not host.processes:
        yield (TextRun("  none is known", "faint"),)
        return
    listed = sorted(host.processes, key=_place)
    full = max(1.0, *(each.cpu_share or 0.0 for each in listed))
    cut = len(listed) > room
    for each in listed[: room - cut]:
        yield _indented(_process(each, full, width), width)
    if cut:
        rest = listed[room - cut :]
        shares = [each.cpu_share for each in rest if each.cpu_share is not None]
        text = f"and {len(rest)} more, {format_share(sum(shares)).strip()} of a core"
        yield _indented((TextRun(text, "muted"),), width)


def _bar_width(width: int) -> int:
    return max(min(width - 68, 60), 6) if width >= 70 else 10


def _place(process: ProcessState) -> tuple[int, int]:
    has_place = process.role in ORDER
    return (ORDER.index(process.role) if has_place else len(ORDER), process.pid)


def _process(process: ProcessState, full: float, width: int) -> Line:
    """Draw a process's CPU use; the bar ends at one core, or the busiest process."""
    name, _, ink = ROLES.get(process.role, (process.role, "", "other"))
    share = process.cpu_share
    size = _bar_width(width)
    line: Line = (
        cells(name, 14, ink),
        TextRun(f"{process.pid:>8}  "),
        *gauge(None if share is None else share / full, size, ink),
        TextRun(f"{format_share(share):>6}"),
    )
    if width < 70:
        return line
    threads = UNKNOWN if process.threads is None else f"{process.threads:,}"
    throttled = format_share(process.throttled).strip()
    return (
        *line,
        TextRun(f"{threads:>7}"),
        TextRun(f"{format_bytes(process.rss_bytes):>10}"),
        TextRun(f"{throttled:>11}", "warn" if process.throttled else "faint"),
    )
