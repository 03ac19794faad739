"""What the load generator's client saw; warm-up is counted and left out."""

from collections import deque
from typing import Any

import msgspec
import numpy as np

from collectors.readings import (
    ClientSample,
    LoadEvent,
    LoadKind,
    LoadPlanned,
    Phase,
    RequestRecord,
    TokenTimes,
    Vantage,
)
from inferwatch.metrics.engine.cost import HostUse
from inferwatch.metrics.load.book import ABORTED
from inferwatch.metrics.load.goodput import broken_by
from inferwatch.metrics.load.plan import PlanFacts, plan_facts
from inferwatch.metrics.load.progress import RunProgress, SavedRun
from inferwatch.metrics.load.request_latencies import e2el_ns, tpot_ns, ttft_ns
from inferwatch.metrics.load.slo import Slo
from inferwatch.metrics.load.view import ClientTimeline
from inferwatch.metrics.series.curves import (
    ChartedSamples,
    Grid,
    LevelCurve,
    RateCurve,
    SessionBins,
)
from inferwatch.metrics.series.samples import Counters
from inferwatch.metrics.snapshot import ClientView, Latency, Window

METRICS = ("ttft_s", "tpot_s", "itl_s", "e2el_s")
MOST_UNMATCHED = 4_096
MOST_EVENTS = 200


class SavedLoadClient(msgspec.Struct, array_like=True):
    """The state of a ``LoadClient`` in a checkpoint, but for its samples and counts."""

    began_ns: int | None
    plan: tuple[PlanFacts, str] | None
    run: SavedRun | None
    events: list[LoadEvent]
    asked: LevelCurve
    sent: RateCurve
    unmatched: list[TokenTimes | RequestRecord]
    host: HostUse
    session: dict[str, SessionBins]
    """By metric."""


class LoadClient:
    """Folds what the load generator reports: its requests, latencies and runs."""

    def __init__(self) -> None:
        self.began_ns: int | None = None
        """The first moment anything is known of; None when there is no load of ours."""
        self.samples = {metric: ChartedSamples() for metric in METRICS}
        self.counters = Counters("sent", "succeeded", "failed", "aborted", "warmup")
        self.objectives = Counters("judged", "good")
        self._slos: dict[str, Slo] = {}
        self._plan: tuple[PlanFacts, str] | None = None
        self._run: RunProgress | None = None
        self._host = HostUse()
        self._events: deque[LoadEvent] = deque(maxlen=MOST_EVENTS)
        self._asked = LevelCurve()
        self._sent = RateCurve()
        self._unmatched: dict[str, TokenTimes | RequestRecord] = {}
        """Token times whose record has not come, records whose token times have not."""

    def planned(self, planned: LoadPlanned) -> None:
        """Take in the plan of the run that follows."""
        if (facts := plan_facts(planned)) is not None:
            self._plan = facts, planned.plan

    def event(self, event: LoadEvent) -> None:
        """Take in what the load generator began or ended."""
        self._began(event.t_ns)
        self._events.append(event)
        run = self._run_of(event.source, begins=event.kind is LoadKind.STARTED)
        if run is not None:
            run.event(event)
            self._asked.tell(event.t_ns, run.rate_per_s)

    def sample(self, sample: ClientSample) -> None:
        """Take in one second of the generator itself."""
        self._began(sample.t_ns - sample.span_ns)
        run = self._run_of(sample.source)
        if run is not None:
            run.judge.sample(sample, self.samples["itl_s"], self._host)
            second = run.sample(sample)
            if second is not None:
                self._sent.add(*second)

    def host(self, use: HostUse) -> None:
        """Take in how busy the host is."""
        self._host = use

    def record(self, record: RequestRecord) -> int:
        """Take in a complete request; returns when it ended."""
        self._began(record.intended_ns)
        t_ns = ended_ns(record)
        run = self._run_of(record.source)
        if run is not None:
            run.record(record)
        if record.phase is Phase.WARMUP:
            self.counters.add(t_ns, 0, 0, 0, 0, 1)
        else:
            self.counters.add(t_ns, 1, *_ended(record), 0)
            self._latencies(record)
        if record.first_token_ns is None:
            self._judge(record, [])
        else:
            self._pair(record.external_id, record)
        return t_ns

    def tokens(self, times: TokenTimes) -> None:
        """Take in when a request's chunks came; its record may come later."""
        self._pair(times.external_id, times)

    def view(self, now_ns: int, window: Window, grid: Grid) -> ClientView | None:
        """The load over a window, on its bins; None when there is none of ours."""
        if self.began_ns is None:
            return None
        run = self._run.view(now_ns) if self._run else None
        timeline = self._timeline(now_ns, window, grid)
        asked = [rate for rate in timeline.asked_per_s if rate is not None]
        since_ns = None if window.value is None else now_ns - window.value
        slos = dict.fromkeys(map(str, self._slos.values()))
        counts: dict[str, Any] = {
            **self.counters.over(now_ns, window).sums,
            **self.objectives.over(now_ns, window).sums,
        }
        return ClientView(
            **counts,
            **self._quality(),
            rate_per_s=run.rate_per_s if run else None,
            last_event=self._events[-1] if self._events else None,
            latencies=self._table(now_ns, window, timeline),
            run=run,
            events=tuple(self._events),
            timeline=timeline,
            asked_mean_per_s=sum(asked) / len(asked) if asked else None,
            achieved_per_s=self._sent.over(since_ns, now_ns),
            slo=", ".join(slos) or None,
        )

    def saved(self) -> SavedLoadClient:
        """Its state for a checkpoint, but for the rows of samples and counts."""
        return SavedLoadClient(
            began_ns=self.began_ns,
            plan=self._plan,
            run=self._run.saved() if self._run else None,
            events=list(self._events),
            asked=self._asked,
            sent=self._sent,
            unmatched=list(self._unmatched.values()),
            host=self._host,
            session={name: each.session for name, each in self.samples.items()},
        )

    def restore(self, saved: SavedLoadClient) -> None:
        """Take over what was saved."""
        self.began_ns, self._plan = saved.began_ns, saved.plan
        self._asked, self._sent = saved.asked, saved.sent
        self._host = saved.host
        self._events.extend(saved.events)
        self._unmatched = {each.external_id: each for each in saved.unmatched}
        if saved.run is not None:
            self._begin(RunProgress.restored(saved.run))
        for name, session in saved.session.items():
            self.samples[name].session = session

    def _timeline(self, now_ns: int, window: Window, grid: Grid) -> ClientTimeline:
        ttft = self.samples["ttft_s"].columns(window, grid)
        itl = self.samples["itl_s"].columns(window, grid)
        return ClientTimeline(
            asked_per_s=self._asked.columns(grid, now_ns),
            sent_per_s=self._sent.columns(grid),
            ttft_mean_s=ttft[0],
            ttft_max_s=ttft[1],
            itl_mean_s=itl[0],
            itl_max_s=itl[1],
        )

    def _table(
        self, now_ns: int, window: Window, timeline: ClientTimeline
    ) -> tuple[Latency, ...]:
        trends = {"ttft_s": timeline.ttft_max_s, "itl_s": timeline.itl_max_s}
        return tuple(
            Latency(
                metric=metric,
                vantage=Vantage.CLIENT,
                quantiles=samples.quantiles(now_ns, window),
                trend=trends.get(metric, ()),
            )
            for metric, samples in self.samples.items()
        )

    def _quality(self) -> dict[str, Any]:
        if self._run is None:
            return {}
        run = self._run
        found = run.judge.quality(self.samples["itl_s"], ended=run.ended)
        return {
            "verdict": found.verdict.state.value,
            "reasons": found.verdict.reasons,
            "cause": found.verdict.cause,
            "send_lag_p99_s": found.send_lag_p99_s,
            "recv_lag_p99_s": found.recv_lag_p99_s,
            "merged_share": found.merged_share,
            "cpu_share": found.cpu_share,
        }

    def _began(self, t_ns: int) -> None:
        if self.began_ns is None or t_ns < self.began_ns:
            self.began_ns = t_ns

    def _run_of(self, source: str, *, begins: bool = False) -> RunProgress | None:
        """The run that a reading belongs to; None if that is an earlier one."""
        known = self._run
        if known is None or (begins and known.run_id != source):
            plan = self._plan if self._plan and self._plan[0].run_id == source else None
            known = self._begin(RunProgress(source, plan))
        return known if known.run_id == source else None

    def _begin(self, run: RunProgress) -> RunProgress:
        self._run = run
        self._slos = dict(run.plan.objectives()) if run.plan else {}
        return run

    def _latencies(self, record: RequestRecord) -> None:
        first_ns, last_ns = record.first_token_ns, record.last_token_ns
        for metric, at_ns, value_ns in (
            ("ttft_s", first_ns, ttft_ns(record)),
            ("e2el_s", last_ns, e2el_ns(record)),
            ("tpot_s", last_ns, tpot_ns(record)),
        ):
            if at_ns is not None and value_ns is not None:
                self.samples[metric].add(at_ns, value_ns)

    def _pair(self, external_id: str, half: TokenTimes | RequestRecord) -> None:
        """Complete a request from its record and its token times, in either order."""
        other = self._unmatched.pop(external_id, None)
        if isinstance(half, TokenTimes) and isinstance(other, RequestRecord):
            self._complete(other, half)
        elif isinstance(half, RequestRecord) and isinstance(other, TokenTimes):
            self._complete(half, other)
        else:
            self._unmatched[external_id] = half
            while len(self._unmatched) > MOST_UNMATCHED:
                del self._unmatched[next(iter(self._unmatched))]

    def _complete(self, record: RequestRecord, times: TokenTimes) -> None:
        if record.phase is Phase.WARMUP:
            return
        if record.failure is None:
            gaps_ns = np.array(times.gaps_ns, np.int64)
            at_ns = times.first_ns + np.cumsum(gaps_ns)
            self.samples["itl_s"].add_many(at_ns, gaps_ns)
        self._judge(record, times.gaps_ns)

    def _judge(self, record: RequestRecord, gaps_ns: list[int]) -> None:
        """Count it as good or not, unless we aborted it before it broke a limit."""
        slo = self._slos.get(record.class_name or "", self._slos.get(""))
        if slo is None or record.phase is Phase.WARMUP:
            return
        broken = broken_by(record, gaps_ns, slo)
        if broken or record.failure != ABORTED:
            good = not broken and record.failure is None
            self.objectives.add(ended_ns(record), 1, int(good))


def _ended(record: RequestRecord) -> tuple[int, int, int]:
    """Succeeded, failed, aborted by us: exactly one of them is 1."""
    succeeded, aborted = record.failure is None, record.failure == ABORTED
    return int(succeeded), int(not succeeded and not aborted), int(aborted)


def ended_ns(record: RequestRecord) -> int:
    """The last moment known of a request."""
    moments = (record.end_ns, record.last_token_ns, record.sent_ns)
    return next((t_ns for t_ns in moments if t_ns is not None), record.intended_ns)
