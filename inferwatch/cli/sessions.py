"""``inferwatch sessions``: list and manage what was recorded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from inferwatch.cli.options import age, size
from inferwatch.record.file.location import default_database


def record_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--db``, which a subcommand inherits from its group."""
    return click.option(
        "--db",
        "database",
        type=click.Path(path_type=Path, dir_okay=False),
        default=_of_group("database"),
        help="The SQLite file to use.  [env: INFERWATCH_DB]",
    )(command)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--json``, which a subcommand inherits from its group."""
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        default=_of_group("as_json"),
        help="Print one line of JSON.",
    )(command)


def bin_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--bin``, which a subcommand inherits from its group."""
    return click.option(
        "--bin",
        "bin_too",
        is_flag=True,
        default=_of_group("bin_too"),
        help="List the sessions in the bin too.",
    )(command)


def record_of(database: Path | None) -> Path:
    return database or default_database()


def _of_group(name: str) -> Callable[[], Any]:
    def value() -> Any:  # noqa: ANN401  whatever the option holds
        context = click.get_current_context(silent=True)
        parent = context.parent if context else None
        return parent.params.get(name) if parent else None

    return value


yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
dry_option = click.option(
    "--dry-run",
    is_flag=True,
    help="Say what would be deleted and what that frees; delete nothing.",
)


@click.command()
@click.option(
    "--older-than",
    metavar="AGE",
    callback=age,
    help="Delete sessions that ended longer ago than this: 36h, 30d, 4w.",
)
@click.option(
    "--max-size",
    metavar="SIZE",
    callback=size,
    help="Delete the oldest until the rest fits: 500MB, 5GB.",
)
@dry_option
@yes_option
@record_option
@json_option
def prune(
    older_than: float | None,
    max_size: int | None,
    dry_run: bool,
    yes: bool,
    database: Path | None,
    as_json: bool,
) -> None:
    """Delete old sessions for good and give their space back to the disk.

    By default: sessions older than 7 days, then the oldest beyond 5 GB. A session that
    is being recorded stays, and so does one tagged `keep`. Nothing is pruned
    automatically unless INFERWATCH_RETENTION (such as 30d,5GB) asks for it; then old
    sessions move to the bin when a recording starts, and are deleted a week later.

    \b
    inferwatch sessions prune --older-than 30d --max-size 5GB --dry-run
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    from inferwatch.cli.running.sessions import prune_sessions

    prune_sessions(
        record_of(database),
        older_than_s=older_than,
        max_bytes=max_size,
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
    )


@click.command()
@dry_option
@yes_option
@record_option
@json_option
def vacuum(dry_run: bool, yes: bool, database: Path | None, as_json: bool) -> None:
    """Empty the bin for good and give free space back to the disk."""
    from inferwatch.cli.running.sessions import vacuum_record

    vacuum_record(record_of(database), dry_run=dry_run, yes=yes, as_json=as_json)


@click.command()
@click.argument("into", type=click.Path(path_type=Path, dir_okay=False))
@record_option
@json_option
def recover(into: Path, database: Path | None, as_json: bool) -> None:
    """Save what can be read of a damaged file INTO a new one, and say what is lost.

    \b
    inferwatch sessions recover rescued.db --db damaged.db
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    from inferwatch.cli.running.sessions import recover_record

    recover_record(record_of(database), into, as_json=as_json)


@click.command()
@click.argument("session", metavar="S")
@click.argument("name")
@record_option
@json_option
def rename(session: str, name: str, database: Path | None, as_json: bool) -> None:
    """Name session S; an empty NAME ("") removes its name.

    \b
    inferwatch sessions rename last baseline
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    from inferwatch.cli.running.sessions import rename_session

    rename_session(record_of(database), session, name, as_json=as_json)


@click.command()
@click.argument("session", metavar="S")
@click.argument("words", nargs=-1, required=True, metavar="WORD...")
@record_option
@json_option
def tag(
    session: str, words: tuple[str, ...], database: Path | None, as_json: bool
) -> None:
    """Tag session S; the tag `keep` protects it from pruning.

    \b
    inferwatch sessions tag baseline keep h200
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    from inferwatch.cli.running.sessions import retag_session

    retag_session(record_of(database), session, words, add=True, as_json=as_json)


@click.command()
@click.argument("session", metavar="S")
@click.argument("words", nargs=-1, required=True, metavar="WORD...")
@record_option
@json_option
def untag(
    session: str, words: tuple[str, ...], database: Path | None, as_json: bool
) -> None:
    """Remove tags from session S."""
    from inferwatch.cli.running.sessions import retag_session

    retag_session(record_of(database), session, words, add=False, as_json=as_json)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="S...")
@record_option
@json_option
def delete(names: tuple[str, ...], database: Path | None, as_json: bool) -> None:
    """Move sessions to the bin; `restore` brings them back.

    They take up space until `inferwatch sessions vacuum` empties the bin.
    """
    from inferwatch.cli.running.sessions import delete_sessions

    delete_sessions(record_of(database), names, as_json=as_json)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="S...")
@record_option
@json_option
def restore(names: tuple[str, ...], database: Path | None, as_json: bool) -> None:
    """Restore sessions from the bin, as they were.

    `inferwatch sessions --bin` lists what is in it.
    """
    from inferwatch.cli.running.sessions import restore_sessions

    restore_sessions(record_of(database), names, as_json=as_json)


@click.group(
    invoke_without_command=True,
)
@record_option
@json_option
@bin_option
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
        from inferwatch.cli.running.sessions import print_list

        print_list(record_of(database), as_json=as_json, bin_too=bin_too)


@click.command("list", hidden=True)
@record_option
@json_option
@bin_option
def list_(database: Path | None, as_json: bool, bin_too: bool) -> None:
    """List the recorded sessions, as `inferwatch sessions` alone does."""
    from inferwatch.cli.running.sessions import print_list

    print_list(record_of(database), as_json=as_json, bin_too=bin_too)


for _command in (list_, rename, tag, untag, delete, restore, prune, vacuum, recover):
    sessions.add_command(_command)
