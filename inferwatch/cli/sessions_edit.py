"""Naming, tagging, deleting and restoring sessions, each with a command to undo it."""

import shlex
from pathlib import Path

import click

from inferwatch.cli.options import (
    json_option,
    named_sessions,
    record_of,
    record_option,
    tell,
)

HOW = "inferwatch sessions"


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
    from inferwatch.record.file.location import db_option
    from inferwatch.record.sessions import housekeeping

    path = record_of(database)
    [row] = named_sessions(path, [session])
    housekeeping.rename(path, row.session, name)
    now = housekeeping.checked_name(name)
    undo = f"{HOW} rename {row.id} {shlex.quote(row.name or '')}{db_option(path)}"
    called = f"is now named {now}" if now else "no longer has a name"
    facts = {"session": row.id, "name": now, "name_before": row.name, "undo": undo}
    tell(f"{row.id} {called}. Undo: {undo}", facts, as_json=as_json)


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
    _retag(record_of(database), session, words, add=True, as_json=as_json)


@click.command()
@click.argument("session", metavar="S")
@click.argument("words", nargs=-1, required=True, metavar="WORD...")
@record_option
@json_option
def untag(
    session: str, words: tuple[str, ...], database: Path | None, as_json: bool
) -> None:
    """Remove tags from session S."""
    _retag(record_of(database), session, words, add=False, as_json=as_json)


@click.command()
@click.argument("wanted", nargs=-1, required=True, metavar="S...")
@record_option
@json_option
def delete(wanted: tuple[str, ...], database: Path | None, as_json: bool) -> None:
    """Move sessions to the bin; `restore` brings them back.

    They take up space until `inferwatch sessions vacuum` empties the bin.
    """
    from inferwatch.record.file.location import db_option
    from inferwatch.record.sessions import housekeeping

    path = record_of(database)
    rows = named_sessions(path, wanted)
    housekeeping.put_away(path, [row.session for row in rows])
    ids = [row.id for row in rows]
    undo = f"{HOW} restore {' '.join(ids)}{db_option(path)}"
    text = (
        f"{', '.join(ids)} moved to the bin. Undo: {undo}\n"
        f"To free the space for good: {HOW} vacuum{db_option(path)}"
    )
    tell(text, {"deleted": ids, "undo": undo}, as_json=as_json)


@click.command()
@click.argument("wanted", nargs=-1, required=True, metavar="S...")
@record_option
@json_option
def restore(wanted: tuple[str, ...], database: Path | None, as_json: bool) -> None:
    """Restore sessions from the bin, as they were.

    `inferwatch sessions --bin` lists what is in it.
    """
    from inferwatch.errors import NoSuchSessionError
    from inferwatch.record.file.location import db_option
    from inferwatch.record.sessions import housekeeping

    path = record_of(database)
    rows = [
        r
        for r in named_sessions(path, wanted, bin_too=True)
        if r.deleted_ns is not None
    ]
    if not rows:
        raise NoSuchSessionError(
            f"{', '.join(wanted)}: not in the bin; `{HOW} --bin{db_option(path)}` "
            "lists what is in it"
        )
    housekeeping.restore(path, [row.session for row in rows])
    ids = [row.id for row in rows]
    undo = f"{HOW} delete {' '.join(ids)}{db_option(path)}"
    text = f"{', '.join(ids)} restored from the bin. Undo: {undo}"
    tell(text, {"restored": ids, "undo": undo}, as_json=as_json)


def _retag(
    path: Path, session: str, words: tuple[str, ...], *, add: bool, as_json: bool
) -> None:
    from inferwatch.record.file.location import db_option
    from inferwatch.record.sessions import housekeeping

    words = tuple(housekeeping.checked_tags(words))
    [row] = named_sessions(path, [session])
    before = row.tags.split()
    new = [word for word in words if (word in before) != add]
    tags = housekeeping.retag(
        path,
        row.session,
        lambda old: (
            [*old, *words] if add else (each for each in old if each not in words)
        ),
    )
    undo = f"{HOW} {'untag' if add else 'tag'} {row.id} {shlex.join(new)}"
    undo += db_option(path)
    text = f"{row.id} now has {', '.join(tags) or 'no tags'}."
    text += f" Undo: {undo}" if new else " Nothing changed."
    facts = {"session": row.id, "tags": tags, "undo": undo if new else None}
    tell(text, facts, as_json=as_json)
