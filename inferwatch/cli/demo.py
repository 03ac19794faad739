"""``inferwatch demo``: a small real engine under load, without a GPU."""

from dataclasses import replace

import click

from embedded_engine.probe_settings import ProbeSettings
from inferwatch.cli.options import (
    WATCH_HEADINGS,
    HeadedCommand,
    WatchOptions,
    probe_options,
    watch_options,
)
from inferwatch.cli.say import shows_screens

HEADLESS_S = 30.0
"""How long a headless demo runs by default."""


@click.command(
    cls=HeadedCommand,
    headings=WATCH_HEADINGS,
)
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- VLLM FLAGS]")
@watch_options
@probe_options
@click.option(
    "--seed", default=0, show_default=True, help="Seed of the load's schedule."
)
@click.option(
    "--sample",
    is_flag=True,
    help="Start no engine: replay the recording of this demo that ships with "
    "inferwatch.",
)
def demo(
    options: WatchOptions,
    probe: ProbeSettings,
    flags: tuple[str, ...],
    seed: int,
    sample: bool,
) -> int:
    """Watch a real vLLM engine on a tiny random model, under load.

    Needs no GPU and no download. The engine stops with the demo. Without a terminal
    it runs headless for 30 s and prints its summary. --sample needs no engine either:
    it plays a recorded session of real vLLM from where its load began.

    Flags of `vllm serve` may follow `--`, so that there is something to compare. With
    flags, the load is that of the newest demo on record that measured its own:

    \b
    inferwatch demo --name before --duration 60
    inferwatch demo --name after --duration 60 -- --max-num-seqs 4
    inferwatch compare before after
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    if flags and not flags[0].startswith("-"):
        raise click.UsageError(
            f"{flags[0]!r} is no flag of `vllm serve`: the demo has its own model; "
            "inferwatch serve MODEL serves another"
        )
    if sample and flags:
        raise click.UsageError("--sample starts no engine: leave out what follows --")
    if not shows_screens():
        options = replace(options, headless=True)
    if sample:
        return _show_sample(options)
    from inferwatch.cli.running.measure_peak import measure_once
    from inferwatch.cli.running.session import run_engine_watch
    from inferwatch.live.engine.demo import demo_load, demo_source, earlier_demo
    from inferwatch.record.file.location import default_database

    like, stage = None, None
    if flags:
        from inferwatch.studies.tune.flags import refuse_unknown

        refuse_unknown(flags)
        like = earlier_demo(options.database or default_database(), seed)
    if like is not None:
        stage = f"load of {like.session}: {like.rate_per_s:.2f} requests/s"
    if options.headless and options.duration_s is None:
        options = replace(options, duration_s=HEADLESS_S)
    source = demo_source(probe, flags)
    measure_once()  # before the engine starts, which it would disturb
    make_load = demo_load(seed, like)
    return run_engine_watch("demo", options, source, make_load, stage)


def _show_sample(options: WatchOptions) -> int:
    from inferwatch.cli.running.replay import (
        overrides_of,
        replay_headless,
        replay_on_screen,
    )
    from inferwatch.cli.running.replay_start import ReplayStart
    from inferwatch.sample import sample_file

    path, overrides = sample_file(), overrides_of(options.slo, options.prices)
    if options.headless:
        as_json = options.as_json
        return replay_headless(path, "last", None, as_json=as_json, overrides=overrides)
    return replay_on_screen(path, "last", ReplayStart(from_load=True), overrides)
