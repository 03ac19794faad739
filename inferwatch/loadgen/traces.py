"""Traces of what others were asked: Mooncake, Azure and BurstGPT files, and our own.

Which of them a file is, its first line tells. Times become seconds from its first
request; requests that asked for nothing or got nothing (failures) are left out.
"""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from inferwatch.loadgen.plan import TraceRow

Fields = Mapping[str, Any]
MOST_ROWS = 1_000_000
"""A plan holds its trace; this is more than a day of a busy service."""


class TraceError(ValueError):
    """The file is no trace we know; the message is fit to show."""


def read_trace(path: Path, *, most: int = MOST_ROWS) -> tuple[TraceRow, ...]:
    """The requests of a file, in order of time.

    Raises:
        TraceError: it cannot be read, or is of no format known.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            return from_start(islice(_rows(lines), most))
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise TraceError(f"{path} is no trace we know: {error}") from error


def from_start(rows: Iterable[TraceRow]) -> tuple[TraceRow, ...]:
    """In order of time, the first at zero."""
    ordered = sorted(rows, key=lambda row: row.offset_s)
    if not ordered:
        raise TraceError("no request in it asked for and got tokens")
    began_s = ordered[0].offset_s
    return tuple(
        TraceRow(
            offset_s=row.offset_s - began_s,
            prompt_tokens=row.prompt_tokens,
            output_tokens=row.output_tokens,
            blocks=row.blocks,
        )
        for row in ordered
    )


def recorded(requests: Iterable[tuple[int, int, int]]) -> tuple[TraceRow, ...]:
    """A recorded session again: (arrival in ns, prompt tokens, output tokens) of each.

    Raises:
        TraceError: nobody asked for anything.
    """
    rows = (_row(at_ns / 1e9, asked, got) for at_ns, asked, got in requests)
    return from_start(_useful(rows))


def _rows(lines: Iterable[str]) -> Iterator[TraceRow]:
    lines = iter(lines)
    first = next(lines, "")
    if first.lstrip().startswith("{"):
        yield from _useful(_mooncake(json.loads(line)) for line in _with(first, lines))
        return
    names = next(csv.reader([first]), [])
    read = _reader({name.strip() for name in names})
    table = csv.DictReader(lines, [name.strip() for name in names])
    yield from _useful(read(fields) for fields in table)


def _with(first: str, lines: Iterator[str]) -> Iterator[str]:
    yield first
    yield from (line for line in lines if line.strip())


def _reader(names: set[str]) -> Callable[[Fields], TraceRow]:
    if {"TIMESTAMP", "ContextTokens", "GeneratedTokens"} <= names:
        return _azure
    if {"Timestamp", "Request tokens", "Response tokens"} <= names:
        return _burstgpt
    raise TraceError(f"columns {', '.join(sorted(names)) or 'missing'}")


def _mooncake(fields: Fields) -> TraceRow:
    asked, got = fields["input_length"], fields["output_length"]
    blocks = tuple(int(each) for each in fields.get("hash_ids", ()))
    return _row(fields["timestamp"] / 1e3, asked, got, blocks)


def _azure(fields: Fields) -> TraceRow:
    at_s = datetime.fromisoformat(fields["TIMESTAMP"]).timestamp()
    return _row(at_s, fields["ContextTokens"], fields["GeneratedTokens"])


def _burstgpt(fields: Fields) -> TraceRow:
    asked, got = fields["Request tokens"], fields["Response tokens"]
    return _row(float(fields["Timestamp"]), asked, got)


def _row(
    at_s: float, asked: str | int, got: str | int, blocks: tuple[int, ...] = ()
) -> TraceRow:
    return TraceRow(
        offset_s=at_s, prompt_tokens=int(asked), output_tokens=int(got), blocks=blocks
    )


def _useful(rows: Iterable[TraceRow]) -> Iterator[TraceRow]:
    return (row for row in rows if row.prompt_tokens > 0 and row.output_tokens > 0)
