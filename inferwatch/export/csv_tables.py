"""CSV: a file a table; several tables make a zip or a folder.

Model ids, request ids and error texts are others' words, and a spreadsheet takes a cell
that begins with ``=`` for a formula, which may call a server or start a program. Such
texts get an apostrophe before them (OWASP, "CSV Injection"), and so do those that begin
with one, so that whoever takes one apostrophe away has what was recorded. Numbers are
left as they are.
"""

import csv
import re
import zipfile
from codecs import getwriter
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

from inferwatch.errors import UsageError
from inferwatch.export.tables import Table
from inferwatch.export.target import Target
from inferwatch.visible import visible_lines

APOSTROPHE = "'"
FORMULAS = set("=+-@＝＋－＠")
"""With one of these a formula begins; spreadsheets read the wide ones, too."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def write_csv(tables: Sequence[Table], target: Target) -> None:
    """One table goes into the target itself, else a file each into a zip or folder.

    Raises:
        UsageError: one CSV file cannot hold what was asked for.
    """
    if target.path.suffix == ".zip":
        _zip(tables, target)
    elif target.is_stdout or target.path.suffix in {".csv", ".gz"}:
        if len(tables) > 1:
            names = ", ".join(table.name for table in tables)
            raise UsageError(
                f"these are {len(tables)} tables ({names}): name a folder or a .zip "
                "with -o, or one of them with --what requests|steps"
            )
        with target.file() as out:
            _table(tables[0], out)
    else:
        with target.folder() as folder:
            for table in tables:
                with (folder / f"{table.name}.csv").open("wb") as out:
                    _table(table, out)


def _zip(tables: Sequence[Table], target: Target) -> None:
    with (
        target.file() as out,
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for table in tables:
            with archive.open(f"{table.name}.csv", "w", force_zip64=True) as member:
                _table(table, member)


def _table(table: Table, out: IO[bytes]) -> None:
    """Names first; unknown is empty."""
    # Not a TextIOWrapper: when writing fails, that takes stdout with it.
    writer = csv.writer(getwriter("utf-8")(out), lineterminator="\n")
    writer.writerow(_shown(table.columns))
    writer.writerows(map(_shown, table.rows()))


def _shown(row: Iterable[object]) -> Iterator[object]:
    """Whoever prints the file to a terminal is to see its words, not to obey them."""
    cells = (visible_lines(cell) if isinstance(cell, str) else cell for cell in row)
    return (harmless(cell) if isinstance(cell, str) else cell for cell in cells)


def harmless(text: str) -> str:
    """A text that no spreadsheet takes for a formula.

    Some programs skip blanks and what cannot be seen: a formula behind them is one.
    """
    seen = next((c for c in text if c.isprintable() and not c.isspace()), "")
    begins_odd = text[:1] in {"\t", "\r", "\n", APOSTROPHE}
    if not begins_odd and (seen not in FORMULAS or NUMBER.fullmatch(text)):
        return text
    return APOSTROPHE + text
