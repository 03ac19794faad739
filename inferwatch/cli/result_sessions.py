"""Imports other tools' results into temporary sessions, for a comparison."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from inferwatch.errors import UsageError
from inferwatch.record.file.scratch import scratch_folder
from inferwatch.record.imported.imported_sessions import store_runs
from inferwatch.record.imported.result_file import read_results
from inferwatch.record.sessions.sessions import find
from inferwatch.studies.compare.runs.sides import FoundSession


@contextmanager
def result_sessions() -> Iterator["ResultSessions"]:
    """Yield imported sessions; their files are deleted at the end."""
    with ExitStack() as stack:
        yield ResultSessions(stack)


class ResultSessions:
    """Imports each file once, when it is first asked for."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._folder: Path | None = None
        self._found: dict[Path, list[FoundSession]] = {}
        self._digests: dict[str, Path] = {}

    def sessions_in(self, path: Path) -> list[FoundSession]:
        """Return one session for each run in the file, named after the file.

        Raises:
            UsageError: the file is of no known tool, or lacks the requests.
        """
        asked = path.resolve()
        if asked not in self._found:
            self._found[asked] = self._imported(path)
        return self._found[asked]

    def _imported(self, path: Path) -> list[FoundSession]:
        file = read_results(path)
        if file.path in self._found:  # a summary of requests that were read before
            return self._found[file.path]
        first = self._digests.setdefault(file.digest, file.path)
        if first != file.path:
            raise UsageError(f"{path} is a copy of {first}: that is one run, not two")
        if self._folder is None:
            self._folder = self._stack.enter_context(scratch_folder("compare"))
        database = self._folder / f"{len(self._digests)}.db"
        stored = store_runs(database, [file])
        found = [
            FoundSession(database, find(database, each.session_id), file.path)
            for each in stored
        ]
        self._found[file.path] = found
        return found
