"""``inferwatch sessions``: what was recorded."""

import json
from dataclasses import asdict
from pathlib import Path

import click


@click.command()
@click.option(
    "--db",
    "database",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Look into this SQLite file.  [env: INFERWATCH_DB]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def sessions(database: Path | None, as_json: bool) -> None:
    """List the recorded sessions, newest first."""
    from inferwatch.cli.session_table import print_sessions
    from inferwatch.storage.location import default_database
    from inferwatch.storage.sessions import list_sessions

    path = database or default_database()
    rows = list_sessions(path) if path.exists() else []
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows]))
    elif rows:
        print_sessions(rows)
    else:
        click.echo(f"Nothing recorded yet in {path}. Try: inferwatch demo")
