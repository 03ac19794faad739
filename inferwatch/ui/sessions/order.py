"""Which sessions are listed, in which order: plain logic, no drawing."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from inferwatch.storage.sessions.session_state import SessionState
from inferwatch.storage.sessions.sessions import SessionRow
from inferwatch.storage.sessions.summaries import SessionSummary

SortValue = float | str | None
"""None goes last, whichever way the column is sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSession:
    """A session with what is known of it by now."""

    row: SessionRow
    size_bytes: int | None = None
    """An estimate."""
    summary: SessionSummary | None = None
    """None until it was looked up."""

    @property
    def recording(self) -> bool:
        """It goes on."""
        return self.row.state is SessionState.RECORDING

    @property
    def title(self) -> str:
        """Its name, else how it was begun."""
        return self.row.name or self.row.command

    @property
    def model(self) -> str:
        """Without the folder it lies in."""
        return (self.row.model or "").rstrip("/").rsplit("/", 1)[-1]


def _ttft(each: ListedSession) -> SortValue:
    return each.summary.ttft_p99_s if each.summary else None


def _tokens(each: ListedSession) -> SortValue:
    return each.summary.output_tokens_per_s if each.summary else None


SORTS: dict[str, Callable[[ListedSession], SortValue]] = {
    "began": lambda each: each.row.started_ns,
    "name": lambda each: each.title.lower(),
    "model": lambda each: each.model.lower() or None,
    "watched": lambda each: each.row.duration_ns,
    "requests": lambda each: each.row.requests or each.row.client_requests,
    "ttft": _ttft,
    "tokens": _tokens,
    "size": lambda each: each.size_bytes,
    "state": lambda each: each.row.state.value,
    "tags": lambda each: each.row.tags or None,
}
"""Columns one can sort by, in the order the key cycles through."""


@dataclass(frozen=True)
class SessionOrder:
    """Sort column, direction, words to match, kept ones or the bin."""

    column: str = "began"
    descending: bool = True
    text: str = ""
    bin: bool = False

    def by(self, column: str) -> "SessionOrder":
        """By a column, largest first; by the same one again, the other way round."""
        if column == self.column:
            return replace(self, descending=not self.descending)
        return replace(self, column=column, descending=column not in {"name", "model"})

    def next_column(self) -> "SessionOrder":
        """By the column to the right."""
        names = list(SORTS)
        return self.by(names[(names.index(self.column) + 1) % len(names)])

    def within(self, *, bin: bool) -> "SessionOrder":
        """Those in the bin, or those that are kept."""
        return replace(self, bin=bin)

    def matching(self, text: str) -> "SessionOrder":
        """Only sessions in which these words are found."""
        return replace(self, text=text.strip().lower())

    def arrange(self, listed: Iterable[ListedSession]) -> list[ListedSession]:
        """The sessions to list, ties newest first, unknown values last."""
        value = SORTS[self.column]
        wanted = sorted(filter(self._lists, listed), key=lambda each: -each.row.session)
        known = [each for each in wanted if value(each) is not None]
        known.sort(key=value, reverse=self.descending)  # type: ignore[arg-type] # None is not in known
        return known + [each for each in wanted if value(each) is None]

    def _lists(self, each: ListedSession) -> bool:
        row = each.row
        if (row.deleted_ns is not None) != self.bin:
            return False
        words = (row.id, row.name, row.command, row.model, row.tags, row.state.value)
        found = " ".join(word.lower() for word in words if word)
        return all(word in found for word in self.text.split())
