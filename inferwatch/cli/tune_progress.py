"""The progress of a tune on stderr: a line for each trial, and one that changes."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from inferwatch.cli.say import say, say_no_more, say_now
from inferwatch.formatting import format_about, format_duration, format_rate
from inferwatch.studies.tune.progress import TuneProgress, TuneStage, TuneTask
from inferwatch.studies.tune.result.scores import trial_text
from inferwatch.studies.tune.trial import Trial

LIVE_S, LINES_S = 0.25, 0.5
"""Intervals between two updates, on a terminal and elsewhere."""
BAR_CELLS = 16


@contextmanager
def shown_tune(task: TuneTask) -> Iterator[None]:
    """Show the progress of a tune while the context lasts."""
    log = TuneLog(task)
    showing = asyncio.create_task(log.show())
    try:
        yield
    finally:
        showing.cancel()
        log.tell()


class TuneLog:
    """Prints each trial and each message of a tune once."""

    def __init__(self, task: TuneTask) -> None:
        self._task = task
        self._live_line = sys.stderr.isatty()
        self._trials = 0
        self._last_message: str | None = None

    async def show(self) -> None:
        """Print updates until cancelled."""
        while True:
            self.tell(live=self._live_line)
            await asyncio.sleep(LIVE_S if self._live_line else LINES_S)

    def tell(self, *, live: bool = False) -> None:
        """Print what is new, and on a terminal what is under way."""
        now = self._task.progress
        lines = [*self._sentences(now), *self._new_trials(now)]
        if lines and self._live_line:
            say_no_more()
        for line in lines:
            say(line, err=True)
        if live and now.stage is not TuneStage.DONE:
            say_now(stage_line(now))
        elif self._live_line:
            say_no_more()

    def _new_trials(self, now: TuneProgress) -> Iterator[str]:
        fresh, self._trials = now.trials[self._trials :], len(now.trials)
        for trial in fresh:
            if trial.record.number > now.earlier:
                yield trial_line(trial, now)

    def _sentences(self, now: TuneProgress) -> Iterator[str]:
        """Yield messages that are new; the tune itself keeps only the latest."""
        messages = list(now.said)
        start = 0
        if self._last_message in messages:
            start = len(messages) - messages[::-1].index(self._last_message)
        for text in messages[start:]:
            yield f"{format_duration(now.elapsed_s)}  {text}"
        if messages:
            self._last_message = messages[-1]


def trial_line(trial: Trial, now: TuneProgress) -> str:
    """Return a trial's result, and how long the tune will still take."""
    record, came = trial.record, trial_text(trial, now.goal)
    left = f"; {left_text(now)}" if left_text(now) else ""
    elapsed = format_duration(now.elapsed_s)
    return f"{elapsed}  #{record.number} {record.point.text}: {came}{left}"


def left_text(now: TuneProgress) -> str:
    """Return a text such as ``about 12 min left``; empty if that is unknown."""
    if now.left_s is None or now.stage is TuneStage.DONE:
        return ""
    return f"about {format_about(now.left_s)} left"


def stage_line(now: TuneProgress) -> str:
    """Return what is under way: stage, setting, and progress."""
    share = now.stage_share
    bar = ""
    if share is not None:
        filled = round(min(share, 1.0) * BAR_CELLS)
        bar = "━" * filled + "╌" * (BAR_CELLS - filled) + "  "
    at = f" {now.now.point.text}" if now.now else ""
    if now.rate_per_s is not None:
        at += f" at {format_rate(now.rate_per_s).strip()} requests/s"
    facts = [f"{now.stage}{at}", f"{now.stage_s:.0f} s", left_text(now)]
    return bar + "  ".join(each for each in facts if each)
