"""``inferwatch tune``: measure settings of an engine to find the best."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from inferwatch.cli.load import LoadCommand

BLAS_THREADS = "OPENBLAS_NUM_THREADS"


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    """Limit NumPy, which the options import, to one BLAS thread.

    The matrices are small: beside a busy engine, threads that wait for each other make
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


class TuneCommand(LoadCommand):
    """Its options come from the plan of a load, so they are made on first use."""

    @staticmethod
    def _sections() -> Mapping[str, Sequence[click.Option]]:
        with _one_blas_thread():
            from inferwatch.cli.tune_flags import SECTIONS

        return SECTIONS


@click.command(
    cls=TuneCommand,
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
    from inferwatch.cli.tune_command import run_tune
    from inferwatch.cli.tune_options import TuneOptions

    names = TuneOptions.__dataclass_fields__.keys() & given.keys()
    own = {name: given.pop(name) for name in names}
    return run_tune(TuneOptions(target=target, flags=flags, fields=given, **own))
