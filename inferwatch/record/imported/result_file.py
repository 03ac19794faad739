"""Detects which tool wrote a result file, by its contents and not by its name."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferwatch.errors import UsageError
from inferwatch.record.imported.aiperf import (
    is_aiperf_record,
    is_aiperf_summary,
    read_aiperf,
    records_beside,
)
from inferwatch.record.imported.guidellm import is_guidellm, read_guidellm
from inferwatch.record.imported.imported_run import (
    MALFORMED,
    ImportedRun,
    UnreadableResultError,
)
from inferwatch.record.imported.sglang_bench import (
    is_sglang_bench,
    read_sglang_bench,
)
from inferwatch.record.imported.vllm_bench import is_vllm_bench, read_vllm_bench

EXPECTED = (
    "expected a result of `vllm bench serve --save-result --save-detailed` (JSON), of "
    "`inferwatch load --format vllm-bench`, of `sglang.bench_serving "
    "--output-details` (JSON lines), a report of guidellm (JSON), or aiperf's "
    "profile_export.jsonl"
)
DIGEST_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFile:
    """A result file and the runs in it."""

    path: Path
    digest: str
    """Digest of the contents: equal for copies."""
    runs: list[ImportedRun]


def read_results(path: Path) -> ResultFile:
    """The runs of a file of any tool we know.

    Raises:
        UsageError: it cannot be read, or is none of those; says what was expected.
    """
    text = _text(path)
    try:
        documents = _documents(text)
        if documents and is_aiperf_summary(documents[0]):
            path = records_beside(path)
            text = _text(path)
            documents = _documents(text)
        runs = _runs(path, text, documents)
    except UnreadableResultError as error:
        raise UsageError(f"{path}: {error}") from error
    except MALFORMED as error:
        raise UsageError(
            f"{path}: something in it is not as the tool writes it ({error!r}): "
            f"{EXPECTED}"
        ) from error
    digest = hashlib.sha256(text.encode()).hexdigest()[:DIGEST_DIGITS]
    return ResultFile(path=path.resolve(), digest=digest, runs=runs)


def _runs(path: Path, text: str, documents: list[Any]) -> list[ImportedRun]:
    first: Any = documents[0] if documents else None
    if is_aiperf_record(first):
        return read_aiperf(path, text.splitlines())
    if is_guidellm(first):
        return read_guidellm(first)
    if is_sglang_bench(first):
        return read_sglang_bench(text.splitlines())
    if is_vllm_bench(first):
        return read_vllm_bench(first)
    if is_load_summary(first):
        raise UnreadableResultError(of_load_summary(first))
    raise UnreadableResultError(EXPECTED)


def is_load_summary(document: object) -> bool:
    """Whether a document is what ``inferwatch load --json`` prints."""
    return isinstance(document, dict) and {"run_id", "cross_check"} <= document.keys()


def of_load_summary(document: dict[str, Any]) -> str:
    """The error message: the requests are not in the file, but in the record."""
    session = document.get("session_id")
    text = "this is what `inferwatch load --json` prints: sums, without requests"
    if session:
        return f"{text}. They are in the record, as session {session}"
    return f"{text}. Record the load, or save it with --format vllm-bench"


def _documents(text: str) -> list[Any]:
    """The JSON document, or the first of JSON lines; empty when it is neither."""
    for part in (text, text.partition("\n")[0]):
        try:
            return [json.loads(part)]
        except (ValueError, RecursionError):
            continue
    return []


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: {EXPECTED}") from error
