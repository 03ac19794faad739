"""Traces of recorded traffic: Mooncake, Azure and BurstGPT files, and sessions.

The format is detected from the first line; Mooncake may also be a single JSON list.
Times are converted to seconds from the first request; requests without prompt or output
tokens (failures) are left out.
"""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import chain, islice
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from inferwatch.loadgen.plan.lengths import MOST_TOKENS
from inferwatch.loadgen.plan.plan import LoadPlan, TraceRow

Fields = Mapping[str, Any]
FORMATS = ("mooncake", "azure", "burstgpt")
MOST_ROWS = 1_000_000
"""A plan contains its trace; this is more than a day of a busy service."""
MOST_BLOCK = (1 << 64) - 1
SHOWN_CHARS = 200


class TraceError(ValueError):
    """The file is in no known trace format; the message can be shown to users."""


class _Line(NamedTuple):
    """A line of a file, and a function to parse it."""

    number: int
    read: Callable[[], TraceRow]


def read_trace(
    path: Path, form: str | None = None, *, most: int = MOST_ROWS
) -> tuple[TraceRow, ...]:
    """The requests of a file in order of time; ``form`` is one of ``FORMATS``.

    Raises:
        TraceError: it cannot be read, or its format is unknown.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            return from_start(islice(_rows(lines, form), most))
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TraceError(
            f"{path} is not a known trace format: it is not text"
        ) from error
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error


def from_start(rows: Iterable[TraceRow]) -> tuple[TraceRow, ...]:
    """The requests in order of time, starting at zero."""
    ordered = sorted(rows, key=lambda row: row.offset_s)
    if not ordered:
        raise TraceError("no request in it has prompt and output tokens")
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


def needed(plan: LoadPlan) -> tuple[TraceRow, ...]:
    """The rows of a plan's trace that will be sent within its duration and count."""
    rows, end_s = plan.trace, float("inf")
    warm = sum(row.offset_s < plan.warmup_s * plan.speed for row in rows)
    if plan.duration_s is not None:
        end_s = (plan.warmup_s + plan.duration_s) * plan.speed
    if plan.requests is not None:
        rows = rows[: warm + plan.requests]
    return tuple(row for row in rows if row.offset_s < end_s)


def recorded(requests: Iterable[tuple[int, int, int]]) -> tuple[TraceRow, ...]:
    """The trace of recorded requests: (arrival in ns, prompt tokens, output tokens).

    Raises:
        TraceError: there is no request with tokens.
    """
    rows = (_row(at_ns / 1e9, prompt, output) for at_ns, prompt, output in requests)
    return from_start(_useful(rows))


def _rows(lines: Iterator[str], form: str | None) -> Iterator[TraceRow]:
    first = next(lines, "")
    if not first.strip():
        raise TraceError("not a known trace format: it begins with nothing")
    form = form or _form_of(first)
    whole = chain([first], lines)
    if form != "mooncake":
        numbered = _of_csv(whole, form)
    elif first.lstrip().startswith("["):
        numbered = _of_json_list("".join(whole))
    else:
        numbered = _of_json(whole)
    yield from _useful(map(_read, numbered))


def _read(line: _Line) -> TraceRow:
    try:
        return line.read()
    except KeyError as error:
        raise TraceError(f"line {line.number}: no {error.args[0]}") from error
    except RecursionError as error:
        raise TraceError(f"line {line.number}: nested too deeply") from error
    except (ValueError, TypeError, OverflowError) as error:
        message = str(error)[:SHOWN_CHARS]
        raise TraceError(f"line {line.number}: {message}") from error


def _form_of(first: str) -> str:
    if first.lstrip().startswith(("{", "[")):
        return "mooncake"
    names = {name.strip() for name in next(_csv([first]), [])}
    for form, needed in COLUMNS.items():
        if needed <= names:
            return form
    columns = ", ".join(sorted(names))
    if len(columns) > SHOWN_CHARS:
        columns = f"{columns[:SHOWN_CHARS]}…"
    raise TraceError(f"not a known trace format: columns {columns}")


def _of_json(lines: Iterator[str]) -> Iterator[_Line]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _Line(number, lambda line=line: _mooncake(json.loads(line)))  # type: ignore[misc]


def _of_json_list(text: str) -> Iterator[_Line]:
    """The rows of a JSON list as lines, numbered by row."""
    try:
        rows = json.loads(text)
    except RecursionError as error:
        raise TraceError("its list is nested too deeply") from error
    except ValueError as error:
        raise TraceError(f"a list that is not JSON: {error}") from error
    for number, fields in enumerate(rows, 1):
        yield _Line(number, lambda fields=fields: _mooncake(fields))  # type: ignore[misc]


def _of_csv(lines: Iterator[str], form: str) -> Iterator[_Line]:
    read = _azure if form == "azure" else _burstgpt
    rows = _csv(lines)
    names = [name.strip() for name in next(rows)]
    for number, row in enumerate(rows, 2):
        fields = dict(zip(names, row, strict=False))
        if fields:
            yield _Line(number, lambda fields=fields: read(fields))  # type: ignore[misc]


def _csv(lines: Iterable[str]) -> Iterator[list[str]]:
    rows = csv.reader(lines)
    try:
        yield from rows
    except csv.Error as error:
        raise TraceError(f"line {rows.line_num}: {error}") from error


COLUMNS = {
    "azure": {"TIMESTAMP", "ContextTokens", "GeneratedTokens"},
    "burstgpt": {"Timestamp", "Request tokens", "Response tokens"},
}


def _mooncake(fields: Fields) -> TraceRow:
    if not isinstance(fields, dict):
        raise TraceError("not an object")
    prompt, output = fields["input_length"], fields["output_length"]
    blocks = _blocks(fields.get("hash_ids") or [])
    return _row(float(fields["timestamp"]) / 1e3, prompt, output, blocks)


def _blocks(given: Any) -> tuple[int, ...]:  # noqa: ANN401 - JSON
    if not isinstance(given, list):
        raise TraceError("hash_ids is not a list")
    blocks = tuple(int(each) for each in given)
    if blocks and not 0 <= min(blocks) <= max(blocks) <= MOST_BLOCK:
        raise TraceError("hash_ids must be from 0 to 2^64 - 1")
    return blocks


def _azure(fields: Fields) -> TraceRow:
    at = datetime.fromisoformat(fields["TIMESTAMP"])
    # in local time, an hour would occur twice when clocks are set back
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return _row(at.timestamp(), fields["ContextTokens"], fields["GeneratedTokens"])


def _burstgpt(fields: Fields) -> TraceRow:
    prompt, output = fields["Request tokens"], fields["Response tokens"]
    return _row(float(fields["Timestamp"]), prompt, output)


def _row(
    at_s: float, prompt: str | int, output: str | int, blocks: tuple[int, ...] = ()
) -> TraceRow:
    if not isfinite(at_s):
        raise TraceError(f"not a time: {at_s}")
    tokens = int(prompt), int(output)
    if not 0 <= min(tokens) <= max(tokens) <= MOST_TOKENS:
        raise TraceError(f"lengths must be from 0 to {MOST_TOKENS:,} tokens")
    return TraceRow(
        offset_s=at_s, prompt_tokens=tokens[0], output_tokens=tokens[1], blocks=blocks
    )


def _useful(rows: Iterable[TraceRow]) -> Iterator[TraceRow]:
    return (row for row in rows if row.prompt_tokens > 0 and row.output_tokens > 0)
