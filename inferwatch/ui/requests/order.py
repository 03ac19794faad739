"""Which requests are listed, in which order: plain logic, no drawing."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain

from inferwatch.metrics.snapshot import RequestRow

SortValue = float | str | None
"""None goes last, whichever way the column is sorted."""


class Scope(StrEnum):
    """Which requests are listed at all."""

    ALL = "all"
    LIVE = "live"
    ENDED = "ended"


SORTS: dict[str, Callable[[RequestRow], SortValue]] = {
    "arrived": lambda row: row.arrived_ns,
    "state": lambda row: row.state.value,
    "prompt": lambda row: row.prompt_tokens,
    "output": lambda row: row.output_tokens,
    "queue": lambda row: row.queue_s,
    "ttft": lambda row: row.ttft_s,
    "tpot": lambda row: row.tpot_s,
    "itl": lambda row: row.itl_last_s,
    "itl_max": lambda row: row.itl_max_s,
    "e2el": lambda row: row.e2el_s,
    "preemptions": lambda row: row.preemptions,
    "reason": lambda row: row.reason,
}
"""Columns one can sort by, in the order the key cycles through."""


@dataclass(frozen=True)
class Order:
    """Sort column, direction, words to match and scope."""

    column: str = "arrived"
    descending: bool = True
    text: str = ""
    scope: Scope = Scope.ALL

    def by(self, column: str) -> "Order":
        """By a column, worst first; by the same one again, the other way round."""
        if column == self.column:
            return replace(self, descending=not self.descending)
        return replace(self, column=column, descending=True)

    def next_column(self) -> "Order":
        """By the column to the right."""
        names = list(SORTS)
        return self.by(names[(names.index(self.column) + 1) % len(names)])

    def next_scope(self) -> "Order":
        """All, live, ended, all."""
        scopes = list(Scope)
        return self.within(scopes[(scopes.index(self.scope) + 1) % len(scopes)])

    def within(self, scope: Scope) -> "Order":
        """Only these."""
        return replace(self, scope=scope)

    def matching(self, text: str) -> "Order":
        """Only requests in which these words are found."""
        return replace(self, text=text.strip().lower())

    @property
    def narrows(self) -> bool:
        """Some requests may be left out."""
        return bool(self.text) or self.scope is not Scope.ALL

    def arrange(self, rows: Iterable[RequestRow]) -> list[RequestRow]:
        """The rows to list, ties newest first, unknown values last."""
        value = SORTS[self.column]
        known: list[RequestRow] = []
        unknown: list[RequestRow] = []
        for row in filter(self._lists, rows):
            (unknown if value(row) is None else known).append(row)
        known.sort(key=lambda row: row.arrived_ns, reverse=True)
        known.sort(key=value, reverse=self.descending)  # type: ignore[arg-type] # None is in unknown
        return list(chain(known, unknown))

    def _lists(self, row: RequestRow) -> bool:
        if self.scope is not Scope.ALL and row.state.live != (self.scope is Scope.LIVE):
            return False
        words = (row.state.value, row.request_id, row.external_id, row.reason)
        found = " ".join(word.lower() for word in words if word)
        return all(word in found for word in self.text.split())
