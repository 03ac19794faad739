"""``inferwatch tune``: measure settings of an engine to find the best."""

import asyncio
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from inferwatch.cli.load_options import (
    ALLOW_LOAD,
    FILE,
    PLAN,
    headers_of,
    plan_options,
)
from inferwatch.cli.options import MOST_S, FiniteRange, SectionedCommand, name
from inferwatch.cli.running.signals import interrupts
from inferwatch.cli.running.tune_plan import TuneOptions, tune_plan
from inferwatch.cli.running.tune_record import list_tunes, recorded_tune
from inferwatch.cli.say import (
    say,
    say_coloured,
    say_json,
    say_no_more,
    say_now,
    shows_screens,
)
from inferwatch.errors import UsageError
from inferwatch.formatting import format_about, format_duration, format_rate
from inferwatch.live.engine_source import require_vllm
from inferwatch.loadgen.plan.option import Heading
from inferwatch.printing.destination import Destination
from inferwatch.printing.page import write_page
from inferwatch.printing.text import painter
from inferwatch.quantities import duration_s
from inferwatch.record.file.location import default_database
from inferwatch.studies.tune.plan import Goal
from inferwatch.studies.tune.progress import (
    TuneEnded,
    TuneProgress,
    TuneStage,
    TuneTask,
)
from inferwatch.studies.tune.result.as_json import tune_json
from inferwatch.studies.tune.result.printed import tune_markdown, tune_page, tune_text
from inferwatch.studies.tune.result.scores import trial_text
from inferwatch.studies.tune.running.run import TuneRun
from inferwatch.studies.tune.trial import Trial
from inferwatch.visible import visible

INTERRUPTED = 130
"""The exit status of a program that Ctrl-C ended."""


def print_result(task: TuneEnded, options: TuneOptions) -> int:
    """Print the result and write the page if asked, and return the exit status.

    Raises:
        UsageError: the page cannot be written.
    """
    now, plan = task.progress, task.plan
    result = now.result
    if result is None:
        say(f"tune {now.tune_id}: nothing was measured", err=True)
    elif options.as_json:
        facts = {"outcome": task.outcome, **tune_json(result, plan, now.trials)}
        say_json(facts)
    elif options.markdown:
        say(tune_markdown(result, plan))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 80
        say_coloured(tune_text(result, plan, width, painter()))
    if result is not None and options.html is not None:
        page = Destination(path=options.html, force=True)
        write_page(tune_page(result, plan, now.trials), page)
    _say_where(task)
    if task.outcome == "interrupted":
        return INTERRUPTED
    return int(result is None or result.best is None)


def _say_where(task: TuneEnded) -> None:
    """Print to stderr where it is recorded, and how to continue an unfinished tune."""
    tune_id = task.progress.tune_id
    if task.outcome == "done":
        text = f"recorded as tune {tune_id}: `inferwatch tune --show {tune_id}`"
    else:
        goes_on = f"continue with `inferwatch tune --resume {tune_id}`"
        text = f"tune {tune_id} {task.outcome}; {goes_on}"
    say(f"inferwatch: {text}", err=True)


LIVE_S = 0.25
LINES_S = 0.5
"""Intervals between two updates, on a terminal and elsewhere."""
BAR_CELLS = 16


@contextmanager
def shown_tune(task: TuneTask) -> Iterator[None]:
    """Show the progress of a tune while the context lasts."""
    log = TuneLog(task)
    showing = asyncio.create_task(log.show())
    try:
        yield
    finally:
        showing.cancel()
        log.tell()


class TuneLog:
    """Prints each trial and each message of a tune once."""

    def __init__(self, task: TuneTask) -> None:
        self._task = task
        self._live_line = sys.stderr.isatty()
        self._trials = 0
        self._last_message: str | None = None

    async def show(self) -> None:
        """Print updates until cancelled."""
        while True:
            self.tell(live=self._live_line)
            await asyncio.sleep(LIVE_S if self._live_line else LINES_S)

    def tell(self, *, live: bool = False) -> None:
        """Print what is new, and on a terminal what is under way."""
        now = self._task.progress
        lines = [*self._sentences(now), *self._new_trials(now)]
        if lines and self._live_line:
            say_no_more()
        for line in lines:
            say(line, err=True)
        if live and now.stage is not TuneStage.DONE:
            say_now(stage_line(now))
        elif self._live_line:
            say_no_more()

    def _new_trials(self, now: TuneProgress) -> Iterator[str]:
        fresh, self._trials = now.trials[self._trials :], len(now.trials)
        for trial in fresh:
            if trial.record.number > now.earlier:
                yield trial_line(trial, now)

    def _sentences(self, now: TuneProgress) -> Iterator[str]:
        """Yield messages that are new; the tune itself keeps only the latest."""
        messages = list(now.said)
        start = 0
        if self._last_message in messages:
            start = len(messages) - messages[::-1].index(self._last_message)
        for text in messages[start:]:
            yield f"{format_duration(now.elapsed_s)}  {text}"
        if messages:
            self._last_message = messages[-1]


def trial_line(trial: Trial, now: TuneProgress) -> str:
    """Return a trial's result, and how long the tune will still take."""
    record, came = trial.record, trial_text(trial, now.goal)
    left = f"; {left_text(now)}" if left_text(now) else ""
    elapsed = format_duration(now.elapsed_s)
    return f"{elapsed}  #{record.number} {record.point.text}: {came}{left}"


def left_text(now: TuneProgress) -> str:
    """Return a text such as ``about 12 min left``; empty if that is unknown."""
    if now.left_s is None or now.stage is TuneStage.DONE:
        return ""
    return f"about {format_about(now.left_s)} left"


def stage_line(now: TuneProgress) -> str:
    """Return what is under way: stage, setting, and progress."""
    share = now.stage_share
    bar = ""
    if share is not None:
        filled = round(min(share, 1.0) * BAR_CELLS)
        bar = "━" * filled + "╌" * (BAR_CELLS - filled) + "  "
    at = f" {now.now.point.text}" if now.now else ""
    if now.rate_per_s is not None:
        at += f" at {format_rate(now.rate_per_s).strip()} requests/s"
    facts = [f"{now.stage}{at}", f"{now.stage_s:.0f} s", left_text(now)]
    return bar + "  ".join(each for each in facts if each)


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
        """Refuse what is no duration, or no usable one."""
        span_s = duration_s(str(value))
        if span_s is None:
            self.fail(f"{value!r} is no span of time: write 30s, 20min or 2h")
        if not 0 < span_s <= MOST_S:
            self.fail(f"{value!r} is no usable span of time", param, ctx)
        return span_s


def _load(heading: Heading) -> list[click.Option]:
    """Return the flags of a load under a heading, without those not used."""
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


@click.command(
    cls=SectionedCommand,
    sections=SECTIONS,
    context_settings={"ignore_unknown_options": False},
    short_help="Find the best settings of an engine, measured.",
)
@click.argument("target", required=False, metavar="MODEL|URL|demo")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- VLLM FLAGS]")
def tune(target: str | None, flags: tuple[str, ...], **given: Any) -> int:  # noqa: ANN401 - click's
    """Find the best settings for MODEL: each is measured under the same load.

    An engine is started for MODEL, and started again where a flag asks for it;
    max-num-seqs and max-num-batched-tokens are turned while it runs. What follows `--`
    is how it is set at present: all else is compared with that. With the URL of an
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

    Every point is measured with the same requests at the same moments, warm-up left
    out, in an order that is drawn; the present setting is measured again and again, so
    that a machine that drifts is seen. The best are repeated until their intervals part
    or --repeats is reached. A setting that does not start is a result, with its cause.

    Exit status: 0 a result, 1 nothing could be measured, 2 wrong usage, 3 no engine,
    130 interrupted (what was measured is told, and --resume goes on).
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    names = TuneOptions.__dataclass_fields__.keys() & given.keys()
    own = {name: given.pop(name) for name in names}
    return run_tune(TuneOptions(target=target, flags=flags, fields=given, **own))


def run_tune(options: TuneOptions) -> int:
    """Run the command, and return the exit status.

    Raises:
        InferwatchError: there is no engine, or the options cannot work.
    """
    refuse_unwritable(options.html)
    database = options.database or default_database()
    match options.recorded:
        case "--list":
            return list_tunes(database, as_json=options.as_json)
        case "--show":
            return print_result(recorded_tune(database, options.show or ""), options)
        case "--resume":
            task = resumed_tune(database, options)
        case _:
            task = new_tune(database, options)
    return carry_out(task, options)


def new_tune(database: Path, options: TuneOptions) -> TuneRun:
    plan = tune_plan(options)
    if plan.url is None:
        require_vllm()
    return TuneRun(
        plan,
        database,
        headers=headers_of(()) if plan.url else None,
        allow_load=options.allow_load,
    )


def resumed_tune(database: Path, options: TuneOptions) -> TuneRun:
    """Return a recorded tune, to be continued."""
    headers = headers_of(())
    return TuneRun.resumed(
        database, options.resume or "", headers=headers, allow_load=options.allow_load
    )


def carry_out(task: TuneTask, options: TuneOptions) -> int:
    """Run a tune, on the screen or headless, and return the exit status.

    Raises:
        InferwatchError: it could not be carried out.
    """
    on_screen = options.on_screen and shows_screens()
    try:
        if on_screen:
            from inferwatch.cli.running.on_screen import show_on_screen
            from inferwatch.cli.running.pages import tune_page
            from inferwatch.ui.terminal.terminal import terminal

            show_on_screen(tune_page(task, terminal().say))
        else:
            asyncio.run(_headless(task))
    except BaseException:
        if task.progress.result is not None and task.progress.trials:
            print_result(task, options)
        raise
    return print_result(task, options)


async def _headless(task: TuneTask) -> None:
    plan = task.plan
    say(f"tune {plan.tune_id} of {visible(plan.url or plan.model)}", err=True)
    with interrupts() as stop, shown_tune(task):
        await task.run(stop)


def refuse_unwritable(path: Path | None) -> None:
    """Refuse an unwritable page before hours of measuring."""
    if path is None:
        return
    place = path if path.exists() else path.absolute().parent
    if path.is_dir() or not place.exists() or not os.access(place, os.W_OK):
        raise UsageError(f"--html: {path} cannot be written")
