"""Finds the sessions of each side from the words that the user typed."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from inferwatch.errors import NoSuchSessionError, StorageError, UsageError
from inferwatch.formatting import counted
from inferwatch.printing.command import command
from inferwatch.record.sessions.sessions import LAST, SessionRow, list_sessions, pick
from inferwatch.record.tables.session_state import SessionState


def session_before(rows: Iterable[SessionRow], row: SessionRow) -> SessionRow | None:
    """The latest earlier session of the same model that has ended and had requests."""
    going = row.state is SessionState.RECORDING
    if going or row.deleted_ns is not None or row.model is None:
        return None
    earlier = [
        each
        for each in rows
        if each.session < row.session
        and each.model == row.model
        and each.state is not SessionState.RECORDING
        and each.deleted_ns is None
        and (each.requests or each.client_requests)
    ]
    return max(earlier, key=lambda each: each.session, default=None)


BETWEEN = " -_.:/#"
LIKE_AN_ID = re.compile(r"s\d+")


def label_of(runs: Sequence[str], said: str | None = None) -> str:
    """A side's label: its only run's name, or the common start of names and a count.

    Args:
        runs: The distinct names of the side's runs.
        said: A common name for them, such as a tag or a directory.
    """
    if len(runs) == 1:
        return runs[0]
    return f"{said or _common(runs) or _ends(runs)} ×{len(runs)}"


def distinct(labels: Sequence[str], runs: Sequence[Sequence[str]]) -> list[str]:
    """The labels; equal ones are replaced by the names of their first and last run."""
    return [
        label
        if list(labels).count(label) == 1
        else (f"{_ends(names)} ×{len(names)}" if len(names) > 1 else label)
        for label, names in zip(labels, runs, strict=True)
    ]


def _ends(runs: Sequence[str]) -> str:
    return f"{runs[0]} … {runs[-1]}"


def _common(runs: Sequence[str]) -> str | None:
    """The common start of names, such as ``before`` of before1 and before2, or None."""
    if any(LIKE_AN_ID.fullmatch(run) for run in runs):
        return None
    begun = _alike(runs)
    rests = [run[len(begun) :] for run in runs]
    if any(rest[:1].isdigit() for rest in rests):
        begun = begun.rstrip("0123456789")
    elif any(rest[:1].isalpha() for rest in rests) and begun[-1:].isalnum():
        begun = begun[: max(begun.rfind(each) for each in BETWEEN) + 1]
    return begun.rstrip(BETWEEN) or None


def _alike(runs: Sequence[str]) -> str:
    first, last = min(runs), max(runs)
    places = range(len(first) + 1)
    return next(first[:n] for n in reversed(places) if last.startswith(first[:n]))


PARTS = "--"
"""Separates two sides; without it every word is a side."""
TAG = "tag:"
MOST_RUNS = 50
"""Most runs on one side; each is read completely, and more add little."""
MOST_SIDES = 50
"""More sides than this usually mean that ``--`` was forgotten."""
SESSION_FILES = frozenset({".db", ".sqlite", ".sqlite3"})
RESULT_FILES = frozenset({".json", ".jsonl"})
SQLITE = b"SQLite format 3\0"
AIPERF_SUMMARY = "_aiperf.json"
"""In a folder with files named like this, only they are results."""


@dataclass(frozen=True, slots=True)
class FoundSession:
    """A session and the file that holds it."""

    path: Path
    row: SessionRow
    result: Path | None = None
    """The other tool's file from which it was imported."""

    @property
    def name(self) -> str:
        return self.row.name or self.row.id

    @property
    def key(self) -> tuple[Path, int]:
        """Identifies the session, however the user named it."""
        return self.path.resolve(), self.row.session


@dataclass(frozen=True, slots=True)
class FoundSide:
    """The runs of one setting, found but not yet read."""

    runs: tuple[FoundSession, ...]
    label: str
    labels: tuple[str, ...]
    """The labels of its runs."""


class ResultFiles(Protocol):
    """Imports other tools' results as sessions, kept while they are compared."""

    def sessions_in(self, path: Path) -> list[FoundSession]:
        """One session per run in the file; repeated calls give the same sessions.

        Raises:
            UsageError: no known tool wrote the file, or it has no requests.
        """


@dataclass(frozen=True, slots=True)
class _Word:
    """The sessions that one typed word stands for."""

    runs: list[FoundSession]
    label: str | None = None
    """A common name for the runs."""


def grouped(words: Sequence[str]) -> list[tuple[str, ...]]:
    """Group the words by side.

    Raises:
        UsageError: there are fewer than two sides, or one is empty.
    """
    sides: list[tuple[str, ...]] = [()]
    if PARTS not in words:
        sides = [(word,) for word in words]
    else:
        for word in words:
            if word == PARTS:
                sides.append(())
            else:
                sides[-1] = (*sides[-1], word)
        if not all(sides):
            raise UsageError(
                f"a side is empty: runs stand before and after {PARTS}, as in "
                f"`inferwatch compare before1 before2 {PARTS} after1 after2`"
            )
    if len(sides) < 2:
        raise UsageError(
            "compare needs two sessions: inferwatch compare A B "
            "(`inferwatch sessions` lists them)"
        )
    if len(sides) > MOST_SIDES:
        raise UsageError(
            f"these are {len(sides):,} sides, each to be compared with the first, and "
            f"there may be {MOST_SIDES}: write {PARTS} between the runs of one side "
            "and those of the next"
        )
    for side in sides:
        _refuse_many(_in_short(side), len(side))
    return sides


def _in_short(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{words[0]} … {words[-1]}"


def find_sides(
    words: Sequence[str], database: Path, results: ResultFiles | None = None
) -> list[FoundSide]:
    """Find the sessions that the words stand for.

    Raises:
        UsageError: the sessions cannot be compared.
        StorageError: a session does not exist or cannot be read.
    """
    finder = _Finder(database, results)
    found_words = [[finder.find(word) for word in side] for side in grouped(words)]
    sides = [[run for word in side for run in word.runs] for side in found_words]
    for typed, runs in zip(grouped(words), sides, strict=True):
        _refuse_many(_in_short(typed), len(runs))
    finder.refuse([run for runs in sides for run in runs])
    names = _run_labels(sides)
    names_given = [word[0].label if len(word) == 1 else None for word in found_words]
    labels = [label_of(names[place], label) for place, label in enumerate(names_given)]
    return [
        FoundSide(tuple(runs), label, tuple(of_runs))
        for runs, label, of_runs in zip(
            sides, distinct(labels, names), names, strict=True
        )
    ]


def _refuse_many(what: str, n: int) -> None:
    if n > MOST_RUNS:
        raise UsageError(
            f"{what} means {n:,} runs: a side may have up to {MOST_RUNS}, as each is "
            "read whole. Name those that matter"
        )


def _run_labels(sides: Sequence[Sequence[FoundSession]]) -> list[list[str]]:
    """Names of the runs; equal names get a folder, a file name or an id."""
    runs = [run for side in sides for run in side]
    ways = (
        [run.name for run in runs],
        [_with_folder(run) for run in runs],
        [(run.result or run.path).stem for run in runs],
        [f"{run.row.id} {run.name}" for run in runs],
    )
    left = iter(next((n for n in ways if len(set(n)) == len(runs)), ways[-1]))
    return [[next(left) for _ in side] for side in sides]


def _with_folder(run: FoundSession) -> str:
    """The name with its folder, as a tool's result files may all have one name."""
    return f"{run.result.parent.name}/{run.name}" if run.result else run.name


class _Finder:
    """Finds sessions by word; lists the sessions of each file once."""

    def __init__(self, database: Path, results: ResultFiles | None) -> None:
        self._database = database
        self._results = results
        self._listed: dict[Path, list[SessionRow]] = {}

    def find(self, word: str) -> _Word:
        """Sessions in the default database, or in files that the word names."""
        path, _, tag = word.rpartition(f":{TAG}")
        if word.startswith(TAG):
            return self._tagged(self._database, word.removeprefix(TAG))
        if path and Path(path).is_file():
            return self._tagged(Path(path), tag)
        if Path(word).is_dir():
            return self._folder(Path(word), word)
        return _Word([self._one(word)])

    def refuse(self, runs: Sequence[FoundSession]) -> None:
        """Refuse runs that cannot be compared.

        Raises:
            UsageError: one is given twice, or is still being recorded.
        """
        seen: set[tuple[Path, int]] = set()
        for each in runs:
            if each.key in seen:
                raise UsageError(
                    f"{each.name} is given twice: a session does not differ from "
                    f"itself, and is one run{self._two_newest(each)}"
                )
            seen.add(each.key)
            if each.row.state is SessionState.RECORDING:
                raise UsageError(
                    f"{each.name} is still being recorded: compare it once it has ended"
                )

    def _two_newest(self, found: FoundSession) -> str:
        """The command for it and the one before it that is called the same."""
        called = [e for e in self._rows(found.path) if e.called == found.row.called]
        before = next((e for e in called if e.session < found.row.session), None)
        if found.result is not None or before is None:
            return ""
        both = command("compare", before.id, found.row.id, database=found.path)
        return f"; `{both}` compares it with the {found.row.called} before it"

    def _one(self, word: str) -> FoundSession:
        path, _, session = word.rpartition(":")
        if Path(word).is_file():
            return self._in_file(Path(word), "")
        if path and Path(path).is_file():
            return self._in_file(Path(path), session)
        meant_a_file = "/" in word or Path(word).suffix in SESSION_FILES | RESULT_FILES
        try:
            row = pick(self._rows(self._database), word, self._database)
        except StorageError as error:
            none = isinstance(error, NoSuchSessionError) or not self._database.exists()
            if not (meant_a_file and none):
                raise
            raise NoSuchSessionError(
                f"{word}: there is no such file, and no session in {self._database} "
                "is called so"
            ) from error
        return FoundSession(self._database, row)

    def _in_file(self, path: Path, session: str) -> FoundSession:
        if self._results is None or not _is_result(path):
            row = pick(self._rows(path), session or LAST, path)
            return FoundSession(path, row)
        runs = self._results.sessions_in(path)
        names = [run.name for run in runs]
        for number, run in enumerate(runs, 1):
            if session in {str(number), run.name} or (not session and len(runs) == 1):
                return run
        raise UsageError(
            f"{path} holds {counted(len(runs), 'run')}: name one, as "
            f"{path}:1 ({', '.join(names[:10])})"
        )

    def _tagged(self, database: Path, tag: str) -> _Word:
        rows = self._rows(database)
        tagged = [row for row in rows if tag in row.tags.split()]
        if not tagged:
            tags = sorted({each for row in rows for each in row.tags.split()})
            hint = f"there are {', '.join(tags[:20])}" if tags else "none has a tag"
            raise NoSuchSessionError(
                f"No session in {database} has the tag {tag!r}: {hint}. "
                "`inferwatch sessions tag SESSION WORD` gives one"
            )
        _refuse_many(f"{TAG}{tag}", len(tagged))
        return _Word([FoundSession(database, row) for row in reversed(tagged)], tag)

    def _folder(self, folder: Path, word: str) -> _Word:
        """All runs in a folder; an error if a session has the folder's name."""
        if "/" not in word and self._is_named(word):
            raise UsageError(
                f"{word} is a session of {self._database} and a directory: write "
                f"{word}/ for the directory, and the session by its id"
            )
        files = list(_files_in(folder))
        if not files:
            raise UsageError(
                f"{folder} holds no sessions and no results: there is no file in it "
                f"that ends with {', '.join(sorted(SESSION_FILES | RESULT_FILES))}"
            )
        runs = {run.key: run for file in files for run in [self._in_file(file, "")]}
        return _Word(list(runs.values()), folder.resolve().name)

    def _is_named(self, word: str) -> bool:
        if not self._database.exists():
            return False
        rows = self._rows(self._database)
        return any(word in {row.id, row.name} for row in rows)

    def _rows(self, path: Path) -> list[SessionRow]:
        if path not in self._listed:
            self._listed[path] = list_sessions(path)
        return self._listed[path]


def _files_in(folder: Path) -> Iterator[Path]:
    """Files in the folder that may hold runs, by name."""
    ends = SESSION_FILES | RESULT_FILES
    try:
        paths = [
            path
            for path in folder.iterdir()
            if path.suffix in ends and not path.name.startswith(".") and path.is_file()
        ]
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}") from error
    summaries = [path for path in paths if path.name.endswith(AIPERF_SUMMARY)]
    if summaries:
        paths = [p for p in paths if p in summaries or p.suffix in SESSION_FILES]
    _refuse_many(str(folder), len(paths))
    yield from sorted(paths)


def _is_result(path: Path) -> bool:
    """Whether the file is neither a session file nor named like one."""
    if path.suffix in SESSION_FILES:
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(SQLITE)) != SQLITE
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
