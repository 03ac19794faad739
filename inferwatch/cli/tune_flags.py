"""The flags of ``inferwatch tune`` by heading: its own, and those of a load's plan."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import click

from inferwatch.cli.load_flags import ALLOW_LOAD, FILE, PLAN, plan_options
from inferwatch.cli.options import MOST_S, FiniteRange, name
from inferwatch.loadgen.plan.option import Heading
from inferwatch.studies.tune.goal import Goal

SECONDS_IN = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}
LOAD = {
    *("--duration", "--model", "--slo", "--warmup"),
    *("--insecure", "--http2", "--transport"),
}
"""Flags of a load that a tune has in another form or does not need, as the engine is
its own or on this host."""


class DurationParam(click.ParamType[float]):
    """A duration such as ``30``, ``30s``, ``20min`` or ``2h``, in seconds."""

    name = "span"

    def convert(
        self,
        value: Any,  # noqa: ANN401 - click's
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Refuse what is no duration, or no usable one."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([a-z]*)", str(value).strip())
        if match is None or match[2] not in SECONDS_IN:
            self.fail(f"{value!r} is no span of time: write 30s, 20min or 2h")
        span_s = float(match[1]) * SECONDS_IN[match[2]]
        if not 0 < span_s <= MOST_S:
            self.fail(f"{value!r} is no usable span of time", param, ctx)
        return span_s


def _load(heading: Heading) -> list[click.Option]:
    """Return the flags of a load under a heading, without those in LOAD."""
    options = plan_options(heading)
    return [each for each in options if not LOAD & set(each.opts)]


SEARCH = [
    click.Option(
        ["--vary"],
        multiple=True,
        metavar="FLAG=VALUES",
        help="A flag of `vllm serve` and the values to try, as max-num-seqs=8,16,32; "
        "of a switch, on and off; `default` leaves a flag out. May be repeated.",
    ),
    click.Option(
        ["--goal"],
        type=click.Choice([each.value for each in Goal]),
        help="What is best. goodput: most good requests per second, of --slo. tokens: "
        "most output tokens per second. latency: least TTFT p99. cost: cheapest good "
        "tokens, of --gpu-hour. knee: highest rate that meets --slo, found anew for "
        "each setting.  [default: goodput with --slo, else tokens]",
    ),
    click.Option(
        ["--slo"],
        metavar="LIMITS",
        help="Objectives, such as 'ttft_s<0.5 tpot_s<50ms'. A request is good when it "
        "meets them all.",
    ),
    click.Option(
        ["--repeats"],
        type=click.IntRange(1, 100),
        default=5,
        show_default=True,
        help="Measure the best settings, and the present one, so often at most.",
    ),
    click.Option(
        ["--trial", "trial_s"],
        type=DurationParam(),
        metavar="SPAN",
        help="How long each trial sends, after its warm-up.  [default: 30s; demo: 8s]",
    ),
    click.Option(
        ["--warmup", "warmup_s"],
        type=DurationParam(),
        metavar="SPAN",
        help="Send so long before anything is counted.  [default: a quarter of "
        "--trial, 5s at most]",
    ),
    click.Option(
        ["--budget", "budget_s"],
        type=DurationParam(),
        metavar="SPAN",
        help="Begin no trial that would end later than this, as 20min or 2h.",
    ),
    click.Option(
        ["--answers"],
        type=click.IntRange(0, 1_000),
        help="Ask N fixed prompts at temperature 0 at each setting, and say whether "
        "the answers are the same; only hashes are kept.  [default: 32 where a varied "
        "flag may change answers, else 0]",
    ),
    click.Option(
        ["--gpu-hour"],
        type=FiniteRange(0, min_open=True),
        metavar="PRICE",
        help="What an hour of one GPU costs, or of the host where there is none.",
    ),
    click.Option(["--currency"], metavar="TEXT", help="Of --gpu-hour.  [default: $]"),
]
RESULT = [
    click.Option(
        ["--json", "as_json"],
        is_flag=True,
        help="Print the result as one JSON object (implies --headless).",
    ),
    click.Option(
        ["--markdown"],
        is_flag=True,
        help="Print the result as Markdown (implies --headless).",
    ),
    click.Option(["--html"], type=FILE, help="Write the result as a page, too."),
    click.Option(
        ["--headless"], is_flag=True, help="No screen: a line for each trial."
    ),
    click.Option(
        ["--name"],
        metavar="TEXT",
        callback=name,
        help="Name the tune; its sessions have names of their own.",
    ),
    click.Option(
        ["--db", "database"],
        type=FILE,
        help="Record into this SQLite file.  [env: INFERWATCH_DB]",
    ),
]
RECORDED = [
    click.Option(["--list", "lists"], is_flag=True, help="List what was tuned."),
    click.Option(["--show"], metavar="ID", help="Show the result of a tune again."),
    click.Option(
        ["--resume"],
        metavar="ID",
        help="Go on with a tune that was interrupted or killed; its own options hold.",
    ),
]
SECTIONS: Mapping[str, Sequence[click.Option]] = {
    "What to try": SEARCH,
    Heading.WHEN: [PLAN, *_load(Heading.WHEN)],
    Heading.WHAT: _load(Heading.WHAT),
    Heading.HOW: [*_load(Heading.HOW), ALLOW_LOAD],
    "Result and record": RESULT,
    "Recorded tunes": RECORDED,
}
