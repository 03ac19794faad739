"""``inferwatch doctor``: check what can be measured here, and what would help."""

import click

from inferwatch.cli.options import dcgm


@click.command()
@click.option(
    "--dcgm",
    multiple=True,
    metavar="URL",
    callback=dcgm,
    help="A dcgm-exporter to look at instead of those on this host. May be repeated.",
)
@click.option(
    "--measure-peak",
    is_flag=True,
    help="First measure what this host's memory and cores can do, about 10 s, and "
    "remember it: limits of engines on the CPU are computed from it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
def doctor(*, dcgm: tuple[str, ...], measure_peak: bool, as_json: bool) -> int:
    """See what can be measured here, what not, why, and what would enable it.

    Looks at vLLM and the probe, engines that run here, GPUs (NVML and DCGM), cores,
    clocks and network stamps, the record, and this terminal. Nothing is changed, no
    request is sent to a model. Only --measure-peak makes work, and keeps its result.

    Exit status 1 if something is broken that is here or needed. What is merely absent,
    such as a GPU, is no fault.

    \b
    inferwatch doctor
    inferwatch doctor --json
    inferwatch doctor --measure-peak
    inferwatch doctor --dcgm http://gpu1:9400
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    from inferwatch.cli.running.doctor import run_doctor
    from inferwatch.cli.running.measure_peak import measure_peak as measure

    if measure_peak:
        measure()  # before the checks, which it would disturb
    return run_doctor(dcgm, as_json=as_json)
