"""``inferwatch sessions``: list and manage what was recorded."""

from dataclasses import asdict
from pathlib import Path

import click

from inferwatch.cli.options import json_option, record_option
from inferwatch.cli.say import say, say_json
from inferwatch.cli.sessions_edit import delete, rename, restore, tag, untag
from inferwatch.cli.sessions_free import prune, recover, vacuum


@click.group(invoke_without_command=True)
@record_option
@json_option
@click.option(
    "--bin", "bin_too", is_flag=True, help="List the sessions in the bin too."
)
@click.pass_context
def sessions(
    context: click.Context, database: Path | None, as_json: bool, bin_too: bool
) -> None:
    """List the recorded sessions, newest first; name, tag, delete and prune them.

    A session S is its id (s17), its name, the beginning of either, or `last`. Deleted
    sessions wait in a bin until `prune` or `vacuum` takes them; nothing is ever
    deleted without being asked.

    \b
    inferwatch sessions rename last baseline
    inferwatch sessions tag baseline keep h200
    inferwatch sessions delete s3 s4          undo: inferwatch sessions restore s3 s4
    inferwatch sessions prune --older-than 30d --max-size 5GB --dry-run
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    if context.invoked_subcommand is None:
        _list(database, as_json=as_json, bin_too=bin_too)


for _command in (rename, tag, untag, delete, restore, prune, vacuum, recover):
    sessions.add_command(_command)


def _list(database: Path | None, *, as_json: bool, bin_too: bool) -> None:
    from inferwatch.cli.say import say_damage
    from inferwatch.cli.sessions_table import print_sessions
    from inferwatch.record.file.location import db_option, default_database
    from inferwatch.record.sessions.sessions import list_sessions
    from inferwatch.record.sessions.sizes import sizes_in

    path = database or default_database()
    if not path.exists():
        rows, sizes = [], None
    else:
        rows, sizes = list_sessions(path, bin_too=bin_too), sizes_in(path)
        say_damage(path)
    if as_json:
        size = sizes.of if sizes else {}
        listed = [
            {**asdict(row), "size_bytes_estimate": size.get(row.session)}
            for row in rows
        ]
        say_json(listed)
    elif rows and sizes:
        print_sessions(rows, sizes)
    elif sizes and sizes.of:
        say(
            f"All sessions of {path} are in the bin: "
            f"`inferwatch sessions --bin{db_option(path)}` lists them"
        )
    else:
        say(f"Nothing is recorded in {path} yet. Try: inferwatch demo")
