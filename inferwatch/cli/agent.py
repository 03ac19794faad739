"""``inferwatch agent``: publish what the hardware of this host does."""

from pathlib import Path

import click

from collectors.hardware.gpu_source import GpuOptions
from inferwatch.cli.options import gpu_options

FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.option(
    "--listen",
    metavar="tcp://HOST:PORT|PATH",
    help="Let viewers come to this address, or to this Unix socket. Any address but a "
    "loopback one needs --key-file.  [default: a Unix socket of the user]",
)
@click.option(
    "--key-file",
    type=FILE,
    envvar="INFERWATCH_AGENT_KEY",
    help="Let in only viewers that this file names (see inferwatch keys).",
)
@click.option(
    "--name", metavar="TEXT", help="What to call this host.  [default: its name]"
)
@click.option(
    "--probe",
    "probes",
    is_flag=True,
    help="Pass on, at tcp://, what the probes of all servers on this host say, too.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one line of JSON as soon as viewers can come.",
)
@gpu_options
def agent(
    *,
    listen: str | None,
    key_file: Path | None,
    name: str | None,
    probes: bool,
    as_json: bool,
    gpus: GpuOptions,
) -> int:
    """Publish what the GPUs and engines' processes of this host do.

    Made to run as a service on a GPU node: it records nothing, asks no server anything,
    and grows with nobody who listens. `inferwatch attach ssh://HOST/…` finds it there
    by itself; over the network viewers need keys, which `inferwatch keys` makes.

    \b
    inferwatch agent
    inferwatch agent --listen tcp://0.0.0.0:9600 --key-file keys/probe.key
    inferwatch attach http://gpu1:8000 --agent tcp://gpu1:9600 --agent-key alice.key
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    from inferwatch.cli.running.agent import AgentOptions, run_agent

    options = AgentOptions(
        listen=listen,
        key_file=key_file,
        name=name,
        probes=probes,
        as_json=as_json,
        gpus=gpus,
    )
    return run_agent(options)
