"""Lists sessions, and does what subcommands of ``inferwatch sessions`` ask."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import click
from rich.console import Console
from rich.table import Table

from inferwatch.cli.running.chosen_session import say_which
from inferwatch.cli.say import say, say_coloured, say_damage, say_json
from inferwatch.errors import NoSuchSessionError
from inferwatch.formatting import counted, format_bytes, format_duration
from inferwatch.printing.command import command
from inferwatch.record.file.location import db_option
from inferwatch.record.file.trace_folder import trace_sizes
from inferwatch.record.repair.recovery import recover_into
from inferwatch.record.sessions import erasing, housekeeping
from inferwatch.record.sessions.retention import (
    DEFAULT,
    RetentionLimits,
    SessionToPrune,
    to_go,
)
from inferwatch.record.sessions.sessions import SessionRow, list_sessions, pick
from inferwatch.record.sessions.sizes import SessionSizes, sizes_in
from inferwatch.visible import visible


def print_list(path: Path, *, as_json: bool, bin_too: bool) -> None:
    if not path.exists():
        rows, sizes = [], None
    else:
        rows, sizes = list_sessions(path, bin_too=bin_too), sizes_in(path)
        say_damage(path)
    if as_json:
        size = sizes.of if sizes else {}
        facts = [
            {**asdict(row), "size_bytes_estimate": size.get(row.session)}
            for row in rows
        ]
        say_json(facts)
    elif rows and sizes:
        print_sessions(rows, sizes)
    elif sizes and sizes.of:
        say(
            f"All sessions of {path} are in the bin: "
            f"`{command('sessions', '--bin', database=path)}` lists them"
        )
    else:
        say(f"Nothing is recorded in {path} yet. Try: inferwatch demo")


def rename_session(path: Path, session: str, name: str, *, as_json: bool) -> None:
    [row] = named_sessions(path, [session])
    housekeeping.rename(path, row.session, name)
    now = housekeeping.checked_name(name)
    undo = command("sessions", "rename", row.id, row.name or "", database=path)
    called = f"is now named {now}" if now else "no longer has a name"
    facts = {"session": row.id, "name": now, "name_before": row.name, "undo": undo}
    tell(f"{row.id} {called}. Undo: {undo}", facts, as_json=as_json)


def delete_sessions(path: Path, names: Sequence[str], *, as_json: bool) -> None:
    rows = named_sessions(path, names)
    housekeeping.put_away(path, [row.session for row in rows])
    ids = [row.id for row in rows]
    undo = command("sessions", "restore", *ids, database=path)
    text = (
        f"{', '.join(ids)} moved to the bin. Undo: {undo}\n"
        f"To free the space for good: {command('sessions', 'vacuum', database=path)}"
    )
    tell(text, {"deleted": ids, "undo": undo}, as_json=as_json)


def restore_sessions(path: Path, names: Sequence[str], *, as_json: bool) -> None:
    rows = [
        r for r in named_sessions(path, names, bin_too=True) if r.deleted_ns is not None
    ]
    if not rows:
        raise NoSuchSessionError(
            f"{', '.join(names)}: not in the bin; "
            f"`{command('sessions', '--bin', database=path)}` lists what is in it"
        )
    housekeeping.restore(path, [row.session for row in rows])
    ids = [row.id for row in rows]
    undo = command("sessions", "delete", *ids, database=path)
    text = f"{', '.join(ids)} restored from the bin. Undo: {undo}"
    tell(text, {"restored": ids, "undo": undo}, as_json=as_json)


def prune_sessions(
    path: Path,
    *,
    older_than_s: float | None,
    max_bytes: int | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    limits = RetentionLimits(older_than_s=older_than_s, max_bytes=max_bytes)
    candidates = to_go(path, DEFAULT if limits == RetentionLimits() else limits)
    _free(path, candidates, dry_run=dry_run, yes=yes, as_json=as_json)


def vacuum_record(path: Path, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    sizes = sizes_in(path)
    candidates = [
        SessionToPrune(row=row, size_bytes=sizes.of.get(row.session, 0), why="bin")
        for row in list_sessions(path, bin_too=True)
        if row.deleted_ns is not None
    ]
    _free(path, candidates, dry_run=dry_run, yes=yes, as_json=as_json)


def recover_record(path: Path, into: Path, *, as_json: bool) -> None:
    damage = recover_into(path, into)
    lead = f"Nothing in {path} is lost; all of it"
    if damage.is_loss:
        lead = f"{damage.sentence}\nWhat could be read"
    tell(
        f"{lead} is now in {into}: open it with{db_option(into)}",
        {"into": str(into), **damage.facts},
        as_json=as_json,
    )


def retag_session(
    path: Path, session: str, words: tuple[str, ...], *, add: bool, as_json: bool
) -> None:
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
    back = "untag" if add else "tag"
    undo = command("sessions", back, row.id, *new, database=path)
    text = f"{row.id} now has {', '.join(tags) or 'no tags'}."
    text += f" Undo: {undo}" if new else " Nothing changed."
    facts = {"session": row.id, "tags": tags, "undo": undo if new else None}
    tell(text, facts, as_json=as_json)


def named_sessions(
    path: Path, names: Sequence[str], *, bin_too: bool = False
) -> list[SessionRow]:
    """Return the sessions of these names, each session once.

    Raises:
        StorageError: there is no such session, or the file cannot be read.
    """
    if not bin_too:
        say_which(path, *names)
    rows = list_sessions(path, bin_too=bin_too)
    chosen_rows = [pick(rows, each, path) for each in names]
    return list({row.session: row for row in chosen_rows}.values())


def tell(text: str, facts: Mapping[str, object], *, as_json: bool) -> None:
    """Print what was done, as a sentence or as JSON."""
    if as_json:
        say_json(facts)
    else:
        say(text)


def _free(
    path: Path,
    candidates: Sequence[SessionToPrune],
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Show what will be deleted, ask for confirmation, delete it."""
    numbers = [each.row.session for each in candidates]
    beside_bytes, traces = erasing.beside(path, numbers), trace_sizes(path)
    trace_bytes = sum(traces.get(number, 0) for number in numbers)
    free_bytes = sizes_in(path).free_bytes + beside_bytes
    frees_bytes = sum(each.size_bytes for each in candidates) + free_bytes
    facts: dict[str, object] = {
        "sessions": [each.row.id for each in candidates],
        "frees_bytes_estimate": frees_bytes,
        "dry_run": dry_run,
    }
    if not as_json:
        _show(candidates, frees_bytes)
    if dry_run or not (candidates or free_bytes or erasing.cut_short(path)):
        return tell("Nothing was deleted.", facts, as_json=as_json)
    if candidates and not yes:
        _confirm(len(candidates))
    with _progress(as_json=as_json) as progress:
        rows = erasing.erase(path, numbers, lambda share: progress(share / 2))
        freed_bytes = erasing.vacuum(path, lambda share: progress((1 + share) / 2))
        freed_bytes += beside_bytes + trace_bytes
    facts |= {"rows": rows, "freed_bytes": freed_bytes}
    text = (
        f"Deleted {counted(len(candidates), 'session')} for good, freeing "
        f"{_size(freed_bytes)} of disk."
    )
    return tell(text, facts, as_json=as_json)


def _show(candidates: Sequence[SessionToPrune], frees_bytes: int) -> None:
    for each in candidates:
        row = each.row
        what = visible(row.name or row.model or row.command)
        taken = f"~{_size(each.size_bytes)}"
        say(f"{row.id:>6}  {taken:>9}  {each.why:5} {what}")
    freed = f"this frees about {_size(frees_bytes)}"
    say(f"{counted(len(candidates), 'session')} to delete; {freed}.")


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


WIDE = 200
"""Columns of the table when stdout is not a terminal."""
ROOM_FOR_STEPS = 100
COLUMNS: dict[str, Literal["left", "right"]] = {
    "id": "left",
    "began": "left",
    "watched": "right",
    "requests": "right",
    "steps": "right",
    "~size": "right",
    "model": "left",
    "state": "left",
    "name": "left",
    "tags": "left",
}


def print_sessions(rows: Sequence[SessionRow], sizes: SessionSizes) -> None:
    """Print a table of the sessions in the given order; their sizes are estimates."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    width = None if sys.stdout.isatty() else WIDE
    # Names and tags are the user's text: no markup.
    console = Console(highlight=False, markup=False, emoji=False, width=width)
    hidden = {"tags"} if not any(row.tags for row in rows) else set()
    hidden |= {"steps"} if console.width < ROOM_FOR_STEPS else set()
    headings = [heading for heading in COLUMNS if heading not in hidden]
    for heading in headings:
        table.add_column(
            heading,
            justify=COLUMNS[heading],
            no_wrap=heading != "model",
            min_width=10 if heading == "model" else None,
        )
    for row in rows:
        cells = _cells(row, sizes.of.get(row.session))
        table.add_row(*(visible(cells[heading]) for heading in headings))
    with console.capture() as drawn:
        console.print(table)
    say_coloured(drawn.get().removesuffix("\n"))


def _cells(row: SessionRow, size_bytes: int | None) -> dict[str, str]:
    return {
        "id": row.id,
        "began": row.began_text(),
        "watched": format_duration(row.duration_s).strip(),
        "requests": _requests(row),
        "steps": f"{row.steps:,}",
        "~size": format_bytes(size_bytes).strip(),
        "model": row.model or "–",
        "state": row.state if row.deleted_ns is None else "in the bin",
        "name": row.called,
        "tags": row.tags,
    }


def _requests(row: SessionRow) -> str:
    """Return the number of requests, marked if only the client reported them."""
    if row.client_requests:
        return f"client {row.client_requests:,}"
    return f"{row.requests:,}"
