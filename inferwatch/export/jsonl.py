"""JSON lines: an object a row, which says its table first; unknown is null."""

from collections.abc import Sequence

import msgspec

from inferwatch.export.tables import Table
from inferwatch.export.target import Target
from inferwatch.visible import ascii_json


def write_jsonl(tables: Sequence[Table], target: Target) -> None:
    """Table by table, each in order of receipt."""
    encode = msgspec.json.Encoder().encode
    with target.file() as out:
        for table in tables:
            columns = ("table", *table.columns)
            for row in table.rows():
                fields = dict(zip(columns, (table.name, *row), strict=True))
                out.write(ascii_json(encode(fields)) + b"\n")
