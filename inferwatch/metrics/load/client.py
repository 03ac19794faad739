"""The load runs of a session, as measured by their clients."""

from collections import deque
from dataclasses import replace

import msgspec

from collectors.contract.readings import (
    ClientSample,
    LoadEvent,
    LoadKind,
    LoadPlanned,
    RequestRecord,
    TokenTimes,
)
from inferwatch.metrics.hardware.host_use import HostUse
from inferwatch.metrics.load.client_run import (
    ClientRun,
    ClientView,
    Plan,
    SavedClientRun,
)
from inferwatch.metrics.load.plan import plan_facts
from inferwatch.metrics.load.progress import RunProgress
from inferwatch.metrics.series.curves import Grid
from inferwatch.metrics.series.samples import Samples
from inferwatch.metrics.series.saving import Parts, WrittenParts
from inferwatch.metrics.series.window import Window

MOST_AT_ONCE = 4
"""Largest number of runs followed at the same time."""
MOST_EARLIER = 100
"""Largest number of ended runs still shown."""
MOST_PLANNED = 8


class SavedLoadClient(msgspec.Struct, array_like=True):
    """A LoadClient as checkpoints keep it, without the rows of samples."""

    began_ns: int | None
    begun: int
    plans: list[Plan]
    elsewhere: list[str]
    runs: list[SavedClientRun]
    earlier: list[int]
    """Numbers of the parts with the ended runs."""
    host: HostUse


class LoadClient:
    """Folds the reports of load generators, each run by itself.

    A run that ended is kept as last reported, once another one has begun.
    """

    def __init__(self) -> None:
        self.began_ns: int | None = None
        """The first moment that is known of; None without a load run."""
        self._begun = 0
        self._plans: dict[str, Plan] = {}
        """Plans of runs that have not begun."""
        self._elsewhere: dict[str, None] = {}
        """Those of these runs that were started elsewhere."""
        self._runs: dict[str, ClientRun] = {}
        """Runs by start, latest last."""
        self._earlier: deque[ClientView] = deque(maxlen=MOST_EARLIER)
        self._host = HostUse()

    def planned(self, planned: LoadPlanned) -> None:
        if (facts := plan_facts(planned)) is not None:
            self._plans[facts.run_id] = facts, planned.plan
            if planned.elsewhere:
                self._elsewhere[facts.run_id] = None
            while len(self._plans) > MOST_PLANNED:
                del self._plans[next(iter(self._plans))]
            while len(self._elsewhere) > MOST_PLANNED:
                del self._elsewhere[next(iter(self._elsewhere))]

    def event(self, event: LoadEvent) -> None:
        self._began(event.t_ns)
        run = self._run_of(event.source, begins=event.kind is LoadKind.STARTED)
        if run is not None:
            run.event(event)

    def sample(self, sample: ClientSample) -> None:
        """Fold one second of a generator's own measurements."""
        self._began(sample.t_ns - sample.span_ns)
        if (run := self._run_of(sample.source)) is not None:
            run.sample(sample, self._host)

    def host(self, use: HostUse) -> None:
        self._host = use

    def record(self, record: RequestRecord) -> int:
        """Fold a complete request, and return when it ended."""
        self._began(record.intended_ns)
        if (run := self._run_of(record.source)) is not None:
            run.record(record)
        return ended_ns(record)

    def tokens(self, times: TokenTimes) -> None:
        """Fold the chunk times of a request; its record may come later."""
        if (run := self._run_of(times.source)) is not None:
            run.tokens(times)

    def view(self, now_ns: int, window: Window, grid: Grid) -> ClientView | None:
        """Return the latest run's view, with those of other runs; None without any."""
        if not self._runs:
            return None
        views = [each.view(now_ns, window, grid) for each in self._runs.values()]
        others = sorted((*self._earlier, *views[:-1]), key=lambda each: each.number)
        return replace(views[-1], others=tuple(others))

    @property
    def bound_because(self) -> str | None:
        """Why the latest run's generator is too slow now; None while it is not."""
        run = next(reversed(self._runs.values()), None)
        if run is None or run.progress.ended:
            return None
        return run.progress.judge.bound_because

    def samples(self) -> dict[str, Samples]:
        """Return the samples of runs that may still report, by name."""
        return {
            f"client {run.run_id} {metric}": samples
            for run in self._runs.values()
            for metric, samples in run.samples.items()
        }

    def saved(self, parts: Parts) -> SavedLoadClient:
        """Return the state for a checkpoint, without rows of samples."""
        return SavedLoadClient(
            began_ns=self.began_ns,
            begun=self._begun,
            plans=list(self._plans.values()),
            elsewhere=list(self._elsewhere),
            runs=[each.saved() for each in self._runs.values()],
            earlier=[parts.add(each, lasts=True) for each in self._earlier],
            host=self._host,
        )

    def restore(self, saved: SavedLoadClient, written: WrittenParts) -> None:
        self.began_ns, self._begun = saved.began_ns, saved.begun
        self._host = saved.host
        self._plans = {facts.run_id: (facts, plan) for facts, plan in saved.plans}
        self._elsewhere = dict.fromkeys(saved.elsewhere)
        self._runs = {each.run.run_id: ClientRun.restored(each) for each in saved.runs}
        self._earlier.extend(written.get(each, ClientView) for each in saved.earlier)

    def _began(self, t_ns: int) -> None:
        if self.began_ns is None or t_ns < self.began_ns:
            self.began_ns = t_ns

    def _run_of(self, source: str, *, begins: bool = False) -> ClientRun | None:
        """Return the run of a reading; None if it ended and is kept only as a view."""
        run = self._runs.get(source)
        if run is None and (begins or source in self._plans or not self._runs):
            run = self._begin(source)
        return run

    def _begin(self, run_id: str) -> ClientRun:
        going_on = [each for each in self._runs.values() if not each.progress.ended]
        for each in tuple(self._runs.values()):
            if each.progress.ended or each not in going_on[-MOST_AT_ONCE:]:
                self._put_away(each)
        self._begun += 1
        plan = self._plans.pop(run_id, None)
        elsewhere = run_id in self._elsewhere
        self._elsewhere.pop(run_id, None)
        progress = RunProgress(run_id, plan)
        run = ClientRun(self._begun, progress, elsewhere=elsewhere)
        self._runs[run_id] = run
        return run

    def _put_away(self, run: ClientRun) -> None:
        """Keep the view of an ended run, and release its samples."""
        del self._runs[run.run_id]
        over_ns = run.progress.over_ns or 0
        self._earlier.append(run.view(over_ns, Window.SESSION, Grid(0, 1, 1)))
        for samples in run.samples.values():
            samples.rows.release()


def ended_ns(record: RequestRecord) -> int:
    moments = (record.end_ns, record.last_token_ns, record.sent_ns)
    return next((t_ns for t_ns in moments if t_ns is not None), record.intended_ns)
