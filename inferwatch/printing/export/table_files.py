"""Writes tables to files: one CSV file per table, or JSON lines for all tables.

Model ids, request ids and error messages come from outside, and a spreadsheet takes a
cell that begins with ``=`` for a formula, which may call a server or start a program.
Such texts get an apostrophe in front (OWASP, "CSV Injection"), as do texts that begin
with an apostrophe, so that removing one gives what was recorded. Numbers are left as
they are.
"""

import csv
import re
import zipfile
from codecs import getwriter
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

import msgspec

from inferwatch.errors import UsageError
from inferwatch.printing.destination import Destination
from inferwatch.printing.export.tables import ExportTable
from inferwatch.visible import ascii_json, visible_lines

APOSTROPHE = "'"
FORMULAS = set("=+-@＝＋－＠")
"""Characters that begin a formula; spreadsheets accept the full-width ones, too."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def write_csv(tables: Sequence[ExportTable], destination: Destination) -> None:
    """Write one table to a file, or several to a zip file or a folder.

    Raises:
        UsageError: several tables were requested for one CSV file.
    """
    if destination.path.suffix == ".zip":
        _zip(tables, destination)
    elif destination.is_stdout or destination.path.suffix in {".csv", ".gz"}:
        if len(tables) > 1:
            names = ", ".join(table.name for table in tables)
            raise UsageError(
                f"these are {len(tables)} tables ({names}): name a folder or a .zip "
                "with -o, or one of them with --what requests|steps"
            )
        with destination.file() as out:
            _table(tables[0], out)
    else:
        with destination.folder() as folder:
            for table in tables:
                with (folder / f"{table.name}.csv").open("wb") as out:
                    _table(table, out)


def _zip(tables: Sequence[ExportTable], destination: Destination) -> None:
    with (
        destination.file() as out,
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for table in tables:
            with archive.open(f"{table.name}.csv", "w", force_zip64=True) as member:
                _table(table, member)


def _table(table: ExportTable, out: IO[bytes]) -> None:
    """Write column names, then rows; unknown values are empty."""
    # Not a TextIOWrapper: when writing fails, that takes stdout with it.
    writer = csv.writer(getwriter("utf-8")(out), lineterminator="\n")
    writer.writerow(_safe_cells(table.columns))
    writer.writerows(map(_safe_cells, table.rows()))


def _safe_cells(row: Iterable[object]) -> Iterator[object]:
    """The cells of a row, with control characters made visible."""
    cells = (visible_lines(cell) if isinstance(cell, str) else cell for cell in row)
    return (harmless(cell) if isinstance(cell, str) else cell for cell in cells)


def harmless(text: str) -> str:
    """The text, changed if a spreadsheet could take it for a formula.

    Some programs skip blanks and invisible characters, so a formula may follow them.
    """
    seen = next((c for c in text if c.isprintable() and not c.isspace()), "")
    begins_odd = text[:1] in {"\t", "\r", "\n", APOSTROPHE}
    if not begins_odd and (seen not in FORMULAS or NUMBER.fullmatch(text)):
        return text
    return APOSTROPHE + text


def write_jsonl(tables: Sequence[ExportTable], destination: Destination) -> None:
    """Write one JSON object per row, with its table's name; unknown values are null.

    Tables follow each other, each in order of receipt.
    """
    encode = msgspec.json.Encoder().encode
    with destination.file() as out:
        for table in tables:
            columns = ("table", *table.columns)
            for row in table.rows():
                fields = dict(zip(columns, (table.name, *row), strict=True))
                out.write(ascii_json(encode(fields)) + b"\n")
