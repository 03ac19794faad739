"""``inferwatch keys``: let a viewer connect to a probe or an agent over the network."""

from pathlib import Path

import click

from inferwatch.cli.say import say
from inferwatch.errors import UsageError
from inferwatch.printing.command import quoted


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--viewer", default="viewer", metavar="NAME", help="Whom to let in.")
def keys(directory: Path, viewer: str) -> None:
    """Make keys in DIRECTORY for a probe or an agent that listens at tcp://.

    The first time this makes its own file, too; again with another --viewer, it lets
    one more in, without a restart. At a loopback address none are needed.

    \b
    inferwatch keys ./keys --viewer alice
    INFERWATCH_PROBE=tcp://0.0.0.0:9500 INFERWATCH_PROBE_KEY=keys/probe.key vllm serve …
    inferwatch attach http://gpu1:8000 --probe tcp://gpu1:9500 --probe-key alice.key
    inferwatch agent --listen tcp://0.0.0.0:9600 --key-file keys/probe.key --probe
    inferwatch attach http://gpu1:8000 --agent tcp://gpu1:9600 --agent-key alice.key
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    from collectors.probe.keys import KeyFileError, add_viewer

    try:
        ours, his = add_viewer(directory, viewer)
    except KeyFileError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from error
    say(f"{ours}  for the server: INFERWATCH_PROBE_KEY={quoted(ours)}")
    say(f"{his}  for {viewer}: --probe-key {quoted(his)}")
    say("Both are secret (0600); copy each to where it is used, and nowhere else.")
