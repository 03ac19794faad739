"""``inferwatch tune``: measure settings of an engine to find the best."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from inferwatch.cli.load_options import ALLOW_LOAD, FILE, PLAN, plan_options
from inferwatch.cli.options import MOST_S, SectionedCommand, name
from inferwatch.cli.slo_options import FiniteRange
from inferwatch.loadgen.plan.option import Heading
from inferwatch.quantities import duration_s
from inferwatch.studies.tune.plan import Goal

BLAS_THREADS = "OPENBLAS_NUM_THREADS"


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit NumPy, if the context is the first to import it, to one BLAS thread.

    Where matrices are small, threads that wait for each other beside a busy engine make
    them slower, too. Processes that we start do not inherit the limit.
    """
    if BLAS_THREADS in os.environ:
        yield
        return
    os.environ[BLAS_THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[BLAS_THREADS]


UNUSED_LOAD_FLAGS = {
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
        """Refuse what is not a duration, or not a usable one."""
        span_s = duration_s(str(value))
        if span_s is None:
            self.fail(f"{value!r} is not a span of time: write 30s, 20min or 2h")
        if not 0 < span_s <= MOST_S:
            self.fail(f"{value!r} is not a usable span of time", param, ctx)
        return span_s


def _load(heading: Heading) -> list[click.Option]:
    """Return the flags of a load under a heading of ``--help`` that a tune uses."""
    options = plan_options(heading)
    return [each for each in options if not UNUSED_LOAD_FLAGS & set(each.opts)]


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
        help="The most times that the best settings and the present one are measured.",
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
    click.Option(["--force"], is_flag=True, help="Overwrite that file."),
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


@click.command(
    cls=SectionedCommand,
    sections=SECTIONS,
    context_settings={"ignore_unknown_options": False},
)
@click.argument("target", required=False, metavar="MODEL|URL|demo")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- VLLM FLAGS]")
def tune(target: str | None, flags: tuple[str, ...], **given: Any) -> int:  # noqa: ANN401 - click's
    """Find the best settings for MODEL: each is measured under the same load.

    An engine is started for MODEL, and started again where a flag asks for it;
    max-num-seqs and max-num-batched-tokens are turned while it runs. What follows `--`
    is the present setting, with which all others are compared. With the URL of an
    engine on this host that was started with control, those two are turned and nothing
    is restarted; at the end it is set as before.

    \b
    Try it, without a GPU:
      inferwatch tune demo --vary max-num-seqs=8,16,32
    How many requests a second can be good?
      inferwatch tune meta-llama/Llama-3.1-8B-Instruct --rate 12 \\
          --slo 'ttft_s<0.5 tpot_s<50ms' --vary max-num-seqs=32,64,128 \\
          --vary max-num-batched-tokens=2048,8192 -- --max-num-seqs 64
    Most tokens for 64 users at once, within two hours:
      inferwatch tune MODEL --goal tokens --concurrency 64 --budget 2h \\
          --vary enable-prefix-caching=on,off --vary block-size=16,32
    The traffic of a recorded session, and its cheapest setting:
      inferwatch tune MODEL --like production --goal cost --gpu-hour 2.5 \\
          --slo 'ttft_s<1' --vary kv-cache-dtype=auto,fp8 --answers 20
    An engine that runs, without a restart:
      inferwatch tune http://localhost:8000 --rate 5 --vary max-num-seqs=8,16,32
    It was interrupted, or killed:
      inferwatch tune --list
      inferwatch tune --resume ID

    Every setting gets the same requests at the same moments, after a warm-up that does
    not count, in random order; the present setting is measured again and again, so that
    a machine that drifts is seen. The best are repeated until their intervals no longer
    overlap, or --repeats is reached. A setting that does not start is a result, with
    its cause.

    Exit status: 0 a result, 1 nothing could be measured, 2 wrong usage, 3 no engine,
    130 interrupted (what was measured is shown, and --resume goes on).
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    with one_blas_thread():
        from inferwatch.cli.running.tune import run_tune
        from inferwatch.cli.running.tune_plan import TuneOptions

    names = TuneOptions.__dataclass_fields__.keys() & given.keys()
    own = {name: given.pop(name) for name in names}
    return run_tune(TuneOptions(target=target, flags=flags, fields=given, **own))
