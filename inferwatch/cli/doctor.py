"""``inferwatch doctor``: what can be measured here, what not, and what would help."""

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
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
def doctor(*, dcgm: tuple[str, ...], as_json: bool) -> int:
    """See what can be measured here, what not, why, and what would enable it.

    Looks at vLLM and the probe, engines that run here, GPUs (NVML and DCGM), cores,
    clocks and network stamps, the record, and this terminal. Nothing is changed, no
    request is sent to a model.

    Exit status 1 if something is broken that is here or needed. What is merely absent,
    such as a GPU, is no fault.

    \b
    inferwatch doctor
    inferwatch doctor --json
    inferwatch doctor --dcgm http://gpu1:9400
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    from inferwatch.cli.doctor_command import run_doctor

    return run_doctor(dcgm, as_json=as_json)
