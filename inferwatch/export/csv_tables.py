"""CSV: a file a table; several tables make a zip or a folder."""

import csv
import zipfile
from collections.abc import Sequence
from io import TextIOWrapper
from typing import IO

from inferwatch.errors import UsageError
from inferwatch.export.tables import Table
from inferwatch.export.target import Target


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
    text = TextIOWrapper(out, "utf-8", newline="", write_through=False)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows(table.rows())
    text.flush()
    text.detach()
