"""The steps a time line shows, fetched beside it: drawing never waits for them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from textual.widget import Widget

from collectors.contract.readings import Step
from inferwatch.errors import InferwatchError
from inferwatch.feed import Feed


@dataclass(frozen=True, slots=True)
class Wish:
    """The span and source whose single steps are to be fetched."""

    start_ns: int
    end_ns: int
    most: int
    source: str | None = None


class RecalledSteps:
    """Fetches one wish at a time; of those that wait only the newest counts.

    Until the new ones are there, the old ones stay.
    """

    def __init__(self, host: Widget, feed: Feed, tell: Callable[[], None]) -> None:
        self._host, self._feed, self._tell = host, feed, tell
        self._wish: Wish | None = None
        self._done: Wish | None = None
        self._busy = False
        self.steps: Sequence[Step] = ()
        self.failure: str | None = None
        """Why there are none, where that is known."""

    @property
    def busy(self) -> bool:
        """An answer is awaited."""
        return self._busy

    @property
    def any_came(self) -> bool:
        """The first answer is there, be it empty."""
        return self._done is not None

    def want(self, wish: Wish) -> None:
        """Fetch that, unless it is what there is."""
        if wish in {self._wish, self._done if not self._busy else None}:
            return
        self._wish = wish
        if not self._busy:
            self._busy = True
            self._host.run_worker(self._fetch(), group="steps", exit_on_error=False)

    async def _fetch(self) -> None:
        try:
            while (wish := self._wish) is not None and wish != self._done:
                await self._fetch_one(wish)
        finally:
            self._busy, self._wish = False, None

    async def _fetch_one(self, wish: Wish) -> None:
        try:
            recall = self._feed.recall
            steps = await recall.steps(wish.start_ns, wish.end_ns, wish.source)
        except InferwatchError as error:
            steps, self.failure = (), str(error)
        else:
            self.failure = None
        self.steps, self._done = steps[-wish.most :], wish
        self._tell()
