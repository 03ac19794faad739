"""Imports other tools' results into temporary sessions, for a comparison."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from inferwatch.errors import UsageError
from inferwatch.record.file.location import scratch_folder
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
        self._sessions: dict[Path, list[FoundSession]] = {}
        self._digests: dict[str, Path] = {}

    def sessions_in(self, path: Path) -> list[FoundSession]:
        """Return one session for each run in the file, named after the file.

        Raises:
            UsageError: the file is of no known tool, or lacks the requests.
        """
        resolved = path.resolve()
        if resolved not in self._sessions:
            self._sessions[resolved] = self._imported(path)
        return self._sessions[resolved]

    def _imported(self, path: Path) -> list[FoundSession]:
        file = read_results(path)
        if file.path in self._sessions:  # a summary of requests that were read before
            return self._sessions[file.path]
        first = self._digests.setdefault(file.digest, file.path)
        if first != file.path:
            raise UsageError(f"{path} is a copy of {first}: that is one run, not two")
        if self._folder is None:
            self._folder = self._stack.enter_context(scratch_folder("compare"))
        database = self._folder / f"{len(self._digests)}.db"
        stored = store_runs(database, [file])
        sessions = [
            FoundSession(database, find(database, each.session_id), file.path)
            for each in stored
        ]
        self._sessions[file.path] = sessions
        return sessions
