"""Single steps: their time line, and below it one of them with its requests."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from textual import on
from textual.containers import Vertical
from textual.widget import Widget

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import Step
from inferwatch.errors import InferwatchError
from inferwatch.feed import Feed
from inferwatch.formatting import counted
from inferwatch.metrics.requests.request_row import RequestRow
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.messages import LookAgain
from inferwatch.ui.steps.columns import (
    MOST_STEPS,
    ZOOMS,
    StepKey,
    key_of,
    since_ns,
    usual_ns,
)
from inferwatch.ui.steps.facts import step_facts
from inferwatch.ui.steps.members import Member, StepPanel, members_of
from inferwatch.ui.steps.step_line import StepLine, StepPicture
from inferwatch.ui.view import View
from inferwatch.ui.widgets.limit_words import highest


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


class SingleSteps(Vertical):
    """Follows time; around a step that people chose, the line stands still."""

    DEFAULT_CSS = """
    SingleSteps { height: 1fr; }
    """

    _zoom = 0
    _picked: Step | None = None
    """The step that the time cursor stands at, as people chose it."""
    _held_end_ns: int | None = None
    """The right end of the line while one is chosen."""
    _shown: Snapshot | None = None

    def __init__(
        self,
        feed: Feed,
        view: View,
        one_step: Callable[[Snapshot], tuple[str, Step | None]],
        is_held: Callable[[], bool],
    ) -> None:
        super().__init__()
        self._feed, self._view = feed, view
        self._one_step, self._is_held = one_step, is_held
        self._recalled = RecalledSteps(self, feed, self._show_again)

    def compose(self) -> Iterable[Widget]:
        """The line, and a step."""
        yield StepLine()
        yield StepPanel()

    @property
    def chosen(self) -> Member | None:
        """The request that Enter opens."""
        return self.query_one(StepPanel).chosen

    @property
    def reading(self) -> bool:
        """Other steps than those drawn are on their way."""
        return self._recalled.busy

    def choose(self, by: int) -> None:
        """Another request of the step."""
        self.query_one(StepPanel).choose(by)

    def let_go(self) -> None:
        """No step is chosen: the time cursor alone says where to look."""
        self._picked = self._held_end_ns = None

    def _show_again(self) -> None:
        """They came: draw them, and nothing else anew."""
        if self._shown is not None and self.is_attached:
            self._draw(self._shown)

    def show(self, shown: Snapshot) -> None:
        """Fetch the steps of its moment, and draw those there are meanwhile."""
        self._shown = shown
        line = self.query_one(StepLine)
        if not line.size:  # not laid out yet
            self.call_after_refresh(self.post_message, LookAgain())
        picked = self._picked
        if picked is not None and self._view.cursor_ns != picked.end_ns:
            self.let_go()  # the cursor went elsewhere
        end_ns = self._line_end_ns(shown)
        most = self._most
        start_ns = min(
            since_ns(shown.timeline, end_ns, most), end_ns - most * usual_ns(shown)
        )
        self._recalled.want(Wish(max(start_ns, 0) - 1, end_ns, most, self._view.source))
        self._draw(shown)

    def _line_end_ns(self, shown: Snapshot) -> int:
        """The right end: now, or soon after the slowest step under the cursor."""
        if self._held_end_ns is not None:
            return self._held_end_ns
        index = self._view.bin_of(shown)
        if self._view.cursor_ns is None or index is None:
            return shown.charts_end_ns
        line = shown.timeline
        end_ns = min(line.start_ns + (index + 1) * line.bin_ns - 1, shown.charts_end_ns)
        slowest = line.slowest_step[index]
        if slowest is None:
            return end_ns
        return min(end_ns, slowest.end_ns + self._most // 4 * usual_ns(shown))

    @property
    def _most(self) -> int:
        """Steps there is room for."""
        capacity = self.query_one(StepLine).capacity
        return min(capacity * ZOOMS[self._zoom], MOST_STEPS)

    def _draw(self, shown: Snapshot) -> None:
        steps = self._recalled.steps
        title, step = self._step_of(shown)
        first_ns = steps[0].start_ns if steps else shown.now_ns
        span_ns = first_ns, steps[-1].end_ns if steps else shown.now_ns
        chosen: StepKey | None = None if step is None else key_of(step)
        end_ns = self._line_end_ns(shown)
        self.query_one(StepLine).show(
            StepPicture(
                steps=steps,
                why_none=self._why_none(shown),
                a_column=ZOOMS[self._zoom],
                chosen=chosen,
                budget=highest(shown, "max_num_batched_tokens", span_ns),
                max_seqs=highest(shown, "max_num_seqs", span_ns),
                end=self._feed.wall_text(end_ns, ms=True),
            )
        )
        rows = {} if step is None else self._rows_of(step, shown)
        self.query_one(StepPanel).show(
            title,
            self._ended(step),
            step_facts(step),
            [] if step is None else members_of(step, rows),
        )

    def _why_none(self, shown: Snapshot) -> str:
        recalled = self._recalled
        if not recalled.any_came:
            return "reading the steps…"
        if recalled.failure is not None:
            return recalled.failure
        if not shown.steps.count:
            return f"no step ended in {shown.window.span}"
        return "single steps of this time were not kept"

    def _step_of(self, shown: Snapshot) -> tuple[str, Step | None]:
        """The step below the line: the picked one, else the one the moment is about."""
        steps = self._recalled.steps
        if self._picked is not None:
            return f"step #{self._picked.index:,}", self._picked
        if self._view.cursor_ns is None and not self._is_held():
            return _slowest_of(steps)
        title, step = self._one_step(shown)
        if step is None:
            return title, None
        wanted = key_of(step)  # a snapshot tells of steps without their members
        found = next((each for each in reversed(steps) if key_of(each) == wanted), None)
        return title, found or step

    def _rows_of(self, step: Step, shown: Snapshot) -> dict[int, RequestRow]:
        """What is known of the requests of an engine, by ordinal."""
        source = f"{step.source}/"
        return {
            row.ordinal: row
            for row in shown.requests
            if row.ordinal is not None and row.key.startswith(source)
        }

    @on(StepLine.StepChosen)
    def _step_chosen(self, message: StepLine.StepChosen) -> None:
        self._pick(message.step)

    def _pick(self, step: Step) -> None:
        """Put the time cursor at a step; the line stands still around it."""
        shown, steps = self._shown, self._recalled.steps
        if shown is None:
            return
        if self._held_end_ns is None:
            self._held_end_ns = max(steps[-1].end_ns, step.end_ns)
        self._picked = step
        self._view.cursor_ns = step.end_ns
        self.post_message(LookAgain())

    def pick(self, by: int) -> None:
        """The step before the one below the line, or the one after it."""
        steps, shown = self._recalled.steps, self._shown
        if not steps or shown is None:
            return
        _, step = self._step_of(shown)
        keys = [key_of(each) for each in steps]
        here = None if step is None else key_of(step)
        at = keys.index(here) + by if here in keys else len(steps) - 1
        if not 0 <= at < len(steps):
            self._scroll(shown, by)
            return
        self._pick(steps[at])

    def _scroll(self, shown: Snapshot, by: int) -> None:
        """Past an end of the line: half a line further, if there is more."""
        steps = self._recalled.steps
        span_ns = max(steps[-1].end_ns - steps[0].end_ns, NS_PER_S // 10)
        end_ns = self._line_end_ns(shown) + by * span_ns // 2
        self._held_end_ns = min(max(end_ns, 0), shown.charts_end_ns)
        self.post_message(LookAgain())

    def zoom(self, by: int) -> None:
        """More steps a column, or fewer."""
        self._zoom = min(max(self._zoom + by, 0), len(ZOOMS) - 1)
        self.post_message(LookAgain())

    def _ended(self, step: Step | None) -> str:
        if step is None:
            return ""
        return f"ended {self._feed.wall_text(step.end_ns, ms=True)}"


def _slowest_of(steps: Sequence[Step]) -> tuple[str, Step | None]:
    """While time goes on: of those in sight, so that it can be seen."""
    slowest = max(steps, key=lambda step: step.duration_ns, default=None)
    among = counted(len(steps), "step").strip()
    return f"slowest of the {among} above", slowest
