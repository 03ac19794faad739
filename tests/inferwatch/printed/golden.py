"""Golden files: what is printed, kept as it was, in a form that people can review.

Numbers of JSON keep nine digits: the last ones are the processor's. What is long and
that nobody reads is a hash: styles, scripts, the coordinates of a curve.
"""

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from difflib import unified_diff
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parent / "golden"
HERE = "/".join(GOLDEN.parts[-4:-1])
UPDATE = "UPDATE_GOLDEN"
"""In the environment: rewrites them. Delete the folder before, and none is left over.
"""
DIFF_LINES = 60
LONGEST = 240
"""Characters of an attribute that are kept as they are."""
DIGITS = 9
ROWS = 3
"""Of a table, kept as they are at its beginning and at its end."""
_DATA = re.compile(r"<(style|script)([^>]*)>(.+?)</\1>", re.DOTALL)
_NUMBERS = re.compile(r"<pre>([^<]{2000,})</pre>")
_FRACTION = re.compile(r"(?<![\d.])\d+\.\d{6,}(?:e-?\d+)?")
_VALUE = re.compile(rf'"([^"<>]{{{LONGEST},}})"')
_BETWEEN_TAGS = re.compile(r"(?<=>)(?=<)")


def check(name: str, printed: str) -> None:
    """Compare what was printed with the golden file of that name, or rewrite that."""
    file = GOLDEN / name
    now = FORMS.get(file.suffix, str)(printed)
    if os.environ.get(UPDATE):
        file.parent.mkdir(exist_ok=True)
        file.write_text(now, encoding="utf-8")
        return
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    if now == before:
        return
    changes = unified_diff(
        before.splitlines(), now.splitlines(), f"golden/{name}", "printed", n=1
    )
    told = [line.rstrip("\n")[:LONGEST] for line in changes]
    shown = "\n".join(islice(told, DIFF_LINES))
    more = len(told) - DIFF_LINES
    rest = f"\n... and {more} more lines" if more > 0 else ""
    pytest.fail(
        f"{name} is not what it was:\n{shown}{rest}\n"
        f"If it is meant to be so, `{UPDATE}=1 pytest -n0 -m '' {HERE}` rewrites the "
        "golden files: review how they differ.",
        pytrace=False,
    )


def json_form(printed: str) -> str:
    """Each line of JSON, indented; what is none, as it is."""
    return "".join(map(_indented, printed.splitlines(keepends=True)))


def _indented(line: str) -> str:
    try:
        told = json.loads(line, object_pairs_hook=_pairs)
    except ValueError:
        return line
    assert line.isascii(), "JSON is printed in ASCII"
    return json.dumps(_rounded(told), indent=1, ensure_ascii=False) + "\n"


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """No key is there twice."""
    names = [name for name, _ in pairs]
    assert len(names) == len({*names}), names
    return dict(pairs)


def _rounded(told: Any) -> Any:
    if isinstance(told, dict):
        return {name: _rounded(each) for name, each in told.items()}
    if isinstance(told, list):
        return [_rounded(each) for each in told]
    return _digits(told) if isinstance(told, float) else told


def _digits(value: float) -> float:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else value


def page_form(printed: str) -> str:
    """A tag a line; styles, scripts, all numbers and long attributes are hashes."""
    page = _FRACTION.sub(lambda m: str(_digits(float(m[0]))), printed)
    page = _DATA.sub(lambda m: f"<{m[1]}{m[2]}>{_digest(m[3])}</{m[1]}>", page)
    page = _NUMBERS.sub(lambda m: f"<pre>{_digest(m[1])}</pre>", page)
    page = _VALUE.sub(lambda m: f'"{m[1][:60]} {_digest(m[1])}"', page)
    return _BETWEEN_TAGS.sub("\n", page)


def rows_form(printed: str) -> str:
    """Lines of a table: the first and the last, and a hash of all between."""
    lines = printed.splitlines(keepends=True)
    if len(lines) <= 2 * ROWS + 1:
        return printed
    between = lines[ROWS + 1 : -ROWS]
    told = f"... {len(between)} lines: {_digest(''.join(between))}\n"
    return "".join((*lines[: ROWS + 1], told, *lines[-ROWS:]))


def json_lines_form(printed: str) -> str:
    """The first row of each table, how many there are, and a hash of all of them."""
    tables: dict[str, list[str]] = {}
    for line in printed.splitlines(keepends=True):
        tables.setdefault(json.loads(line)["table"], []).append(line)
    return "".join(
        f"{name}: {len(rows)} rows: {_digest(''.join(rows))}\n  {rows[0]}"
        for name, rows in tables.items()
    )


def trace_form(printed: str) -> str:
    """Of each kind of event the first, how many there are, and a hash of all."""
    trace = json.loads(printed)
    kinds: dict[str, list[Any]] = {}
    for event in trace.pop("traceEvents"):
        kinds.setdefault(_kind_of(event), []).append(event)
    told = [f"{json.dumps(trace)}\n"]
    for kind, events in kinds.items():
        digest = _digest(json.dumps(events))
        told.append(f"{kind}: {len(events)} events: {digest}\n")
        told.append(f"  {json.dumps(events[0], ensure_ascii=False)}\n")
    return "".join(told)


def _kind_of(event: Mapping[str, Any]) -> str:
    name = re.sub(r"\d+", "N", str(event.get("name", "")))
    return f"{event.get('ph')} {event.get('cat', '')} {name}"


def _digest(text: str) -> str:
    digest = blake2b(text.encode(), digest_size=8).hexdigest()
    return f"[{len(text)} characters, {digest}]"


FORMS: Mapping[str, Callable[[str], str]] = {
    ".json": json_form,
    ".html": page_form,
    ".csv": rows_form,
    ".rows": rows_form,
    ".jsonl": json_lines_form,
    ".trace": trace_form,
}
