"""The recorded sessions as a table for people."""

import sys
from collections.abc import Sequence
from typing import Literal

from rich.console import Console
from rich.table import Table

from inferwatch.cli.say import say_coloured
from inferwatch.formatting import format_bytes, format_duration
from inferwatch.record.sessions.sessions import SessionRow
from inferwatch.record.sessions.sizes import SessionSizes
from inferwatch.visible import visible

WIDE = 200
"""Columns of the table when stdout is no terminal."""
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
    """One line a session, newest first as they come; sizes are estimates."""
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
        "name": row.name or row.command,
        "tags": row.tags,
    }


def _requests(row: SessionRow) -> str:
    """Return the number of requests, marked if only the client reported them."""
    if row.client_requests:
        return f"client {row.client_requests:,}"
    return f"{row.requests:,}"
