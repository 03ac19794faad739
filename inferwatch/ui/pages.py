"""Pages of the app: start, session, comparison, tune.

Pages lead to each other and back. An asynchronous context manager opens and ends a
page.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from inferwatch.errors import InferwatchError, UsageError
from inferwatch.feed import Feed
from inferwatch.live.attached.nearby import LookAround, nobody
from inferwatch.ui.messages import GoTo
from inferwatch.ui.view import ChosenSessions, View

if TYPE_CHECKING:  # a session is shown without them
    from inferwatch.studies.compare.runs.selection import ComparisonRequest
    from inferwatch.studies.tune.progress import TuneTask
    from inferwatch.studies.tune.result.tune_result import TuneResult


@dataclass(eq=False)
class SessionPage:
    """A live or recorded session."""

    feed: Feed
    view: View = field(default_factory=View)
    over: asyncio.Task[None] | None = None
    """Done once the session has ended by itself; None leaves that to the user."""

    @property
    def is_over(self) -> bool:
        return self.over is not None and self.over.done()


@dataclass(eq=False)
class StartPage:
    """Running servers and recorded sessions."""

    database: Path
    look: LookAround = nobody
    """Finds the engines of this host."""
    named: Mapping[str, str] = field(default_factory=dict)
    """Addresses of the servers in the settings file, by name."""
    sessions: ChosenSessions = field(default_factory=ChosenSessions)
    """Selection in the list of sessions."""


@dataclass(eq=False)
class ComparePage:
    """Recorded sessions compared with the first."""

    request: "ComparisonRequest"
    failure: InferwatchError | None = None


@dataclass(eq=False)
class TunePage:
    """A running or ended tune."""

    task: "TuneTask"
    running: "asyncio.Future[TuneResult]"
    """Done once the tune has ended."""
    stop: asyncio.Event
    """Set to end the tune with its present result."""


Page = SessionPage | StartPage | ComparePage | TunePage
Tell = Callable[[str], None]
"""Prints a line where the user sees it."""
OpeningPage = AbstractAsyncContextManager[Page]
OpenPage = Callable[[GoTo, Tell], OpeningPage]
"""Opens a page; messages while it ends go to the second argument. Entering or leaving
raises an ``InferwatchError`` with a message to show."""


def nowhere(wish: GoTo, tell: Tell) -> OpeningPage:
    """Refuse to open a page, where there is only one.

    Raises:
        UsageError: always.
    """
    del wish, tell
    raise UsageError("there is no other screen here")
