"""The options and the manners of all commands that keep the record in order."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from inferwatch.cli.say import say, say_json

if TYPE_CHECKING:
    from inferwatch.storage.sessions.sessions import SessionRow


def record_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--db``, which a subcommand takes over from its group."""
    return click.option(
        "--db",
        "database",
        type=click.Path(path_type=Path, dir_okay=False),
        default=_of_group("database"),
        help="Look into this SQLite file.  [env: INFERWATCH_DB]",
    )(command)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--json``, likewise."""
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        default=_of_group("as_json"),
        help="Print one line of JSON.",
    )(command)


def record_of(database: Path | None) -> Path:
    """The file that is meant."""
    from inferwatch.storage.file.location import default_database

    return database or default_database()


def chosen(
    path: Path, wanted: Sequence[str], *, bin_too: bool = False
) -> list["SessionRow"]:
    """The sessions that are meant, each once.

    Raises:
        StorageError: there is none such, or the file cannot be read.
    """
    from inferwatch.storage.sessions.sessions import list_sessions, pick

    rows = list_sessions(path, bin_too=bin_too)
    found = [pick(rows, each, path) for each in wanted]
    return list({row.session: row for row in found}.values())


def tell(text: str, facts: Mapping[str, object], *, as_json: bool) -> None:
    """What was done: as a sentence, or for machines."""
    if as_json:
        say_json(facts)
    else:
        say(text)


def _of_group(name: str) -> Callable[[], Any]:
    def value() -> Any:  # noqa: ANN401  whatever the option holds
        context = click.get_current_context(silent=True)
        parent = context.parent if context else None
        return parent.params.get(name) if parent else None

    return value
