"""Predictions for other limits, and the outcome of changes."""

import asyncio
from math import ceil
from threading import Event

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import LimitChange
from inferwatch.feed import Feed, FeedState, LimitPair, Mark, MarkKind
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.studies.what_if.prediction import WhatIf, predict
from inferwatch.studies.what_if.recorded import RecordedRun
from inferwatch.studies.what_if.setting import SettingChange
from inferwatch.studies.what_if.shown import run_shown
from inferwatch.ui.kit.dialogs import GivenUpError
from inferwatch.ui.knobs.knob_state import KnobState
from inferwatch.ui.knobs.span_numbers import SpanNumbers, span_numbers

LEARN_NS = 300 * NS_PER_S
"""The last minutes are kept in memory."""
SIDE_NS = 30 * NS_PER_S
"""Time before and after a change."""
RUN_HOLDS_NS = 20 * NS_PER_S
"""How long a learnt load is used for predictions."""


class Outlook:
    """Predictions and outcomes for one server, or all."""

    def __init__(self, feed: Feed, source: str | None) -> None:
        self._feed, self._source = feed, source
        self._run: tuple[int, int, RecordedRun] | None = None
        """When it was learnt, since which change, and the run."""
        self._sides: dict[tuple[int, int], SpanNumbers] = {}
        """Past spans, which do not change."""

    async def prediction(
        self, wanted: LimitPair, state: KnobState, given_up: Event
    ) -> WhatIf:
        """Predict these limits for the time since the last change.

        Raises:
            CannotTellError: too little is known.
            GivenUpError: the dialog was closed.
        """

        def heard(_: int) -> None:
            if given_up.is_set():
                raise GivenUpError

        run = await self._learnt(changed_ns(state) or 0)
        change = SettingChange(
            max_num_seqs=wanted.max_num_seqs,
            max_num_batched_tokens=wanted.max_num_batched_tokens,
        )
        return await asyncio.to_thread(predict, run, [change], heard)

    async def _learnt(self, since_ns: int) -> RecordedRun:
        feed, now_ns = self._feed, self._feed.now_ns()
        if self._run is not None:
            learnt_ns, of_ns, run = self._run
            if of_ns == since_ns and 0 <= now_ns - learnt_ns < RUN_HOLDS_NS:
                return run
        shown = feed.snapshot(
            SnapshotQuery(Window.SESSION, client=True, source=self._source)
        )
        begin_ns = max(now_ns - LEARN_NS, since_ns, 0)
        steps = await feed.recall.steps(begin_ns, now_ns, self._source)
        run = await asyncio.to_thread(run_shown, shown, steps, self._source)
        self._run = now_ns, since_ns, run
        return run

    async def outcome(self, change_ns: int) -> tuple[SpanNumbers, SpanNumbers | None]:
        """Return numbers before and after a change; None until the latter is over."""
        before = await self._side(self._begin_ns(change_ns), change_ns)
        if self.left_ns(change_ns) > 0:
            return before, None
        return before, await self._side(change_ns, change_ns + SIDE_NS)

    def left_ns(self, change_ns: int) -> int:
        """Return the time until the span after the change is over."""
        return max(change_ns + SIDE_NS - self._feed.now_ns(), 0)

    def waits_text(self, change_ns: int) -> str:
        """Return the heading of a span that is not over."""
        left_ns, playback = self.left_ns(change_ns), self._feed.playback
        if not left_ns:
            return ""
        if playback is not None and not (playback.at_live or playback.playing):
            return "after: view is held"
        if self._feed.state in {FeedState.LOST, FeedState.ENDED}:
            return "after: engine gone"
        return f"after: in {ceil(left_ns / NS_PER_S)} s"

    def changes(self) -> tuple[Mark, ...]:
        playback, now_ns = self._feed.playback, self._feed.now_ns()
        marks = playback.marks if playback is not None else ()
        return tuple(m for m in marks if m.kind is MarkKind.LIMITS and m.t_ns <= now_ns)

    def _begin_ns(self, change_ns: int) -> int:
        """Return the start of the span before, no earlier than the previous change."""
        earlier = [m.t_ns for m in self.changes() if m.t_ns < change_ns - NS_PER_S]
        return max([change_ns - SIDE_NS, 0, *earlier])

    async def _side(self, start_ns: int, end_ns: int) -> SpanNumbers:
        span = start_ns, end_ns
        if span not in self._sides:
            feed, source = self._feed, self._source
            shown = feed.snapshot(
                SnapshotQuery(Window.SESSION, client=False, source=source)
            )
            steps = await feed.recall.steps(start_ns, end_ns, source)
            made = await asyncio.to_thread(span_numbers, shown, steps, *span)
            self._sides[span] = made
        return self._sides[span]


def changed_ns(state: KnobState) -> int | None:
    """Return when the limits in force were set, None if unknown."""
    times_ns = [e.t_ns for e in state.limits if e.change is not LimitChange.START]
    since_ns = max(times_ns, default=0)
    return since_ns if since_ns > 0 and not state.pending else None
