"""The recorded sessions as a table for people."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from rich.console import Console
from rich.table import Table

from collectors.clock import NS_PER_S
from inferwatch.formatting import format_duration
from inferwatch.storage.sessions import SessionRow

COLUMNS: dict[str, Literal["left", "right"]] = {
    "id": "left",
    "began": "left",
    "watched": "right",
    "requests": "right",
    "steps": "right",
    "model": "left",
    "state": "left",
    "name": "left",
}


def print_sessions(rows: Sequence[SessionRow]) -> None:
    """One line a session, newest first as they come."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for heading, justify in COLUMNS.items():
        table.add_column(heading, justify=justify, no_wrap=heading != "model")
    for row in rows:
        table.add_row(*_cells(row))
    Console(highlight=False).print(table)


def _cells(row: SessionRow) -> list[str]:
    began = datetime.fromtimestamp(row.started_ns / NS_PER_S).astimezone()
    return [
        row.id,
        f"{began:%Y-%m-%d %H:%M:%S}",
        format_duration(row.duration_s).strip(),
        f"{row.requests:,}",
        f"{row.steps:,}",
        row.model or "–",
        row.state,
        row.name or row.command,
    ]
