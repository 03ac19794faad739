"""Freeing disk space: pruning, emptying the bin; rescuing data of a damaged file."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from inferwatch.cli.options import (
    age,
    json_option,
    record_of,
    record_option,
    size,
    tell,
)
from inferwatch.cli.say import say
from inferwatch.formatting import counted, format_bytes
from inferwatch.visible import visible

if TYPE_CHECKING:
    from inferwatch.record.sessions.retention import SessionToPrune

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
    from inferwatch.record.sessions.retention import DEFAULT, RetentionLimits, to_go

    limits = RetentionLimits(older_than_s=older_than, max_bytes=max_size)
    path = record_of(database)
    going = to_go(path, DEFAULT if limits == RetentionLimits() else limits)
    _free(path, going, dry_run=dry_run, yes=yes, as_json=as_json)


@click.command()
@dry_option
@yes_option
@record_option
@json_option
def vacuum(dry_run: bool, yes: bool, database: Path | None, as_json: bool) -> None:
    """Empty the bin for good and give free space back to the disk."""
    from inferwatch.record.sessions.retention import SessionToPrune
    from inferwatch.record.sessions.sessions import list_sessions
    from inferwatch.record.sessions.sizes import sizes_in

    path = record_of(database)
    sizes = sizes_in(path)
    going = [
        SessionToPrune(row=row, size_bytes=sizes.of.get(row.session, 0), why="bin")
        for row in list_sessions(path, bin_too=True)
        if row.deleted_ns is not None
    ]
    _free(path, going, dry_run=dry_run, yes=yes, as_json=as_json)


@click.command()
@click.argument("into", type=click.Path(path_type=Path, dir_okay=False))
@record_option
@json_option
def recover(into: Path, database: Path | None, as_json: bool) -> None:
    """Save what can be read of a damaged file INTO a new one, and say what is lost.

    \b
    inferwatch sessions recover rescued.db --db damaged.db
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    from inferwatch.record.file.location import db_option
    from inferwatch.record.repair.recovery import recover_into

    path = record_of(database)
    damage = recover_into(path, into)
    lead = f"Nothing in {path} is lost; all of it"
    if damage.is_loss:
        lead = f"{damage.sentence}\nWhat could be read"
    tell(
        f"{lead} is now in {into}: open it with{db_option(into)}",
        {"into": str(into), **damage.facts},
        as_json=as_json,
    )


def _free(
    path: Path,
    going: "Sequence[SessionToPrune]",
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Show what will be deleted, ask for confirmation, delete it."""
    from inferwatch.record.sessions.erasing import beside, cut_short, erase, vacuum
    from inferwatch.record.sessions.sizes import sizes_in

    numbers = [each.row.session for each in going]
    beside_bytes = beside(path, numbers)
    free_bytes = sizes_in(path).free_bytes + beside_bytes
    frees_bytes = sum(each.size_bytes for each in going) + free_bytes
    facts: dict[str, object] = {
        "sessions": [each.row.id for each in going],
        "frees_bytes_estimate": frees_bytes,
        "dry_run": dry_run,
    }
    if not as_json:
        _show(going, frees_bytes)
    if dry_run or not (going or free_bytes or cut_short(path)):
        return tell("Nothing was deleted.", facts, as_json=as_json)
    if going and not yes:
        _confirm(len(going))
    with _progress(as_json=as_json) as progress:
        rows = erase(path, numbers, lambda share: progress(share / 2))
        freed_bytes = (
            vacuum(path, lambda share: progress((1 + share) / 2)) + beside_bytes
        )
    facts |= {"rows": rows, "freed_bytes": freed_bytes}
    text = (
        f"Deleted {counted(len(going), 'session')} for good, freeing "
        f"{_size(freed_bytes)} of disk."
    )
    return tell(text, facts, as_json=as_json)


def _show(going: "Sequence[SessionToPrune]", frees_bytes: int) -> None:
    for each in going:
        row = each.row
        what = visible(row.name or row.model or row.command)
        taken = f"~{_size(each.size_bytes)}"
        say(f"{row.id:>6}  {taken:>9}  {each.why:5} {what}")
    freed = f"this frees about {_size(frees_bytes)}"
    say(f"{counted(len(going), 'session')} to delete; {freed}.")


def _confirm(count: int) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError(
            "There is no terminal to confirm on: add --yes or --dry-run"
        )
    click.confirm(f"Delete {counted(count, 'session')} for good?", abort=True, err=True)


@contextmanager
def _progress(*, as_json: bool) -> Iterator[Callable[[float], None]]:
    """Yield a function that draws a bar on stderr, if that is a terminal."""
    if as_json or not sys.stderr.isatty():
        yield lambda _: None
        return
    with click.progressbar(length=1000, label="Deleting", file=sys.stderr) as bar:
        yield lambda share: bar.update(round(share * 1000) - bar.pos)


def _size(size_bytes: int) -> str:
    return format_bytes(size_bytes).strip()
