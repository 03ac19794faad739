"""What does the scheduler do?"""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual.binding import BindingType
from textual.widget import Widget

from collectors.clock import NS_PER_S
from collectors.readings import BoundBy, Step
from inferwatch.formatting import (
    bound_text,
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_durations,
    format_share,
)
from inferwatch.metrics.catalog import label_of
from inferwatch.metrics.snapshot import Snapshot, StepTotals
from inferwatch.ui.shared import charts
from inferwatch.ui.shared.chart_stack import CHART_BINDINGS, CHART_KEYS, ChartStack
from inferwatch.ui.shared.counted import step_facts
from inferwatch.ui.shared.drawers import COST_KEYS, catalog_keys
from inferwatch.ui.shared.hardware_charts import (
    HARDWARE_CHARTS,
    HARDWARE_KEYS,
    averaged_over_s,
    bytes_per_s_text,
    step_traffic,
)
from inferwatch.ui.shared.totals import Fact, TotalsPanel
from inferwatch.ui.shared.watch_screen import WatchScreen


class StepsScreen(WatchScreen):
    """Batch, step time, what binds; below, one step: the one here, or the slowest."""

    NAME = "steps"
    KEY = "3"
    LABEL = "Steps"
    QUESTION = "What does the scheduler do?"
    EXPLAINS = (
        *catalog_keys(
            "steps",
            "count batch_mean batch_max duration_s share_by_bound output_tokens "
            "prefill_tokens recomputed_tokens gap_share share_by_graph padded_share",
        ),
        *catalog_keys("timeline", "batch_decode batch_prefill step_mean_s step_max_s"),
        *catalog_keys(
            "timeline",
            "bound_kv bound_seqs bound_tokens bound_deferred bound_other slowest_step",
        ),
        *HARDWARE_KEYS,
        *COST_KEYS,
    )
    KEYS = CHART_KEYS
    BINDINGS: ClassVar[list[BindingType]] = CHART_BINDINGS
    DEFAULT_CSS = """
    StepsScreen {
        #totals { height: 4; margin-top: 1; }
        #slowest { height: 4; }
        &.-traffic #slowest { height: 5; }
        &.-short #totals { margin: 0; }
        &.-untouched #slowest, &.-counted #slowest { display: none; }
        &.-counted #totals { height: 3; }
    }
    """

    WILL_SHOW = "batch, step time and what limits them, step by step"

    def compose_panels(self) -> Iterable[Widget]:
        """Totals, charts, the slowest step."""
        yield TotalsPanel(id="totals")
        yield ChartStack(
            (
                charts.BATCH,
                charts.STEP_TIME,
                charts.BOUND_BY,
                charts.TOKENS,
                *HARDWARE_CHARTS,
            )
        )
        yield TotalsPanel(id="slowest")

    def show_panels(self, shown: Snapshot) -> None:
        """Totals of the window, and one step."""
        window = f"steps of {shown.window.span}"
        self.set_class(shown.without_steps, "-counted")
        if shown.without_steps:
            counted = self.query_one("#totals", TotalsPanel)
            counted.show(
                window, "counted by the server, none told singly", step_facts(shown)
            )
            return
        self.query_one("#totals", TotalsPanel).show(window, "", _totals(shown.steps))
        title, step = self._one_step(shown)
        aside = ""
        if step is not None:
            aside = f"ended {self.feed.wall_text(step.end_ns, ms=True)}"
        traffic = _traffic(shown, self.view.bin_of(shown))
        if traffic:  # once it was there, its row stays
            self.add_class("-traffic")
        self.query_one("#slowest", TotalsPanel).show(
            title, aside, [*_facts(step), *([traffic] if traffic else [])]
        )

    def _one_step(self, shown: Snapshot) -> tuple[str, Step | None]:
        """The one a held view stands at; while time goes on the slowest of late."""
        if self.view.cursor_ns is None and self.is_held:
            return "the step here", shown.latest_step
        index, line = self.view.bin_of(shown), shown.timeline
        span = f"{line.bin_ns / NS_PER_S:g} s"
        if self.view.cursor_ns is None:
            where = f"of the last {span}" + (" before the loss" if line.lost_ns else "")
        else:
            where = f"of the {span} under the time cursor"
        if index is None:
            return f"slowest step {where}", None
        count = line.steps[index]
        among = f", of {counted(count, 'step')}" if count else ""
        return f"slowest step {where}{among}", line.slowest_step[index]


def _traffic(shown: Snapshot, index: int | None) -> Sequence[Fact]:
    """What memory moved for a step of this time: readings are longer than steps."""
    line = shown.timeline
    measured = any(each is not None for each in line.hbm_bytes_per_s)
    known = measured or any(line.derived_bytes_per_s)
    if index is None or not line.steps[index] or not known:
        return ()
    a_step = step_traffic(shown, index)
    derived = ("derived", format_bytes(a_step.derived), "")
    if not measured:
        return [("a step reads", "", "mean"), derived]
    over_s = averaged_over_s(shown)
    return [
        ("a step moves", "", "mean"),
        ("HBM", format_bytes(a_step.measured), ""),
        derived,
        ("at", bytes_per_s_text(line.hbm_bytes_per_s[index]), ""),
        *([] if over_s is None else [("mean of", f"{over_s:.3g} s", "")]),
    ]


def _totals(steps: StepTotals) -> Sequence[Sequence[Fact]]:
    names = ("mean", "p50", "p95", "p99", "max")
    texts = format_durations(getattr(steps.duration_s, name) for name in names)
    times = [(name, text, "") for name, text in zip(names, texts, strict=True)]
    bound = [
        (bound_text(bound), format_share(steps.share_by_bound.get(bound)), "")
        for bound in BoundBy
    ]
    return [
        [
            (label_of("steps.count"), format_count(steps.count), ""),
            (label_of("steps.batch_mean"), _mean(steps.batch_mean), "decode"),
            (label_of("steps.batch_max"), f"{steps.batch_max or '–'}", "decode"),
            (
                label_of("steps.output_tokens"),
                format_count(steps.output_tokens),
                "output",
            ),
            (
                label_of("steps.prefill_tokens"),
                format_count(steps.prefill_tokens),
                "prefill",
            ),
            (
                label_of("steps.recomputed_tokens"),
                format_count(steps.recomputed_tokens),
                "",
            ),
        ],
        [
            (f"{label_of('steps.duration_s')} time", "", "mean"),
            *times,
            (label_of("steps.gap_share"), format_share(steps.gap_share), ""),
        ],
        [(label_of("steps.share_by_bound"), "", "kv"), *bound],
    ]


def _facts(step: Step | None) -> Sequence[Sequence[Fact]]:
    if step is None:
        return [[("no step in this time", "", "faint")]]
    decode = _work(step.decode_requests, step.decode_tokens)
    prefill = _work(step.prefill_requests, step.prefill_tokens)
    return [
        [
            ("took", format_duration(step.duration_ns / NS_PER_S), "worst"),
            ("step", f"#{step.index:,}", ""),
            ("bound by", bound_text(step.bound_by), "kv"),
            ("running", f"{step.running}", ""),
            ("waiting", f"{step.waiting}", "waiting"),
        ],
        [
            ("decode", decode, "decode"),
            ("prefill", prefill, "prefill"),
            _graph(step.graph_mode),
        ],
        [
            ("KV used", _blocks(step.kv_used_blocks), "kv"),
            ("idle-cached", _blocks(step.kv_cached_blocks), "cached"),
            ("free", counted(step.kv_free_blocks, "block"), ""),
            ("preempted", f"{len(step.preempted)}", ""),
            ("recomputed", counted(step.recomputed_tokens, "token"), ""),
        ],
    ]


def _mean(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _blocks(value: int | None) -> str:
    return format_count(value).strip()


def _graph(mode: str | None) -> Fact:
    """NONE is a step without one; unknown is where vLLM says nothing."""
    return ("no CUDA graph", "", "") if mode == "NONE" else ("graph", mode or "–", "")


def _work(requests: int, tokens: int) -> str:
    return f"{counted(requests, 'request')}, {counted(tokens, 'token')}"
