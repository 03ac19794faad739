"""One load run as measured by its client: requests, latencies, events, charts."""

from collections import deque
from dataclasses import field
from typing import Annotated, Any, Self

import msgspec
import numpy as np

from collectors.contract.readings import (
    ClientSample,
    LoadEvent,
    LoadKind,
    Phase,
    RequestRecord,
    TokenTimes,
    Vantage,
)
from inferwatch.metrics.hardware.host_use import HostUse
from inferwatch.metrics.load.client_verdict import unmerged
from inferwatch.metrics.load.goodput import missed_by
from inferwatch.metrics.load.plan import PlanFacts
from inferwatch.metrics.load.progress import RunProgress, SavedRun
from inferwatch.metrics.load.request_latencies import e2el_ns, tpot_ns, ttft_ns
from inferwatch.metrics.load.view import ClientTimeline, LoadRun
from inferwatch.metrics.number import Better, Number, Unit, piece
from inferwatch.metrics.series.curves import (
    ChartedSamples,
    Grid,
    LevelCurve,
    RateCurve,
    SessionBins,
    grid_over,
)
from inferwatch.metrics.series.window import Latency, Window

RECENT = "last 10 s of the run"


@piece("client", Vantage.CLIENT)
class ClientView:
    """One load run as measured by its client, without the warm-up.

    Numbers are of the whole run so far, unless a field says otherwise.
    """

    run: Annotated[
        LoadRun | None,
        Number("run", "Load run", "The load run that these numbers belong to."),
    ] = None
    number: Annotated[
        int,
        Number(
            "run",
            "Number of the run",
            "Its place among the session's runs, in the order in which they began.",
        ),
    ] = 1
    elsewhere: Annotated[
        bool,
        Number(
            "started elsewhere",
            "Started elsewhere",
            "Another program of this user started the run: it can be watched here, "
            "but not changed or stopped.",
        ),
    ] = False
    latencies: Annotated[
        tuple[Latency, ...],
        Number("", "Client latencies", "The client's own latency table."),
    ] = ()
    """ttft_s (from the intended send), tpot_s, itl_s, e2el_s."""
    rate_per_s: Annotated[
        float | None,
        Number(
            "asked",
            "Asked rate",
            "The arrival rate that the load generator was last told to keep.",
            unit=Unit.PER_SECOND,
        ),
    ] = None
    events: Annotated[
        tuple[LoadEvent, ...],
        Number(
            "events",
            "Load events",
            "When the run began, changed and ended; the latest 200 events.",
        ),
    ] = ()
    """Oldest first, with changes of the rate."""
    timeline: Annotated[
        ClientTimeline,
        Number("", "Client columns", "The columns of the client's charts."),
    ] = field(default_factory=ClientTimeline)
    asked_mean_per_s: Annotated[
        float | None,
        Number(
            "asked",
            "Asked rate, mean",
            "The mean of the rate asked of the run, over the time during which there "
            "was one.",
            unit=Unit.PER_SECOND,
        ),
    ] = None
    achieved_per_s: Annotated[
        float | None,
        Number(
            "sent",
            "Achieved rate",
            "Requests sent per second while the run was sending; bursts count, "
            "warm-up and drain do not.",
            unit=Unit.PER_SECOND,
        ),
    ] = None
    slo: Annotated[
        str | None,
        Number(
            "SLO",
            "Objectives",
            "The objectives that a request must meet, all of them, to be good.",
        ),
    ] = None
    judged: Annotated[
        int,
        Number(
            "judged",
            "Judged requests",
            "Requests judged by the objectives; those we aborted before they missed "
            "one are not.",
            unit=Unit.REQUESTS,
        ),
    ] = 0
    good: Annotated[
        int,
        Number(
            "good",
            "Good requests",
            "Requests that met every objective, counted from the time they were due.",
            unit=Unit.REQUESTS,
            better=Better.HIGHER,
        ),
    ] = 0
    verdict: Annotated[
        str,
        Number(
            "client",
            "Client verdict",
            "CLIENT-BOUND if the client was too slow for the latencies it reports: in "
            "the last ten seconds, or over the whole run once it has ended. During a "
            "run it kept up again only after ten good seconds. Not judged, or "
            "UNKNOWN, where there is too little to tell by.",
            span=RECENT,
        ),
    ] = "UNKNOWN"
    """OK, CLIENT-BOUND or UNKNOWN."""
    reasons: Annotated[
        tuple[str, ...],
        Number("why", "Reasons", "Why the client is called CLIENT-BOUND.", span=RECENT),
    ] = ()
    cause: Annotated[
        str | None,
        Number(
            "cause",
            "What kept the client waiting",
            "How many of the client's cores were busy while it was CLIENT-BOUND, and "
            "who kept them busy.",
            span=RECENT,
        ),
    ] = None
    """None where not known."""
    send_lag_p99_s: Annotated[
        float | None,
        Number(
            "send lag p99",
            "Send lag, p99",
            "From the time a request was due until it was sent, where nothing but the "
            "client delayed it, over the last ten seconds of the run.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            span=RECENT,
        ),
    ] = None
    recv_lag_p99_s: Annotated[
        float | None,
        Number(
            "receive",
            "Receive lag, p99",
            "From the kernel's time stamp of a read to the client's own; the worst "
            "p99 reported in the last ten seconds.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            span=RECENT,
        ),
    ] = None
    merged_share: Annotated[
        float | None,
        Number(
            "merged",
            "Merged reads",
            "Share of reads that brought the chunks of several tokens at once, over "
            "the last ten seconds of the run.",
            unit=Unit.SHARE,
            better=Better.LOWER,
            span=RECENT,
        ),
    ] = None
    cpu_share: Annotated[
        float | None,
        Number(
            "CPU",
            "Generator's CPU",
            "Share of one core that the load generator used, over the last ten "
            "seconds of the run.",
            unit=Unit.SHARE,
            better=Better.LOWER,
            span=RECENT,
        ),
    ] = None
    others: Annotated[
        tuple["ClientView", ...],
        Number(
            "other runs", "Other runs", "The session's other load runs, the latest 100."
        ),
    ] = ()
    """Oldest first."""

    @property
    def users(self) -> int | None:
        """Present users of a closed loop; None in an open one."""
        counts = (
            each.users for each in reversed(self.events) if each.users is not None
        )
        return next(counts, None)

    @property
    def measured_per_s(self) -> float | None:
        """The first target rate: as measured by a warm-up, or as planned."""
        changes = (each for each in self.events if each.kind is LoadKind.RATE)
        return next((each.rate_per_s for each in changes), None)

    @property
    def runs(self) -> tuple["ClientView", ...]:
        """This run and the other runs, by start."""
        return tuple(sorted((self, *self.others), key=lambda each: each.number))


Plan = tuple[PlanFacts, str]
"""The facts of a plan, and the whole plan as recorded."""
METRICS = ("ttft_s", "tpot_s", "itl_s", "e2el_s")
MOST_UNMATCHED = 4_096
MOST_EVENTS = 200


class SavedClientRun(msgspec.Struct, array_like=True):
    """A ClientRun as checkpoints keep it, without the rows of its samples."""

    number: int
    elsewhere: bool
    began_ns: int | None
    run: SavedRun
    events: list[LoadEvent]
    asked: LevelCurve
    sent: RateCurve
    unmatched: list[TokenTimes | RequestRecord]
    judged: int
    good: int
    session: dict[str, SessionBins]
    """By metric."""


class ClientRun:
    """Folds the reports of one load run."""

    def __init__(
        self, number: int, progress: RunProgress, *, elsewhere: bool = False
    ) -> None:
        self.number = number
        self.elsewhere = elsewhere
        """Whether it was started elsewhere."""
        self.progress = progress
        self.samples = {metric: ChartedSamples() for metric in METRICS}
        self._slos = dict(progress.plan.objectives()) if progress.plan else {}
        self._began_ns: int | None = None
        self._judged = self._good = 0
        self._events: deque[LoadEvent] = deque(maxlen=MOST_EVENTS)
        self._target = LevelCurve()
        self._sent = RateCurve()
        self._unmatched: dict[str, TokenTimes | RequestRecord] = {}
        """Token times without a record yet, and records without token times."""

    @property
    def run_id(self) -> str:
        return self.progress.run_id

    def event(self, event: LoadEvent) -> None:
        self._began(event.t_ns)
        self._events.append(event)
        self.progress.event(event)
        self._target.set_value(event.t_ns, self.progress.rate_per_s)

    def sample(self, sample: ClientSample, host: HostUse) -> None:
        """Fold a second of the generator's measurements, with its host's CPU use."""
        self._began(sample.t_ns - sample.span_ns)
        self.progress.judge.sample(sample, self.samples["itl_s"], host)
        second = self.progress.sample(sample)
        if second is not None:
            self._sent.add(*second)

    def record(self, record: RequestRecord) -> None:
        self._began(record.intended_ns)
        self.progress.record(record)
        if record.phase is not Phase.WARMUP:
            self._latencies(record)
        if record.first_token_ns is None:
            self._judge(record, [])
        else:
            self._pair(record.external_id, record)

    def tokens(self, times: TokenTimes) -> None:
        """Fold the chunk times of a request; its record may come later."""
        self._pair(times.external_id, times)

    def view(self, now_ns: int, window: Window, grid: Grid) -> ClientView:
        """Return the whole run's view; during the run, charts use the window's bins."""
        over_ns = self.progress.over_ns
        if over_ns is not None and over_ns <= now_ns:
            now_ns, window = over_ns, Window.SESSION
        if window.value is None:
            grid = grid_over(
                now_ns if self._began_ns is None else self._began_ns, now_ns
            )
        timeline = self._timeline(now_ns, window, grid)
        slos = dict.fromkeys(map(str, self._slos.values()))
        run = self.progress.view(now_ns)
        quality = self._quality()
        return ClientView(
            **quality,
            run=run,
            number=self.number,
            elsewhere=self.elsewhere,
            rate_per_s=run.rate_per_s,
            latencies=self._table(now_ns, timeline, quality["merged_share"]),
            events=tuple(self._events),
            timeline=timeline,
            asked_mean_per_s=self._target.mean(now_ns),
            achieved_per_s=self._sent.over(None, now_ns),
            slo=", ".join(slos) or None,
            judged=self._judged,
            good=self._good,
        )

    def saved(self) -> SavedClientRun:
        """Return the state for a checkpoint, without rows of samples."""
        return SavedClientRun(
            number=self.number,
            elsewhere=self.elsewhere,
            began_ns=self._began_ns,
            run=self.progress.saved(),
            events=list(self._events),
            asked=self._target,
            sent=self._sent,
            unmatched=list(self._unmatched.values()),
            judged=self._judged,
            good=self._good,
            session={name: each.session for name, each in self.samples.items()},
        )

    @classmethod
    def restored(cls, saved: SavedClientRun) -> Self:
        progress = RunProgress.restored(saved.run)
        run = cls(saved.number, progress, elsewhere=saved.elsewhere)
        run._began_ns, run._target, run._sent = saved.began_ns, saved.asked, saved.sent
        run._judged, run._good = saved.judged, saved.good
        run._events.extend(saved.events)
        run._unmatched = {each.external_id: each for each in saved.unmatched}
        for name, session in saved.session.items():
            run.samples[name].session = session
        return run

    def _timeline(self, now_ns: int, window: Window, grid: Grid) -> ClientTimeline:
        ttft = self.samples["ttft_s"].columns(window, grid)
        itl = self.samples["itl_s"].columns(window, grid)
        return ClientTimeline(
            start_ns=grid.start_ns,
            bin_ns=grid.bin_ns,
            asked_per_s=self._target.columns(grid, now_ns),
            sent_per_s=self._sent.columns(grid),
            ttft_mean_s=ttft[0],
            ttft_max_s=ttft[1],
            itl_mean_s=itl[0],
            itl_max_s=itl[1],
        )

    def _table(
        self, now_ns: int, timeline: ClientTimeline, merged_share: float | None
    ) -> tuple[Latency, ...]:
        trends = {"ttft_s": timeline.ttft_max_s, "itl_s": timeline.itl_max_s}
        return tuple(
            Latency(
                metric=metric,
                vantage=Vantage.CLIENT,
                quantiles=unmerged(
                    samples.quantiles(now_ns, Window.SESSION),
                    merged_share if metric == "itl_s" else None,
                ),
                trend=trends.get(metric, ()),
            )
            for metric, samples in self.samples.items()
        )

    def _quality(self) -> dict[str, Any]:
        run = self.progress
        quality = run.judge.quality(self.samples["itl_s"], ended=run.ended)
        return {
            "verdict": quality.verdict.state.value,
            "reasons": quality.verdict.reasons,
            "cause": quality.verdict.cause,
            "send_lag_p99_s": quality.send_lag_p99_s,
            "recv_lag_p99_s": quality.recv_lag_p99_s,
            "merged_share": quality.merged_share,
            "cpu_share": quality.cpu_share,
        }

    def _began(self, t_ns: int) -> None:
        if self._began_ns is None or t_ns < self._began_ns:
            self._began_ns = t_ns

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
        """Join a record with its token times, whichever comes first."""
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
        """Count a request as good or not, if it can be judged."""
        slo = self._slos.get(record.class_name or "", self._slos.get(""))
        if slo is None or record.phase is Phase.WARMUP:
            return
        missed = missed_by(record, gaps_ns, slo)
        if missed is not None:
            self._judged += 1
            self._good += not missed
