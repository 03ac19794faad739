"""What the app can show: the start screen, a session, a comparison, a tune.

People go from one to the next and come back. Whoever opens a page also ends it: an
asynchronous context manager gives it, and ends it when that is left.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

from inferwatch.errors import InferwatchError, UsageError
from inferwatch.feed import Feed
from inferwatch.live.attached.nearby import LookAround, nobody
from inferwatch.studies.compare.runs.selection import ComparisonRequest
from inferwatch.studies.tune.progress import TuneTask
from inferwatch.studies.tune.result.tune_result import TuneResult
from inferwatch.ui.messages import GoTo
from inferwatch.ui.view import ChosenSessions, View


@dataclass(eq=False)
class SessionPage:
    """A session, live or recorded, in the screens of a session."""

    feed: Feed
    view: View = field(default_factory=View)
    over: asyncio.Task[None] | None = None
    """Done when there is nothing to look at any more; None: people decide."""

    @property
    def is_over(self) -> bool:
        """It ended by itself, looked at or not."""
        return self.over is not None and self.over.done()


@dataclass(eq=False)
class StartPage:
    """What can be done: what runs here, what was recorded."""

    database: Path
    look: LookAround = nobody
    """Finds the engines of this node."""
    named: Mapping[str, str] = field(default_factory=dict)
    """Addresses of the servers of the settings file, by name."""
    sessions: ChosenSessions = field(default_factory=ChosenSessions)
    """What is chosen in the list of what was recorded."""


@dataclass(eq=False)
class ComparePage:
    """Recorded sessions side by side, compared with the first."""

    request: ComparisonRequest
    failure: InferwatchError | None = None
    """Why there was nothing to see; None when there was."""


@dataclass(eq=False)
class TunePage:
    """A tune that goes on, or has just ended."""

    task: TuneTask
    running: asyncio.Future[TuneResult]
    """Done when it has ended."""
    stop: asyncio.Event
    """Set: it ends with what it has."""


Page = SessionPage | StartPage | ComparePage | TunePage
Tell = Callable[[str], None]
"""Says a line to people, wherever they can see it."""
OpeningPage = AbstractAsyncContextManager[Page]
OpenPage = Callable[[GoTo, Tell], OpeningPage]
"""Opens where people want to go; what is told while it ends goes to the other one.

Entering or leaving it raises an ``InferwatchError`` that is fit to show.
"""


def nowhere(wish: GoTo, tell: Tell) -> OpeningPage:
    """For an app that leads nowhere else.

    Raises:
        UsageError: always.
    """
    del wish, tell
    raise UsageError("there is no other screen here")
