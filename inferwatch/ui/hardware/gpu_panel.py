"""One GPU: memory bandwidth, SMs, power and memory."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap
from typing import NamedTuple

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import (
    UNKNOWN,
    format_figure,
    format_gigabytes,
    format_rate,
    format_share,
)
from inferwatch.metrics.hardware.view import GpuState, Hardware
from inferwatch.metrics.number import Number, label_of, number_of, numbers, numbers_in
from inferwatch.metrics.objectives.spending_view import Spending
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.hardware.charts import part_of
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.bars import gauge, split_bar
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    age_text,
    cells_of,
    fit,
    join,
    join_whole,
    labelled,
    pad,
    ruled,
    width_of,
)
from inferwatch.ui.widgets.counter_facts import MEAN
from inferwatch.visible import visible

PRACTICAL = 0.9
"""Share of peak bandwidth that large copies reach; DRAM refresh takes the rest."""
TWO_COLUMNS = 76
"""Least width for facts next to the bars; below it they go under them."""
MOST_ROWS = 4
"""Rows of a reason in place of bars."""
LABEL = 10
ROOMY = 56
"""Least width of the bars that also says what the value is a share of."""
WITH_MEANS = 60
"""Least width of the bars that also has means of the window."""
ROWS = 7
"""Heading, five bars and the legend of memory."""
NARROW_ROWS = 8
STALE_NS = 5 * NS_PER_S
"""A sample older than this and than twice its averaging time is stale."""
AVERAGES = {
    number_of(GpuState.hbm_bytes_per_s): "dram_active",
    number_of(GpuState.sm_active): "sm_active",
    number_of(GpuState.sm_occupancy): "sm_occupancy",
    number_of(GpuState.tensor_active): "tensor_active",
}
"""Bars: the field of a sample that each comes from."""
HBM, MEMORY = numbers(GpuState.hbm_bytes_per_s, GpuState.memory_used_bytes)
OF_WHOLE = f"{UNKNOWN} (of the whole GPU)"
VIA = {"gpm": "GPM", "dcgm": "DCGM", "nvml": "NVML"}


def short_gpu_name(name: str | None) -> str:
    """Return a GPU's name without the maker.

    >>> short_gpu_name("NVIDIA H100 80GB HBM3"), short_gpu_name(None)
    ('H100 80GB HBM3', 'GPU')
    """
    return (name or "GPU").removeprefix("NVIDIA ").removeprefix("GeForce ")


class GpuPanel(Panel):
    """Bars on the left, facts on the right; unavailable values give the reason."""

    DEFAULT_CSS = """
    GpuPanel { height: 7; }
    """

    _gpu: GpuState | None = None
    _snapshot: Snapshot | None = None

    def show(self, gpu: GpuState | None, snapshot: Snapshot) -> None:
        self._gpu, self._snapshot = gpu, snapshot
        self.grey = gpu is not None and gpu.info.lost_because is not None
        self.redraw()

    @staticmethod
    def rows(width: int) -> int:
        return ROWS if width >= TWO_COLUMNS else NARROW_ROWS

    def draw(self, width: int, height: int) -> Sequence[Line]:
        del height
        gpu, snapshot = self._gpu, self._snapshot
        if gpu is None or snapshot is None:
            return ()
        number = numbers_of(snapshot.gpus).get(gpu.source, UNKNOWN)
        head = ruled(_title(gpu, number), _measured(gpu, snapshot), width)
        if width < TWO_COLUMNS:
            facts = list(_facts(gpu, snapshot, width - 2))
            below = join_whole(facts[0], width - 2), join_whole(facts[2], width - 2)
            bars = _bars(gpu, width - 3)
            split = _memory(gpu, snapshot, width - 3)[0]
            rows = [*bars, split, *below]
            return [head, *((TextRun("  "), *row) for row in rows)]
        left = max(width // 2, 42)
        right = width - left - 6
        bars = [*_bars(gpu, left), *_memory(gpu, snapshot, left)]
        return [
            head,
            *(
                fit((TextRun("  "), *pad(bar, left), TextRun("   "), *fact), width)
                for bar, fact in zip(
                    bars,
                    (_whole(each, right) for each in _facts(gpu, snapshot, right)),
                    strict=True,
                )
            ),
        ]


def _whole(facts: Sequence[Line], width: int) -> Line:
    """Return as many facts as fit uncut, at least the first."""
    return join_whole(facts, width, "  ") or fit(facts[0] if facts else (), width)


def numbers_of(gpus: Iterable[GpuState]) -> dict[str, str]:
    """Return GPU numbers by source: 0, 1, and 1.0 for the first MIG slice of GPU 1."""
    numbers: dict[str, str] = {}
    slices: Counter[str] = Counter()
    listed = list(gpus)
    indexes = {each.source: each.info.index for each in listed}
    for each in listed:
        parent, index = each.info.parent_uuid, each.info.index
        if parent is not None and index is None:
            index = indexes.get(parent)
        number = UNKNOWN if index is None else f"{index}"
        if parent is not None:
            number, slices[parent] = f"{number}.{slices[parent]}", slices[parent] + 1
        numbers[each.source] = number
    return numbers


def called(gpu: GpuState) -> str:
    """Return a GPU's model, and the profile if it is a MIG slice."""
    name, profile = short_gpu_name(gpu.info.name), gpu.info.profile
    if profile is None or profile in name:
        return name
    return f"{name} MIG {profile}"


def _title(gpu: GpuState, number: str) -> Line:
    info = gpu.info
    parts: list[Line] = [
        (TextRun(f"GPU {number}", "strong"), TextRun(f" {called(gpu)}"))
    ]
    if gpu.is_simulated:
        parts[0] = (TextRun("simulated ", "warn bold"), *parts[0])
    if info.host:
        parts.append((TextRun(f"on {info.host}", "muted"),))
    if info.lost_because:
        parts.append((TextRun("✖ lost", "bad bold"),))
    elif gpu.watched is False:
        parts.append((TextRun("not the engine's", "muted"),))
    return join(parts)


def _measured(gpu: GpuState, snapshot: Snapshot) -> Line:
    """Return where a GPU's values come from, their averaging time and age."""
    if gpu.last_ns is None:
        return (TextRun("no sample yet", "muted"),)
    who = VIA.get(gpu.via or "nvml", gpu.via or "")
    span_s = gpu.span_s
    mean = f" {MEAN} {span_s:.2g} s" if span_s is not None and gpu.via else ""
    age_ns = max(snapshot.now_ns - gpu.last_ns, 0)
    stale = age_ns > max(STALE_NS, 2 * (span_s or 0) * NS_PER_S)
    ago = f"{age_ns / NS_PER_S:.1f} s" if age_ns < 10 * NS_PER_S else ""
    return (
        TextRun(f"{who}{mean}, ", "muted"),
        TextRun(
            f"{ago or age_text(age_ns / NS_PER_S)} ago", "warn" if stale else "muted"
        ),
    )


class Bar(NamedTuple):
    """A labelled share, drawn as a bar."""

    number: Number
    share: float | None
    ink: str
    value: str = ""
    """Text in front of the bar."""
    mean: float | None = None
    mark: float | None = None


def _bars(gpu: GpuState, width: int) -> Sequence[Line]:
    """Return bars of HBM, SM, occupancy and tensor cores, or why they are unknown.

    They have four rows.
    """
    lost = gpu.info.lost_because
    rows = _sentence("lost", lost, width) if lost else []
    traffic = _traffic(gpu, width)
    bars = (
        Bar(HBM, gpu.hbm_share, "mean", traffic, gpu.hbm_share_mean, PRACTICAL),
        Bar(
            number_of(GpuState.sm_active),
            gpu.sm_active,
            "output",
            mean=gpu.sm_active_mean,
        ),
        Bar(number_of(GpuState.sm_occupancy), gpu.sm_occupancy, "cached"),
        Bar(number_of(GpuState.tensor_active), gpu.tensor_active, "prefill"),
    )
    why = {bar: gpu.info.missing.get(AVERAGES[bar.number]) for bar in bars}
    reasons = {reason for reason in why.values() if reason}
    if len(reasons) == 1 and all(bar.share is None for bar in bars):
        rows += _sentence(HBM.label, reasons.pop(), width)
    else:
        rows += [_bar_or_reason(bar, why[bar], width) for bar in bars]
    return [*rows, (), (), ()][:4]


def _bar_or_reason(bar: Bar, why: str | None, width: int) -> Line:
    """Draw a bar, or say why its value is unknown."""
    if bar.share is None and why:
        return fit(_labelled(bar.number.label, (TextRun(why, "faint"),)), width)
    return _bar(bar, width)


def _sentence(label: str, why: str, width: int) -> list[Line]:
    """Wrap a reason into at most as many rows as the bars have."""
    folded = wrap(visible(why), max(width - LABEL, 10), break_on_hyphens=False)
    if len(folded) > MOST_ROWS:
        folded = [*folded[: MOST_ROWS - 1], f"{folded[MOST_ROWS - 1]}…"]
    labels = (label, *[""] * MOST_ROWS)
    return [
        fit(_labelled(name, (TextRun(text, "faint"),)), width)
        for name, text in zip(labels, folded, strict=False)
    ]


def _labelled(label: str, line: Iterable[TextRun]) -> Line:
    return (TextRun(label.ljust(LABEL), "muted"), *line)


def _traffic(gpu: GpuState, width: int) -> str:
    peak = gpu.info.peak_bytes_per_s
    if peak is None and gpu.hbm_bytes_per_s is None:
        return ""
    now = format_gigabytes(gpu.hbm_bytes_per_s).strip()
    if width < ROOMY or peak is None:
        return f"{now:>5} GB/s"
    return f"{now:>5} of {format_gigabytes(peak).strip():>5} GB/s"


def _value_width(width: int) -> int:
    """Return how many cells stand in front of each bar, so that bars are aligned."""
    return 20 if width >= ROOMY else 11


def _bar(bar: Bar, width: int) -> Line:
    text, share = bar.value.ljust(_value_width(width)), bar.share
    after = ""
    if width >= WITH_MEANS:
        is_known = bar.mean is not None
        after = f" {MEAN}{format_share(bar.mean)}" if is_known else " " * 6
    room = max(width - LABEL - cells_of(text) - 5 - cells_of(after), 0)
    return _labelled(
        bar.number.label,
        (
            TextRun(text),
            *gauge(share, room, bar.ink, bar.mark),
            TextRun(f" {format_share(share)}", "" if share is not None else "faint"),
            TextRun(after, "muted"),
        ),
    )


def _memory(gpu: GpuState, snapshot: Snapshot, width: int) -> Sequence[Line]:
    """Return memory use as a bar of its parts, and their legend."""
    total, used = gpu.info.memory_bytes, gpu.memory_used_bytes
    why = gpu.info.missing.get("memory_used_bytes")
    if used is None and why:
        return (fit(_labelled(MEMORY.label, (TextRun(why, "faint"),)), width), ())
    if used is None or not total:
        return (_bar(Bar(MEMORY, None, "kv"), width), ())
    parts = list(_parts(gpu, snapshot, used))
    reserved = gpu.memory_reserved_bytes or 0
    of = f" of {_gb(total)}" if width >= ROOMY else ""
    text = f"{_gb(used):>5}{of} GB".ljust(_value_width(width))
    share = (used + reserved) / total
    room = max(
        width - LABEL - cells_of(text) - 5 - (6 if width >= WITH_MEANS else 0), 0
    )
    drawn = [(size / total, glyph, ink) for _, size, glyph, ink in parts]
    drawn.append((reserved / total, "╱", "faint"))
    bar = _labelled(
        MEMORY.label,
        (
            TextRun(text),
            *split_bar(drawn, room),
            TextRun(f" {format_share(min(share, 1.0))}"),
        ),
    )
    legend = [
        (TextRun(f"{glyph} ", ink), TextRun(f"{name} ", "muted"), TextRun(_gb(size)))
        for name, size, glyph, ink in parts
    ]
    if reserved:
        gone = TextRun(f"{label_of(GpuState.memory_reserved_bytes)} ", "muted")
        legend.append((TextRun("╱ ", "faint"), gone, TextRun(_gb(reserved))))
    free = max(total - used - reserved, 0)
    legend.append(
        (TextRun("░ ", "rule"), TextRun("free ", "muted"), TextRun(_gb(free)))
    )
    indent = LABEL if width >= ROOMY else 0
    return (bar, (TextRun(" " * indent), *join_whole(legend, width - indent)))


Part = tuple[str, int, str, str]
"""Name, bytes, glyph, colour."""


def _parts(gpu: GpuState, snapshot: Snapshot, used: int) -> Iterator[Part]:
    """Yield the parts of the used memory: weights, KV cache and the rest."""
    part, hardware = part_of(gpu, snapshot), snapshot.hardware
    weights = int((hardware.weight_bytes or 0) * part)
    kv = int((hardware.kv_bytes or 0) * part)
    if not (weights or kv) or weights + kv > used:
        yield ("used", used, "█", "kv")
        return
    if weights:
        yield ("weights", weights, "█", "decode")
    if kv:
        yield ("KV", kv, "⣿", "kv")
    yield ("other", used - weights - kv, "▒", "other")


def _gb(size: float) -> str:
    return format_rate(size / 1e9).strip()


def _facts(gpu: GpuState, snapshot: Snapshot, width: int) -> Iterator[Sequence[Line]]:
    """Yield a row each: power, energy, clocks, throttling, temperatures, links."""
    yield _lines(gpu, GpuState.power_w, "power_w", _power(gpu, width))
    yield _lines(gpu, GpuState.energy_j, "energy_mj", _energy(gpu, snapshot))
    yield _lines(gpu, GpuState.sm_clock_mhz, "sm_clock_mhz", _clocks(gpu))
    yield _lines(gpu, GpuState.throttled, "throttle_reasons", _throttled(gpu, snapshot))
    yield _lines(gpu, GpuState.temperature_c, "temperature_c", _temperatures(gpu))
    yield _lines(gpu, GpuState.pcie_tx_bytes_per_s, "pcie_tx_bytes_per_s", _links(gpu))


def _lines(
    gpu: GpuState, what: object, field: str, facts: Iterable[Line]
) -> Sequence[Line]:
    """Return the known facts; if there are none, why ``field`` is unknown."""
    lines = [each for each in facts if each]
    if lines:
        return lines
    otherwise = UNKNOWN if gpu.info.parent_uuid is None else OF_WHOLE
    return [labelled(label_of(what), gpu.info.missing.get(field, otherwise), "faint")]


def _power(gpu: GpuState, width: int) -> Iterator[Line]:
    if gpu.power_w is None:
        return
    label, limit = label_of(GpuState.power_w), gpu.power_limit_w
    if not limit:
        yield labelled(label, f"{gpu.power_w:.0f} W")
        return
    share = gpu.power_w / limit
    text = labelled(label, f"{gpu.power_w:>4.0f} of {limit:.0f} W ")
    room = min(width - width_of(text) - 5, 12)
    bar = gauge(share, room, "waiting") if room >= 3 else ()
    yield (*text, *bar, TextRun(f" {format_share(share)}"))
    if gpu.power_w_mean is not None:
        yield (TextRun(f"{MEAN} {gpu.power_w_mean:.0f} W", "muted"),)


def _energy(gpu: GpuState, snapshot: Snapshot) -> Iterator[Line]:
    """Yield energy per token of all the engine's GPUs, then that of this one."""
    hardware = snapshot.hardware
    of_all = f" of all {hardware.gpus}" if hardware.gpus > 1 else ""
    for field, value, of in (
        (Hardware.joules_per_token, hardware.joules_per_token, of_all),
        (Hardware.tokens_per_s_per_w, hardware.tokens_per_s_per_w, ""),
    ):
        if value is not None and gpu.watched is not False:
            label = TextRun(f" {label_of(field)}{of}", "muted")
            yield (TextRun(format_rate(value).strip()), label)
    spending = snapshot.spending
    for number in numbers(
        Spending.joules_per_prefill_token, Spending.joules_per_decode_token
    ):
        joules = getattr(spending, number.name, None)
        if joules is not None and gpu.watched is not False:
            label = TextRun(f" {number.label}", "muted")
            yield (TextRun(format_figure(joules).strip()), label)
    if gpu.energy_j is not None:
        kilo = gpu.energy_j >= 1_000
        size = format_rate(gpu.energy_j / (1_000 if kilo else 1)).strip()
        yield labelled(label_of(GpuState.energy_j), f"{size} {'kJ' if kilo else 'J'}")


def _clocks(gpu: GpuState) -> Iterator[Line]:
    if gpu.sm_clock_mhz is not None:
        most = gpu.info.max_sm_clock_mhz
        of = f" of {most:,}" if most else ""
        yield labelled(
            label_of(GpuState.sm_clock_mhz), f"{gpu.sm_clock_mhz:>5,}{of} MHz"
        )
    if gpu.memory_clock_mhz is not None:
        yield labelled(label_of(GpuState.memory_clock_mhz), f"{gpu.memory_clock_mhz:,}")


def _throttled(gpu: GpuState, snapshot: Snapshot) -> Iterator[Line]:
    """Yield the share of the window throttled, by reason; marked if throttled now."""
    if gpu.last_ns is None or "throttle_reasons" in gpu.info.missing:
        return
    now = dict.fromkeys(gpu.throttle_reasons, 0.0)
    shares = {**now, **{name: each for name, each in gpu.throttled.items() if each}}
    reasons = sorted(shares.items(), key=lambda each: (each[0] not in now, -each[1]))
    label = label_of(GpuState.throttled)
    if not reasons and gpu.sm_clock_mhz is None:
        return
    if not reasons:
        yield (TextRun(f"not {label}", "muted"),)
        return
    for index, (name, share) in enumerate(reasons):
        mark = "▲ " if name in now else ""
        part = f" {format_share(share).strip()}" if share else ""
        head = () if index else (TextRun(f"{label} ", "muted"),)
        yield (*head, TextRun(f"{mark}{name}{part}", "warn"))
    if any(shares.values()):
        yield (TextRun(f"of {snapshot.window.label}", "muted"),)


def _temperatures(gpu: GpuState) -> Iterator[Line]:
    for label, degrees in (
        ("GPU", gpu.temperature_c),
        ("mem", gpu.memory_temperature_c),
    ):
        if degrees is not None:
            yield labelled(label, f"{degrees} °C")
    if gpu.ecc_uncorrected:
        label = label_of(GpuState.ecc_uncorrected)
        yield labelled(label, f"{gpu.ecc_uncorrected:,}", "bad")
    elif gpu.ecc_corrected:
        yield labelled(
            label_of(GpuState.ecc_corrected), f"{gpu.ecc_corrected:,}", "warn"
        )


def _links(gpu: GpuState) -> Iterator[Line]:
    """Yield link rates; without a measured bandwidth also how long memory was busy."""
    if gpu.hbm_share is None and gpu.memory_busy is not None:
        share = format_share(gpu.memory_busy).strip()
        yield (TextRun(f"{label_of(GpuState.memory_busy)} {share}", "faint"),)
    unit = " GB/s"
    for name, out, back in (
        ("PCIe", gpu.pcie_tx_bytes_per_s, gpu.pcie_rx_bytes_per_s),
        ("NVLink", gpu.nvlink_tx_bytes_per_s, gpu.nvlink_rx_bytes_per_s),
    ):
        if out is not None or back is not None:
            there, here = (format_gigabytes(each).strip() for each in (out, back))
            yield labelled(name, f"out {there} in {here}{unit}")
            unit = ""


def about_gpu(gpu: GpuState) -> Sequence[str]:
    """Return the model, the source of its peak and why values are unavailable."""
    info = gpu.info
    what = (info.name, info.architecture, info.pci_bus_id, info.uuid)
    driver = f"driver {info.driver}" if info.driver else None
    texts = [", ".join(each for each in (*what, driver) if each)]
    peak, sheet = info.peak_bytes_per_s, info.sheet_bytes_per_s
    if peak is not None:
        of = f" by {info.peak_from}" if info.peak_from else ""
        by_sheet = (
            f"; its data sheet says {format_gigabytes(sheet).strip()}" if sheet else ""
        )
        texts.append(
            f"Its memory could move ~{format_gigabytes(peak).strip()} GB/s{of}"
            f"{by_sheet}. The mark in the bar is at 90%: the most that large copies "
            "reach."
        )
    if info.lost_because:
        texts.append(f"Lost: {info.lost_because}")
    reasons: dict[str, list[str]] = {}
    catalog = {each.name: each for each in numbers_in(GpuState)}
    catalog |= {field: number for number, field in AVERAGES.items()}
    for field, why in info.missing.items():
        name = catalog[field].label if field in catalog else field.replace("_", " ")
        reasons.setdefault(why, []).append(name)
    texts += [f"{', '.join(names)}: {why}" for why, names in reasons.items()]
    return texts
