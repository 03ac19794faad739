"""Why was this one slow? One request, over the screen it was opened from."""

from collections.abc import Iterable, Sequence
from time import monotonic
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from inferwatch.errors import InferwatchError
from inferwatch.feed import Feed
from inferwatch.metrics.causes.story import RequestStory
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.request.canvas import RequestCanvas
from inferwatch.ui.shared.drawers import COST_KEYS, catalog_keys
from inferwatch.ui.shared.header import Tab
from inferwatch.ui.shared.messages import LookAgain, LookAt
from inferwatch.ui.shared.status_lines import VerdictLine
from inferwatch.ui.shared.view import REQUEST, View
from inferwatch.ui.shared.watch_screen import WatchScreen

TOLD_EVERY_S = 0.4
"""At the least between two stories of a request that goes on, while time does."""
LOOKING = "looking at what was recorded of it …"
NOTHING = (
    "nothing single is known of it at this moment: a probe tells requests, steps and "
    "tokens"
)


class RequestScreen(WatchScreen):
    """Shows the story of the request that was opened last; esc leads back."""

    NAME = REQUEST
    TAB = "requests"
    LABEL = "Request"
    QUESTION = "Why was this one slow?"
    EXPLAINS = (
        *catalog_keys(
            "request",
            "state prompt_tokens cached_tokens output_tokens max_tokens queue_s "
            "prefill_s ttft_s tpot_s itl_last_s itl_max_s decode_s e2el_s preemptions "
            "reason",
        ),
        *COST_KEYS,
    )
    ADVISES = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "back", tooltip="Back to where you came from"),
    ]
    DEFAULT_CSS = """
    RequestScreen {
        ReadoutLine, HostLine { display: none; }
        &.-untouched RequestCanvas { display: block; }
    }
    """

    def __init__(self, feed: Feed, view: View, tabs: Sequence[Tab] = ()) -> None:
        super().__init__(feed, view, tabs)
        self._story: RequestStory | None = None
        self._remark = LOOKING
        self._asked: tuple[str, int] | None = None
        """Of which request, as of when, the last story was asked for."""
        self._asked_s = float("-inf")
        self._asking = False

    def compose_panels(self) -> Iterable[Widget]:
        """One drawing."""
        yield RequestCanvas()

    @property
    def key(self) -> str | None:
        """Of the request that is shown."""
        return self.view.opened[-1] if self.view.opened else None

    def show_panels(self, shown: Snapshot) -> None:
        """What is known of it; more is asked for where it may have changed."""
        self.query_one(VerdictLine).display = False  # it is about the server
        if self.key is not None and self._is_due(self.key, shown.now_ns):
            self._asking = True
            self.run_worker(self._ask(self.key, shown.now_ns), group="story")
        self._draw()

    def _is_due(self, key: str, now_ns: int) -> bool:
        if self._asking:
            return False
        if self._asked is None or self._asked[0] != key:
            return True
        story, before_ns = self._story, self._asked[1]
        if now_ns == before_ns:
            return False
        ended = story is not None and not story.row.state.live
        if story is not None and ended and now_ns >= story.end_ns:
            return False
        playback = self.feed.playback
        moves = playback is None or playback.at_live or playback.playing
        return not moves or monotonic() - self._asked_s >= TOLD_EVERY_S

    async def _ask(self, key: str, now_ns: int) -> None:
        """Get its story, while the old one stays in sight."""
        self._asked, self._asked_s = (key, now_ns), monotonic()
        if self._story is not None and self._story.row.key != key:
            self._story, self._remark = None, LOOKING
            self._draw()
        try:
            told, remark = await self.feed.recall.request(key), NOTHING
        except InferwatchError as error:
            told, remark = None, str(error)
        finally:
            self._asking = False
        if key == self.key:
            self._story, self._remark = told, remark
            self._draw()
        else:
            self.post_message(LookAgain())

    def _draw(self) -> None:
        if not self.is_mounted:
            return
        back = "back" if len(self.view.opened) > 1 else self.view.opened_from
        self.query_one(RequestCanvas).show(self._story, self._remark, back)

    def action_back(self) -> None:
        """To the request before, else to the screen that it was opened from."""
        self.post_message(LookAt(self.view.close_request()))
        self.post_message(LookAgain())
